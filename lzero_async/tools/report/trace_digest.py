"""A trace of any length in one pass: what the roles did in bins of time, and single spans from the middle of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from lzero_async.core.activity import rank
from lzero_async.core.statistics import staleness_key
from lzero_async.core.trace import EVALUATOR, LEARNER
from lzero_async.tools.report.markup import duration, is_number
from lzero_async.tools.timeline.kinds import CUT_OFF, WAIT, kind_of
from lzero_async.tools.traces import Moment, Span, extent, read_items

FRESH: Final = 0.9  # a summary that covers this share of the trace tells what the roles did
STAGES: Final = {"collect_total_time": "collect", "train_total_time": "train", "eval_total_time": "eval"}


def complete(summary: dict[str, Any], traced: Digest) -> str | None:
    """Fill what the summary lacks; of a run that has not ended take what tells of more, the summary or the trace. Return a
    sentence if the trace goes on well after the summary."""
    ended, statistics, seconds = summary.get("ended_by") is not None, summary["statistics"], summary.get("seconds")
    behind = not ended and is_number(seconds) and seconds < FRESH * traced.seconds
    if not summary["roles"] or behind:
        summary["roles"] = _roles(traced, summary["roles"])
        if traced.eval_seconds:
            statistics.setdefault("async_eval", traced.eval_in_turn < traced.eval_seconds / 2)
    if not ended:
        summary["seconds"] = max(seconds if is_number(seconds) else 0.0, traced.seconds)
        if sum(traced.trains) > (statistics.get("train_count") or 0):
            statistics |= _statistics(traced)
        statistics["collect_count"] = max(statistics.get("collect_count") or 0, sum(traced.collects))
    if not statistics.get("staleness_counts") and traced.staleness:
        statistics["staleness_counts"] = _text_keys(traced.staleness)
    statistics.setdefault("train_count", sum(traced.trains))
    statistics.setdefault("collect_count", sum(traced.collects))
    if not behind:
        return None
    return (
        f"The last summary was written after {duration(seconds)}, and the trace goes on until {duration(traced.seconds)}: time, "
        "batches, staleness and what the roles did are those of the trace, scores and other counts those of the summary."
    )


def _roles(traced: Digest, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The roles' seconds; the learner waits for an evaluation in its turn. CPU seconds are not in a trace."""
    rows = []
    more = {str(row.get("role")): row for row in known}
    for role in sorted(traced.tracks, key=rank):
        track = traced.tracks[role]
        waiting = track.waiting + (traced.eval_in_turn if role == LEARNER else 0.0)
        rows.append(
            {
                "role": role,
                "active": track.active,
                "waiting": waiting,
                "idle": max(0.0, traced.seconds - track.active - waiting),
                **{name: value for name, value in more.get(role, {}).items() if name in ("memory_bytes", "restarts")},
            }
        )
    return rows


def _statistics(traced: Digest) -> dict[str, Any]:
    """What a trace tells of the coordinator's statistics; None for those of which it would tell another number."""
    found: dict[str, Any] = {"train_count": sum(traced.trains), "wall_time": traced.seconds}
    for name, kind in STAGES.items():
        found[name] = sum(sum(track.bins.get(kind, ())) for track in traced.tracks.values())
    if counts := traced.staleness:
        found["staleness_mean"] = traced.staleness_sum / sum(counts.values())
        found["staleness_max"] = traced.staleness_max
        found["staleness_counts"] = _text_keys(counts)
    if (lag := traced.levels.get("lag")) is not None:
        found["max_lag"] = max((value for value in lag.highest if value is not None), default=None)
    return {**found, "mean_lag": None, "overlap_efficiency": None}


def _text_keys(counts: dict[int, int]) -> dict[str, int]:
    """Counts as JSON has them."""
    return {str(key): count for key, count in sorted(counts.items())}


BINS: Final = 120
WINDOW_SPANS: Final = 600  # of the middle of the run that are kept one by one
WINDOW_TRAINS: Final = 12  # that the window shows, if it can
CUT: Final = "cut"  # the kind of what the end of the run cut off


class Window(NamedTuple):
    """One span of the middle of the run; seconds since the trace began. `facts` are batch, version and staleness."""

    role: str
    kind: str
    name: str
    start: float
    end: float
    facts: dict[str, Any]


@dataclass
class Track:
    """What one role did: seconds by kind of work (and "wait") in each bin, and in all."""

    bins: dict[str, list[float]] = field(default_factory=dict)
    active: float = 0.0
    waiting: float = 0.0


@dataclass
class Level:
    """A counter over time: its mean and its highest value in each bin, None before it was first known."""

    means: list[float | None]
    highest: list[float | None]


@dataclass
class Digest:
    """A trace in bins of `width` seconds. Of the seconds of evaluations, `eval_in_turn` were in the learner's turn."""

    seconds: float
    width: float
    events: int = 0
    tracks: dict[str, Track] = field(default_factory=dict)
    collects: list[int] = field(default_factory=lambda: [0] * BINS)
    trains: list[int] = field(default_factory=lambda: [0] * BINS)
    staleness: dict[int, int] = field(default_factory=dict)
    staleness_sum: int = 0
    staleness_max: int = 0
    levels: dict[str, Level] = field(default_factory=dict)
    eval_seconds: float = 0.0
    eval_in_turn: float = 0.0
    window: list[Window] = field(default_factory=list)
    window_start: float = 0.0
    window_seconds: float = 0.0


