"""The bars of the core: overlap, the gate's cost, failures, stragglers, the adaptive degree, the simulator, the trace.

    python -m benchmarks.core [--only overlap gate ...] [--repeats N]

Ratios within one run; absolute times only where the bar is one. `make bench` runs all of it.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Bar, main_guard, run_bars
from lzero_async import AsyncTrainingCoordinator, Batch, CollectContext, EvalContext
from lzero_async.clock import RealClock
from lzero_async.core.adaptive import AdaptiveDegree
from lzero_async.core.trace import TraceWriter
from lzero_async.simulate.distributions import Distribution, lognormal, switch
from lzero_async.simulate.pipeline import simulate
from lzero_async.testing import (
    FakeCollector,
    FakeLearner,
    VirtualClock,
)

ROOT = Path(__file__).resolve().parent.parent
Runner = Callable[..., dict]


def real_run(collect: Distribution, train: Distribution, degree: int, workers: int, trains: int, **settings) -> dict:
    """Run fakes that sleep on the real clock; the wall time is that of the caller, start-up and end included."""
    clock = RealClock()
    with AsyncTrainingCoordinator(degree, num_collectors=workers, **settings) as coordinator:
        start = time.perf_counter()
        stats = coordinator.run(
            FakeCollector(clock, collect), FakeLearner(clock, train), max_train=trains, print_statistics=False
        ).statistics
        stats["caller_wall"] = time.perf_counter() - start
    return stats


# -- 1. overlap ------------------------------------------------------------


def overlap() -> list[Bar]:
    def efficiency() -> float:
        stats = real_run(0.05, 0.05, 2, 1, 400)
        return max(stats["collect_total_time"], stats["train_total_time"]) / stats["caller_wall"]

    def attained() -> float:
        collect, train, trains = lognormal(0.08, 1), lognormal(0.02, 1), 400
        told = simulate(collect, train, num_collectors=4, off_policy_degree=8, trains=trains)
        return told.wall / real_run(collect, train, 8, 4, trains)["caller_wall"]

    return [
        Bar("efficiency, stages that wait 50 ms, degree 2, 400 iterations", 0.97, True, efficiency),
        Bar("share of the simulated throughput, lognormal sigma 1, 4 collectors, degree 8", 0.95, True, attained),
    ]


# -- 2. the gate ------------------------------------------------------------


def nothing() -> int:
    return 1


def per_call(call: Callable[[], object], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def gate() -> list[Bar]:
    def cycle() -> float:
        coordinator = AsyncTrainingCoordinator(2)
        condition = threading.Condition()

        def ours() -> None:
            coordinator.run_collect(nothing)
            coordinator.run_train(nothing)

        def bare() -> None:
            for _ in range(6):
                with condition:
                    condition.notify()

        ratios = [per_call(ours, 2000) / per_call(bare, 2000) for _ in range(15)]
        return sorted(ratios)[len(ratios) // 2]

    def hand_off() -> float:
        ratios = [gate_ping_pong(1000) / condition_ping_pong(1000) for _ in range(15)]
        return sorted(ratios)[len(ratios) // 2]

    return [
        Bar("admit + commit + train / six bare lock-and-notify operations", 5.0, False, cycle),
        Bar("hand-off between two threads / bare Condition ping-pong", 1.5, False, hand_off),
        Bar(
            "wake-ups of a learner and a collector that wait 2 s (a poll at 0.1 s: 40)",
            0,
            False,
            wake_ups_while_waiting,
        ),
        Bar("import lzero_async, seconds", 0.3, False, import_seconds),
    ]


def gate_ping_pong(rounds: int) -> float:
    """Two threads that need each other at every step: degree 0, one collects, one trains. Seconds per round."""
    coordinator = AsyncTrainingCoordinator(0)

    def collect_all() -> None:
        for _ in range(rounds):
            coordinator.run_collect(nothing)

    def train_all() -> None:
        for _ in range(rounds):
            coordinator.run_train(nothing)

    return both(collect_all, train_all) / rounds


def condition_ping_pong(rounds: int) -> float:
    condition, turn = threading.Condition(), [0]

    def play(me: int) -> None:
        for _ in range(rounds):
            with condition:
                while turn[0] != me:
                    condition.wait()
                turn[0] = 1 - me
                condition.notify()

    return both(lambda: play(0), lambda: play(1)) / rounds


def both(one: Callable[[], None], other: Callable[[], None]) -> float:
    threads = [threading.Thread(target=one), threading.Thread(target=other)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def wake_ups_while_waiting() -> float:
    """Voluntary context switches, by the system's count, of a learner without a batch and a collector without a ticket."""
    coordinator = AsyncTrainingCoordinator(1)
    ids: list[int] = []
    release = threading.Event()

    def wait_in(stage: Callable[..., object]) -> None:
        ids.append(threading.get_native_id())
        try:
            stage(nothing)
        except Exception:
            release.wait(1)

    def hold() -> None:
        release.wait(30)

    holder = threading.Thread(target=lambda: coordinator.run_collect(hold))
    holder.start()
    while not coordinator.get_statistics()["open_collects"]:
        time.sleep(0.01)
    waiters = [
        threading.Thread(target=wait_in, args=(stage,)) for stage in (coordinator.run_collect, coordinator.run_train)
    ]
    for thread in waiters:
        thread.start()
    time.sleep(0.3)
    before = [switches(i) for i in ids]
    time.sleep(2)
    count = sum(switches(i) - b for i, b in zip(ids, before, strict=True))
    release.set()
    for thread in [holder, *waiters]:
        thread.join()
    coordinator.close()
    return float(count)


