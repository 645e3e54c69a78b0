"""Whether kernels written in Triton can be used, how precise they have to be, and what they share."""

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from disco_torch.kernels.private import is_wrapped
from disco_torch.kernels.recording import is_strict

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of PyTorch; the plain paths are used
    triton = None

if triton is not None:

    @triton.jit
    def _one(x):  # type: ignore[no-untyped-def]
        tl.store(x, 1.0)

    @triton.jit
    def tanh(x, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
        """To 5e-4 where `FAST`, as fine as what the next matmul rounds it to, and a fifth of the work."""
        if FAST:
            return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
        else:
            return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Whether a kernel can be built for a device and run there; it needs NVIDIA's GPU and, on most systems, a C compiler."""
    if triton is None or device.type != "cuda" or torch.version.hip is not None:
        return False

    def probe() -> None:
        with torch.cuda.device(device):
            _one[(1,)](torch.zeros(1, device=device))

    try:
        # In a thread of its own, where no transform and no recording is active that would see it.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(probe).result()
    except Exception as error:  # a compiler may fail in any way; the plain paths are always there
        if is_strict():
            raise
        reason = f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"
        warnings.warn(f"could not run a Triton kernel ({reason}); plain PyTorch is used.", stacklevel=2)
        return False
    return True


def is_supported(*tensors: Tensor) -> bool:
    """Whether kernels without a derivative can be used: on a GPU, where nothing is differentiated or batched."""
    if torch.is_grad_enabled() or is_wrapped(*tensors):
        return False
    return all(x.dtype in (torch.float32, torch.bfloat16) and has_triton(x.device) for x in tensors)


def allows_tf32() -> bool:
    """Whether matmuls may be rounded as TF32 rounds."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it was set by its new name, and cannot be asked for by the old one then
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def with_whole_rows(x: Tensor) -> Tensor:
    """As it is if its rows are contiguous, which may be parts of longer ones; else a copy."""
    return x if x.stride(1) == 1 else x.contiguous()
