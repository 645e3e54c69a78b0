"""What a run is computed with: versions and the machine, to be written beside its results."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import torch

PACKAGE = Path(__file__).parents[1]


def describe_system(device: torch.device) -> dict[str, str | int | None]:
    """Versions, the processor or GPU that a device is, and the number of threads; nothing that names the machine."""
    return {
        "disco_torch": package_version(),
        "commit": read_commit(PACKAGE.parent),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor() or device.type,
        "threads": torch.get_num_threads(),
    }


def package_version() -> str | None:
    try:
        return metadata.version("disco-torch")
    except metadata.PackageNotFoundError:  # used from its folder, without an installation
        return None


def _processor() -> str:
    """The processor's name, where Linux or Python knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def read_commit(checkout: Path) -> str | None:
    """The commit that a checkout is at, read from its files: git itself may not be there. None outside of a checkout."""
    git = checkout / ".git"
    try:
        if git.is_file():  # of a worktree: the path of its folder
            git = checkout / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head or None
        ref = head.removeprefix("ref:").strip()
        shared = git / "commondir"
        common = git / shared.read_text().strip() if shared.is_file() else git
        for folder in (git, common):
            if (folder / ref).is_file():
                return (folder / ref).read_text().strip()
        lines = [line.split() for line in (common / "packed-refs").read_text().splitlines()]
        return next((words[0] for words in lines if words[1:] == [ref]), None)
    except OSError:
        return None
