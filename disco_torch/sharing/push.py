"""`push_to_hub`: a rule or a run to the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from disco_torch.files import reason_of
from disco_torch.sharing.card import render_card
from disco_torch.sharing.content import write_content
from disco_torch.weights.hub import PREFIX, import_hub, parse_hub_name


def push_to_hub(what: Path | str, to: str, *, private: bool = False, message: str = "") -> str:
    """Uploads a rule, a training run or a discovery, with a model card, and returns its name with the new commit.

    Weights travel as safetensors. Nothing is uploaded before all files are written and checked; they are one commit.

    Args:
      what: name or file of a discovered rule, or the folder of a run.
      to: repository, ORG/NAME; it is made if there is none.
      private: whether a new repository is private.
      message: of the commit.
    """
    asked = parse_hub_name(to if to.startswith(PREFIX) else f"{PREFIX}{to}", "to")
    if asked.revision is not None:
        raise ValueError(f"`to` must be ORG/NAME, without a revision, got {to!r}; a push makes a new commit.")
    hub = import_hub("push")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        card = write_content(what, asked.repository, folder)
        (folder / "README.md").write_text(render_card(card))
        try:
            api = hub.HfApi()
            api.create_repo(asked.repository, private=private, exist_ok=True)
            said = message or f"{card.title}, with disco-torch"
            commit = api.upload_folder(repo_id=asked.repository, folder_path=str(folder), commit_message=said)
        # The library and the network fail in many ways.
        except Exception as error:
            raise OSError(
                f"`to` could not be written, got {to} ({type(error).__name__}: {reason_of(error)}); log in with `hf auth "
                "login`, and name a repository that you may write to."
            ) from error
    return f"{PREFIX}{asked.repository}@{commit.oid}"
