"""What makes the same numbers come sooner: recorded functions, each beside the plain function that it records."""

from disco_torch.kernels.recording import Recorded, Speed

__all__ = ["Recorded", "Speed"]
