"""How much of the machine a run uses, beside what it should use: cores, its own processes, memory, GPU, queue and buffer.

There is no thread and no polling: whoever writes a log line calls `sample`, which tells what happened since the last one.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from lzero_async.telemetry.terminal.progress import table

TARGETS: Final = {"queue": (0.5, 0.8), "buffer": (0.7, 0.9), "cpu": (0.8, 1.0), "gpu": (0.9, 1.0)}
IDLE: Final = ("idle", "iowait")
COUNTED_ELSEWHERE: Final = ("guest", "guest_nice")  # Linux has them in user and nice already
log = logging.getLogger(__name__)


class UtilisationSample(NamedTuple):
    """What one `sample` saw; None where it cannot be known.

    `cpu`: share of all cores that were busy since the last sample. `cores`: the same as a number of cores. `cpu_seconds`:
    of the run's processes since the last sample. `memory`: their bytes now. `gpu`: share of the time it was busy.
    """

    cpu: float | None
    cores: float | None
    cpu_seconds: float | None
    memory: int | None
    gpu: float | None


class TargetRow(NamedTuple):
    """One line of the comparison; `verdict` is "below", "ok", "above", or "-" where there is no value."""

    name: str
    value: float | None
    target: str
    verdict: str


class Utilisation:
    """Samples the machine and the processes `pids()` with everything that they started; by default this process.

    The first sample tells what happened since it was made.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] | None = None) -> None:
        self._pids = pids
        self._psutil = _psutil()
        self._total, self._busy = self._machine()
        self._seconds: dict[tuple[int, float], float] = {}
        self._processes()

    def sample(self) -> UtilisationSample:
        """What was used since the last sample; call it from one thread."""
        if self._psutil is None:
            return UtilisationSample(None, None, None, None, _gpu())
        total, busy = self._machine()
        passed = total - self._total
        share = min(1.0, max(0.0, (busy - self._busy) / passed)) if passed > 0 else None
        self._total, self._busy = total, busy
        seconds, memory = self._processes()
        count = self._psutil.cpu_count() or 1
        return UtilisationSample(share, None if share is None else share * count, seconds, memory, _gpu())

    def _machine(self) -> tuple[float, float]:
        """All cores' seconds so far, and those of them that were busy."""
        if self._psutil is None:
            return 0.0, 0.0
        times = {
            name: value for name, value in self._psutil.cpu_times()._asdict().items() if name not in COUNTED_ELSEWHERE
        }
        total = sum(times.values())
        return total, total - sum(times.get(name, 0.0) for name in IDLE)

    def _processes(self) -> tuple[float, int]:
        """CPU seconds of the run's processes since the last call, and their memory.

        What a process used between the last call and its end is not known, so it is left out.
        """
        if self._psutil is None:
            return 0.0, 0
        used, memory, seen = 0.0, 0, {}
        for process in self._tree():
            try:
                with process.oneshot():
                    times, key = process.cpu_times(), (process.pid, process.create_time())
                    seen[key] = times.user + times.system
                    memory += process.memory_info().rss
            except self._psutil.Error:  # it ended meanwhile
                continue
            used += seen[key] - self._seconds.get(key, 0.0)
        self._seconds = seen
        return used, memory

    def _tree(self) -> list[Any]:
        assert self._psutil is not None
        roots = [None] if self._pids is None else list(self._pids())
        found: dict[int, Any] = {}
        for pid in roots:
            try:
                process = self._psutil.Process(pid)
                for member in (process, *process.children(recursive=True)):
                    found[member.pid] = member
            except self._psutil.Error:
                continue
        return list(found.values())


class Use(NamedTuple):
    """Of a process with everything that it started: CPU seconds so far, bytes of memory, and seconds that its threads were ready
    to compute and waited for a core; None where the system does not say, which only Linux does."""

    cpu_seconds: float
    memory: int
    queued_seconds: float | None

    def since(self, before: Use) -> Use:
        """What was used since then; the memory is that of now."""
        queued = None
        if self.queued_seconds is not None and before.queued_seconds is not None:
            queued = max(0.0, self.queued_seconds - before.queued_seconds)  # threads that ended meanwhile are forgotten
        return Use(self.cpu_seconds - before.cpu_seconds, self.memory, queued)


def use_of(pids: Mapping[str, int]) -> dict[str, Use]:
    """The use of processes, by name; those that are gone, and all where psutil is missing, are left out."""
    psutil = _psutil()
    if psutil is None:
        return {}
    found = {}
    for name, pid in pids.items():
        try:
            process = psutil.Process(pid)
            members = [process, *process.children(recursive=True)]
            times = [member.cpu_times() for member in members]
            memory = sum(member.memory_info().rss for member in members)
        except psutil.Error:  # it ended meanwhile
            continue
        used = sum(time.user + time.system for time in times)
        found[name] = Use(used, memory, _queued_seconds(member.pid for member in members))
    return found


def _queued_seconds(pids: Iterable[int]) -> float | None:
    """Seconds that the threads of these processes waited for a core."""
    try:
        files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9 if files else None
    except (OSError, ValueError, IndexError):  # a thread ended meanwhile, or the kernel does not count this
        return None


class QueueUse:
    """How much of the queue is in use, over time, without the batch that is being trained. `seconds()` gives the seconds that
    batches have waited, and the most that they could have (`coordinator.queue_seconds`)."""

    def __init__(self, seconds: Callable[[], tuple[float, float]]) -> None:
        self._seconds = seconds
        self._before = 0.0, 0.0

    @property
    def mean(self) -> float | None:
        """Of the whole run; None before it and at degree 0."""
        used, room = self._seconds()
        return min(1.0, used / room) if room > 0 else None

    def lately(self) -> float:
        """Since the last call of this."""
        used, room = now = self._seconds()
        (earlier, before), self._before = self._before, now
        return min(1.0, max(0.0, used - earlier) / (room - before)) if room > before else 0.0


def compare(values: Mapping[str, float | None]) -> list[TargetRow]:
    """Each of TARGETS beside its value (a share; None or missing where unknown), in their order."""
    return [_row(name, values.get(name)) for name in TARGETS]


def _row(name: str, value: float | None) -> TargetRow:
    low, high = TARGETS[name]
    target = f"> {low:.0%}" if high >= 1 else f"{low * 100:.0f}-{high:.0%}"
    if value is None:
        verdict = "-"
    elif value < low:
        verdict = "below"
    else:
        verdict = "above" if value > high else "ok"
    return TargetRow(name, value, target.replace("%", " %"), verdict)


def format_targets(rows: Iterable[TargetRow]) -> str:
    """The comparison as a text table."""
    lines = [["use of", "seen", "target", ""]]
    for row in rows:
        seen = "-" if row.value is None else f"{100 * row.value:.0f} %"
        lines.append([row.name, seen, row.target, row.verdict])
    return table(lines)


def _psutil() -> Any:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        log.warning("the use of CPU and memory is not shown, since psutil is not installed; pip install psutil")
        return None


def _gpu() -> float | None:
    """The GPU's busy share, where torch is in use already and can tell."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available():
            return None
        return float(torch.cuda.utilization()) / 100
    except Exception as error:  # a driver's tool is missing (pynvml): nothing that a run should end for
        log.debug("the use of the GPU cannot be read: %r", error)
        return None
