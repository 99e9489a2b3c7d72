"""Asynchronous training for LightZero-style agents: collect, train and evaluate at the same time, within a bound."""

from lzero_async.backends import Backend, Worker, make_backend
from lzero_async.coordinator import AsyncTrainingCoordinator
from lzero_async.errors import (
    ConfigError,
    CoordinatorClosed,
    GateTimeout,
    LzeroAsyncError,
    QueueClosed,
    RemoteError,
    Stopped,
    WorkerDied,
)
from lzero_async.gate import Gate
from lzero_async.loop import run
from lzero_async.parcels import Parcel
from lzero_async.queues import BoundedQueue, QueueStatistics
from lzero_async.trace import read_trace
from lzero_async.types import (
    BackgroundContext,
    Batch,
    CollectContext,
    DegreeChange,
    EvalContext,
    EvalResult,
    RunResult,
    Snapshot,
    TrainReport,
)
from lzero_async.weights import WeightStore

__version__ = "0.1.0"

__all__ = [
    "AsyncTrainingCoordinator",
    "Backend",
    "BackgroundContext",
    "Batch",
    "BoundedQueue",
    "CollectContext",
    "ConfigError",
    "CoordinatorClosed",
    "DegreeChange",
    "EvalContext",
    "EvalResult",
    "Gate",
    "GateTimeout",
    "LzeroAsyncError",
    "Parcel",
    "QueueClosed",
    "QueueStatistics",
    "RemoteError",
    "RunResult",
    "Snapshot",
    "Stopped",
    "TrainReport",
    "WeightStore",
    "Worker",
    "WorkerDied",
    "make_backend",
    "read_trace",
    "run",
]
