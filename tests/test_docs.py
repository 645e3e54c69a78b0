"""The code in README and docs runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from disco_torch import Agent, Learner, Replay, collect, init_actor
from disco_torch.envs import Catch

ROOT = Path(__file__).parents[1]


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.S)


def test_the_first_lines_of_the_readme(disco103_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    namespace: dict[str, object] = {}
    code = blocks("README.md")[0]
    assert len(code.strip().splitlines()) <= 12
    exec(code.replace("range(1000)", "range(2)"), namespace)
    assert float(namespace["logs"]["total_loss"]) > 0  # type: ignore[index]


def test_the_rule_of_a_page_learns_catch() -> None:
    namespace: dict[str, object] = {}
    exec(blocks("docs/rules.md")[0], namespace)
    rule = namespace["Reinforce"]()  # type: ignore[operator]
    env, generator = Catch(16, rows=4, columns=3), torch.Generator().manual_seed(0)
    agent = Agent(env.observation_example, 3, rule.outputs(3))
    learner, replay = Learner(agent, rule), Replay(16, 10, env.observation_example, 3)
    state, actor = learner.init(generator), init_actor(agent, env, generator)
    caught = []
    for _ in range(250):
        rollout, actor, episodes = collect(agent, state.params, env, actor, 10, generator)
        replay.add(rollout)
        state, _ = learner.update(state, replay.sample(16, generator, num_fresh=16))
        caught.append((episodes.returns[episodes.ends] > 0).float().mean())
    # A paddle that does not move catches 1 ball in 3.
    assert float(torch.stack(caught[-50:]).mean()) > 0.6


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(path: str) -> None:
    text = (ROOT / path).read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")]
    missing = [link for link in links if not ((ROOT / path).parent / link.split("#")[0]).exists()]
    assert missing == []