def switches(native_id: int) -> int:
    text = Path(f"/proc/self/task/{native_id}/status").read_text()
    return int(text.split("voluntary_ctxt_switches:")[1].split()[0])


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); import lzero_async; print(time.perf_counter() - t)"
    return float(
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )


# -- 3. failures and close ------------------------------------------------------------


def failures() -> list[Bar]:
    bars = [
        Bar(f"seconds until a raising {role} reaches the caller of run", 1.0, False, lambda r=role: until_raised(r))
        for role in ("collect", "train", "eval", "background eval", "collect during a 5 s train")
    ]
    bars += [
        Bar(f"seconds of close() {state}", 2.0, False, lambda s=state: close_seconds(s))
        for state in ("while idle", "in a collect", "in a train", "in a background eval", "with everybody waiting")
    ]
    return [
        *bars,
        Bar("threads left", 0, False, lambda: float(sum(t.name.startswith("lzero") for t in threading.enumerate()))),
    ]


def until_raised(role: str) -> float:
    raised_at = [0.0]

    def fail() -> None:
        raised_at[0] = time.perf_counter()
        raise RuntimeError(role)

    def collect(context: CollectContext) -> int:
        if role.startswith("collect") and context.ticket == 2:
            time.sleep(0.05)
            fail()
        return 1

    def train(batch: Batch) -> None:
        if role == "train" and batch.id == 2:
            fail()
        if role == "collect during a 5 s train":
            batch.stop.wait(5) and time.sleep(5)

    def evaluate(context: EvalContext) -> float:
        if role.endswith("eval"):
            fail()
        return 0.0

    coordinator = AsyncTrainingCoordinator(2, role == "background eval", get_weights=dict)
    try:
        coordinator.run(collect, train, evaluate, eval_every=1, max_train=10, print_statistics=False)
    except RuntimeError as error:
        seconds = time.perf_counter() - raised_at[0]
        names = []
        tb = error.__traceback__
        while tb is not None:
            names.append(tb.tb_frame.f_code.co_name)
            tb = tb.tb_next
        assert names[-1] == "fail", names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator.close(10)
    return seconds


def close_seconds(state: str) -> float:
    entered = threading.Event()

    def hang(context) -> float:
        entered.set()
        context.stop.wait(600)
        return 0.0

    def quick(context) -> float:
        return 0.0

    coordinator = AsyncTrainingCoordinator(1, True, get_weights=dict)
    stages = {
        "in a collect": (hang, quick, quick),
        "in a train": (quick, hang, quick),
        "in a background eval": (quick, quick, hang),
        "with everybody waiting": (hang, quick, quick),
    }.get(state)
    thread = None
    if stages is not None:
        thread = threading.Thread(
            target=lambda: coordinator.run(*stages, eval_every=1, handle_signals=False, print_statistics=False)
        )
        thread.start()
        entered.wait(10)
    start = time.perf_counter()
    coordinator.close()
    seconds = time.perf_counter() - start
    if thread is not None:
        thread.join()
    return seconds


# -- 4. stragglers, 5. the adaptive degree, 6. the simulator ------------------------------------------------------------


