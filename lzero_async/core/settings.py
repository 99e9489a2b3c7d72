"""The coordinator's arguments in three groups: the bound, the recovery from failures, the adaptation of the degree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from lzero_async.core.gate import Policy
from lzero_async.core.running.coroutines import is_coroutine_function
from lzero_async.errors import ConfigError
from lzero_async.types import LearnerState
from lzero_async.validation import duration, one_of, whole_number

ON_FAILURE: Final = ("raise", "restart")
Group = TypeVar("Group")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How far collecting and training may drift apart, beside the degree. The gate checks these values against the degree.

    staleness_policy: `wait`, `drop` or `allow`. publish_every: trains between two publications of the weights.
    max_train_ahead: extra trains on old data in a row while none can start on new. collects_per_train: collects that one
    train takes; its `data` is then the list of theirs. oversampling: collects that may be open beyond those that can be
    trained in time; what comes too late is dropped (only with `drop`). queue_capacity: let the waiting batches be a
    queue of so many that never holds a collector back: a full one drops its oldest batch, counted (not with `wait`).
    queue_order: `fifo`, or `priority` with priority=, a function of a collect's data: the highest is trained first, the
    lowest dropped first.
    """

    staleness_policy: Policy = "wait"
    publish_every: int = 1
    max_train_ahead: int = 0
    collects_per_train: int = 1
    oversampling: int = 0
    queue_capacity: int | None = None
    queue_order: Literal["fifo", "priority"] = "fifo"
    priority: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        refuse_coroutine("priority", self.priority)
        if (self.priority is None) == (self.queue_order == "priority"):
            raise ConfigError(
                f"queue_order is {self.queue_order!r} and priority is {self.priority!r}; a queue in order of priority needs "
                "priority=, a function of a collect's data, and no other does."
            )


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What happens after a failure.

    on_failure: what a run does when a collect raises (`raise`, `restart`), with max_restarts in a row per collector (one
    that fails more often is retired, and the last of them ends the run) and restart_backoff seconds before the first,
    doubling. train_retries: how often a failed train is tried again from the state before it, which needs `learner`
    (state_dict, load_state_dict).
    """

    on_failure: Literal["raise", "restart"] = "raise"
    max_restarts: int = 3
    restart_backoff: float = 0.5
    train_retries: int = 0
    learner: LearnerState | None = None

    def __post_init__(self) -> None:
        one_of("on_failure", self.on_failure, ON_FAILURE)
        whole_number("max_restarts", self.max_restarts, 0)
        duration("restart_backoff", self.restart_backoff)
        if whole_number("train_retries", self.train_retries, 0) and self.learner is None:
            raise ConfigError(
                f"train_retries is {self.train_retries}, but without learner= there is no state to go back to; "
                "pass an object with state_dict() and load_state_dict(), or set train_retries to 0."
            )


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Let the degree follow the run inside [min_degree, max_degree]; drift_threshold: the drift above which it is halved."""

    min_degree: int | None = None
    max_degree: int | None = None
    drift_threshold: float | None = None


def group_of(name: str, value: Any, kind: type[Group]) -> Group:
    """The value of an argument that is a group, or a ConfigError."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {value!r}; pass a {kind.__name__}(...).")
    return value


def refuse_coroutine(name: str, callback: Any) -> None:
    """Raise if this callback is a coroutine function."""
    if callback is not None and is_coroutine_function(callback):
        raise ConfigError(f"{name} is a coroutine function, which nobody would await; pass a plain function.")
