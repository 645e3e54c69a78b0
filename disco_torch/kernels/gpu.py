"""Whether kernels written in Triton can be had, and how precise they have to be."""

import functools
import warnings

import torch
from torch.utils._python_dispatch import _disable_current_modes

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of PyTorch; the plain paths serve
    triton = None

if triton is not None:

    @triton.jit
    def _one(x):  # type: ignore[no-untyped-def]
        tl.store(x, 1.0)


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Whether a kernel can be built for a device and run there; it needs NVIDIA's GPU and, on most systems, a C compiler."""
    if triton is None or device.type != "cuda" or torch.version.hip is not None:
        return False
    try:
        # Outside of all transforms and traces: this is no part of what they see.
        with torch._C._DisableFuncTorch(), _disable_current_modes():
            _one[(1,)](torch.zeros(1, device=device))
    except Exception as error:  # a compiler may fail in any way; the plain paths are always there
        reason = f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"
        warnings.warn(f"could not run a Triton kernel ({reason}); plain PyTorch is used.", stacklevel=2)
        return False
    return True


def rough() -> bool:
    """Whether products may be rounded as TF32 rounds."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it was set by its new name, and cannot be asked for by the old one then
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
