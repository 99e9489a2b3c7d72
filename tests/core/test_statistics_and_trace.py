"""The statistics box and the trace file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from lzero_async import AsyncTrainingCoordinator, ConfigError, Recovery
from lzero_async.core.statistics import format_box
from lzero_async.testing import FakeCollector, FakeEvaluator, FakeLearner, Interrupted, VirtualClock
from lzero_async.tools.traces import read_events

DOCUMENTED = """
mode collect_count train_count eval_count collect_train_lag max_lag collect_avg_time train_avg_time eval_avg_time
collect_total_time train_total_time eval_total_time collect_wait_time train_wait_time overlap_efficiency staleness_mean
staleness_max sample_age_mean sample_age_max dropped failed abandoned restarts
"""
ROOT = Path(__file__).resolve().parents[2]


def traced_run(path: Path, **settings) -> dict:
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 2.0)
        with AsyncTrainingCoordinator(
            2, num_collectors=2, get_weights=learner.get_weights, clock=clock, trace=path, **settings
        ) as coordinator:
            return coordinator.run(
                FakeCollector(clock, 3.0), learner, FakeEvaluator(clock, 4.0), eval_every=5, max_train=10
            ).statistics


def test_the_box_starts_with_the_lines_that_users_know() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(5, clock=clock)
        learner = FakeLearner(clock, 1.82)
        stats = coordinator.run(
            FakeCollector(clock, 2.35),
            learner,
            FakeEvaluator(clock, 8.67),
            eval_every=5,
            max_train=10,
            print_statistics=False,
        ).statistics
        coordinator.close()
    stats |= {"collect_count": 150, "train_count": 145, "collect_train_lag": 5}
    lines = format_box(stats).splitlines()
    assert lines[:9] == [
        "=" * 80,
        "Async Training Statistics:",
        "  Mode: ASYNCHRONOUS",
        "  Collect iterations: 150",
        "  Train iterations: 145",
        "  Final lag: 5",
        "  Avg collect time: 2.35s",
        "  Avg train time: 1.82s",
        "  Avg eval time: 8.67s",
    ]
    assert lines[-1] == "=" * 80
    assert any("Overlap efficiency" in line for line in lines)
    assert any("Staleness" in line for line in lines)


def test_every_documented_key_is_there() -> None:
    with AsyncTrainingCoordinator(0) as coordinator:
        stats = coordinator.get_statistics()
        coordinator.print_statistics()
    for key in DOCUMENTED.split():
        assert key in stats
    documented = (ROOT / "docs" / "statistics.md").read_text()
    assert [key for key in stats if f"`{key}`" not in documented] == []
    stats["collect_count"] = 99
    assert coordinator.get_statistics()["collect_count"] == 0


def test_wall_and_efficiency_are_of_the_clock() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, clock=clock)
        clock.sleep(1000)
        stats = coordinator.run(FakeCollector(clock, 3.0), FakeLearner(clock, 1.0), max_train=10).statistics
        coordinator.close()
    assert stats["wall_time"] == pytest.approx(31)
    assert stats["overlap_efficiency"] == pytest.approx(30 / 31)
    assert stats["train_wait_time"] == pytest.approx(3 + 9 * 2)


def test_the_trace_has_a_track_per_role_and_worker_and_every_span(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "trace.json"
    stats = traced_run(path)
    events = json.loads(path.read_text())
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert set(tracks) == {"learner", "collector 0", "collector 1"}
    spans = [e for e in events if e["ph"] == "X"]
    for name, count in (("collect", 10), ("train", 10), ("eval", 2)):
        mine = [e for e in spans if e["name"] == name]
        assert len(mine) == count
        assert all("version" in e["args"] for e in mine)
    trains = [e for e in spans if e["name"] == "train"]
    assert max(e["args"]["staleness"] for e in trains) == stats["staleness_max"]
    assert sum(e["dur"] for e in trains) == pytest.approx(20e6)
    waits = sum(e["dur"] for e in spans if e["name"] == "wait train")
    assert waits == pytest.approx(stats["train_wait_time"] * 1e6)
    by_track: dict[int, list] = {}
    for event in spans:
        by_track.setdefault(event["tid"], []).append(event)
    for mine in by_track.values():
        mine.sort(key=lambda e: e["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.2 for a, b in pairwise(mine))


def test_background_evaluations_have_their_own_track(tmp_path: Path) -> None:
    traced_run(tmp_path / "trace.json", enable_async_eval=True)
    names = {e["args"]["name"] for e in read_events(tmp_path / "trace.json") if e["name"] == "thread_name"}
    assert "evaluator" in names


def test_a_trace_is_off_by_default_and_needs_a_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another path"):
        AsyncTrainingCoordinator(1, trace=tmp_path / "file" / "trace.json")


def test_a_killed_run_leaves_a_readable_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    program = f"""
        import os, signal
        from lzero_async import AsyncTrainingCoordinator
        coordinator = AsyncTrainingCoordinator(1, trace={str(path)!r})
        def train(batch):
            if batch.id == 300:
                os.kill(os.getpid(), signal.SIGKILL)
        coordinator.run(lambda context: 1, train)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == -signal.SIGKILL
    assert len([e for e in read_events(path) if e["ph"] == "X"]) > 300
    text = path.read_text()
    path.write_text(text[:-7])
    assert len(list(read_events(path))) > 300
    path.write_text("hello\nworld")
    with pytest.raises(ConfigError, match="not a trace"):
        list(read_events(path))


def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path: Path) -> None:
    program = f"""
        import resource, signal
        from lzero_async import AsyncTrainingCoordinator
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        with AsyncTrainingCoordinator(1, trace={str(tmp_path / "trace.json")!r}) as coordinator:
            result = coordinator.run(lambda context: 1, lambda batch: None, max_train=500)
        assert result.statistics["train_count"] == 500
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        check=False,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "training goes on without it" in done.stderr


def test_failed_stages_show_in_trace_and_wall_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        with AsyncTrainingCoordinator(
            1, recovery=Recovery(on_failure="restart", max_restarts=1), clock=clock, trace=path
        ) as coordinator:
            with pytest.raises(Interrupted):
                coordinator.run(FakeCollector(clock, 3.0, fail_at={0, 1}), learner, max_train=1)
            assert coordinator.get_statistics()["wall_time"] == pytest.approx(3.0 + 0.5 + 3.0)
    failed = [e for e in read_events(path) if e["name"] == "collect failed"]
    assert [e["dur"] for e in failed] == [3e6, 3e6]
