"""Real runs of priorzero_entry.py for the benchmarks: start one, and read its trace, its metrics and its results."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lzero_async.runs.summary import read_results
from lzero_async.tools.traces import read_events

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"


@dataclass(frozen=True)
class Span:
    """What one process did, in seconds of the trace."""

    name: str
    pid: int
    start: float
    end: float
    batch: int

    def share_in(self, start: float, end: float) -> float:
        """The part of it that lies in the window."""
        return max(0.0, min(self.end, end) - max(self.start, start)) / max(self.end - self.start, 1e-9)


@dataclass(frozen=True)
class Run:
    """A finished run. `cpu` is the processor time of its whole process tree, in seconds."""

    folder: Path
    results: dict[str, Any]
    rows: list[dict[str, Any]]
    spans: list[Span]
    cpu: float

    def of(self, name: str) -> list[Span]:
        """The spans of one kind, in order."""
        return [span for span in self.spans if span.name == name]


def play(folder: Path, arguments: Sequence[str], settings: Sequence[str]) -> Run:
    """Run the entry point to its end in `folder`; its output goes to a log file beside it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = [word for setting in (*settings, "run_config.trace=True") for word in ("--set", setting)]
    command = [sys.executable, str(ENTRY), "--exp_name", str(folder), *arguments, *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with folder.with_name(folder.name + ".log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"a run ended with code {done.returncode}; its log is {folder}.log")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return read(folder, cpu)


def read(folder: Path, cpu: float = 0.0) -> Run:
    """What a finished run wrote."""
    spans = [
        Span(
            event["name"],
            event["pid"],
            event["ts"] / 1e6,
            (event["ts"] + event["dur"]) / 1e6,
            event["args"].get("batch", -1),
        )
        for event in read_events(folder / "trace.json")
        if event["ph"] == "X"
    ]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Run(folder, read_results(folder), rows, sorted(spans, key=lambda s: s.start), cpu)


def overlap_share(run: Run) -> float:
    """The share of the time from the first stage to the last in which a collect and a train run in different processes."""
    collects, trains = run.of("collect"), run.of("train")
    stages = [*collects, *trains, *run.of("eval")]
    both = sum(
        max(0.0, min(one.end, other.end) - max(one.start, other.start))
        for other in trains
        for one in _merged([span for span in collects if span.pid != other.pid])
    )
    return both / (max(span.end for span in stages) - min(span.start for span in stages))


def _merged(spans: list[Span]) -> list[Span]:
    """Spans that overlap each other (of several collectors) as one."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda s: s.start):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Span(last.name, last.pid, last.start, max(last.end, span.end), last.batch)
        else:
            merged.append(span)
    return merged
