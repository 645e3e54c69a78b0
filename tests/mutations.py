"""Files that are almost right, made by the thousand from a seed, and what must come of loading them.

A `Subject` makes mutants of one kind of file and loads them. Loading must end in a `ValueError` in one line that begins with
the file's name (or in another error that the subject allows), or in what the file says.
Anything else is a failure: another exception, another content, more than
`SECONDS`, or more memory than the process may take.

To add a kind of file: a module with a subclass of `Subject` and its `SUBJECTS`, and a test that calls `try_all`.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from limits import run_limited

SECONDS, WALL_SECONDS = 10, 60
"""Of the processor, and of the clock: on a busy machine a file is not to blame for what others take."""


@dataclass(frozen=True)
class Mutant:
    """A changed file.

    Attributes:
      kind: of the change, for the counts.
      content: of the file.
      expected: what it holds, for `Subject.holds`, if it is accepted.
    """

    kind: str
    content: bytes
    expected: Any


class Subject(ABC):
    """One kind of file."""

    suffix: str
    structural_share: float = 0.5
    """How many of its mutants are structural; the others are changed bytes."""
    errors: tuple[type[Exception], ...] = (ValueError,)
    """The very classes of errors that say clearly what is wrong."""

    @abstractmethod
    def original(self) -> Mutant:
        """A file that loads."""

    @abstractmethod
    def structural(self, rng: random.Random) -> Mutant:
        """A file whose content is changed and whose checksums are made right again."""

    @abstractmethod
    def load(self, path: Path) -> Any:
        """Reads a file as a user would."""

    def names(self, message: str, path: Path) -> bool:
        """Whether an error says what it is about."""
        return message.startswith(f"{path}: ")

    @abstractmethod
    def holds(self, loaded: Any, expected: Any) -> bool:
        """Whether what was loaded is what the file says."""


def flip_bits(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def overwrite(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    for i in range(start, min(start + rng.randint(1, 16), len(content))):
        content[i] = rng.randrange(256)


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def remove(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    del content[start : start + rng.randint(1, 64)]


def insert(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    content[start:start] = rng.randbytes(rng.randint(1, 64))


def repeat(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    content[start:start] = content[start : start + rng.randint(1, 512)]


def exchange(content: bytearray, rng: random.Random) -> None:
    length = rng.randint(1, max(1, min(256, len(content) // 3)))
    a, b = sorted(rng.sample(range(len(content) - length), 2))
    content[a : a + length], content[b : b + length] = content[b : b + length], content[a : a + length]


BYTE_CHANGES: list[Callable[[bytearray, random.Random], None]] = [
    flip_bits,
    overwrite,
    cut,
    remove,
    insert,
    repeat,
    exchange,
]


def random_bytes(original: Mutant, rng: random.Random) -> Mutant:
    """A change that knows nothing of the format; half of them near the beginning or the end, where the structure is."""
    content, change = bytearray(original.content), rng.choice(BYTE_CHANGES)
    if rng.random() < 0.5 or len(content) < 4096:
        change(content, rng)
    else:
        part = slice(0, 2048) if rng.random() < 0.5 else slice(len(content) - 2048, len(content))
        piece = content[part]
        change(piece, rng)
        content[part] = piece
    return Mutant(f"bytes: {change.__name__}", bytes(content), original.expected)


ODD_VALUES: list[Any] = [
    *(0, -1, 1, 2, 7, 10**6, 10**9, 2**31, 2**62, 2**63, 10**18, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
    *("", "x", "normalize", "\0", "ü" * 1000, None, True, False),
    *([], {}, [0], [1] * 300, [[]], {"a": 1}, [None], ["x"], [1.5], [10**9], [2**62]),
]


def change_plain(plain: Any, rng: random.Random) -> Any:
    """Plain data with one part of it changed: a value, a field that is gone or new, an entry moved or repeated."""
    plain = json.loads(json.dumps(plain))
    parent, key, inner = None, None, plain
    while isinstance(inner, dict | list) and inner and (parent is None or rng.random() < 0.85):
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        parent, key = inner, rng.choice(keys)
        inner = parent[key]
    if parent is None:
        return rng.choice(ODD_VALUES)
    choice = rng.random()
    if choice < 0.6:
        parent[key] = rng.choice(ODD_VALUES)
    elif choice < 0.7:
        del parent[key]
    elif isinstance(parent, dict):
        parent[rng.choice(["new", key + "x", ""])] = rng.choice([inner, *ODD_VALUES])
    elif choice < 0.8:
        parent.insert(rng.randrange(len(parent) + 1), inner)
    elif choice < 0.9:
        rng.shuffle(parent)
    else:
        parent *= rng.choice([0, 2, 50, 1000])
    return plain


@dataclass
class Outcome:
    """How many mutants of each kind were refused and accepted, and what went wrong."""

    refused: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    structural: int = 0


def too_long(*_: object) -> None:
    raise TimeoutError(f"took more than {SECONDS} seconds of the processor, or {WALL_SECONDS} of the clock")


def stop_clocks() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)


def try_mutants(subject: Subject, count: int, seed: int, folder: Path) -> Outcome:
    """Loads `count` mutants, half of them changed bytes and half structural. Runs in a process of its own, see limits.py."""
    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGPROF, too_long)
    outcome, original = Outcome(), subject.original()
    for i in range(count):
        rng = random.Random(f"{seed} {i}")
        is_structural = int((i + 1) * subject.structural_share) > int(i * subject.structural_share)
        mutant = subject.structural(rng) if is_structural else random_bytes(original, rng)
        outcome.structural += is_structural
        path = folder / f"mutant{subject.suffix}"
        path.write_bytes(mutant.content)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WALL_SECONDS)
        try:
            loaded = subject.load(path)
        except subject.errors as error:
            stop_clocks()
            message = str(error)
            is_clear = "\n" not in message and len(message) < 2000 and subject.names(message, path)
            if type(error) in subject.errors and is_clear:
                outcome.refused[mutant.kind] += 1
            else:
                outcome.failures.append(f"{i} {mutant.kind}: not a clear error: {type(error).__name__} {message[:300]!r}")
        except BaseException as error:
            stop_clocks()
            where = traceback.format_exc().splitlines()[-5:]
            outcome.failures.append(f"{i} {mutant.kind}: {type(error).__name__}: {error} {where}")
        else:
            stop_clocks()
            if subject.holds(loaded, mutant.expected):
                outcome.accepted[mutant.kind] += 1
            else:
                outcome.failures.append(f"{i} {mutant.kind}: accepted, but it is not what the file says")
    return outcome


MAIN = """
sys.path.insert(0, {folder!r})
from mutations import try_mutants
from {module} import SUBJECTS
outcome = try_mutants(SUBJECTS[sys.argv[1]](), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
print(json.dumps([outcome.refused, outcome.accepted, outcome.failures, outcome.structural]))
"""


def try_all(module: ModuleType, name: str, count: int, seed: int, folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """`try_mutants` with a subject of `module.SUBJECTS`, in a process that may take 1 GB.

    Returns how many mutants were refused and accepted, by kind; fails with the first that were neither.
    """
    code = MAIN.format(folder=str(Path(str(module.__file__)).parent), module=module.__name__)
    output = run_limited(code, name, count, seed, folder, timeout=3600)
    refused, accepted, failures, structural = json.loads(output.splitlines()[-1])
    assert not failures, f"{len(failures)} of {count}:\n" + "\n".join(failures[:10])
    assert sum(refused.values()) + sum(accepted.values()) == count and structural >= count // 2
    return refused, accepted


def report(name: str, refused: dict[str, int], accepted: dict[str, int]) -> None:
    """Prints the counts; `pytest -s` shows them."""
    total, right = sum(refused.values()), sum(accepted.values())
    print(f"\n{name}: {total} refused by name, {right} loaded with the content that they have", file=sys.stderr)
    for kind in sorted({*refused, *accepted}):
        print(f"  {kind:32s} {refused.get(kind, 0):5d} refused {accepted.get(kind, 0):5d} right", file=sys.stderr)
