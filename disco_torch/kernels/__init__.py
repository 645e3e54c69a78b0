"""What makes the same numbers come sooner: recorded functions, each beside the plain function that it records."""

from disco_torch.kernels.cpu_memory import keep_freed_memory
from disco_torch.kernels.lstm import reversed_hiddens
from disco_torch.kernels.recording import SPEEDS, Recorded, Speed
from disco_torch.kernels.softmax import softmax_mean
from disco_torch.kernels.splitting import Halves
from disco_torch.kernels.streams import Aside, beside, one_ahead

__all__ = [
    "SPEEDS",
    "Aside",
    "Halves",
    "Recorded",
    "Speed",
    "beside",
    "keep_freed_memory",
    "one_ahead",
    "reversed_hiddens",
    "softmax_mean",
]
