"""`inspect_rule`: from a rule to the page that shows what is in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from disco_torch.envs import EnvSource
from disco_torch.inspection.findings import Inspection, inspect_subject
from disco_torch.inspection.page import write_page
from disco_torch.inspection.subject import load_subject, train_subject
from disco_torch.pages import check_page_path
from disco_torch.rules import UpdateRule
from disco_torch.weights.registry import check_name_or_file


def inspect_rule(
    rule: str | UpdateRule,
    *,
    run: Path | str | None = None,
    checkpoint: str | int = "newest",
    env: EnvSource | None = None,
    out: Path | str = "inspection.html",
    device: str = "cpu",
    say: Callable[[str], None] = print,
    **fields: Any,
) -> Inspection:
    """Looks into a rule and writes a page, `out`, and beside it a folder of the same name with its figures and numbers.

    Args:
      rule: a name or a file, or an `UpdateRule`.
      run: folder of a run that has learned with the rule; without one, an agent is trained first.
      checkpoint: that of the run, "newest", "best" or a number of rollouts.
      env: the environment to train in, Catch unless given; with `run`, only where the run was given an object.
      out: file to write, .html.
      device: device to compute on.
      say: is told what is being done.
      fields: fields of `TrainConfig` for the agent that is trained, such as `steps` and `seed`.
    """
    page = check_page_path(Path(out), folder_beside=True)
    if isinstance(rule, str) and rule != "auto":
        check_name_or_file(rule, "rule")
    if run is not None:
        if fields.keys() - {"seed"}:
            raise ValueError(f"`{min(fields)}` must be left out with `run`, whose agent is trained already.")
        subject = load_subject(rule, run, checkpoint=checkpoint, env=env, device=device)
    else:
        subject = train_subject(rule, "catch" if env is None else env, say=say, device=device, **fields)
    try:
        found = inspect_subject(subject, seed=fields.get("seed", 0), say=say)
    finally:
        subject.close()
    write_page(found, page)
    return found
