"""Controllers that keep a run fed: queue size, active collectors and collection batch size. Each is asked after every
train with what was seen and answers a new number with its reason, or None. They know no threads and no clock.

They decide on the mean of a window of trains, and let one more window pass after a change so that it can show. A step that
may leave the learner without data and had to be taken back is not tried again for a while, twice as long each time: on
steady input what is left is a rare probe, and the learner is fed between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lzero_async.errors import ConfigError
from lzero_async.validation import positive_number, real_number, whole_number

WINDOW: Final = 8
MEMORY: Final = 4  # windows that a way is blocked after the first turn back
LONGEST_MEMORY: Final = 64
STARVED_SHARE: Final = 0.25  # of a window's trains that waited for data: the learner is starved
BUSY_CPU: Final = 0.95
STEADY: Final = 0.001  # of a queue that it may lose in a window without being called draining
QUEUE_BAND: Final = (0.5, 0.8)


class Tuning(NamedTuple):
    """A new number, and why."""

    value: int
    reason: str


class _Tuner:
    """The number, its limits, the window under way, and which way (1 up, -1 down) is blocked for how many windows."""

    risky = -1  # the way that may leave the learner without data

    def __init__(self, name: str, start: int, low: int, high: int, window: int) -> None:
        self.name = name
        self.low = whole_number(f"the least {name}", low, 1)
        self.high = whole_number(f"the largest {name}", high, self.low, "It must not be below the least.")
        self.value = whole_number(f"the first {name}", start, 1)
        if not self.low <= start <= self.high:
            raise ConfigError(
                f"{name} is {start}, outside its range {self.low} to {self.high}; start inside it or change the range."
            )
        self.window = whole_number("window", window, 1)
        self._rest = 0  # trains
        self._turn = 0  # the direction of the last change
        self._blocked = {1: 0, -1: 0}  # windows
        self._memory = {1: MEMORY, -1: MEMORY}
        self._sums: dict[str, float] = {}
        self._seen = 0

    def _means(self, **seen: float) -> dict[str, float] | None:
        """The means of a window when this train completes one, else None."""
        if self._rest:
            self._rest -= 1
            return None
        for key, value in seen.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        self._seen += 1
        if self._seen < self.window:
            return None
        means = {key: total / self._seen for key, total in self._sums.items()}
        self._sums, self._seen = {}, 0
        for way, windows in self._blocked.items():
            self._blocked[way] = max(0, windows - 1)
        return means

    def _free(self, way: int) -> bool:
        return not self._blocked[way]

    def _change(self, value: int, reason: str) -> Tuning | None:
        """Take the new value inside the limits; None if that is the old one."""
        value = min(max(value, self.low), self.high)
        if value == self.value:
            return None
        way = 1 if value > self.value else -1
        if self._turn == -way == self.risky:
            self._block(self.risky)
        self.value, self._turn, self._rest = value, way, self.window
        return Tuning(value, reason)

    def _block(self, way: int) -> None:
        """Remember that this way led nowhere."""
        self._blocked[way] = self._memory[way]
        self._memory[way] = min(2 * self._memory[way], LONGEST_MEMORY)

    def state_dict(self) -> dict[str, Any]:
        """The number, what it rests, and what it remembers; the window under way starts anew."""
        return {
            "value": self.value,
            "rest": self._rest,
            "turn": self._turn,
            "blocked": [self._blocked[1], self._blocked[-1]],
            "memory": [self._memory[1], self._memory[-1]],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, inside this controller's range; ConfigError if it cannot be read."""
        try:
            value, rest = whole_number("value", state["value"], 0), whole_number("rest", state["rest"], 0)
            turn = whole_number("turn", state["turn"], -1)
            up, down = (whole_number("blocked", windows, 0) for windows in state["blocked"])
            more, less = (whole_number("memory", windows, 1) for windows in state["memory"])
            if turn > 1:
                raise ConfigError(f"turn is {turn}; it must be -1, 0 or 1.")
            self._load_rest(state)
        except (KeyError, TypeError, ValueError) as error:
            said = error if isinstance(error, ConfigError) else repr(error)
            raise ConfigError(
                f"The saved tuning of the {self.name} cannot be read ({said}); use another checkpoint."
            ) from error
        self.value = min(max(value, self.low), self.high)
        self._rest, self._turn = rest, turn
        self._blocked, self._memory = {1: up, -1: down}, {1: more, -1: less}
        self._sums, self._seen = {}, 0

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        """What a subclass has saved beside."""


