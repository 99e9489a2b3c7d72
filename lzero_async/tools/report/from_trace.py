"""What a trace adds to a summary: everything where there is none, and what a run did after its last checkpoint."""

from __future__ import annotations

from typing import Any, Final

from lzero_async.core.activity import rank
from lzero_async.core.trace import LEARNER
from lzero_async.tools.report.formatting import duration, is_number
from lzero_async.tools.report.trace_digest import Digest

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
