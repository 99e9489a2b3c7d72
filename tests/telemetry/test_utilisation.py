"""The use of machine, processes, queue and buffer: sampled for real and from made-up counters, and beside its targets."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import types
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from lzero_async.telemetry.utilisation import TARGETS, Utilisation, UtilisationSample, compare, format_targets

ROOT = Path(__file__).resolve().parents[2]
Times = namedtuple("Times", "user system idle iowait guest")


class FakeProcess:
    def __init__(self, psutil: FakePsutil, pid: int) -> None:
        self.pid, self._psutil = pid, psutil
        if pid not in psutil.table:
            raise psutil.Error(f"no process {pid}")

    def oneshot(self) -> FakeProcess:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass

    def children(self, recursive: bool) -> list[FakeProcess]:
        assert recursive
        return [FakeProcess(self._psutil, pid) for pid in self._psutil.children.get(self.pid, [])]

    def create_time(self) -> float:
        return self._psutil.table[self.pid][0]

    def cpu_times(self) -> Any:
        if self.pid in self._psutil.dying:
            raise self._psutil.Error("gone")
        return types.SimpleNamespace(user=self._psutil.table[self.pid][1], system=0.5)

    def memory_info(self) -> Any:
        return types.SimpleNamespace(rss=1000 + self.pid)


class FakePsutil:
    """Counters that a test sets. `table`: pid to (start, seconds)."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.times = Times(100, 50, 800, 50, 30)
        self.table = {1: (0.0, 10.0), 2: (1.0, 20.0), 3: (2.0, 30.0)}
        self.children = {1: [2]}
        self.dying: set[int] = set()

    def cpu_times(self) -> Times:
        return self.times

    def cpu_count(self) -> int:
        return 4

    def Process(self, pid: int | None) -> FakeProcess:  # noqa: N802
        return FakeProcess(self, 1 if pid is None else pid)


@pytest.fixture
def psutil(monkeypatch: pytest.MonkeyPatch) -> FakePsutil:
    fake = FakePsutil()
    monkeypatch.setitem(sys.modules, "psutil", fake)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return fake


def test_cpu_is_the_busy_share_of_all_cores_since_the_last_sample(psutil: FakePsutil) -> None:
    use = Utilisation()
    psutil.times = Times(104, 52, 802, 52, 34)  # 10 s in all, of them 6 busy; a guest's are in user already
    seen = use.sample()
    assert (seen.cpu, seen.cores, seen.gpu) == (0.6, 2.4, None)
    assert use.sample().cpu is None  # no time has passed
    psutil.times = Times(104, 52, 812, 52, 34)
    assert use.sample().cpu == 0.0
    psutil.times = Times(124, 52, 811, 52, 34)  # idle time that was taken back, which Linux does now and then
    assert use.sample().cpu == 1.0


def test_processes_are_counted_once_with_what_they_started(psutil: FakePsutil) -> None:
    pids = [1, 2]
    use = Utilisation(lambda: pids)
    psutil.table[1] = (0.0, 11.5)
    psutil.table[2] = (1.0, 22.0)
    seen = use.sample()
    assert (seen.cpu_seconds, seen.memory) == (3.5, 2003)
    assert use.sample().cpu_seconds == 0.0
    psutil.table[2] = (9.0, 1.0)  # another process with the same number
    assert use.sample().cpu_seconds == 1.5
    pids.append(77)  # there is none
    psutil.dying.add(2)
    seen = use.sample()
    assert (seen.cpu_seconds, seen.memory) == (0.0, 1001)


def test_by_default_it_is_this_process_and_its_children(psutil: FakePsutil) -> None:
    assert Utilisation().sample().memory == 2003


def test_the_real_machine() -> None:
    pytest.importorskip("psutil")
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        use = Utilisation(lambda: [os.getpid()])
        deadline = time.monotonic() + 30
        while True:  # until the counters of the machine, which tick, have moved
            seen = use.sample()
            if seen.cpu_seconds and seen.cpu:
                break
            assert time.monotonic() < deadline
            sum(range(100_000))
        assert 0 < seen.cpu <= 1 and 0 < seen.cores <= (os.cpu_count() or 1)
        assert seen.memory > 10_000_000
    finally:
        child.kill()
        child.wait()


def test_without_psutil_one_line_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    use = Utilisation()
    assert use.sample() == use.sample() == UtilisationSample(None, None, None, None, None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def cuda(available: bool, use: int | Exception) -> types.SimpleNamespace:
    def utilization() -> int:
        if isinstance(use, Exception):
            raise use
        return use

    return types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: available, utilization=utilization))


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        (cuda(True, 93), 0.93),
        (cuda(False, 93), None),
        (cuda(True, ModuleNotFoundError("pynvml")), None),
        (types.SimpleNamespace(), None),
    ],
)
def test_gpu_only_where_torch_can_tell(
    psutil: FakePsutil, monkeypatch: pytest.MonkeyPatch, torch: Any, expected: float | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert Utilisation().sample().gpu == expected


def test_torch_is_not_imported_for_it() -> None:
    code = "from lzero_async.telemetry.utilisation import Utilisation; Utilisation().sample()"
    check = "; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + check], cwd=ROOT, check=True)


def test_values_beside_their_targets() -> None:
    rows = compare({"queue": 0.81, "buffer": 0.7, "cpu": 0.5, "gpu": None, "other": 1.0})
    assert [tuple(row) for row in rows] == [
        ("queue", 0.81, "50-80 %", "above"),
        ("buffer", 0.7, "70-90 %", "ok"),
        ("cpu", 0.5, "> 80 %", "below"),
        ("gpu", None, "> 90 %", "-"),
    ]
    for name, (low, high) in TARGETS.items():
        verdicts = [compare({name: value})[list(TARGETS).index(name)].verdict for value in (low - 0.01, low, high)]
        assert verdicts == ["below", "ok", "ok"]
    assert format_targets(rows).splitlines() == [
        "use of  seen   target",
        "----------------------------",
        "queue   81 %  50-80 %  above",
        "buffer  70 %  70-90 %     ok",
        "cpu     50 %   > 80 %  below",
        "gpu        -   > 90 %      -",
    ]
