"""What travels between the roles, and the small interfaces they meet at. Times are in seconds of the clock in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Snapshot(NamedTuple):
    """One immutable version of the weights."""

    version: int
    state: Any


class StopSignal(Protocol):
    """Lets a long stage end early when the run stops."""

    def is_set(self) -> bool:
        """Whether the run is stopping."""

    def wait(self, seconds: float) -> bool:
        """Wait this long or until the run stops; return whether it stops."""


class CollectContext(NamedTuple):
    """What a collect plays with: one fixed version of the weights. `snapshot` is of `version`, or newer by a hair when
    it was published while the collect started; without `get_weights` it is None."""

    worker: int
    ticket: int
    version: int
    snapshot: Snapshot | None
    stop: StopSignal


class Batch(NamedTuple):
    """What a train gets: the data of one collect, or, when `replay` is true, nothing new (`data` is None). With
    `collects_per_train` above 1, `data` is the list of its collects' data in the order of their starts.

    `version` is the one it was collected with; `staleness` is how many versions later its train starts. Of several collects
    these and `id` are the oldest's.
    """

    id: int
    data: Any
    version: int
    staleness: int
    replay: bool
    stop: StopSignal


class EvalContext(NamedTuple):
    """What an evaluation looks at: `snapshot`, frozen also while training goes on, and its version. Without
    `get_weights` there is no snapshot, and the version is the learner's own. `repeat` is 1 when a score that reached
    `eval_target` is to be confirmed: play with other seeds then."""

    version: int
    snapshot: Snapshot | None
    stop: StopSignal
    repeat: int = 0


class BackgroundContext(NamedTuple):
    """What a background role gets in every pass: its name, and the stop signal that ends a long wait."""

    name: str
    stop: StopSignal


class EvalResult(NamedTuple):
    """The result of one evaluation, tagged with the version that it looked at."""

    version: int
    value: Any
    seconds: float
    snapshot: Snapshot | None


class TrainReport(NamedTuple):
    """What a train function may return: a drift signal for the adaptive degree, and the age of the samples it used.

    Ages are in versions, over `sample_count` samples.
    """

    drift: float | None = None
    sample_age_mean: float | None = None
    sample_age_max: float | None = None
    sample_count: int = 1


class DegreeChange(NamedTuple):
    """One change of the adaptive degree, at the train count where it took effect, with its reason."""

    train_count: int
    before: int
    after: int
    reason: str


class RunResult(NamedTuple):
    """How a run ended: `reason` is the stop condition's name, a signal's name, or 'closed'."""

    reason: str
    statistics: dict[str, Any]
    best_eval: EvalResult | None
    last_eval: EvalResult | None


class LearnerState(Protocol):
    """A learner that can be put back to an earlier state (needed for `train_retries`)."""

    def state_dict(self) -> Mapping[str, Any]:
        """A copy of everything that a train changes."""

    def load_state_dict(self, state: Mapping[str, Any]) -> object:
        """Go back to such a copy."""


class CollectWorker(Protocol):
    """A worker that is given as a collector: `collect(version, state, stop=)` of its role returns the data of one batch, played
    with that version of the weights (`state` is None without `get_weights`). One that has died is restarted."""

    @property
    def alive(self) -> bool:
        """Whether it can be called."""

    def call(self, method: str, *args: Any, stop: StopSignal | None = None) -> Any:
        """Call a method of the role."""

    def restart(self) -> object:
        """Make the role again."""

    def wait_until_ready(self, stop: StopSignal | None = None) -> object:
        """Wait until the role is made, or the stop is set."""


class Waiter(Protocol):
    """A place for one thread to wait in, once."""

    def wait(self, timeout: float | None) -> bool:
        """Block until `wake` or for `timeout` seconds; return whether it was woken."""

    def wake(self) -> None:
        """Wake the thread that waits, or will wait, here. Once is enough, and more does no harm."""


class Clock(Protocol):
    """Time and waiting: the real one, or a virtual one for tests."""

    def now(self) -> float:
        """Seconds since some fixed moment, never going back."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""

    def waiter(self) -> Waiter:
        """A new place to wait in."""

    def thread_starting(self) -> Any:
        """Called by the starter before a thread starts; the result goes to `thread_started`."""

    def thread_started(self, token: Any) -> None:
        """Called first in the new thread."""

    def thread_not_started(self, token: Any) -> None:
        """Called by the starter instead, when there is no such thread after all."""

    def thread_ended(self) -> None:
        """Called last in the new thread."""
