"""What there is to see of a run at one moment: the carriers that every way of looking at it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lzero_async.activity import RoleActivity


class Count(NamedTuple):
    """How far a run is by one measure; `limit` ends it, and `before` is where this part of it began (after a resume)."""

    name: str
    value: float
    limit: float | None = None
    before: float = 0.0


@dataclass(frozen=True)
class Progressed:
    """What only the application knows. The first of `counts` is the axis over which scalars are drawn; `rates` are per second,
    `fills` shares of what there is room for; scores are of evaluations, `recent_score` of collected episodes."""

    counts: tuple[Count, ...]
    rates: Mapping[str, float]
    fills: Mapping[str, float | None]
    score: str
    last_score: float | None
    best_score: float | None
    highest_score: float | None
    recent_score: float | None


@dataclass(frozen=True)
class View(Progressed):
    """A run at one moment. Times are seconds; `statistics` are the coordinator's, `warnings` the last few, oldest first."""

    title: str
    gone: float
    left: float | None
    roles: tuple[RoleActivity, ...]
    statistics: Mapping[str, Any]
    warnings: tuple[str, ...]


def seconds_left(counts: Iterable[Count], gone: float) -> float | None:
    """Seconds until the first limit is reached if it goes on as it did; None without a limit or before the first progress."""
    done = [
        (count.value - count.before) / max(1e-9, count.limit - count.before)
        for count in counts
        if count.limit and count.value > count.before
    ]
    return max(0.0, gone * (1 / max(done) - 1)) if done and max(done) > 0 else None