def straggler() -> list[Bar]:
    seeds = itertools.count()
    lost: list[float] = []

    def run() -> float:
        seed = next(seeds)
        with warnings.catch_warnings(), VirtualClock() as clock:
            warnings.simplefilter("ignore")
            learner = FakeLearner(clock, lognormal(1, 1.5), seed=seed)
            collect = FakeCollector(clock, lognormal(2, 1.5), seed=seed)
            with AsyncTrainingCoordinator(2, num_collectors=4, clock=clock) as coordinator:
                stats = coordinator.run(collect, learner, max_train=2000, print_statistics=False).statistics
        lost.append(float(stats["dropped"] + stats["abandoned"]))
        return float(learner.max_staleness)

    return [
        Bar("largest staleness, sigma 1.5, 4 collectors, degree 2, 2,000 batches", 2, False, run),
        Bar("batches dropped or abandoned in those runs", 0, False, lambda: lost.pop(0)),
    ]


def adaptive() -> list[Bar]:
    """Rate in the 200 trains after the first 50, mean of 8 seeds; each repeat has other seeds."""
    high = 16

    def share(durations: Distribution, first: int) -> Callable[[], float]:
        blocks = itertools.count()

        def measure() -> float:
            block = next(blocks)
            seeds = range(8 * block, 8 * block + 8)

            def rate(degree: int | None) -> float:
                rates = []
                for seed in seeds:
                    controller = AdaptiveDegree(1, 1, high) if degree is None else None
                    run = simulate(durations, lognormal(1, 1), num_collectors=4, off_policy_degree=degree or 1,
                                   trains=first + 200, adaptive=controller, seed=seed)  # fmt: skip
                    assert max(run.degrees) <= high
                    rates.append(200 / (run.finished_at[first + 199] - run.finished_at[first - 1]))
                return sum(rates) / len(rates)

            return rate(None) / max(rate(degree) for degree in range(1, high + 1))

        return measure

    slower = switch(75, lognormal(2, 1), lognormal(6, 1))
    faster = switch(75, lognormal(6, 1), lognormal(2, 1))
    return [
        Bar("share of the best fixed degree's throughput after 50 trains", 0.95, True, share(lognormal(2, 1), 50)),
        Bar("the same 50 trains after collects became 3 times slower", 0.95, True, share(slower, 350)),
        Bar("the same 50 trains after collects became 3 times faster", 0.95, True, share(faster, 350)),
    ]


def simulator() -> list[Bar]:
    bars = []
    for name, collect, train, workers, degree in (
        ("constant, 1 collector, degree 2", 0.02, 0.015, 1, 2),
        ("lognormal 1, 4 collectors, degree 4", lognormal(0.06, 1), lognormal(0.02, 1), 4, 4),
        ("lognormal 0.5, 2 collectors, degree 8", lognormal(0.03, 0.5), lognormal(0.02, 0.5), 2, 8),
    ):
        lag_errors: list[float] = []

        def throughput(c=collect, t=train, w=workers, d=degree, errors=lag_errors) -> float:
            told = simulate(c, t, num_collectors=w, off_policy_degree=d, trains=200)
            stats = real_run(c, t, d, w, 200)
            errors.append(abs(stats["mean_lag"] / told.mean_lag - 1))
            return abs(200 / stats["caller_wall"] / told.throughput - 1)

        bars.append(Bar(f"throughput against the simulator's, {name}: error", 0.10, False, throughput))
        bars.append(Bar(f"mean lag in those runs, {name}: error", 0.10, False, lambda e=lag_errors: e.pop(0)))
    return bars


# -- the trace ------------------------------------------------------------


def trace() -> list[Bar]:
    def spin(context) -> None:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass

    def share() -> float:
        """CPU time of one span, times the spans of a run with stages of 1 ms of CPU, over that run's CPU time."""
        with tempfile.TemporaryDirectory() as folder:
            writer = TraceWriter(Path(folder) / "span.json")
            start = time.process_time()
            for i in range(20_000):
                writer.span("learner", "train", i * 1e-3, i * 1e-3 + 5e-4, batch=i, version=i, staleness=1)
            per_span = (time.process_time() - start) / 20_000
            writer.close()
            path = Path(folder) / "run.json"
            start = time.process_time()
            with AsyncTrainingCoordinator(2, trace=path) as coordinator:
                coordinator.run(spin, spin, max_train=500, print_statistics=False)
            cpu = time.process_time() - start
            return per_span * path.read_text().count('"ph":"X"') / cpu

    return [Bar("CPU time of the trace / CPU time of the run, stages of 1 ms of CPU", 0.02, False, share)]


GROUPS = {
    "overlap": overlap,
    "gate": gate,
    "failures": failures,
    "straggler": straggler,
    "adaptive": adaptive,
    "simulator": simulator,
    "trace": trace,
}

if __name__ == "__main__":
    main_guard(
        lambda: run_bars("lzero_async core", GROUPS, Path("benchmarks/results/core.json"), Path("docs/measured.md"))
    )
