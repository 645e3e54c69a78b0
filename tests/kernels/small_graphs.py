"""What the tests of compilations compile."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parted(x: Tensor) -> list[Tensor]:
    """With constants, an operation of several results, lists and names among its arguments."""
    first, second = torch.softmax(x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(2.0), dim=-1).split(2, dim=-1)
    return [torch.cat([first, second.flip(-1)], dim=0), second.sum(dim=-1, keepdim=True, dtype=torch.float64)]
