"""Check the asynchronous schedules on stages that only wait, and show what each of them does.

    python test_async_training.py --mode sync | async_low | async_high | async_eval | auto_tune | all

Each mode runs the real coordinator and loop, prints what was checked and what was seen, and ends with PASS or FAIL; the
exit code is 1 if any mode failed. On the real clock (the default) the stages sleep; `--clock virtual` runs the same
threads in virtual time, exactly and at once, which is what pytest does with this file.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lzero_async.clock import RealClock
from lzero_async.testing import VirtualClock
from lzero_async.types import Batch, Clock, CollectContext, EvalContext
from zoo.jericho.priorzero.async_training_coordinator import AsyncTrainingCoordinator

COLLECT, TRAIN, EVAL = 0.04, 0.03, 0.06
TRAINS, EVAL_EVERY = 20, 5
SLACK = 1.25  # of the ideal wall time, for the real clock only; a serial run takes 1.7 times the ideal


class Stages:
    """Collect, train and evaluate that wait, and the order in which they started and ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.events: list[tuple[str, str]] = []
        self.staleness: list[int] = []
        self.eval_weights: list[tuple[int, int]] = []
        self.weights = 0
        self.max_lag = 0
        self.coordinator: AsyncTrainingCoordinator | None = None

    def _spend(self, name: str, seconds: float) -> None:
        with self._lock:
            self.events.append(("start", name))
        self._clock.sleep(seconds)
        with self._lock:
            self.events.append(("end", name))

    def collect(self, context: CollectContext) -> int:
        self._spend("collect", COLLECT)
        return context.ticket

    def train(self, batch: Batch) -> None:
        assert self.coordinator is not None
        self.max_lag = max(self.max_lag, self.coordinator.collect_train_lag)
        self.staleness.append(batch.staleness)
        self._spend("train", TRAIN)
        self.weights += 1

    def evaluate(self, context: EvalContext) -> float:
        self._spend("eval", EVAL)
        assert context.snapshot is not None
        self.eval_weights.append((context.version, context.snapshot.state["weights"]))
        return float(context.version)

    def get_weights(self) -> dict[str, int]:
        return {"weights": self.weights}

    def overlaps(self, one: str, other: str) -> bool:
        """Whether the two stages ever ran at the same time."""
        running: set[str] = set()
        for what, name in self.events:
            if what == "start":
                running.add(name)
                if {one, other} <= running:
                    return True
            else:
                running.discard(name)
        return False


@dataclass
class Report:
    """The checks of one mode."""

    mode: str
    checks: list[tuple[bool, str]] = field(default_factory=list)

    def check(self, passed: bool, what: str) -> None:
        """Note one check with what was seen."""
        self.checks.append((passed, what))

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(passed for passed, _ in self.checks)

    def print(self) -> None:
        """Show the checks and the verdict."""
        print(f"[{self.mode}]")
        for passed, what in self.checks:
            print(f"  {'ok ' if passed else 'BAD'} {what}")
        print(f"  {'PASS' if self.passed else 'FAIL'}", flush=True)


def run_stages(
    clock: Clock, degree: int, *, async_eval: bool = False, buffer_size: int = 10_000, batch_size: int = 256
) -> tuple[Stages, AsyncTrainingCoordinator, dict[str, Any]]:
    """Run the three stages for TRAINS trains."""
    stages = Stages(clock)
    with AsyncTrainingCoordinator(
        degree, async_eval, buffer_size, batch_size, get_weights=stages.get_weights, clock=clock
    ) as coordinator:
        stages.coordinator = coordinator
        result = coordinator.run(
            stages.collect,
            stages.train,
            stages.evaluate,
            eval_every=EVAL_EVERY,
            max_train=TRAINS,
            print_statistics=False,
        )
    return stages, coordinator, result.statistics


def check_common(report: Report, stages: Stages, coordinator: AsyncTrainingCoordinator, stats: dict[str, Any]) -> None:
    """What holds in every mode: each batch is trained once and the bound is kept."""
    bound = max(1, coordinator.off_policy_degree)
    report.check(
        stats["collect_count"] == stats["train_count"] == TRAINS,
        f"every batch trained once: {stats['collect_count']} collects, {stats['train_count']} trains",
    )
    report.check(stages.max_lag <= bound, f"max lag {stages.max_lag}, allowed {bound}")
    report.check(
        max(stages.staleness) <= coordinator.off_policy_degree,
        f"max staleness {max(stages.staleness)}, allowed {coordinator.off_policy_degree}",
    )
    report.check(
        all(version == weights for version, weights in stages.eval_weights) and bool(stages.eval_weights),
        f"{len(stages.eval_weights)} evaluation(s), each on the weights of its own version",
    )


def check_wall(report: Report, stats: dict[str, Any], ideal: float, exact: bool) -> None:
    """Compare the wall time with the ideal of this schedule and with the serial sum."""
    serial = TRAINS * (COLLECT + TRAIN) + TRAINS // EVAL_EVERY * EVAL
    wall = stats["wall_time"]
    limit = ideal + 1e-6 if exact else ideal * SLACK
    report.check(wall <= limit, f"wall {wall:.2f}s, serial {serial:.2f}s ({serial / wall:.2f}x), ideal {ideal:.2f}s")


