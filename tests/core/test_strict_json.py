"""The files of a run are valid JSON, whatever numbers a run came to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async.core.trace import TraceWriter, to_json
from lzero_async.runs.run_dir import write_json
from lzero_async.runs.summary import read_summary, write_summary
from lzero_async.telemetry.sinks import Records
from lzero_async.tools.traces import read_events

ROOT = Path(__file__).resolve().parents[2]
VALUES = {
    "nan": math.nan, "infinite": [math.inf, -math.inf], "numpy": np.float32("nan"), "array": np.array([[1.0, np.nan]]),
    "deep": ({"x": (math.nan, 1)},), 0.5: 1, "fine": 1e-300, "place": Path("a"), "flag": np.bool_(True), "none": None,
}  # fmt: skip
PLAIN = {
    "nan": None, "infinite": [None, None], "numpy": None, "array": [[1.0, None]], "deep": [{"x": [None, 1]}], "0.5": 1,
    "fine": 1e-300, "place": "a", "flag": True, "none": None,
}  # fmt: skip


def strictly(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_null() -> None:
    assert strictly(to_json(VALUES)) == PLAIN
    assert to_json([1.5, np.int64(3), np.arange(2)]) == "[1.5, 3, [0, 1]]"
    assert to_json(math.nan) == "null"


def test_the_files_of_a_run_are_read_by_a_strict_parser(tmp_path: Path) -> None:
    write_json(tmp_path / "options.json", VALUES)
    assert strictly((tmp_path / "options.json").read_text()) == PLAIN
    write_summary(tmp_path, {"score": {"best": math.nan}, "rates": {"steps/s": math.inf}})
    assert strictly((tmp_path / "summary.json").read_text())["score"] == {"best": None}
    assert read_summary(tmp_path)["rates"] == {"steps/s": None}
    records = Records(tmp_path)
    for train, loss in enumerate([0.5, math.nan, np.float32("inf")], 1):
        records.train({"train": train, "learner/loss": loss})
    rows = [strictly(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"train": n, "learner/loss": loss} for n, loss in ((1, 0.5), (2, None), (3, None))]
    records.resume(2, 10)
    assert [strictly(line)["train"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_a_trace_is_read_by_a_strict_parser(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.json")
    trace.span("learner", "train", 0.0, 1.0, loss=math.nan)  # type: ignore[arg-type]
    trace.close()
    assert strictly((tmp_path / "trace.json").read_text())
    assert [event["args"]["loss"] for event in read_events(tmp_path / "trace.json") if event["ph"] == "X"] == [None]


def test_a_report_leaves_out_what_is_null(tmp_path: Path) -> None:
    from lzero_async.tools.report.inputs import read_scalars

    records = Records(tmp_path)
    for train, loss in enumerate([0.5, math.nan, 1.5], 1):
        records.train({"train": train, "learner/loss": loss})
    found = read_scalars(tmp_path / "metrics.jsonl")
    assert found is not None and found.rows == 3 and found.broken == 0
    assert [stretch[:2] for stretch in found.series["learner/loss"].stretches] == [(1, 0.5), (3, 1.5)]


@pytest.mark.parametrize("folder", ["lzero_async", "zoo"])
def test_nothing_else_writes_files_of_json(folder: str) -> None:
    """A run's files go through `to_json`; these write files of their own, whose values are never numbers that a run made."""
    own = {"strict_json.py", "fakes.py", "smollm2.py", "build.py"}
    for path in (ROOT / folder).glob("**/*.py"):
        if path.name not in own:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                writes = "json.dump(" in line or ("json.dumps(" in line and ("write" in line or ".append" in line))
                assert not writes or "sys.stdout" in line or "_pending" in line, f"{path}:{number}"
