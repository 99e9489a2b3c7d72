"""Kills: collectors and evaluators in the middle of their work, the learner, and whole runs; nothing is lost or trained twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import WorkerDied
from lzero_async.lightzero import running, trainer
from lzero_async.lightzero.silence import quiet
from tests.lightzero.small import captured, shrink
from tests.lightzero.test_runs import trained

OPTIONS = dict(
    off_policy_degree=2, threads=1, plain=True, report=False, trace=False, restart_backoff=0.01, max_restarts=50
)


class Killing(trainer.LightZeroRun):
    """Kills a role when it says that it works: each number in `victims` is one more kill of that role."""

    victims: Counter[str]
    orders = 0

    def _on_event(self, event: Any) -> None:
        kind, _ = event
        role = {"steps": "collector", "evaluation steps": "evaluator"}.get(kind, "")
        if self.victims[role] > 0 and self.coordinator.train_count >= 1 and self._may_kill(role):
            self.victims[role] -= 1
            worker = self.collectors[0] if role == "collector" else self.evaluator
            assert worker is not None
            os.kill(worker.pid, signal.SIGKILL)
        super()._on_event(event)

    def _limit(self) -> str:
        """None as long as somebody is to be killed: how soon that happens is the machine's affair."""
        return "" if any(self.victims[role] > 0 for role in ("collector", "evaluator")) else super()._limit()

    def _may_kill(self, role: str) -> bool:
        """Once for every second order of the collector, so that trains go on between the kills."""
        if role == "evaluator":
            return True
        number = self._streams[0]
        if number % 2 or number == self.orders:
            return False
        self.orders = number
        return True

    def _trained(self) -> None:
        super()._trained()
        if self.victims["learner"] > 0 and self.coordinator.train_count >= 6:
            self.victims["learner"] -= 1
            self.save()
            os.kill(self.learner.pid, signal.SIGKILL)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, updates: int, **victims: int) -> tuple[Path, Killing]:
    made: list[Killing] = []

    def make(*args: Any, **kwargs: Any) -> Killing:
        Killing.victims = Counter(victims)
        made.append(Killing(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(trainer, "LightZeroRun", make)
    monkeypatch.chdir(folder)
    call = shrink(captured("cartpole_muzero"), update_per_collect=3, eval_freq=6)
    call.main.exp_name = "run"
    try:
        with quiet():
            code, _ = running.start(call, running.Wishes({**OPTIONS, "max_train_iter": updates}))
        assert code == 0
    finally:
        monkeypatch.undo()
    return folder / "run", made[0]


def check(folder: Path, killed: Killing) -> None:
    batches, steps = trained(folder)
    statistics = killed.coordinator.get_statistics()
    assert max(Counter(batches).values()) == 1, "a batch was trained twice"
    assert steps == killed.counts["env_steps"]
    assert statistics["staleness_max"] <= 2
    assert statistics["collect_count"] == statistics["trained_collects"] + statistics["collect_train_lag"]


@pytest.mark.parametrize(
    ("updates", "kills"), [(24, (2, 1)), pytest.param(150, (20, 5), marks=pytest.mark.chaos)], ids=["few", "many"]
)
def test_killed_collectors_and_evaluators_come_back_and_nothing_is_lost(
    updates: int, kills: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, killed = run(tmp_path, monkeypatch, updates, collector=kills[0], evaluator=kills[1])
    assert not +killed.victims, f"not killed: {killed.victims}"
    assert killed.coordinator.get_statistics()["failed"] == kills[0]
    assert killed.coordinator.get_statistics()["restarts"] == sum(kills)
    check(folder, killed)


@pytest.mark.chaos
def test_a_dead_learner_ends_the_run_and_a_resume_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerDied):
        run(tmp_path, monkeypatch, 60, learner=1)
    monkeypatch.chdir(tmp_path)
    with quiet():
        code, _ = running.resume("run", {"max_train_iter": 60})
    assert code == 0
    batches, _ = trained(tmp_path / "run")
    assert len(batches) == len(set(batches)) == 20
