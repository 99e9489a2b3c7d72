"""Evaluations of `zoo.mbpo`: what their rows say, which of them is the best, and environments that never end an episode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async.runs import checkpoint
from tests.zoo.mbpo.test_run import BATCH_STEPS, FOREVER, SMALL, arguments, make, results_of
from zoo.mbpo.collect import roles as collecting
from zoo.mbpo.collect.roles import EvaluatorRole
from zoo.mbpo.saving import KIND
from zoo.mbpo.train import main

UPDATES = int(BATCH_STEPS * SMALL["updates_per_step"])  # of the agent in one train


def give_returns(monkeypatch: pytest.MonkeyPatch, mean_return: Callable[[int], float]) -> list[int]:
    """Let every evaluation have the mean return of its version; the versions that were evaluated."""
    evaluate, versions = EvaluatorRole.evaluate, []

    def told(role: EvaluatorRole, version: int, *words: Any, **more: Any) -> dict[str, Any]:
        versions.append(version)
        return {**evaluate(role, version, *words, **more), "mean_return": mean_return(version)}

    monkeypatch.setattr(EvaluatorRole, "evaluate", told)
    return versions


@pytest.mark.parametrize(("direction", "best"), [(1, 6), (-1, 4)])
def test_the_final_evaluation_may_be_the_best(
    direction: int, best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = give_returns(monkeypatch, lambda version: float(direction * version))
    assert main(arguments(tmp_path / "run", "sync", eval_every=4)) == 0
    results = results_of(tmp_path / "run")
    assert versions == [4, 6]
    assert [row["version"] for row in results["evaluations"]] == versions
    last = results["evaluations"][-1]
    assert {**last, **results["final_evaluation"], "seconds": last["seconds"]} == last
    assert results["best"] == {"return": direction * best, "version": best}
    assert results["best"]["return"] >= results["final_evaluation"]["mean_return"]
    saved = checkpoint.load(tmp_path / "run" / "ckpt" / "best.safetensors", KIND)
    assert (saved["best"], saved["counters"]["agent_updates"]) == (results["best"], best * UPDATES)
    last = checkpoint.load(tmp_path / "run" / "ckpt" / "last.safetensors", KIND)["learner"]["agent"]["actor"]
    same = [np.array_equal(value, last[name]) for name, value in saved["weights"].items()]
    assert all(same) if best == 6 else not all(same)


def test_a_target_is_confirmed_and_the_confirmed_weights_stay_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 is lucky (100, then 20), version 4 is confirmed (80, then 90), and a lucky final evaluation (200) is not."""
    scores = iter([100, 20, 80, 90, 200])
    versions = give_returns(monkeypatch, lambda version: next(scores))
    assert main(arguments(tmp_path / "run", "sync", eval_every=2, target_return=75, max_steps=10**6)) == 0
    results = results_of(tmp_path / "run")
    assert results["ended_by"] == "target_score"
    assert versions == [2, 2, 4, 4, 4]
    assert [row["mean_return"] for row in results["evaluations"]] == [100, 20, 80, 90, 200]
    assert results["best"] == {"return": 85.0, "version": 4}
    assert checkpoint.load(tmp_path / "run" / "ckpt" / "best.safetensors", KIND)["best"] == results["best"]


def test_rows_say_how_far_the_run_was_at_their_version(tmp_path: Path) -> None:
    trainer = make(tmp_path, "batch", eval_every=3)
    call, answered = trainer.evaluator.call, []

    def slow(method: str, version: int, *words: Any, stop: Any, **more: Any) -> Any:
        found = call(method, version, *words, stop=stop, **more)
        while version == 3 and trainer.counters["agent_updates"] < 6 * UPDATES:  # the other trains go on beside it
            assert not trainer.coordinator.stop_signal.wait(0.002)
        answered.append(trainer.counters["agent_updates"])
        return found

    trainer.evaluator.call = slow  # type: ignore[method-assign]
    try:
        trainer.run()
        trainer.final_evaluation()
        assert answered[0] == 6 * UPDATES
        assert [row["version"] for row in trainer.history] == [3, 6, 6]
        for row in trainer.history:
            assert row["agent_updates"] == UPDATES * row["version"]
            assert row["real_steps"] == BATCH_STEPS * row["version"]
            assert row["real_steps"] <= row["collected_steps"] <= SMALL["max_steps"]
            assert "returns" not in row
            assert row["min_return"] <= row["mean_return"] <= row["max_return"]
    finally:
        trainer.close()


def test_the_oldest_evaluations_leave_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lzero_async.runs.scored.KEPT_EVALUATIONS", 2)
    assert main(arguments(tmp_path / "run", "sync", eval_every=2)) == 0
    assert [row["version"] for row in results_of(tmp_path / "run")["evaluations"]] == [6, 6]


@pytest.mark.parametrize("trainer", ["sync", "batch"])
def test_an_environment_whose_episodes_do_not_end_is_asked_once(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collecting, "MAX_EVAL_STEPS", 5)  # of the 20 that an episode takes
    evaluate, asked = EvaluatorRole.evaluate, []

    def counted(role: EvaluatorRole, version: int, *words: Any, **more: Any) -> Any:
        asked.append(version)
        return evaluate(role, version, *words, **more)

    monkeypatch.setattr(EvaluatorRole, "evaluate", counted)
    assert main(arguments(tmp_path / "run", trainer, eval_every=2, max_steps=10**6, max_seconds=FOREVER)) == 2
    assert asked == [2]
    said = capsys.readouterr().err
    assert "An evaluation did not end within 5 steps an episode; give the environment a time limit" in said
    assert "Traceback" not in said
