"""The private names of PyTorch that the package needs are there, and stand in the files that are for them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import fx

import disco_torch
from disco_torch.kernels import private
from disco_torch.kernels.compiling import GPU_OPTIONS
from disco_torch.kernels.private import PRIVATE_NAMES, copy_many, is_view, is_wrapped, is_write, written_into

PACKAGE = Path(disco_torch.__file__).parent
TREES = "torch.utils._pytree"
HOMES = {PACKAGE / "kernels" / "private.py", PACKAGE / "types.py"}


def private_names(source: str) -> list[str]:
    """The dotted names of PyTorch in a source file that have a part with a leading underscore, but for operators."""
    aliases: dict[str, str] = {"torch": "torch"}
    found: list[str] = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.append(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute):
            parts, root = [node.attr], node.value
            while isinstance(root, ast.Attribute):
                parts, root = [root.attr, *parts], root.value
            if isinstance(root, ast.Name) and root.id in aliases:
                found.append(".".join([aliases[root.id], *parts]))
    names = [name for name in found if re.match(r"torch\.(.*\.)?_[a-zA-Z]", name) and not name.startswith("torch.ops.")]
    return sorted({name for name in names if not any(other.startswith(f"{name}.") for other in names)})


@pytest.mark.parametrize("name", [*PRIVATE_NAMES, f"{TREES}.register_pytree_node", f"{TREES}.tree_flatten"])
def test_this_version_of_pytorch_has_the_name(name: str) -> None:
    found: object = torch
    parts = name.split(".")
    for i, part in enumerate(parts[1:], 1):
        where = ".".join(parts[:i])
        if not hasattr(found, part):
            pytest.fail(
                f"PyTorch {torch.__version__} has no {name} (nothing of that name in {where}); see kernels/private.py"
            )
        found = getattr(found, part)


@pytest.mark.parametrize("name", [*GPU_OPTIONS, "pattern_matcher"])
def test_this_version_of_pytorch_has_the_compiler_option(name: str) -> None:
    import torch._inductor

    assert name in torch._inductor.list_options(), f"`torch.compile` of PyTorch {torch.__version__} has no option {name}"


def test_all_names_that_the_file_uses_are_listed() -> None:
    used = private_names(Path(private.__file__).read_text())
    assert used and all(any(known.startswith(name) for known in PRIVATE_NAMES) for name in used), used


def test_private_names_stand_in_their_files_alone() -> None:
    offenders = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in private_names(path.read_text())
        if path not in HOMES or (path.name == "types.py" and not name.startswith(TREES))
    ]
    assert not offenders, "move these to kernels/private.py, or use the tree functions of types.py:\n" + "\n".join(offenders)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch._inductor.config", ["torch._inductor.config"]),
        ("from torch.utils import _pytree as pytree", ["torch.utils._pytree"]),
        ("from torch._C._functorch import get_unwrapped", ["torch._C._functorch.get_unwrapped"]),
        ("import torch\ntorch._foreach_copy_([], [])", ["torch._foreach_copy_"]),
        ("def f():\n    from torch import _guards\n    _guards.tracing()", ["torch._guards.tracing"]),
        ("import torch\naten = torch.ops.aten\naten._unsafe_view.default\ntorch.ops.aten._to_copy", []),
        ("import torch\nfrom torch.fx.experimental.proxy_tensor import make_fx\nself._torch = torch.nn.functional.pad", []),
    ],
)
def test_the_search_finds_what_it_should(source: str, names: list[str]) -> None:
    assert private_names(source) == names


def test_what_they_are_used_for() -> None:
    x = torch.ones(2)
    assert not is_wrapped(x, x)
    torch.func.vmap(lambda row: row.sum() if is_wrapped(x, row) else pytest.fail("not seen"))(x.reshape(2, 1))
    copy_many([x], [torch.full((2,), 3.0)])
    assert x.tolist() == [3.0, 3.0]
    graph = fx.Graph()
    a = graph.placeholder("a")
    view = graph.call_function(torch.ops.aten.view.default, (a, [2]))
    write = graph.call_function(torch.ops.aten.add_.Tensor, (view, a))
    assert [is_view(node) for node in (a, view, write)] == [False, True, False]
    assert [is_write(node) for node in (a, view, write)] == [False, False, True]
    assert written_into(graph) == {a, view, write}
