"""`--import MODULE`: modules of the user's, which register environments, families of levels and rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import tyro

from disco_torch.envs import import_modules, make_current_folder_importable

Imports = Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(name="import", metavar="MODULE")]
"""Type of the option `--import`, which may be given several times."""


def import_named(modules: Sequence[str]) -> None:
    """Imports what the user has named; the current folder is importable, behind everything that is installed."""
    make_current_folder_importable()
    import_modules(modules)
