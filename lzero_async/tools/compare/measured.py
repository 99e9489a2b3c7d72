"""The numbers of one run, under names that mean the same for every application, from its summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import PipelineDescription, pipeline_of
from lzero_async.runs.summary import read_summary
from lzero_async.tools.traces import find_trace


@dataclass(frozen=True)
class Run:
    """A finished run. Times are seconds; `collect_seconds`, `train_seconds` and `eval_seconds` are sums over all roles of a kind;
    `busy` and `utilisation` are shares, None where there is nothing to know."""

    folder: Path
    pipeline: PipelineDescription
    options: Mapping[str, Any]
    synchronous: bool
    async_eval: bool
    seconds: float
    collected: float  # samples
    trained: float  # those that were trained on; what was dropped is not among them
    updates: float
    trains: int
    collect_seconds: float
    train_seconds: float
    eval_seconds: float
    collectors: int
    environments: int
    staleness_mean: float
    staleness_max: float
    dropped: int
    failed: int
    restarts: int
    busy: Mapping[str, float]
    utilisation: Mapping[str, float | None]

    @property
    def effective(self) -> float:
        """Samples trained on per second."""
        return self.trained / self.seconds

    @property
    def collect(self) -> float:
        """Seconds of all collectors per sample."""
        return self.collect_seconds / self.collected

    @property
    def train(self) -> float:
        """Seconds of the learner per sample."""
        return self.train_seconds / self.trained


def load_run(folder: Path, program: str) -> Run:
    """Read a run of the application `program`; ConfigError if the folder holds no finished one that can be measured."""
    summary = read_summary(folder)
    if summary.get("ended_by") is None:
        raise ConfigError(f"{folder} holds no finished run; give the folder of a run that ended.")
    if summary.get("program") != program:
        raise ConfigError(f"{folder} holds a run of {summary.get('program')}, not of {program}; check --app.")
    find_trace(folder)
    try:
        return _measure(folder, summary)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{folder} holds a summary without {error}; give the folder of another run.") from error


def _measure(folder: Path, summary: Mapping[str, Any]) -> Run:
    statistics, pipeline = summary["statistics"], pipeline_of(summary)
    seconds, trains = float(statistics["wall_time"]), int(statistics["train_count"])
    if trains < 1 or seconds <= 0:
        raise ConfigError(f"The run in {folder} ended before its first train; give it more --seconds.")
    options = folder / "options.json"
    return Run(
        folder=folder,
        pipeline=pipeline,
        options=json.loads(options.read_text()) if options.is_file() else {},
        synchronous=statistics["mode"] == "SYNCHRONOUS",
        async_eval=bool(statistics.get("async_eval")),
        seconds=seconds,
        collected=pipeline.collected,
        trained=pipeline.trained,
        updates=pipeline.updates,
        trains=trains + int(statistics["replay_count"]),
        collect_seconds=float(statistics["collect_total_time"]),
        train_seconds=float(statistics["train_total_time"]),
        eval_seconds=float(statistics["eval_total_time"]),
        collectors=pipeline.collectors,
        environments=pipeline.environments,
        staleness_mean=float(statistics["staleness_mean"]),
        staleness_max=float(statistics["staleness_max"]),
        dropped=int(statistics["dropped"]),
        failed=int(statistics["failed"]),
        restarts=int(statistics["restarts"]),
        busy=_busy(summary, pipeline, seconds),
        utilisation=dict(summary["utilisation"]),
    )


def _busy(summary: Mapping[str, Any], pipeline: PipelineDescription, seconds: float) -> dict[str, float]:
    """The share of the run that each kind of role worked; in rounds of episodes, that the environments played."""
    shares = {
        row["role"]: min(1.0, row["active"] / max(1e-9, row["active"] + row["waiting"] + row["idle"]))
        for row in summary["roles"]
        if row["active"] is not None
    }
    collectors = [share for role, share in shares.items() if role.startswith("collector ")]
    found = {"collectors": sum(collectors) / len(collectors)} if collectors else {}
    if pipeline.rounds is not None:
        found["collectors"] = min(1.0, pipeline.rounds.busy_seconds / pipeline.rounds.at_once / seconds)
    return found | {role: share for role, share in shares.items() if not role.startswith("collector ")}