class QueueSizeTuner(_Tuner):
    """Keeps the use of a queue (fill / size) inside `use`: a quarter larger when it is above, smaller when below.

    It shrinks only to a size that would hold what was seen within the band.
    """

    def __init__(
        self, start: int, low: int, high: int, *, use: tuple[float, float] = QUEUE_BAND, window: int = WINDOW
    ) -> None:
        super().__init__("queue size", start, low, high, window)
        least, most = (positive_number("use", bound) for bound in use)
        if not 1.25 * least <= most <= 1:
            raise ConfigError(
                f"use is {use!r}; it must be two shares up to 1, the second at least 1.25 times the first, which is what "
                "one step can bring."
            )
        self.use = least, most

    def after_train(self, fill: float) -> Tuning | None:
        """Take one train into account: since the one before, `fill` items have waited in the queue on average."""
        means = self._means(fill=fill)
        if means is None:
            return None
        fill, step = means["fill"], max(1, self.value // 4)
        use = fill / self.value
        if use > self.use[1] and self._free(1):
            return self._change(self.value + step, f"{use:.0%} of the queue is in use, above {self.use[1]:.0%}")
        smaller = max(self.value - step, self.low)
        if use < self.use[0] and self._free(-1) and fill / smaller <= self.use[1]:
            return self._change(smaller, f"{use:.0%} of the queue is in use, below {self.use[0]:.0%}")
        return None


class CollectorTuner(_Tuner):
    """The number of active collectors: one more while the learner waits for data and the cores have room, one less while
    data is thrown away or piles up. One more that brought no more data is taken back."""

    def __init__(self, start: int, low: int, high: int, cores: float, *, window: int = WINDOW) -> None:
        super().__init__("number of collectors", start, low, high, window)
        self.cores = positive_number("cores", cores)
        self._before: float | None = None  # the feed before a collector was added, while that is on trial

    def after_train(
        self, starved: bool, feed: float, *, dropped: int = 0, queue_use: float = 0.0, cpu_use: float | None = None
    ) -> Tuning | None:
        """Take one train into account.

        `starved`: it had to wait for its data. `feed`: data that reached the learner per second, in any unit.
        `dropped`: batches dropped since the last train. `queue_use`: fill / size. `cpu_use`: how many cores are busy;
        where it is unknown there are never more collectors than cores.
        """
        busy = -1.0 if cpu_use is None else cpu_use
        tilt = (self._seen - (self.window - 1) / 2) * queue_use
        means = self._means(starved=starved, feed=feed, dropped=dropped, queue_use=queue_use, tilt=tilt, busy=busy)
        if means is None:
            return None
        before, self._before = self._before, None
        starving = means["starved"] >= STARVED_SHARE
        if before is not None and starving and means["feed"] < before * (1 + 0.25 / max(1, self.value - 1)):
            # Less than a quarter of what one more of so many should bring.
            self._block(1)
            return self._change(self.value - 1, "one more collector did not bring more data")
        if starving and not means["dropped"] and self._free(1) and self._has_room(means["busy"]):
            change = self._change(self.value + 1, "the learner waited for data")
            self._before = None if change is None else means["feed"]
            return change
        if not means["starved"] and self._free(-1):
            if means["dropped"]:
                return self._change(self.value - 1, "batches were dropped and the learner never waited")
            if means["queue_use"] > QUEUE_BAND[1] and not self._draining(means["tilt"]):
                return self._change(self.value - 1, "the queue stayed full and the learner never waited")
        return None

    def _draining(self, tilt: float) -> bool:
        """Whether the queue gets emptier inside the window, by the slope of its use; a full one takes its time."""
        spread = (self.window**2 - 1) / 12  # the variance of a train's place in the window
        return self.window > 1 and tilt / spread * self.window < -STEADY

    def _has_room(self, busy: float) -> bool:
        return self.value < self.cores if busy < 0 else busy < BUSY_CPU * self.cores

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "before": self._before}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        before = state["before"]
        self._before = None if before is None else real_number("before", before)


class BatchSizeTuner(_Tuner):
    """The collection batch size: half when the learner waits though every collector is active, since smaller batches
    arrive sooner; double when batches are dropped, since the learner then takes in more data per train."""

    risky = 1

    def __init__(self, start: int, low: int, high: int, *, window: int = WINDOW) -> None:
        super().__init__("collection batch size", start, low, high, window)

    def after_train(self, starved: bool, *, dropped: int = 0, all_active: bool = True) -> Tuning | None:
        """Take one train into account: whether it waited for its data, batches dropped since the last train, and whether
        every collector there is was active."""
        means = self._means(starved=starved, dropped=dropped, idle=not all_active)
        if means is None:
            return None
        starving = means["starved"] >= STARVED_SHARE
        if means["dropped"] and not starving and self._free(1):
            return self._change(self.value * 2, "batches were dropped")
        if starving and not means["dropped"] and not means["idle"] and self._free(-1):
            return self._change(self.value // 2, "the learner waited for data though every collector was active")
        return None
