"""The report of a long run, whose files are made with the project's own writers: how large the page is, how long it takes to
write, and how long Chromium takes to open it."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from benchmarks._chromium import Chromium, find_chromium
from benchmarks.harness import Bar
from lzero_async.core.trace import TraceWriter
from lzero_async.runs.run_dir import REPORT, write_json
from lzero_async.runs.summary import machine, versions, write_summary
from lzero_async.telemetry.sinks import Records
from lzero_async.tools.report.command import write_report

BATCHES = 100_000
COLLECTORS = 4
DEGREE = 4
MOST_BYTES = 5e6
MOST_SECONDS = 2.0
OPENINGS = 5
EVERY = 0.1  # seconds between two trains


def write_run(folder: Path, batches: int) -> None:
    """The files of a run with so many batches: what its writers would have left, without the training."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_trace(folder, batches)
    _write_metrics(folder, batches)
    write_json(folder / "options.json", {"off_policy_degree": DEGREE, "num_collectors": COLLECTORS, "seed": 0})
    _write_summary(folder, batches)


def _write_trace(folder: Path, batches: int) -> None:
    trace = TraceWriter(folder / "trace.json")
    for batch in range(batches):
        start = batch * EVERY
        track = f"collector {batch % COLLECTORS}"
        length = EVERY * COLLECTORS * (0.8 + 0.15 * math.sin(batch))
        trace.span(track, "wait collect", start, start + 0.01)
        trace.collect(track, start + 0.01, start + 0.01 + length, batch, max(0, batch - DEGREE))
        trace.counters(start, lag=batch % (DEGREE + 1), queue=batch % DEGREE, open_collects=COLLECTORS)
        done = start + EVERY * COLLECTORS
        trace.span("learner", "wait train", done, done + 0.01)
        trace.train(done + 0.01, done + 0.09, batch, batch + 1, batch % (DEGREE + 1))
        trace.published(done + 0.09, done + 0.095, batch + 1)
        if batch % 100 == 99:
            trace.span("evaluator", "eval", done, done + 5, version=batch)
    trace.close()


def _write_metrics(folder: Path, batches: int) -> None:
    records = Records(folder)
    for train in range(1, batches + 1):
        values = {f"learner/loss_{number}": math.sin(train / 999 + number) for number in range(20)}
        records.train({"train": train, **values, "learner/staleness": train % (DEGREE + 1)})
    records.close()


def _write_summary(folder: Path, batches: int) -> None:
    seconds = batches * EVERY
    evaluations = [
        {"name": "evaluation", "version": version, "steps": version * 50, "seconds": version * EVERY,
         "score": 100 * (1 - math.exp(-version / batches * 4)) + math.sin(version), "low": 0.0, "high": 100.0}
        for version in range(100, batches + 1, 100)
    ]  # fmt: skip
    roles = [
        ("learner", 0.8, 0.1),
        ("evaluator", 0.5, 0.0),
        *((f"collector {number}", 0.8, 0.1) for number in range(COLLECTORS)),
    ]
    write_summary(
        folder,
        {
            "program": "benchmark", "title": f"A run of {batches:,} batches", "command": ["-m", "benchmarks.seen"],
            "began": "2026-01-01T00:00:00+00:00", "seconds": seconds, "ended_by": "max_train", "versions": versions(),
            "machine": machine(), "score": {"name": "score", "highest": 100.0, "best": 99.0, "last": 98.0},
            "axis": "steps trained", "evaluations": evaluations,
            "counts": {"steps trained": batches * 50, "updates": batches},
            "rates": {"steps trained/s": 50 / EVERY, "updates/s": 1 / EVERY},
            "statistics": {
                "mode": "ASYNCHRONOUS", "off_policy_degree": DEGREE, "queue_capacity": None, "collect_count": batches,
                "train_count": batches, "mean_lag": DEGREE / 2, "max_lag": DEGREE, "staleness_mean": DEGREE / 2,
                "staleness_max": DEGREE, "staleness_counts": {str(key): batches // 5 for key in range(DEGREE + 1)},
                "wall_time": seconds, "overlap_efficiency": 0.8, "failed": 200, "restarts": 3, "dropped": 0, "abandoned": 0,
            },
            "roles": [
                {"role": role, "active": active * seconds, "waiting": waiting * seconds,
                 "idle": (1 - active - waiting) * seconds, "cpu_seconds": active * seconds, "memory_bytes": 4e8, "restarts": 0}
                for role, active, waiting in roles
            ],
            "utilisation": {"queue": 0.5, "buffer": 0.3, "cpu": 0.7, "gpu": None, "cpu_seconds": seconds},
            "batch_bytes": 120_000,
            "events": [
                {"seconds": number * seconds / 200, "level": "WARNING", "text": f"collector {number % COLLECTORS} failed"}
                for number in range(200)
            ],
        },
    )  # fmt: skip


def open_seconds(page: Path, openings: int = OPENINGS) -> list[float]:
    """How long Chromium took to load the page, each time in a new browser."""
    found = find_chromium()
    assert found is not None, "there is no Chromium with chromedriver on this machine"
    seconds = []
    for _ in range(openings):
        with Chromium(*found) as browser:
            browser.open(page)
            seconds.append(browser.load_seconds())
    return seconds


@lru_cache(maxsize=1)
def measured() -> dict[str, float]:
    """Make a long run's files and its report, and open that."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        write_run(folder, BATCHES)
        start = time.perf_counter()
        write_report([folder], folder / REPORT)
        return {
            "written": time.perf_counter() - start,
            "trace": (folder / "trace.json").stat().st_size / 1e6,
            "page": (folder / REPORT).stat().st_size / 1e6,
            "opened": statistics.median(open_seconds(folder / REPORT)),
        }


def bars() -> list[Bar]:
    """The page of a run with 100,000 batches."""
    run = f"{BATCHES:,} batches"
    return [
        Bar(f"{run}: the page (MB)", MOST_BYTES / 1e6, False, lambda: measured()["page"], 1),
        Bar(
            f"{run}: Chromium opens it (s, median of {OPENINGS})", MOST_SECONDS, False, lambda: measured()["opened"], 1
        ),
        Bar(f"{run}: the trace (MB)", None, False, lambda: measured()["trace"], 1),
        Bar(f"{run}: writing the page (s)", None, False, lambda: measured()["written"], 1),
    ]
