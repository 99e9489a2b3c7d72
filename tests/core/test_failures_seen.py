"""Failures are logged, counted and traced, and the statistics count what they say."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound, ConfigError, LzeroAsyncError, Recovery, make_backend
from lzero_async.core.statistics import format_box
from lzero_async.telemetry.terminal import frame as live_frame
from lzero_async.testing import ScriptedRole, VirtualClock
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.key_metrics import trouble
from tests.telemetry.sample_view import sample_view


class Learner:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def failing_train(clock: VirtualClock, times: int, error: type[Exception] = OSError) -> Any:
    """A train of one second whose first tries raise."""
    tries = iter(range(10**6))

    def train(*batch: Any) -> None:
        clock.sleep(1.0)
        if next(tries) < times:
            raise error("out of order")

    return train


def test_every_failed_try_of_a_train_is_logged_counted_and_traced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            1, recovery=Recovery(train_retries=3, learner=Learner()), trace=trace, clock=clock
        )
        coordinator.run(lambda context: 1, failing_train(clock, 3), max_train=2, handle_signals=False)
        found = coordinator.get_statistics()
        coordinator.close()
    assert found["train_count"] == 2 and found["train_failures"] == 3
    assert sum(found["staleness_counts"].values()) == 2
    said = [record for record in caplog.records if record.getMessage().startswith("train failed (OSError")]
    assert len(said) == 3 and [record.exc_info is not None for record in said] == [True, False, False]
    spans = [event for event in json.loads(trace.read_text()) if event.get("name") == "train failed"]
    assert [span["dur"] for span in spans] == [1e6] * 3
    assert "Trains that failed: 3" in capsys.readouterr().out


def test_a_train_that_fails_for_good_is_counted_and_one_that_is_given_up_is_not() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinator.run_train(interrupt)
    assert coordinator.get_statistics()["train_failures"] == 0
    with pytest.raises(ZeroDivisionError):
        coordinator.run_train(lambda: 1 // 0)
    found = coordinator.get_statistics()
    assert found["train_failures"] == 1 and found["staleness_counts"] == {} and found["staleness_mean"] == 0.0
    coordinator.run_train(lambda: 1)
    assert coordinator.get_statistics()["staleness_counts"] == {0: 1}
    coordinator.close()


def test_the_count_of_failed_trains_survives_a_resume() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    coordinator.run_collect(lambda: 1)
    with pytest.raises(ZeroDivisionError):
        coordinator.run_train(lambda: 1 // 0)
    resumed = AsyncTrainingCoordinator(1)
    resumed.load_state_dict(coordinator.state_dict())
    assert resumed.get_statistics()["train_failures"] == 1


def test_a_pause_between_runs_is_no_part_of_the_wall_time() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(2, clock=clock)
        options: dict[str, Any] = {"handle_signals": False, "print_statistics": False}

        def run(trains: int) -> dict[str, Any]:
            work = lambda context: clock.sleep(1.0) or 1  # noqa: E731
            return coordinator.run(work, work, max_train=trains, **options).statistics

        first = run(10)
        clock.sleep(1000.0)
        second = run(20)
        assert first["wall_time"] == 11.0 and second["wall_time"] == 22.0
        assert second["overlap_efficiency"] == pytest.approx(first["overlap_efficiency"])
        for role in coordinator.get_activity():
            assert role.active + role.waiting + role.idle == pytest.approx(22.0)
        coordinator.close()


def test_a_collector_that_cannot_be_restarted_did_not_fail_more_often_than_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def collect(context: Any) -> int:
        clock.sleep(1.0)
        if context.worker == 0:
            raise OSError("out of order")
        return 1

    def cannot(worker: int, error: Exception) -> None:
        raise RuntimeError("no machine")

    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            2, num_collectors=2, recovery=Recovery(on_failure="restart"), clock=clock
        )
        coordinator.run(
            collect, lambda batch: None, max_train=5, on_restart=cannot, handle_signals=False, print_statistics=False
        )
        coordinator.close()
    said = [record.getMessage() for record in caplog.records if "is retired" in record.getMessage()]
    assert said == ["collector 0 failed once and is retired; the others go on: RuntimeError('no machine')"]


@pytest.mark.parametrize("name", ["after_train", "on_eval", "stop_fn", "on_restart", "on_retire", "background"])
def test_a_coroutine_function_that_nobody_would_await_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    async def never(*args: Any) -> bool:
        return False

    coordinator = AsyncTrainingCoordinator(1)
    given: Any = {"helper": never} if name == "background" else never
    with pytest.raises(
        ConfigError, match=r"is a coroutine function, which nobody would await; pass a plain function\."
    ):
        coordinator.run(
            lambda context: 1, lambda batch: None, lambda context: 0.0, eval_every=1, max_train=2, handle_signals=False,
            print_statistics=False, **{name: given},
        )  # fmt: skip
    assert coordinator.get_statistics()["collect_count"] == 0
    coordinator.close()


@pytest.mark.parametrize("name", ["get_weights", "priority"])
def test_the_coordinator_refuses_them_too(name: str) -> None:
    async def never(*args: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match=f"{name} is a coroutine function"):
        if name == "priority":
            Bound(queue_capacity=2, queue_order="priority", staleness_policy="allow", priority=never)
        AsyncTrainingCoordinator(1, get_weights=never)


# -- what the system refuses -------------------------------------------------------------------------------------------------


def refuse_threads(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def no_descriptor(*args: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def instants(trace: Path) -> list[str]:
    return [event["name"] for event in json.loads(trace.read_text()) if event.get("ph") == "i"]


def shown(statistics: dict[str, Any]) -> str:
    """What the box, the live view and the report say of it."""
    run = Material("run", Path(), {"statistics": statistics, "events": []}, {}, None, None, ())
    seen = live_frame._troubles(sample_view(**statistics)).text.plain
    return f"{format_box(statistics)}\n{seen}\n{trouble([run])}"


def test_threads_that_the_system_refuses_are_logged_counted_and_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = AsyncTrainingCoordinator(1, True, get_weights=dict, trace=tmp_path / "trace.json")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_threads)
        with pytest.raises(LzeroAsyncError, match="No thread can be started for collector-0"):
            coordinator.run(lambda context: 1, lambda batch: None, max_train=1, handle_signals=False)
        with pytest.raises(LzeroAsyncError, match="No thread can be started"):
            coordinator.run_eval(lambda: 1.0)
    found = coordinator.get_statistics()
    coordinator.close()
    assert (found["refused_threads"], found["missing_descriptors"]) == (2, 0)
    assert instants(tmp_path / "trace.json") == ["thread refused"] * 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("ulimit -u" in line for line in said)
    for words in ("threads 2, open files 0", "refused threads 2", "refused threads 2."):
        assert words in shown(found)


def test_a_worker_without_descriptors_is_logged_counted_and_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the failure is somebody else's, who tries again and says nothing."""
    coordinator = AsyncTrainingCoordinator(1, trace=tmp_path / "trace.json")
    backend = make_backend("process")
    for patched in (socket, "socketpair"), (os, "pipe"):
        with monkeypatch.context() as patch:
            patch.setattr(*patched, no_descriptor)
            with pytest.raises(LzeroAsyncError, match="worker cannot be started: no more files can be open"):
                backend.start("worker", ScriptedRole)
    found = coordinator.get_statistics()
    said = [record.getMessage() for record in caplog.records]
    coordinator.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", no_descriptor)
        with pytest.raises(LzeroAsyncError):
            backend.start("worker", ScriptedRole)
    backend.close()
    assert coordinator.get_statistics() == found  # closed: it counts no more
    assert (found["refused_threads"], found["missing_descriptors"]) == (0, 2)
    assert instants(tmp_path / "trace.json") == ["no descriptor left"] * 2
    assert len(said) == 2 and all("ulimit -n" in line for line in said)
    for words in ("threads 0, open files 2", "missing descriptors 2", "missing descriptors 2."):
        assert words in shown(found)


