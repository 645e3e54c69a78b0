"""What makes the same numbers come sooner: recorded functions and kernels, each beside its plain twin."""

from disco_torch.kernels.action_hiddens import action_hiddens
from disco_torch.kernels.capturing import SideStream, prefetched
from disco_torch.kernels.collectives import ProcessLost, lost_processes_named, sum_across_processes
from disco_torch.kernels.convolution import convolve
from disco_torch.kernels.lstm import reversed_hiddens
from disco_torch.kernels.memory import keep_freed_memory
from disco_torch.kernels.private import is_wrapped
from disco_torch.kernels.recording import SPEEDS, Recorded, Speed, is_by_parameter
from disco_torch.kernels.softmax import softmax_mean

__all__ = [
    "SPEEDS",
    "ProcessLost",
    "Recorded",
    "SideStream",
    "Speed",
    "action_hiddens",
    "convolve",
    "is_by_parameter",
    "is_wrapped",
    "keep_freed_memory",
    "lost_processes_named",
    "prefetched",
    "reversed_hiddens",
    "softmax_mean",
    "sum_across_processes",
]
