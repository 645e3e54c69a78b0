"""`disco-torch push`: a rule or a run to the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.cli.imports import Imports
from disco_torch.cli.seeds import say
from disco_torch.sharing import push_to_hub


@dataclass(frozen=True)
class Push:
    """Upload a rule or a run to the Hugging Face Hub, with a model card; `hf:ORG/NAME` then names it in every command."""

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|RULE")]
    """Folder of a training run or a discovery, or the name or file of a discovered rule."""
    to: Annotated[str, tyro.conf.arg(metavar="ORG/NAME")]
    """Repository to upload to; it is made if there is none."""
    private: bool = False
    """Make a new repository private."""
    message: str = ""
    """Message of the commit."""
    imports: Imports = ()
    """Module to import first, such as one that registers rules; may be given several times."""

    def run(self) -> int:
        name = push_to_hub(self.what, self.to, private=self.private, message=self.message)
        say(Console(), f"pushed; it is {name}")
        return 0
