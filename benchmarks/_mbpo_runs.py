"""Real runs of zoo/mbpo/train.py for the benchmarks: start one, read its trace and metrics, and take its steady part.

All times come from the trace, which has one clock (the coordinator's); what each train did comes from metrics.jsonl, joined by
the train's version. So a window that begins and ends with the end of a train holds whole trains only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lzero_async.runs.summary import is_finished, read_results
from lzero_async.tools.traces import read_events

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "zoo" / "mbpo" / "train.py"
COLLECTS = ("collect", "collect failed", "collect cut off")  # a collect that the end of the run cut off was work, too
TRAINS = ("train", "replay")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FOLDER = ROOT / "runs" / "mbpo_bench"


@dataclass
class Lengths:
    """Seconds of a run that are measured, of its start that are not, of the runs that only calibrate, and of each of the two
    windows without and with kills."""

    measured: float = 75.0
    warm: float = 10.0
    calibration: float = 15.0
    kills: float = 60.0


lengths = Lengths()


class TooFewTrains(SystemExit):
    """A run was too short for what it measures, or much too slow."""


@dataclass(frozen=True)
class Span:
    """What one role did, in seconds of the trace; `version` is -1 for waits."""

    role: str
    name: str
    start: float
    end: float
    version: int

    def seconds_in(self, start: float, end: float) -> float:
        """The part of it that lies in the window."""
        return max(0.0, min(self.end, end) - max(self.start, start))


@dataclass(frozen=True)
class Run:
    """A finished run: its results, one row per train, its spans in order."""

    folder: Path
    results: dict[str, Any]
    rows: list[dict[str, Any]]
    spans: list[Span]

    def of(self, *names: str) -> list[Span]:
        """The spans of these kinds, in order."""
        return [span for span in self.spans if span.name in names]

    def roles(self) -> list[str]:
        """The roles that did something."""
        return sorted({span.role for span in self.spans})

    def option(self, name: str) -> Any:
        """An option of the run, as it was in force."""
        return json.loads((self.folder / "options.json").read_text())[name]


@dataclass(frozen=True)
class Steady:
    """A window of a run; busy shares are 0 to 1, `collect` and `learn` are seconds of one role per transition."""

    start: float
    end: float
    trained: int  # real transitions
    collected: int
    collect: float
    learn: float
    collectors_busy: float
    learner_busy: float
    new_data_busy: float  # the learner's, trains on the data at hand left out
    busy: dict[str, float]  # of every role in the trace
    updates: float  # of the agent, per real transition

    @property
    def rate(self) -> float:
        """Effective samples per second: real transitions that were trained on."""
        return self.trained / (self.end - self.start)


def play(folder: Path, options: Mapping[str, Any]) -> Run:
    """Run train.py to its end in an empty `folder`; its output goes to a log file beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    log_of(folder).unlink(missing_ok=True)
    code = start(folder, ["--exp_name", str(folder), *words_of(options)])
    if code:
        raise SystemExit(f"a run ended with code {code}; its log is {log_of(folder)}")
    return read(folder)


def log_of(folder: Path) -> Path:
    """Where the output of a run goes."""
    return folder.with_name(folder.name + ".log")


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as words of the command line."""
    return [
        f"--{name}={json.dumps(value) if isinstance(value, (dict, bool)) else value}" for name, value in options.items()
    ]


def start(folder: Path, words: list[str]) -> int:
    """Run train.py with these words; its exit code. What the shell says about threads does not count: options do."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    with log_of(folder).open("a") as log:
        return subprocess.run(
            [sys.executable, str(ENTRY), *words], stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, check=False
        ).returncode  # fmt: skip


def read(folder: Path) -> Run:
    """What a finished run wrote."""
    events = list(read_events(folder / "trace.json"))
    roles = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [
        Span(
            roles[event["pid"], event["tid"]],
            event["name"],
            event["ts"] / 1e6,
            (event["ts"] + event["dur"]) / 1e6,
            event["args"].get("version", -1),
        )
        for event in events
        if event["ph"] == "X"
    ]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    results = read_results(folder) if is_finished(folder) else {}
    return Run(folder, results, rows, sorted(spans, key=lambda span: span.start))


def steady(run: Run, warm: float) -> Steady:
    """The part from the end of a train `warm` seconds after the first one's to the end of the last one."""
    ends = [span.end for span in run.of(*TRAINS)]
    if not ends or ends[-1] - ends[0] <= warm:
        raise TooFewTrains(f"{run.folder} has no train after the first {warm:g} s; measure for longer")
    return window(run, ends[0] + warm, ends[-1])


def window(run: Run, since: float, until: float) -> Steady:
    """What happened from the first end of a train in [since, until] to the last."""
    trains = [span for span in run.of(*TRAINS) if since <= span.end <= until]
    if len(trains) < 2:
        raise TooFewTrains(
            f"{run.folder} has {len(trains)} train(s) between {since:.1f} and {until:.1f}; measure for longer"
        )
    start, end = trains[0].end, trains[-1].end
    rows = {row["train"]: row for row in run.rows}
    first, last = rows[trains[0].version], rows[trains[-1].version]
    inside = [rows[span.version] for span in trains[1:]]
    new = [row for row in inside if not row["replay"]]
    collects = run.of(*COLLECTS)
    collectors = len({span.role for span in collects})
    collecting = sum(span.seconds_in(start, end) for span in collects)
    learning = sum(row["learner/seconds"] for row in inside)
    anew = sum(row["learner/seconds"] for row in new)
    trained, collected = (last[f"data/{name}"] - first[f"data/{name}"] for name in ("real_data", "collected"))
    work = [span for span in run.spans if not span.name.startswith("wait")]
    return Steady(
        start=start,
        end=end,
        trained=trained,
        collected=collected,
        collect=collecting / collectors / max(1, collected),
        learn=anew / max(1, trained),
        collectors_busy=collecting / collectors / (end - start),
        learner_busy=learning / (end - start),
        new_data_busy=anew / (end - start),
        busy={
            role: sum(span.seconds_in(start, end) for span in work if span.role == role) / (end - start)
            for role in run.roles()
        },
        updates=(last["data/agent_updates"] - first["data/agent_updates"]) / max(1, trained),
    )


def limit(found: Steady, cores: int | None = None) -> float:
    """How much faster two stages at once can be than in turn; with `cores`, if both need one all the time."""
    both = found.collect + found.learn
    return both / max(found.collect, found.learn, both / cores if cores else 0.0)
