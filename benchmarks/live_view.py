"""What the live view costs: CPU time of the thread that makes it, per second of a run, and of a note that comes above it.

A coordinator with collectors that wait and a learner that waits, on the real clock, watched on a terminal of 80 x 24 that is read
all the time. The thread's CPU time is taken when it looks at the run: it covers the look, the frame and the writing of it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from benchmarks.harness import Bar
from lzero_async import AsyncTrainingCoordinator
from lzero_async.clock import RealClock
from lzero_async.telemetry.terminal.live import EVERY, LiveProgress
from lzero_async.telemetry.view import Count, View
from lzero_async.testing import FakeCollector, FakeLearner
from lzero_async.threads import ThreadGroup

SECONDS = 20.0
COLLECTORS = (4, 64)
NOTES = 200


def bars() -> list[Bar]:
    """The share of a core, with few and with many collectors, and what a note costs."""
    return [
        *(Bar(f"live view every {EVERY:g} s, {number} collectors: share of a core", 0.01, False,
              lambda number=number: share(number, SECONDS), 3) for number in COLLECTORS),
        Bar(f"a note above the view (ms, mean of {NOTES})", None, False, note_cost),
    ]  # fmt: skip


def share(collectors: int, seconds: float) -> float:
    """CPU seconds of the refreshing thread per second of a run."""
    clock, looks = RealClock(), []
    with AsyncTrainingCoordinator(max(8, collectors), num_collectors=collectors) as coordinator, terminal() as stream:
        progress = LiveProgress(stream)

        def look() -> View:
            looks.append((time.perf_counter(), time.thread_time()))
            return view_of(coordinator, looks[-1][0] - looks[0][0])

        progress.watch(look)
        try:
            coordinator.run(
                FakeCollector(clock, 0.05 * collectors),
                FakeLearner(clock, 0.05),
                max_seconds=seconds,
                print_statistics=False,
            )
        finally:
            own = looks[:]  # the last frame is made by another thread
            progress.clear()
    (began, used_before), (ended, used) = own[1], own[-1]  # the first frame pays for what rich sets up
    return (used - used_before) / (ended - began)


def note_cost() -> float:
    """Milliseconds of CPU that a note takes of the thread that makes it."""
    with AsyncTrainingCoordinator(8, num_collectors=4) as coordinator, terminal() as stream:
        looks, shown = itertools.count(), threading.Event()

        def look() -> View:
            if next(looks) == 1:
                shown.set()  # the frame of the first look
            return view_of(coordinator, 1.0)

        progress = LiveProgress(stream, every=0.1)
        progress.watch(look)
        shown.wait()
        began = time.thread_time()
        for number in range(NOTES):
            progress.note(f"evaluation at {number} steps: score 12.0 of 100")
        used = time.thread_time() - began
        progress.clear()
    return 1000 * used / NOTES


def view_of(coordinator: AsyncTrainingCoordinator, elapsed: float) -> View:
    """What an application shows, with the coordinator's own numbers."""
    trains = coordinator.train_count
    return View(
        title="Collectors and a learner that wait",
        elapsed=elapsed,
        remaining=100.0,
        counts=(Count("steps_trained", 8 * trains, 100_000), Count("updates", trains)),
        roles=coordinator.get_activity(),
        statistics=coordinator.get_statistics(),
        fills={"queue": 0.5, "buffer": 0.3},
        score="score",
        last_score=12.0,
        best_score=20.0,
        highest_score=100.0,
        recent_score=9.0,
        warnings=("12:03:04 collector 1 failed (ValueError: no); restart 1 of at most 3",) * 3,
    )


@contextmanager
def terminal() -> Iterator[TextIO]:
    """A terminal of 80 x 24 that somebody reads."""
    own, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    reader = ThreadGroup(RealClock(), "terminal")

    def read() -> None:
        try:
            while os.read(own, 65536):
                pass
        except OSError:  # the other side is closed
            pass

    reader.start("read", read)
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream
    reader.join(10.0)
    os.close(own)