def check_sync(clock: Clock, exact: bool) -> Report:
    """Degree 0: collect, train, evaluate strictly in turn."""
    report = Report("sync")
    stages, coordinator, stats = run_stages(clock, 0)
    expected: list[str] = []
    for train in range(1, TRAINS + 1):
        expected += ["collect", "train"] + (["eval"] if train % EVAL_EVERY == 0 else [])
    order = [name for what, name in stages.events if what == "start"]
    report.check(order == expected, f"order: {', '.join(order[:4])}, ... as in a serial loop")
    report.check(
        not any(stages.overlaps(a, b) for a, b in (("collect", "train"), ("collect", "eval"), ("train", "eval"))),
        "no two stages ran at the same time",
    )
    check_common(report, stages, coordinator, stats)
    check_wall(report, stats, TRAINS * (COLLECT + TRAIN) + TRAINS // EVAL_EVERY * EVAL, exact)
    return report


def check_async(mode: str, degree: int, clock: Clock, exact: bool) -> Report:
    """Degree >= 1: collecting overlaps training."""
    report = Report(mode)
    stages, coordinator, stats = run_stages(clock, degree)
    report.check(stages.overlaps("collect", "train"), "order: collects and trains ran at the same time")
    report.check(not stages.overlaps("train", "eval"), "evaluation took the learner's turn")
    check_common(report, stages, coordinator, stats)
    check_wall(report, stats, _ideal(degree), exact)
    return report


def check_async_eval(clock: Clock, exact: bool) -> Report:
    """Background evaluation: training goes on under it."""
    report = Report("async_eval")
    stages, coordinator, stats = run_stages(clock, 2, async_eval=True)
    report.check(stages.overlaps("train", "eval"), "order: trains and evaluations ran at the same time")
    check_common(report, stages, coordinator, stats)
    check_wall(report, stats, TRAINS * COLLECT + TRAIN + EVAL, exact)  # the last evaluation ends the run
    return report


def check_auto_tune(clock: Clock, exact: bool) -> Report:
    """Degree -1: about a tenth of the buffer."""
    report = Report("auto_tune")
    for buffer_size, batch_size, degree in ((10_000, 256, 3), (2_000, 64, 3), (100, 64, 1)):
        found = AsyncTrainingCoordinator(-1, buffer_size=buffer_size, batch_size=batch_size).off_policy_degree
        report.check(found == degree, f"buffer {buffer_size}, batch {batch_size}: degree {found}")
    stages, coordinator, stats = run_stages(clock, -1)
    report.check(stages.overlaps("collect", "train"), "order: collects and trains ran at the same time")
    check_common(report, stages, coordinator, stats)
    check_wall(report, stats, _ideal(3), exact)
    return report


def _ideal(degree: int) -> float:
    """Wall time of one collector with blocking evaluations, from the simulator (the last evaluation ends the run)."""
    from lzero_async.simulate.pipeline import simulate

    return simulate(COLLECT, TRAIN, EVAL, off_policy_degree=degree, trains=TRAINS, eval_every=EVAL_EVERY).wall + EVAL


MODES: dict[str, Callable[[Clock, bool], Report]] = {
    "sync": check_sync,
    "async_low": lambda clock, exact: check_async("async_low", 2, clock, exact),
    "async_high": lambda clock, exact: check_async("async_high", 20, clock, exact),
    "async_eval": check_async_eval,
    "auto_tune": check_auto_tune,
}


def run_mode(mode: str, virtual: bool) -> Report:
    """Run one mode on the chosen clock."""
    with VirtualClock() if virtual else nullcontext(RealClock()) as clock:
        return MODES[mode](clock, virtual)


def test_sync() -> None:
    assert run_mode("sync", virtual=True).passed


def test_async_low() -> None:
    assert run_mode("async_low", virtual=True).passed


def test_async_high() -> None:
    assert run_mode("async_high", virtual=True).passed


def test_async_eval() -> None:
    assert run_mode("async_eval", virtual=True).passed


def test_auto_tune() -> None:
    assert run_mode("auto_tune", virtual=True).passed


def test_command_line() -> None:
    assert main(["--mode", "all", "--clock", "virtual"]) == 0


def main(arguments: list[str] | None = None) -> int:
    """Run the modes asked for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all", help="which schedule to check (default: all)")
    parser.add_argument(
        "--clock",
        choices=["real", "virtual"],
        default="real",
        help="real: the stages sleep, about 2 s a mode; virtual: exact and at once (default: real)",
    )
    options = parser.parse_args(arguments)
    print(
        f"Stages that wait: collect {COLLECT:g}s, train {TRAIN:g}s, evaluation {EVAL:g}s; {TRAINS} trains, an evaluation "
        f"every {EVAL_EVERY}; {options.clock} clock.",
        flush=True,
    )
    failed: list[str] = []
    modes = list(MODES) if options.mode == "all" else [options.mode]
    for mode in modes:
        report = run_mode(mode, options.clock == "virtual")
        report.print()
        failed += [] if report.passed else [mode]
    print(f"\n{len(modes) - len(failed)} passed, {len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
