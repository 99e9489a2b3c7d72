"""The report of a long run: how large the page is, how long it takes to write, and how long Chromium takes to open it.

`python -m benchmarks.report_size` makes the files of a run with 100,000 batches with the project's own writers and measures.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks._chromium import Chromium, find_chromium
from benchmarks.harness import main_guard
from lzero_async.records import Records
from lzero_async.report.command import write_report
from lzero_async.run_folder import REPORT, write_json
from lzero_async.summary import machine, versions, write_summary
from lzero_async.trace import TraceWriter

BATCHES = 100_000
COLLECTORS = 4
DEGREE = 4
MOST_BYTES = 5e6
MOST_SECONDS = 2.0
OPENINGS = 5
EVERY = 0.1  # seconds between two trains
RESULTS = Path(__file__).parent / "results" / "report_size.json"


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
            "program": "benchmark", "title": f"A run of {batches:,} batches", "command": ["-m", "benchmarks.report_size"],
            "began": "2026-01-01T00:00:00+00:00", "seconds": seconds, "ended_by": "max_train", "versions": versions(),
            "machine": machine(), "score": {"name": "score", "highest": 100.0, "best": 99.0, "last": 98.0},
            "axis": "environment steps", "evaluations": evaluations,
            "counts": {"environment steps": batches * 50, "updates": batches},
            "rates": {"environment steps/s": 50 / EVERY, "updates/s": 1 / EVERY},
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


def main() -> int:
    """Measure, print and write; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description="size and opening time of the report of a long run")
    parser.add_argument("--batches", type=int, default=BATCHES, help="batches of the run (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        write_run(folder, options.batches)
        trace_bytes = (folder / "trace.json").stat().st_size
        start = time.perf_counter()
        write_report([folder], folder / REPORT)
        written = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        size = (folder / REPORT).stat().st_size
        opened = open_seconds(folder / REPORT)
    found = {
        "batches": options.batches,
        "trace_bytes": trace_bytes,
        "report_bytes": size,
        "report_bytes_bar": MOST_BYTES,
        "write_seconds": written,
        "peak_memory_bytes": memory,
        "open_seconds_median": statistics.median(opened),
        "open_seconds_max": max(opened),
        "open_seconds_bar": MOST_SECONDS,
    }
    print(f"{options.batches:,} batches, a trace of {trace_bytes / 1e6:.0f} MB")
    print(f"written in {written:.1f} s, at most {memory / 1e6:.0f} MB of memory")
    print(f"page: {size / 1e6:.2f} MB (bar: under {MOST_BYTES / 1e6:g} MB)")
    print(
        f"opens in {statistics.median(opened):.2f} s, at most {max(opened):.2f} s of {OPENINGS} (bar: under {MOST_SECONDS:g} s)"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(size >= MOST_BYTES or max(opened) >= MOST_SECONDS)


if __name__ == "__main__":
    main_guard(main)
