"""What there is to see of a run at one moment: the carriers that every way of looking at it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lzero_async.core.activity import RoleActivity
from lzero_async.telemetry.quantities import QUANTITIES

SECONDS: Final = "seconds"  # the count of a limit in time


class Count(NamedTuple):
    """How far a run is by one measure, a key of `quantities` or SECONDS; `limit` ends the run, and `before` is where this part
    of it began (after a resume)."""

    name: str
    value: float
    limit: float | None = None
    before: float = 0.0


@dataclass(frozen=True)
class Progressed:
    """What only the application knows. The first of `counts` is the axis over which scalars are drawn; `fills` are shares of
    what there is room for; scores are of evaluations, `recent_score` of collected episodes; `measures` are numbers of its own
    that tell how well it goes, by the names to show."""

    counts: tuple[Count, ...]
    fills: Mapping[str, float | None]
    score: str
    last_score: float | None
    best_score: float | None
    highest_score: float | None
    recent_score: float | None
    measures: Mapping[str, float] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class View(Progressed):
    """A run at one moment. Times are seconds; `statistics` are the coordinator's, `warnings` the last few, oldest first."""

    title: str
    elapsed: float
    remaining: float | None
    roles: tuple[RoleActivity, ...]
    statistics: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def counted(self) -> tuple[Count, ...]:
        """The counts without that of seconds."""
        return tuple(count for count in self.counts if count.name != SECONDS)

    @property
    def rates(self) -> dict[str, float]:
        """How much each count grows per second, by its key."""
        return per_second(self.counted, self.elapsed)

    @property
    def quantities(self) -> dict[str, Any]:
        """What is known of each quantity, by its key: counts, statistics and fills."""
        found = {count.name: count.value for count in self.counted}
        found |= {key: self.statistics[key] for key in QUANTITIES if key in self.statistics}
        if not found.get("sample_age_max"):  # no train told the age of its samples
            found = {key: value for key, value in found.items() if not key.startswith("sample_age_")}
        found.pop("queue_fill", None)  # the application knows whether there is a queue
        return found | {f"{room}_fill": share for room, share in self.fills.items() if share is not None}


def per_second(counts: Iterable[Count], elapsed: float) -> dict[str, float]:
    """How much each count grew per second since this part of the run began, by its key; nothing before any time is gone."""
    return {count.name: (count.value - count.before) / elapsed for count in counts} if elapsed > 0 else {}


def seconds_remaining(counts: Iterable[Count], elapsed: float) -> float | None:
    """Seconds until the first limit is reached if it goes on as it did; None without a limit or before the first progress."""
    done = [
        (count.value - count.before) / max(1e-9, count.limit - count.before)
        for count in counts
        if count.limit and count.value > count.before
    ]
    return max(0.0, elapsed * (1 / max(done) - 1)) if done and max(done) > 0 else None
