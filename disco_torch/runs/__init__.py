"""Runs: what training and discovery share, from the folder of a run to its loop."""

from disco_torch.kernels import ProcessLost
from disco_torch.runs.callbacks import Callback, CallbackFailed, RunStatus
from disco_torch.runs.checkpoint import (
    CheckpointMismatch,
    first_not_finite,
    load_checkpoint,
    pack,
    restoring,
    save_checkpoint,
    unpack,
)
from disco_torch.runs.folder import ConfiguredFolder, check_run_name, checked_config
from disco_torch.runs.lock import RunInUse, run_lock
from disco_torch.runs.loop import RunDiverged, RunLoop
from disco_torch.runs.process import configure_process, one_cpu_thread, resolve_device, resolve_speed
from disco_torch.runs.signals import close_in_time, stop_signals
from disco_torch.runs.sinks import Metrics, ServiceSink, Sink, import_service
from disco_torch.runs.world import World, is_first_process

__all__ = [
    "Callback",
    "CallbackFailed",
    "CheckpointMismatch",
    "ConfiguredFolder",
    "Metrics",
    "ProcessLost",
    "RunDiverged",
    "RunInUse",
    "RunLoop",
    "RunStatus",
    "ServiceSink",
    "Sink",
    "World",
    "check_run_name",
    "checked_config",
    "close_in_time",
    "configure_process",
    "first_not_finite",
    "import_service",
    "is_first_process",
    "load_checkpoint",
    "one_cpu_thread",
    "pack",
    "resolve_device",
    "resolve_speed",
    "restoring",
    "run_lock",
    "save_checkpoint",
    "stop_signals",
    "unpack",
]
