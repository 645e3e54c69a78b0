"""`--import MODULE`: modules of the user's, which register environments, families of levels, rules and presets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import tyro

from disco_torch.envs import import_modules, make_current_folder_importable

Imports = Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(name="import", metavar="MODULE")]
"""Type of the option `--import`, which may be given several times; `import_named` has read it before it is parsed."""


def import_options(imports: Sequence[str]) -> str:
    """The options that name these modules again, for a command line that is printed; each begins with a space."""
    return "".join(f" --import {module}" for module in imports)


def import_named(args: Sequence[str]) -> None:
    """Imports the modules that a command line names, before anything else of it is looked up.

    The current folder is importable, behind everything that is installed.
    """
    make_current_folder_importable()
    following = [value for arg, value in pairwise(args) if arg == "--import"]
    import_modules([*following, *(arg.partition("=")[2] for arg in args if arg.startswith("--import="))])
