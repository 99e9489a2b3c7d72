"""Asynchronous training for LightZero-style agents: collect, train and evaluate at the same time, within a bound."""

from typing import TYPE_CHECKING, Any

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.settings import Adaptation, Bound, Recovery
from lzero_async.errors import (
    ConfigError,
    GateTimeout,
    LzeroAsyncError,
    RemoteError,
    Stopped,
    WorkerDied,
)
from lzero_async.types import (
    Batch,
    CollectContext,
    EvalContext,
    EvalResult,
    RunResult,
    Snapshot,
)
from lzero_async.workers.backend import Worker, make_backend
from lzero_async.workers.parcels import Parcel

if TYPE_CHECKING:
    from lzero_async.runs.policy import load_policy

__version__ = "0.1.0"

__all__ = [
    "Adaptation",
    "AsyncTrainingCoordinator",
    "Batch",
    "Bound",
    "CollectContext",
    "ConfigError",
    "EvalContext",
    "EvalResult",
    "GateTimeout",
    "LzeroAsyncError",
    "Parcel",
    "Recovery",
    "RemoteError",
    "RunResult",
    "Snapshot",
    "Stopped",
    "Worker",
    "WorkerDied",
    "load_policy",
    "make_backend",
]


def __getattr__(name: str) -> Any:
    """`load_policy` is imported when it is used: training needs nothing of it."""
    if name != "load_policy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lzero_async.runs.policy import load_policy

    return load_policy
