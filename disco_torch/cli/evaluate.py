"""`disco-torch evaluate`: how good the agent of a run is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro
from rich.console import Console
from rich.table import Table

from disco_torch.cli.imports import Imports
from disco_torch.training.evaluation import PolicyKind, evaluate, record
from disco_torch.training.trained import load_run


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the agent of a run, and print the mean return with its 95% interval."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, or `hf:ORG/NAME` for one on the Hugging Face Hub."""
    checkpoint: str = "newest"
    """Checkpoint to evaluate: `newest`, `best` by the evaluations during training, or its number of rollouts."""
    episodes: int = 100
    """Number of episodes to play with each policy."""
    policy: Literal["both", "sampled", "greedy"] = "both"
    """Policy to play with: actions are sampled, or the most probable one is taken. A recording is of the same policy, and of
    the sampled one with `both`."""
    num_envs: int = 10
    """Number of parallel environments to play in."""
    seed: int = 1_000_003
    """Random seed; the default differs from that of training, so that the episodes are new ones."""
    device: str = "auto"
    """Device to act on: `cpu` or `cuda`; `auto` is the GPU if there is one."""
    record: Path | None = None
    """File to write an animated GIF of one episode to."""
    imports: Imports = ()
    """Module to import first, such as one that registers the environment; may be given several times."""

    def run(self) -> int:
        if self.episodes < 1 or self.num_envs < 1:
            raise ValueError(f"`--episodes` and `--num-envs` must be at least 1, got {self.episodes} and {self.num_envs}.")
        which = int(self.checkpoint) if self.checkpoint.isdecimal() else self.checkpoint
        trained = load_run(self.run_folder, self.device, checkpoint=which)
        env = trained.make_env(min(self.num_envs, self.episodes))
        table = Table("policy", "episodes", "mean return", "95% interval", "mean length")
        kinds: tuple[PolicyKind, ...] = get_args(PolicyKind) if self.policy == "both" else (self.policy,)
        for policy in kinds:
            result = evaluate(trained.agent, trained.params, env, self.episodes, policy=policy, seed=self.seed)
            mean, low, high = result.interval
            length = sum(result.lengths) / len(result.lengths)
            table.add_row(policy, str(len(result.returns)), f"{mean:.4g}", f"{low:.4g} to {high:.4g}", f"{length:.4g}")
        env.close()
        console = Console()
        console.print(table)
        if self.record is not None:
            frames = record(trained, self.record, policy=kinds[0], seed=self.seed)
            console.print(f"{frames} frames in {self.record}", highlight=False, soft_wrap=True)
        return 0
