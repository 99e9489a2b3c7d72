"""Running sums of what happened, and the box that prints them. Nothing here grows with the length of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from lzero_async.core.gate import Gate
from lzero_async.errors import ConfigError
from lzero_async.types import TrainReport

COUNTERS: Final = ("committed", "trained", "trains", "replayed", "failed", "dropped", "rejected", "abandoned")
EXACT_STALENESS: Final = 127  # above that batches are counted by powers of two, so that the counts stay few
RULE: Final = "=" * 80


class Recorder:
    """Collects numbers for `get_statistics`; its owner holds the lock."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.base: dict[str, int] = {}
        self.staleness: dict[int, int] = {}
        self.first_start: float | None = None
        self.last_end = 0.0
        self.earlier_wall = 0.0
        self.queued = -1  # batches that wait for a train since `queue_at`; -1 before anybody looked
        self.room = 0  # for such batches, since `queue_from`; the area is what waited since then, times how long
        self.queue_at = self.queue_from = self.queue_area = 0.0
        self.reset({})

    def reset(self, base: Mapping[str, int]) -> None:
        """Start again from zero; `base` holds the gate's counters at this moment."""
        self.base = dict(base)
        self.sums = dict.fromkeys(_SUMS, 0.0)
        self.staleness = {}
        self.first_start = None
        self.last_end = self.earlier_wall = self.queue_area = 0.0
        self.queued = -1

    def new_stretch(self) -> None:
        """A run begins: the time since the last stage ended was a pause and is no part of the wall time."""
        self.sums["queue_used"], self.sums["queue_room"] = self.queue_seconds()
        self.earlier_wall = self.wall()
        self.first_start = None
        self.last_end = self.queue_area = 0.0
        self.queued = -1

    def count(self, gate: Gate, name: str) -> int:
        """One of the gate's counters since the last reset."""
        return int(getattr(gate, name)) - self.base.get(name, 0)

    def ran(self, role: str, start: float, end: float) -> None:
        """A collect, train, replay or eval ran from `start` to `end`."""
        sums = self.sums
        runs, seconds = _RAN[role]
        sums[runs] += 1
        sums[seconds] += end - start
        if self.first_start is None or start < self.first_start:
            self.first_start = start
        if end > self.last_end:
            self.last_end = end

    def failed(self, start: float, end: float) -> None:
        """A stage ran without a result: it counts for the wall time only."""
        if self.first_start is None or start < self.first_start:
            self.first_start = start
        self.last_end = max(self.last_end, end)

    def collected(self, start: float, end: float, at_once: int) -> None:
        """A collect ran while at most `at_once` could run beside each other."""
        self.ran("collect", start, end)
        self.sums["collect_share"] += (end - start) / at_once

    def waited(self, role: str, seconds: float) -> None:
        """A role waited for the gate."""
        self.sums[f"{role}_wait"] += seconds

    def trained_on(self, staleness: int) -> None:
        """A batch was trained that had this staleness when its train started."""
        sums, counts = self.sums, self.staleness
        key = staleness if staleness <= EXACT_STALENESS else staleness_key(staleness)
        counts[key] = counts.get(key, 0) + 1
        sums["staleness"] += staleness
        sums["staleness_runs"] += 1
        if staleness > sums["staleness_max"]:
            sums["staleness_max"] = staleness

    def lag_is(self, lag: int) -> None:
        """The number of waiting batches after a commit."""
        sums = self.sums
        sums["lag"] += lag
        sums["lag_runs"] += 1
        if lag > sums["lag_max"]:
            sums["lag_max"] = lag

    def queue_is(self, queued: int, now: float) -> None:
        """From now on so many batches wait for a train."""
        if self.queued >= 0:
            self.queue_area += self.queued * (now - self.queue_at)
        else:
            self.queue_from = now
        self.queue_at = now
        self.queued = queued

    def room_is(self, room: int, now: float) -> None:
        """From now on so many batches may wait for a train."""
        if self.queued >= 0:
            self.queue_is(self.queued, now)
            self.sums["queue_used"], self.sums["queue_room"] = self.queue_seconds()
            self.queue_area, self.queue_from = 0.0, now
        self.room = room

    def queue_seconds(self) -> tuple[float, float]:
        """The seconds that batches have waited for a train, and the most that they could have, until the last stage ended."""
        used, room = self.sums["queue_used"], self.sums["queue_room"]
        if self.queued < 0 or not self.room:
            return used, room
        more = max(0.0, self.last_end - self.queue_at)
        used += self.queue_area + self.queued * more
        return used, room + self.room * (self.queue_at + more - self.queue_from)

    def sampled(self, report: TrainReport) -> None:
        """The age of the replayed samples that a train reported; one that is no number (of no samples) counts as none."""
        if report.sample_age_mean is not None and math.isfinite(report.sample_age_mean):
            self.sums["age"] += report.sample_age_mean * report.sample_count
            self.sums["age_runs"] += report.sample_count
        if report.sample_age_max is not None and math.isfinite(report.sample_age_max):
            self.sums["age_max"] = max(self.sums["age_max"], report.sample_age_max)

    def wall(self) -> float:
        """Seconds from the first start of a stage to the last end, of every run: pauses between runs are left out, the time
        before a resume is not."""
        return self.earlier_wall + (0.0 if self.first_start is None else max(0.0, self.last_end - self.first_start))

    def snapshot(self, gate: Gate) -> dict[str, Any]:
        """The statistics by the names that `get_statistics` documents."""
        sums, wall = self.sums, self.wall()
        busiest = max(sums["collect_share"], sums["train_time"])
        return {
            "mode": "SYNCHRONOUS" if gate.degree == 0 else "ASYNCHRONOUS",
            "off_policy_degree": gate.degree,
            "staleness_policy": gate.policy,
            "collects_per_train": gate.per_train,
            "oversampling": gate.oversampling,
            "queue_capacity": gate.capacity,
            "active_collectors": gate.active_collectors,
            "collect_count": self.count(gate, "committed"),
            "train_count": self.count(gate, "trains"),
            "trained_collects": self.count(gate, "trained"),
            "replay_count": self.count(gate, "replayed"),
            "eval_count": int(sums["eval_runs"]),
            "version": gate.version,
            "open_collects": len(gate.tickets),
            "collect_train_lag": len(gate.waiting),
            "lag_bound": gate.lag_bound if gate.capacity is None else gate.capacity + 1,
            "mean_lag": _ratio(sums["lag"], sums["lag_runs"]),
            "max_lag": int(sums["lag_max"]),
            "queue_fill": min(1.0, _ratio(*self.queue_seconds())),
            "collect_avg_time": _ratio(sums["collect_time"], sums["collect_runs"]),
            "train_avg_time": _ratio(sums["train_time"], sums["train_runs"]),
            "eval_avg_time": _ratio(sums["eval_time"], sums["eval_runs"]),
            "collect_total_time": sums["collect_time"],
            "train_total_time": sums["train_time"],
            "eval_total_time": sums["eval_time"],
            "collect_wait_time": sums["collect_wait"],
            "train_wait_time": sums["train_wait"],
            "eval_wait_time": sums["eval_wait"],
            "wall_time": wall,
            "overlap_efficiency": _ratio(busiest, wall),
            "staleness_mean": _ratio(sums["staleness"], sums["staleness_runs"]),
            "staleness_max": int(sums["staleness_max"]),
            "staleness_counts": dict(sorted(self.staleness.items())),
            "sample_age_mean": _ratio(sums["age"], sums["age_runs"]),
            "sample_age_max": sums["age_max"],
            "dropped": self.count(gate, "dropped"),
            "failed": self.count(gate, "failed"),
            "rejected": self.count(gate, "rejected"),
            "abandoned": self.count(gate, "abandoned"),
            "train_failures": int(sums["train_failures"]),
            "refused_threads": int(sums["refused_threads"]),
            "missing_descriptors": int(sums["missing_descriptors"]),
            "restarts": int(sums["restarts"]),
            "retired": int(sums["retired"]),
            "degree_changes": int(sums["degree_changes"]),
        }

    def state_dict(self) -> dict[str, Any]:
        """The sums as plain numbers."""
        counts = sorted(self.staleness.items())
        used, room = self.queue_seconds()
        sums = {**self.sums, "queue_used": used, "queue_room": room}
        return {"sums": sums, "base": dict(self.base), "wall": self.wall(), "staleness": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from a saved state."""
        try:
            sums = {name: _saved(state["sums"].get(name, 0.0)) for name in _SUMS}
            base = {name: int(_saved(state["base"].get(name, 0))) for name in COUNTERS}
            wall = _saved(state["wall"])
            staleness = {int(_saved(age)): int(_saved(number)) for age, number in state.get("staleness", ())}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ConfigError(f"The saved statistics cannot be read ({error!r}); use another checkpoint.") from error
        self.reset(base)
        self.sums, self.earlier_wall, self.staleness = sums, wall, staleness


def _saved(value: Any) -> float:
    """A number of a saved state, which is neither negative nor endless."""
    if isinstance(value, (bool, str)) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number from 0 on")
    return value if isinstance(value, int) else float(value)


def staleness_key(staleness: int) -> int:
    """Where a staleness is counted: at itself, or, above EXACT_STALENESS, at the power of two below it."""
    return staleness if staleness <= EXACT_STALENESS else 1 << (staleness.bit_length() - 1)


def format_box(statistics: Mapping[str, Any]) -> str:
    """The statistics as the box that ends a run."""
    s = statistics
    lines = [
        RULE,
        "Async Training Statistics:",
        f"  Mode: {s['mode']}",
        f"  Collect iterations: {s['collect_count']}",
        f"  Train iterations: {s['train_count']}",
        f"  Final lag: {s['collect_train_lag']}",
        f"  Avg collect time: {s['collect_avg_time']:.2f}s",
        f"  Avg train time: {s['train_avg_time']:.2f}s",
        f"  Avg eval time: {s['eval_avg_time']:.2f}s",
        f"  Waits: collect {s['collect_wait_time']:.2f}s, train {s['train_wait_time']:.2f}s, eval {s['eval_wait_time']:.2f}s",
        f"  Wall time: {s['wall_time']:.2f}s",
        f"  Overlap efficiency: {s['overlap_efficiency']:.3f}",
        f"  Lag: mean {s['mean_lag']:.2f}, max {s['max_lag']} ({_bound(s)})",
        f"  Staleness: mean {s['staleness_mean']:.2f}, max {s['staleness_max']}",
    ]
    if s["sample_age_max"]:
        lines.append(f"  Sample age: mean {s['sample_age_mean']:.2f}, max {s['sample_age_max']:.0f}")
    if s["replay_count"]:
        lines.append(f"  Replays: {s['replay_count']}")
    lines.append(
        f"  Dropped: {s['dropped']}, failed: {s['failed']}, rejected: {s['rejected']}, abandoned: {s['abandoned']}, "
        f"restarts: {s['restarts']}"
    )
    if s["train_failures"]:
        lines.append(f"  Trains that failed: {s['train_failures']}")
    if s["refused_threads"] or s["missing_descriptors"]:
        lines.append(f"  Refused by the system: threads {s['refused_threads']}, open files {s['missing_descriptors']}")
    if s["retired"]:
        lines.append(f"  Collectors that failed too often and were retired: {s['retired']}")
    if s["degree_changes"]:
        lines.append(f"  Degree changes: {s['degree_changes']}")
    return "\n".join([*lines, RULE])


def _bound(s: Mapping[str, Any]) -> str:
    queue = s["queue_capacity"]
    if queue is not None:
        return f"queue of {queue}"
    several = f", {s['collects_per_train']} collects per train" if s["collects_per_train"] > 1 else ""
    return f"degree {s['off_policy_degree']}{several}"


def _ratio(total: float, count: float) -> float:
    return total / count if count else 0.0


_RAN: Final = {role: (f"{role}_runs", f"{role}_time") for role in ("collect", "train", "replay", "eval")}
_SUMS: Final = (
    *(name for names in _RAN.values() for name in names),
    "collect_share",
    "collect_wait",
    "train_wait",
    "eval_wait",
    "staleness",
    "staleness_runs",
    "staleness_max",
    "lag",
    "lag_runs",
    "lag_max",
    "queue_used",
    "queue_room",
    "age",
    "age_runs",
    "age_max",
    "train_failures",
    "refused_threads",
    "missing_descriptors",
    "restarts",
    "retired",
    "degree_changes",
)
