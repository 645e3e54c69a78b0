"""Finds or downloads the released weights of Disco103."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path

from disco_torch.files import replacing
from disco_torch.weights.files import sha256_of

DISCO103_VARIABLE = "DISCO_TORCH_DISCO103"
DISCO103_FILE = "disco_103.npz"
DISCO103_SHA256 = "dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa"
DISCO103_BYTES = 2_803_507
DISCO103_URL = (
    "https://raw.githubusercontent.com/google-deepmind/disco_rl/main/disco_rl/update_rules/weights/" + DISCO103_FILE
)
DISCO103_HUB_REPO = "asystemoffields/disco-103"
TIMEOUT_SECONDS = 30.0
"""Longest silence of the server, in seconds."""
DEADLINE_SECONDS = 300.0
"""Longest duration of the whole download, in seconds: 2.8 MB at 9 kB a second."""
CHUNK_BYTES = 2**16


def cache_folder() -> Path:
    """`$DISCO_TORCH_CACHE`, else `$XDG_CACHE_HOME/disco-torch`, else `~/.cache/disco-torch`."""
    if own := os.environ.get("DISCO_TORCH_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "disco-torch"
    return Path.home() / ".cache" / "disco-torch"


def local_disco103_weights() -> Path | None:
    """The weights on this machine, or None: the file that `$DISCO_TORCH_DISCO103` names, else the cached one.

    Raises where the variable names no file, and at a cached file that is not the released one. The variable may name other
    weights; a warning says that they are not the released ones.
    """
    if given := os.environ.get(DISCO103_VARIABLE):
        path = Path(given).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"the environment variable {DISCO103_VARIABLE} must name the Disco103 weights, got {given!r}, "
                "which is not a file; correct it or unset it."
            )
        if not _is_released(path):
            _warn_not_released(str(path))
        return path
    path = cache_folder() / DISCO103_FILE
    if not path.is_file():
        return None
    if not _is_released(path):
        raise ValueError(f"{path}: {_DAMAGED}; delete it.")
    return path


def find_disco103_weights() -> Path:
    """The weights: where `$DISCO_TORCH_DISCO103` says, else in the cache, else downloaded into it."""
    try:
        local = local_disco103_weights()
    except ValueError:
        local = None  # a damaged file in the cache: the download replaces it, or says why it cannot
    return local or download_disco103_weights()


def download_disco103_weights(folder: str | Path | None = None) -> Path:
    """Downloads the released weights, unless they are there already, and returns where they are.

    They come from the Hugging Face Hub if `huggingface_hub` is installed, else, or if that fails, over HTTPS from the
    reference's repository. Nothing is written before the checksum is right, so no other file can take their name.

    Args:
      folder: to put `disco_103.npz` into; defaults to the cache, see `cache_folder`.
    """
    path = (cache_folder() if folder is None else Path(folder)) / DISCO103_FILE
    if path.is_file() and _is_released(path):
        return path
    reasons = []
    for source, fetch in ((f"Hugging Face Hub ({DISCO103_HUB_REPO})", _from_hub), (DISCO103_URL, _from_web)):
        try:
            content = _within(DEADLINE_SECONDS, fetch)
            if hashlib.sha256(content).hexdigest() != DISCO103_SHA256:
                raise ValueError(f"what came, {len(content)} bytes, {_DAMAGED}")
            with replacing(path) as file:
                file.write(content)
        # The next source is tried whatever went wrong; libraries and networks fail in many ways.
        except Exception as error:
            reasons.append(f"{source}: {error}")
        else:
            return path
    raise FileNotFoundError(_advice(path, reasons))


_DAMAGED = f"is not the released Disco103, whose sha256 is {DISCO103_SHA256}"


def _is_released(path: Path) -> bool:
    return sha256_of(path) == DISCO103_SHA256


@functools.cache
def _warn_not_released(path: str) -> None:
    """Once for each file: the variable may well name weights of one's own."""
    warnings.warn(
        f"{path}, which the environment variable {DISCO103_VARIABLE} names, {_DAMAGED}; it is used all the same.",
        stacklevel=4,
    )


def _within(seconds: float, fetch: Callable[[], bytes]) -> bytes:
    """What `fetch` returns or raises. A source that is too slow is left to a thread that ends with the process."""
    done: list[bytes | Exception] = []

    def run() -> None:
        try:
            done.append(fetch())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise TimeoutError(f"it took more than {seconds:g} seconds")
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]


def _from_hub() -> bytes:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError("huggingface_hub is not installed") from error
    return Path(hub.hf_hub_download(repo_id=DISCO103_HUB_REPO, filename=DISCO103_FILE)).read_bytes()


def _from_web() -> bytes:
    end = time.monotonic() + DEADLINE_SECONDS
    content = bytearray()
    with urllib.request.urlopen(DISCO103_URL, timeout=TIMEOUT_SECONDS) as response:
        # One byte more than expected is enough to know a wrong file by, however long it is.
        while len(content) <= DISCO103_BYTES and (chunk := response.read1(CHUNK_BYTES)):
            content += chunk
            if time.monotonic() > end:
                raise TimeoutError("too slow")  # the caller has given up
    return bytes(content)


def _advice(path: Path, reasons: list[str]) -> str:
    found = f"the file {path} {_DAMAGED}, and" if path.is_file() else "the Disco103 weights are not on this machine and"
    return (
        f"{found} they could not be downloaded ({'; '.join(reasons)}). There are three ways: give the path of the "
        f'file, load_disco103_weights(rule, "{DISCO103_FILE}"); or set the environment variable {DISCO103_VARIABLE} to it; '
        f"or put {DISCO103_FILE} into the folder {path.parent}, where it is also downloaded to once there is a network."
    )