@pytest.mark.parametrize("stage", ["collect", "train", "retried train", "eval", "background eval", "background role"])
def test_a_stage_without_descriptors_is_counted_once(stage: str) -> None:
    struck = threading.Event()

    def work(*context: Any) -> float:
        if not struck.is_set():
            struck.set()
            no_descriptor()
        return 1.0

    retried = stage == "retried train"
    coordinator = AsyncTrainingCoordinator(
        1, stage == "background eval", get_weights=dict,
        recovery=Recovery(on_failure="restart", restart_backoff=0.001, train_retries=int(retried), learner=Learner()),
    )  # fmt: skip
    helper: dict[str, Any] = {"helper": work} if stage == "background role" else {}
    survives = stage in ("collect", "retried train", "background role")
    with nullcontext() if survives else pytest.raises(OSError, match="Too many open files"):
        coordinator.run(
            work if stage == "collect" else lambda context: 1,
            work if "train" in stage else lambda batch: struck.wait(60.0) if helper else None,
            work if "eval" in stage else lambda context: 1.0,
            eval_every=1, max_train=5, background=helper, handle_signals=False, print_statistics=False,
        )  # fmt: skip
    found = coordinator.get_statistics()
    coordinator.close()
    assert (found["refused_threads"], found["missing_descriptors"]) == (0, 1)
    resumed = AsyncTrainingCoordinator(1)
    resumed.load_state_dict(coordinator.state_dict())
    assert resumed.get_statistics()["missing_descriptors"] == 1


def test_what_the_system_refuses_to_a_role_is_counted_where_its_call_fails() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        backend = make_backend("process")
        try:
            worker = backend.start("worker", ScriptedRole)
            with pytest.raises(OSError, match="too many"):
                worker.call("do", "raise OSError(24, 'too many')")
            with pytest.raises(RuntimeError, match="can't start"):
                worker.call("do", 'raise RuntimeError("can\'t start new thread")')
            with pytest.raises(OSError, match="no such"):
                worker.call("do", "raise OSError(2, 'no such')")
        finally:
            backend.close()
        found = coordinator.get_statistics()
        assert (found["refused_threads"], found["missing_descriptors"]) == (1, 1)
