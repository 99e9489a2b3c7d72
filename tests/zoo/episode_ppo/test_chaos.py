"""Runs of `zoo.episode_ppo` whose processes are killed in the middle of their work: the run goes on or ends with its error, and
everything is accounted for."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import WorkerDied
from lzero_async.workers.template import close_idle
from tests.commands import Command
from tests.process_tools import children
from tests.zoo.episode_ppo.envs import SPEC, env_seed, watch
from tests.zoo.episode_ppo.test_run import (
    COLLECTORS,
    COUNT,
    ENTRY,
    FOREVER,
    REPOSITORY,
    UPDATES,
    arguments,
    assert_account_closes,
    make,
    results_of,
    rows_of,
    state_of,
)
from zoo.episode_ppo.play.evaluator import SEED_OFFSET
from zoo.episode_ppo.train import main
from zoo.episode_ppo.trainer import Trainer


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    watch.clear()
    close_idle()
    before = children()
    yield
    close_idle()
    assert children() <= before
    watch.clear()


@pytest.fixture
def strike(tmp_path: Path) -> Iterator[Any]:
    """Wishes that whoever plays these episodes is killed in the middle of them; at the end every wish must have come true."""
    folder = tmp_path / "struck"
    folder.mkdir()

    def wish(*seeds: int) -> dict[str, Any]:
        for seed in seeds:
            (folder / str(seed)).touch()
        return {"struck": str(folder)}

    yield wish
    assert list(folder.iterdir()) == []


def note_numbers(trainer: Trainer) -> list[list[int]]:
    """The episodes of every train."""
    found, train = [], trainer.train

    def note(batch: Any) -> Any:
        found.append(sorted(number for parcel in batch.data for number in parcel.meta["numbers"]))
        return train(batch)

    trainer.train = note  # type: ignore[method-assign]
    return found


def test_a_killed_worker_costs_no_episode(tmp_path: Path, strike: Any) -> None:
    env_args = strike(env_seed(0, 2), env_seed(0, 15))
    trainer = make(tmp_path / "run", "async", backend="process", env_args=env_args, eval_every=0)
    trained = note_numbers(trainer)
    try:
        before = [worker.pid for worker in trainer.pool.workers]
        assert trainer.run().reason in ("max_train", "max_collect")
        trainer.save()
        statistics = {**trainer.results(), "coordinator": trainer.coordinator.get_statistics()}
        restarts = [worker.restarts for worker in trainer.pool.workers]
        assert [worker.pid != pid for worker, pid in zip(trainer.pool.workers, before, strict=True)] == [
            bool(number) for number in restarts
        ]
    finally:
        trainer.close()
    assert sum(restarts) == 2 == statistics["coordinator"]["restarts"]
    assert sorted(itertools.chain(*trained)) == list(range(COUNT * UPDATES))
    assert all(numbers == list(range(numbers[0], numbers[0] + COUNT)) for numbers in trained)
    pool = statistics["environments"]
    assert (pool["started"], pool["complete"], pool["abandoned"]) == (COUNT * UPDATES, COUNT * UPDATES, 0)
    assert 2 <= pool["replayed"] <= COUNT * UPDATES  # those that were played or waited in there
    assert (pool["failed"], pool["left_out"]) == (0, 0)
    assert statistics["coordinator"]["failed"] == 0
    assert_account_closes(tmp_path / "run")


def test_a_worker_that_died_between_two_calls_is_counted_as_one_that_died_in_a_call(tmp_path: Path) -> None:
    trainer = make(tmp_path / "run", "async", backend="process", num_workers=1, eval_every=0)
    try:
        trainer.pool.workers[0].kill()
        assert trainer.run().reason in ("max_train", "max_collect")
        assert [worker.restarts for worker in trainer.pool.workers] == [1]
        assert trainer.coordinator.get_statistics()["restarts"] == 1
    finally:
        trainer.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_fails_the_collect_of_the_barrier_and_comes_back(
    workers: int, tmp_path: Path, strike: Any
) -> None:
    env_args = strike(env_seed(0, 8))
    trainer = make(tmp_path / "run", "sync", backend="process", num_workers=workers, env_args=env_args, eval_every=0)
    trained = note_numbers(trainer)
    try:
        assert trainer.run().reason == "max_train"
        trainer.save()
        statistics = {**trainer.results(), "coordinator": trainer.coordinator.get_statistics()}
        assert sum(worker.restarts for worker in trainer.pool.workers) == 1
        assert all(worker.alive for worker in trainer.pool.workers)
    finally:
        trainer.close()
    coordinator, pool = statistics["coordinator"], statistics["environments"]
    assert (coordinator["failed"], coordinator["restarts"], coordinator["train_count"]) == (1, 1, UPDATES)
    firsts = [0, *range(2 * COUNT, (UPDATES + 1) * COUNT, COUNT)]  # the second round was given up
    assert trained == [list(range(first, first + COUNT)) for first in firsts]
    assert (pool["started"], pool["complete"], pool["abandoned"]) == (7 * COUNT, 6 * COUNT, COUNT)
    assert_account_closes(tmp_path / "run")


def test_a_killed_evaluator_is_asked_again(tmp_path: Path, strike: Any) -> None:
    env_args = strike(env_seed(SEED_OFFSET, 4 * 3 + 1))  # the second episode of the evaluation of version 4
    trainer = make(tmp_path / "run", "sync", backend="process", env_args=env_args)
    try:
        assert trainer.run().reason == "max_train"
        trainer.final_evaluation()
        assert trainer.evaluator is not None and trainer.evaluator.restarts == 1
        assert [row["version"] for row in trainer.history] == [2, 4, 6, 6]
        assert trainer.coordinator.get_statistics()["restarts"] == 1
        assert trainer.coordinator.get_statistics()["failed"] == 0
    finally:
        trainer.close()
    assert_account_closes(tmp_path / "run")


@pytest.mark.parametrize("collector", COLLECTORS)
def test_the_death_of_the_learner_ends_the_run_and_the_last_checkpoint_goes_on(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = Trainer.train

    def struck(trainer: Trainer, batch: Any) -> Any:
        if trainer.coordinator.train_count == 3:
            os.kill(trainer.learner.pid, signal.SIGKILL)
        return train(trainer, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", struck)
        words = arguments(tmp_path / "run", collector, backend="process", checkpoint_every=2, eval_every=0)
        assert main(words) == 1
    said = capsys.readouterr().err
    assert "error: learner was ended by SIGKILL" in said and "The run ends here." in said
    assert f"--resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    state = state_of(tmp_path / "run")
    assert state["coordinator"]["gate"]["trained"] == 2
    assert state["counters"]["episodes"] == 2 * COUNT
    assert len(rows_of(tmp_path / "run")) == 3
    assert main(["--resume", str(tmp_path / "run"), "--backend", "thread"]) == 0
    assert results_of(tmp_path / "run")["counters"]["episodes"] == UPDATES * COUNT
    assert [row["train"] for row in rows_of(tmp_path / "run")] == list(range(1, UPDATES + 1))


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_train_that_fails_reaches_the_user_and_the_checkpoint_before_it_stands(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zoo.episode_ppo.learn.ppo import PPO

    update, counted = PPO.update, [0]

    def struck(agent: PPO, *words: Any) -> Any:
        counted[0] += 1
        found = update(agent, *words)
        if counted[0] == 4:
            raise RuntimeError("struck in the middle of a train")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "update", struck)
        with pytest.raises(RuntimeError, match="struck in the middle of a train"):
            main(arguments(tmp_path / "run", collector, checkpoint_every=2, eval_every=0))
    assert f"--resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert "so its state is not saved" in (tmp_path / "run" / "run.log").read_text()
    assert state_of(tmp_path / "run")["counters"]["episodes"] == 2 * COUNT
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert results_of(tmp_path / "run")["counters"]["episodes"] == UPDATES * COUNT


@pytest.mark.parametrize("collector", COLLECTORS)
def test_environments_that_fail_now_and_then_cost_nothing(collector: str, tmp_path: Path) -> None:
    trainer = make(tmp_path / "run", collector, env_args={"fails": {"5": 1, "7": 1, "9": 1}}, eval_every=0)
    trained = note_numbers(trainer)
    try:
        trainer.run()
        trainer.save()
        statistics = {**trainer.results(), "coordinator": trainer.coordinator.get_statistics()}
    finally:
        trainer.close()
    pool = statistics["environments"]
    assert len(set(itertools.chain(*trained))) == COUNT * UPDATES - pool["left_out"] == pool["complete"]
    assert pool["failed"] == sum(watch.failed.values()) > 3
    assert (statistics["coordinator"]["failed"], statistics["coordinator"]["restarts"]) == (0, 0)
    assert_account_closes(tmp_path / "run")


@pytest.mark.parametrize("collector", COLLECTORS)
def test_environments_that_always_fail_end_the_run_with_their_error(
    collector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    always = {str(length): 10**6 for length in range(1, 13)}
    words = ["--env_args", str({"fails": always}).replace("'", '"'), "--max_restarts", "1"]
    assert main([*arguments(tmp_path / "run", collector, eval_every=0), *words]) == 2
    said = capsys.readouterr().err
    assert (
        "tries to play an episode, in every environment, all failed for one cause: RuntimeError('out of order')" in said
    )
    assert said.count("Traceback") == 1 and len(said.splitlines()) < 35
    assert f"go on from the last checkpoint with: --resume {tmp_path / 'run'}" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or rows_of(tmp_path / "run") == []
    assert state_of(tmp_path / "run")["counters"]["episodes"] == 0


def test_an_evaluator_that_keeps_dying_ends_the_run(tmp_path: Path) -> None:
    trainer = make(tmp_path / "run", "async", max_restarts=1, total_episodes=0, eval_every=1)
    assert trainer.evaluator is not None
    call = trainer.evaluator.call

    def die(method: str, *words: Any, **more: Any) -> Any:
        if method == "evaluate":
            raise WorkerDied("evaluator was ended by SIGKILL.")
        return call(method, *words, **more)

    trainer.evaluator.call = die  # type: ignore[method-assign]
    try:
        with pytest.raises(WorkerDied, match="evaluator was ended"):
            trainer.run()
        assert trainer.evaluator.restarts == 1
    finally:
        trainer.close()
    assert_account_closes(tmp_path / "run")


@pytest.mark.parametrize("collector", COLLECTORS)
def test_ctrl_c_at_a_terminal_ends_every_process_in_order(collector: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = arguments(folder, collector, backend=None, env=SPEC, total_episodes=0)
    process = Command(
        [sys.executable, str(ENTRY), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if re.match(r"Update complete .*: update 3,", line):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            break
    output, errors = process.communicate(timeout=FOREVER)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "ended by: SIGINT" in output and f"go on with: --resume {folder}" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of its group is left
    assert assert_account_closes(folder)["trained"] >= 3
    assert results_of(folder)["counters"] == state_of(folder)["counters"]