def digest(path: Path) -> Digest | None:
    """Read a trace; None if nothing is in it. ConfigError if it is not a trace of ours."""
    found = extent(path)
    if found is None:
        return None
    reader = _Reader(*found)
    for item, args in read_items(path):
        reader.add(item, args)
    return reader.finish()


class _Reader:
    """Takes the items one by one. Its memory does not grow with their number."""

    def __init__(self, first: float, last: float) -> None:
        seconds = max(last - first, 1e-9)
        self._first = first
        self._found = Digest(seconds, seconds / BINS, window_start=seconds / 2)
        self._cut = math.inf  # where the window ends since it is full
        self._counts: dict[str, tuple[float, float]] = {}  # when each counter was last set, and to what

    def add(self, item: Span | Moment, args: dict[str, Any]) -> None:
        self._found.events += 1
        if isinstance(item, Span):
            self._span(item.since(self._first), args)
        elif item.what == "C":
            self._count(item.name, max(0.0, item.at - self._first), item.value)

    def _span(self, span: Span, args: dict[str, Any]) -> None:
        role, name, start, end = span
        kind = CUT if kind_of(name) == CUT_OFF else kind_of(name)
        if name == "eval":
            self._found.eval_seconds += end - start
            self._found.eval_in_turn += end - start if role == LEARNER else 0.0
            role = EVALUATOR
        track = self._found.tracks.setdefault(role, Track())
        if kind == WAIT:
            track.waiting += end - start
        else:
            track.active += end - start
            self._keep(Window(role, kind, name, start, end, args))
        self._spread(track.bins.setdefault(kind, [0.0] * BINS), start, end)
        if kind == "collect":
            self._found.collects[self._bin(end)] += 1
        elif kind == "train":
            self._found.trains[self._bin(end)] += 1
            self._stale(args.get("staleness"))

    def _bin(self, at: float) -> int:
        return min(BINS - 1, max(0, int(at / self._found.width)))

    def _spread(self, bins: list[float], start: float, end: float) -> None:
        first, last, width = self._bin(start), self._bin(end), self._found.width
        if first == last:
            bins[first] += end - start
            return
        bins[first] += (first + 1) * width - start
        for place in range(first + 1, last):
            bins[place] += width
        bins[last] += end - last * width

    def _stale(self, staleness: Any) -> None:
        if isinstance(staleness, int):
            found, key = self._found, staleness_key(staleness)
            found.staleness[key] = found.staleness.get(key, 0) + 1
            found.staleness_sum += staleness
            found.staleness_max = max(found.staleness_max, staleness)

    def _keep(self, span: Window) -> None:
        found = self._found
        if span.end > found.window_start and span.start < self._cut:
            found.window.append(span)
            if len(found.window) >= WINDOW_SPANS and self._cut == math.inf:
                self._cut = (
                    span.end
                )  # spans come by their end, so up to here none is missing but those that are still open

    def _count(self, name: str, at: float, value: float) -> None:
        self._hold(name, at)
        self._counts[name] = at, value
        self._raise(name, self._bin(at), value)

    def _hold(self, name: str, until: float) -> None:
        """The counter kept its value until now."""
        if name in self._counts:
            since, value = self._counts[name]
            level = self._level(name)
            seconds = [0.0] * BINS if self._bin(since) != self._bin(until) else None
            if seconds is None:
                self._weigh(level, self._bin(until), value, until - since)
                return
            self._spread(seconds, since, until)
            for place in range(self._bin(since), self._bin(until) + 1):
                self._weigh(level, place, value, seconds[place])
                self._raise(name, place, value)

    def _level(self, name: str) -> Level:
        return self._found.levels.setdefault(name, Level([None] * BINS, [None] * BINS))

    def _weigh(self, level: Level, place: int, value: float, seconds: float) -> None:
        level.means[place] = (level.means[place] or 0.0) + value * seconds

    def _raise(self, name: str, place: int, value: float) -> None:
        highest = self._level(name).highest
        before = highest[place]
        highest[place] = value if before is None else max(before, value)

    def finish(self) -> Digest:
        found = self._found
        for name, (since, _) in list(self._counts.items()):
            self._hold(name, max(since, found.seconds))
        for level in found.levels.values():
            level.means = [None if sum_ is None else sum_ / found.width for sum_ in level.means]
        trains = sum(found.trains)
        wanted = WINDOW_TRAINS * found.seconds / max(1, trains)
        room = min(self._cut, found.seconds) - found.window_start
        found.window_seconds = min(max(wanted, 0.0), room)
        end = found.window_start + found.window_seconds
        found.window = sorted(
            (span for span in found.window if span.start < end), key=lambda span: (span.start, span.role)
        )
        return found
