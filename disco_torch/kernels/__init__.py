"""What makes the same numbers come sooner: recorded functions and kernels, each beside its plain twin."""

from disco_torch.kernels.action_hiddens import action_hiddens
from disco_torch.kernels.capturing import SideStream, prefetched
from disco_torch.kernels.lstm import reversed_hiddens
from disco_torch.kernels.memory import keep_freed_memory
from disco_torch.kernels.private import is_wrapped
from disco_torch.kernels.recording import SPEEDS, Recorded, Speed
from disco_torch.kernels.softmax import softmax_mean

__all__ = [
    "SPEEDS",
    "Recorded",
    "SideStream",
    "Speed",
    "action_hiddens",
    "is_wrapped",
    "keep_freed_memory",
    "prefetched",
    "reversed_hiddens",
    "softmax_mean",
]
