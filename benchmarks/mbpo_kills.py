"""The continuous trainer with eight collectors, of which one is killed every five seconds: does training go on, and does the
account of the batches still add up? One run: a minute without kills, then a minute with them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks._mbpo_runs import FOLDER, Run, Steady, lengths, log_of, read, window
from benchmarks.harness import Bar

EVERY = 5.0  # seconds between two kills
# Light: 20 collects a second of 64 transitions each, and a learner that keeps up with them, so that what collectors lose is lost.
SETTINGS = {
    "trainer": "continuous", "num_envs": 64, "num_collectors": 8, "collection_batch_size": 64, "max_queue_size": 2_000,
    "step_seconds": 0.05, "updates_per_step": 0.02, "dynamics_updates_per_step": 0.002, "rollouts_per_step": 0.1,
    "max_train_ahead": 0, "random_steps": 0, "max_steps": 0, "eval_every": 0, "checkpoint_every": 0, "device": "cpu",
    "torch_threads": 1,
}  # fmt: skip
ACCOUNT = ("admitted", "trained", "waiting", "open", "failed", "dropped", "rejected", "abandoned")


@dataclass(frozen=True)
class Kill:
    """When a collector was killed."""

    collector: int
    at: float


@dataclass(frozen=True)
class Found:
    """Both windows of the run and the account at its end."""

    quiet: Steady
    killed: Steady
    kills: list[Kill]
    hits: int  # kills in the middle of a collect
    account: dict[str, int]
    violations: list[str]
    restarts: int
    retired: int


@lru_cache(maxsize=1)
def found() -> Found:
    """Measure, and print the account."""
    from zoo.mbpo.options import build_options
    from zoo.mbpo.train import make_trainer

    folder = FOLDER / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with _output_to(folder):
        trainer = make_trainer(build_options({**SETTINGS, "exp_name": str(folder)}), folder)
        try:
            measuring = _Measuring(trainer)
            trainer.run()
            measuring.join()
            statistics, gate = trainer.coordinator.get_statistics(), trainer.coordinator.state_dict()["gate"]
            account = {name: int(gate[name]) for name in ACCOUNT if name not in ("waiting", "open")}
            account |= {"waiting": len(gate["waiting"]), "open": len(gate["tickets"])}
            violations = trainer.coordinator.violations()
        finally:
            trainer.close()
    run = read(folder)
    begun, between, over = measuring.times
    result = Found(
        quiet=window(run, begun, between),
        killed=window(run, between, over),
        kills=measuring.kills,
        hits=sum(_hit(run, kill) for kill in measuring.kills),
        account=account,
        violations=violations,
        restarts=int(statistics["restarts"]),
        retired=int(statistics["retired"]),
    )
    _say(result)
    return result


class _Measuring(threading.Thread):
    """Kills collectors while the run goes on, and ends the run."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(name="measuring", daemon=True)
        self.trainer = trainer
        self.times: list[float] = []
        self.kills: list[Kill] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._measure()
        except BaseException as error:
            self.error = error
        finally:
            self.trainer.coordinator.stop("measured", patient=False)

    def _measure(self) -> None:
        while not self.trainer.counters["real_data"]:
            time.sleep(0.05)
        time.sleep(lengths.warm)
        self.times.append(time.perf_counter())
        time.sleep(lengths.kills)
        self.times.append(between := time.perf_counter())
        while (due := between + EVERY * len(self.kills)) < between + lengths.kills:
            time.sleep(max(0.0, due - time.perf_counter()))
            self._kill(len(self.kills) % len(self.trainer.collectors.workers))
        time.sleep(max(0.0, between + lengths.kills - time.perf_counter()))
        self.times.append(time.perf_counter())

    def _kill(self, collector: int) -> None:
        worker = self.trainer.collectors.workers[collector]
        if not worker.alive:
            raise RuntimeError(f"collector {collector} is still dead; kill less often")
        self.kills.append(Kill(collector, time.perf_counter()))
        os.kill(worker.pid, signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self.error is not None:
            raise self.error


def _hit(run: Run, kill: Kill) -> bool:
    """Whether the collector was in the middle of a collect."""
    failed = [span for span in run.of("collect failed") if span.role == f"collector {kill.collector}"]
    return any(span.start <= kill.at <= span.end for span in failed)


@contextlib.contextmanager
def _output_to(folder: Path) -> Iterator[None]:
    """What the run and its log say goes to a file beside its folder."""
    from lzero_async.runs.run_dir import logging_to

    with contextlib.ExitStack() as stack:
        log = stack.enter_context(log_of(folder).open("w"))
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))  # before the log's handler takes it
        stack.enter_context(logging_to(folder, "zoo.mbpo"))
        yield


def _say(result: Found) -> None:
    ended = " + ".join(f"{result.account[name]} {name}" for name in ACCOUNT[1:])
    print(
        f"  {result.quiet.rate:.1f} trained/s without kills, {result.killed.rate:.1f} with {len(result.kills)} of them"
    )
    print(f"  account: {result.account['admitted']} admitted = {ended}", flush=True)
    for violation in result.violations:
        print(f"  VIOLATION: {violation}", flush=True)


def _unaccounted() -> float:
    account = found().account
    return abs(account["admitted"] - sum(account[name] for name in ACCOUNT[1:]))


def bars() -> list[Bar]:
    """The rate with kills against that without, and the account."""
    return [
        Bar("rate with kills / rate without", 0.8, True, lambda: found().killed.rate / found().quiet.rate, 1),
        Bar("effective samples/s without kills", None, True, lambda: found().quiet.rate, 1),
        Bar("effective samples/s with kills", None, True, lambda: found().killed.rate, 1),
        Bar("kills", None, True, lambda: len(found().kills), 1),
        Bar("of them in the middle of a collect", None, True, lambda: found().hits, 1),
        Bar("|failed collects - kills|", 0, False, lambda: abs(found().account["failed"] - len(found().kills)), 1),
        Bar("|restarts - kills|", 0, False, lambda: abs(found().restarts - len(found().kills)), 1),
        Bar("collectors retired", 0, False, lambda: found().retired, 1),
        Bar("batches not accounted for", 0, False, _unaccounted, 1),
        Bar("violated rules of the gate", 0, False, lambda: len(found().violations), 1),
        *(Bar(f"batches {name}", None, True, lambda n=name: found().account[n], 1) for name in ACCOUNT),
    ]
