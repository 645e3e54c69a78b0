"""Choices of the compiler's that are not its own."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from small_graphs import draw, parted

from disco_torch.kernels import fusing
from disco_torch.kernels.fusing import Plan
from disco_torch.kernels.recording import traced


def test_they_are_part_of_the_compilers_key(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as settings

    keys, tag = [], torch.compiler.config.cache_key_tag

    def compiled(module: Any, like: Any, options: dict[str, Any]) -> None:
        assert torch.compiler.config.cache_key_tag == tag  # what was timed is kept by processes that know of no other
        with settings.patch(options):
            keys.append(pickle.dumps(settings.save_config_portable()))

    monkeypatch.setattr(torch._inductor, "compile", compiled)
    plan = Plan.of(traced(parted, [draw(3, 4)]), [draw(3, 4)], 0)
    for name in ("first", "first", "second"):
        monkeypatch.setattr(fusing, "CHOICES", name)
        plan.compile()
    assert keys[0] == keys[1] != keys[2]
