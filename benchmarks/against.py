"""The gate's cycle and the hand-off between two threads, against another checkout.

    python -m benchmarks.against --other PATH [--pairs 10]

Each pair is two processes, one for each checkout, in alternating order. Printed are the median and the spread of "seconds of
the other / seconds of this one": 1 is as fast, 0.95 the least that is allowed. The cycles are of one thread, so its CPU time
is taken, which other programs disturb less. The hand-off is timed by the clock, on one core: on two, it is mostly the
scheduler's choice of a core that one would measure (the same code differs by a factor of ten).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST = 0.95
MEASURE = """
import json, os, statistics, sys, threading, time
from lzero_async import AsyncTrainingCoordinator
from lzero_async.core.gate import Gate

def nothing():
    pass

def least(step, number, blocks):
    found = []
    for _ in range(blocks):
        start = time.thread_time()
        for _ in range(number):
            step()
        found.append((time.thread_time() - start) / number)
    return min(found)

def bare():
    ticket = gate.try_collect()
    gate.commit(ticket.id)
    gate.start_train()
    gate.finish_train()
    gate.publish()

def cycle():
    coordinator.run_collect(nothing)
    coordinator.run_train(nothing)

def hand_off():
    pair = AsyncTrainingCoordinator(0)
    rounds = 500
    def play(stage):
        for _ in range(rounds):
            stage(nothing)
    threads = [threading.Thread(target=play, args=(stage,)) for stage in (pair.run_collect, pair.run_train)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - start) / rounds

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
gate, coordinator = Gate(2), AsyncTrainingCoordinator(2)
print(json.dumps({
    "bare gate cycle": least(bare, 2000, 40),
    "gate cycle": least(cycle, 1000, 40),
    "hand-off": statistics.median(hand_off() for _ in range(20)),
}))
"""


def measure(checkout: Path) -> dict[str, float]:
    """The seconds of each measurement with the library of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def main() -> int:
    """Measure and print; 1 if this checkout is too slow."""
    parser = argparse.ArgumentParser(description="The gate's speed against another checkout.")
    parser.add_argument("--other", type=Path, required=True, help="path of the other checkout")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes (default: 10)")
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / "lzero_async" / "gate.py").is_file():
        parser.error(f"--other is {other}, which holds no lzero_async; give the path of a checkout.")
    ratios: dict[str, list[float]] = {}
    for pair in range(options.pairs):
        order = (ROOT, other) if pair % 2 else (other, ROOT)
        seconds = {checkout: measure(checkout) for checkout in order}
        for name, mine in seconds[ROOT].items():
            ratios.setdefault(name, []).append(seconds[other][name] / mine)
    print(f"{'speed against the other (1: as fast)':<40}{'median':>10}{'min':>10}{'max':>10}{'bar':>9}")
    for name, found in ratios.items():
        print(f"{name:<40}{statistics.median(found):>10.3f}{min(found):>10.3f}{max(found):>10.3f}{f'>= {LEAST}':>9}")
    return int(any(statistics.median(found) < LEAST for found in ratios.values()))


if __name__ == "__main__":
    raise SystemExit(main())
