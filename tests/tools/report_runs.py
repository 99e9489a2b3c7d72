"""Runs written by hand for the tests of the report, with the project's own writers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lzero_async.core.trace import TraceWriter
from lzero_async.runs.summary import write_summary

TRAINS = 20
SECTIONS = ("score", "throughput", "time", "staleness", "timeline", "trouble", "scalars", "settings")


def summary(**changes: Any) -> dict[str, Any]:
    """20 batches in 60 s: the learner always works, the collectors wait for it a third of the time."""
    return {
        "program": "test", "title": "A test: of the report", "command": ["train.py", "--seed", "1"],
        "began": "2026-01-02T03:04:05+00:00", "seconds": 60.0, "ended_by": "max_env_step",
        "versions": {"python": "3.11.7", "lzero-async": "0.1.0"},
        "machine": {"system": "Linux x86_64", "cores": 8, "memory_bytes": 16_000_000_000, "gpus": []},
        "score": {"name": "mean return", "highest": 500.0, "best": 432.1, "last": 400.0},
        "axis": "steps trained",
        "evaluations": [evaluation(number) for number in range(1, 6)],
        "counts": {"steps trained": 12345, "steps played": 12500, "updates": 200},
        "rates": {"steps trained/s": 205.75, "steps played/s": 208.33, "updates/s": 3.33},
        "statistics": statistics(), "roles": roles((0.67, 0.33, 0.0), (0.97, 0.02, 0.01)),
        "utilisation": {"queue": 0.5, "buffer": None, "cpu": 0.3, "gpu": None, "cpu_seconds": 140.0}, "batch_bytes": 123_456,
        "events": [{"seconds": 12.5, "level": "WARNING", "text": "collector 1 failed (no answer); restart 1 of at most 3"}],
    } | changes  # fmt: skip


def evaluation(number: int, shift: float = 0.0) -> dict[str, Any]:
    return {
        "name": "evaluation", "version": 4 * number, "steps": 2000 * number, "seconds": 12.0 * number,
        "score": 80.0 * number + shift, "low": 60.0 * number, "high": 100.0 * number,
    }  # fmt: skip


def statistics(**changes: Any) -> dict[str, Any]:
    return {
        "mode": "ASYNCHRONOUS", "off_policy_degree": 2, "queue_capacity": None, "active_collectors": 2, "collect_count": TRAINS,
        "train_count": TRAINS, "replay_count": 0, "eval_count": 5, "version": TRAINS, "mean_lag": 1.4, "max_lag": 2,
        "collect_total_time": 80.0, "train_total_time": 58.0, "eval_total_time": 3.0, "wall_time": 60.0,
        "overlap_efficiency": 0.97, "staleness_mean": 1.5, "staleness_max": 2, "staleness_counts": {"0": 1, "1": 8, "2": 11},
        "dropped": 0, "failed": 1, "abandoned": 0, "restarts": 1, "retired": 0, "degree_changes": 0,
    } | changes  # fmt: skip


def roles(
    collectors: tuple[float, float, float],
    learner: tuple[float, float, float],
    evaluator: tuple[float, float, float] | None = (0.05, 0.0, 0.95),
    seconds: float = 60.0,
    restarts: dict[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Rows of active, waiting and idle shares."""
    rows = [("collector 0", collectors), ("collector 1", collectors), ("learner", learner)]
    rows += [("evaluator", evaluator)] if evaluator is not None else []
    return [
        {
            "role": role, "active": active * seconds, "waiting": waiting * seconds, "idle": idle * seconds,
            "cpu_seconds": 12.5, "memory_bytes": 300_000_000, "restarts": (restarts or {}).get(role, 0),
        }
        for role, (active, waiting, idle) in rows
    ]  # fmt: skip


def write_trace(path: Path, trains: int = TRAINS) -> None:
    """Two collectors in turn, collects of 4 s, trains of 3 s without a pause."""
    trace = TraceWriter(path)
    for batch in range(trains):
        start = 100 + 3.0 * batch
        trace.counters(start, lag=batch % 3, queue=batch % 2, open_collects=2, degree=2)
        trace.collect(f"collector {batch % 2}", start - 4, start, batch, max(0, batch - 1))
        trace.span(f"collector {batch % 2}", "wait commit", start, start + 1)
        trace.train(start, start + 2.9, batch, batch + 1, min(2, batch))
        trace.published(start + 2.9, start + 3.0, batch + 1)
        if batch % 4 == 3:
            trace.span("evaluator", "eval", start, start + 0.6, version=batch)
    trace.close()


def write_run(
    folder: Path, *, seed: int = 1, trains: int = TRAINS, options: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """Everything that a finished run leaves for a report."""
    folder.mkdir(parents=True, exist_ok=True)
    write_summary(folder, summary(**changes))
    chosen = {"seed": seed, "exp_name": str(folder), "policy": {"off_policy_degree": 2, "lr": 0.001}} | (options or {})
    (folder / "options.json").write_text(json.dumps(chosen))
    rows = [
        {"train": number, "learner/loss": 1 / number, "learner/fixed": 7, "note": "x"}
        for number in range(1, trains + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_trace(folder / "trace.json", trains)
    return folder
