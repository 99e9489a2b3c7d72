"""Runs of `zoo.mbpo` whose roles are killed or fail in the middle of their work: the run goes on or ends with its error,
everything is accounted for, and a resumed run makes up for what was lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lzero_async.errors import WorkerDied
from lzero_async.runs import checkpoint
from tests.commands import Command
from tests.zoo.mbpo import struck as mbpo_struck
from tests.zoo.mbpo.test_numerics import equal
from tests.zoo.mbpo.test_run import (
    BATCH_STEPS,
    ENTRY,
    FOREVER,
    LINE,
    SMALL,
    TRAINERS,
    arguments,
    assert_every_train_is_recorded_once,
    results_of,
    rows_of,
    state_of,
)
from zoo.mbpo.options import build_options
from zoo.mbpo.saving import KIND
from zoo.mbpo.train import main, make_trainer
from zoo.mbpo.trainer import COUNTERS, Trainer


@pytest.fixture
def strike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Says when a role is struck; see `mbpo_struck`. At the end every wish must have come true."""
    folder = tmp_path / "struck"
    folder.mkdir()
    monkeypatch.setenv(mbpo_struck.FOLDER, str(folder))
    monkeypatch.setattr("zoo.mbpo.trainer.make_role", mbpo_struck.make_role)
    for module in ("train", "trainer"):
        monkeypatch.setattr(f"zoo.mbpo.{module}.GymSource", mbpo_struck.StruckSource)

    def wish(*moments: str) -> None:
        for moment in moments:
            (folder / moment).touch()

    yield wish
    assert [path.name for path in folder.iterdir() if not path.name.startswith("broken ")] == []


def make(folder: Path, trainer: str, **more: Any) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    changes = {**SMALL, **TRAINERS[trainer], "trainer": trainer, "exp_name": str(folder), **more}
    return make_trainer(build_options(changes), folder)


def go_on(trainer: Trainer) -> None:
    trainer.resume(trainer.last_checkpoint, checkpoint.load(trainer.last_checkpoint, KIND, arrays=False))


def test_every_role_but_the_learner_is_replaced_under_the_run(tmp_path: Path, strike: Any) -> None:
    """A collector in the middle of a collect, the evaluator in the middle of an evaluation, dynamics and rollouts with work
    done that they have not told."""
    strike("collector 0 step 12", "evaluator step 5", "fit 2", "roll 2")
    trainer = make(
        tmp_path / "run", "continuous", backend="process", step_seconds=0.01, max_steps=0, max_train_ahead=1, num_envs=4
    )
    worked: list[str] = []
    trained, note = trainer._trained, trainer._worked

    def work(role: str, *words: Any, **more: Any) -> None:
        note(role, *words, **more)
        worker = getattr(trainer, role)
        if worker.restarts:
            worked.append(role)

    def until_all_are_back() -> None:
        trained()
        back = all(worker.alive for worker in trainer._roles()) and trainer.evaluator.restarts and trainer.history
        counted = trainer.counters["dynamics_updates"] > 4 and trainer.counters["model_data"]
        if back and counted and {"dynamics", "rollouts"} <= set(worked):
            trainer.coordinator.stop("all are back")

    trainer._trained, trainer._worked = until_all_are_back, work  # type: ignore[method-assign]
    try:
        first = {worker.name: worker.pid for worker in trainer._roles()}
        assert trainer.run().reason == "all are back"
        changed = {worker.name for worker in trainer._roles() if worker.pid != first[worker.name]}
        assert changed == {"collector 0", "evaluator", "dynamics", "rollouts"}
        statistics = {**trainer.results(), "coordinator": trainer.coordinator.get_statistics()}
        assert (statistics["coordinator"]["restarts"], statistics["coordinator"]["failed"]) == (4, 1)
        assert statistics["coordinator"]["retired"] == 0
        assert statistics["collectors"]["restarts"] == 1
        for queue in statistics["queues"].values():
            assert queue["put"] == queue["got"] + queue["dropped"] + queue["size"]
        trainer.save()
        known = {tuple(row) for row in trainer.learner.call("observations")}
        for role in (trainer.dynamics, trainer.rollouts):
            own = [tuple(row) for row in role.call("observations")]
            assert len(own) == len(set(own)) > 2 * BATCH_STEPS  # no batch came twice
            assert set(own) <= known
    finally:
        trainer.close()
    rows = assert_every_train_is_recorded_once(tmp_path / "run")
    updates = [row["data/dynamics_updates"] for row in rows]
    assert updates == sorted(updates) and updates[-1] > 4
    models = [row["data/model_data"] for row in rows]
    assert models == sorted(models) and models[-1] > 0


def test_a_collector_whose_environments_always_fail_is_retired(tmp_path: Path, strike: Any) -> None:
    strike("broken collector 1 step 3")
    trainer = make(tmp_path / "run", "continuous", max_restarts=2, max_steps=8 * BATCH_STEPS, eval_every=0)
    retired, collect = threading.Event(), trainer.collectors.collect

    def patient(context: Any) -> Any:
        if context.worker == 0 and trainer.coordinator.collect_count >= 2:
            assert retired.wait(FOREVER)  # the other one is not to be done before that
        return collect(context)

    def retire(worker: int) -> None:
        trainer.collectors.workers[worker].kill()
        retired.set()

    trainer.collectors.collect, trainer.collectors.retire = patient, retire  # type: ignore[method-assign]
    try:
        assert trainer.run().reason in ("max_collect", "stop_fn")
        trainer.save()
        statistics = {**trainer.results(), "coordinator": trainer.coordinator.get_statistics()}
        coordinator = statistics["coordinator"]
        assert [coordinator[name] for name in ("retired", "restarts", "failed", "dropped")] == [1, 2, 3, 0]
        assert [worker["alive"] for worker in statistics["collectors"]["by_worker"]] == [True, False]
        assert statistics["counters"]["real_data"] == 8 * BATCH_STEPS
    finally:
        trainer.close()
    rows = assert_every_train_is_recorded_once(tmp_path / "run")
    assert {row["batch/worker"] for row in rows if not row["replay"]} == {0}


def test_the_failure_of_the_last_collector_ends_the_run(
    tmp_path: Path, strike: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    strike("broken collector 0 step 20", "broken collector 1 step 20")
    with pytest.raises(RuntimeError, match=r"struck at collector . step 20"):
        main(arguments(tmp_path / "run", "continuous", max_restarts=0, max_steps=10**6, eval_every=0))
    assert f"go on from the last checkpoint with: --resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert_every_train_is_recorded_once(tmp_path / "run")
    gate = state_of(tmp_path / "run")["coordinator"]["gate"]
    assert (gate["committed"], gate["failed"], gate["trained"] + len(gate["waiting"])) == (2, 2, 2)


def test_environments_that_fail_from_the_start_end_the_run_and_leave_the_name_free(
    tmp_path: Path, strike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: Any, **options: Any) -> None:
        raise RuntimeError("no simulator here")

    monkeypatch.setattr("zoo.mbpo.collect.roles.gym_collector", broken)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no simulator here"):
            main(arguments(tmp_path / "run", "batch"))
    assert [path.name for path in tmp_path.iterdir() if path.name != "struck"] == ["run"]


@pytest.mark.parametrize("trainer", ["batch", "continuous"])
def test_the_death_of_the_learner_ends_the_run_and_the_last_checkpoint_goes_on(
    trainer: str, tmp_path: Path, strike: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    strike("train 4")
    more = {"backend": "process", "checkpoint_every": 2, "eval_every": 0}
    if trainer == "continuous":
        more["max_train_ahead"] = 0
    assert main(arguments(tmp_path / "run", trainer, **more)) == 1
    said = capsys.readouterr().err
    assert "error: learner was ended by SIGKILL" in said
    assert "The run ends here." in said
    assert f"--resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    state = state_of(tmp_path / "run")
    assert state["coordinator"]["gate"]["trained"] == 2
    assert state["counters"]["real_data"] == 2 * BATCH_STEPS
    assert len(rows_of(tmp_path / "run")) == 3
    assert main(["--resume", str(tmp_path / "run"), "--backend", "thread"]) == 0
    rows = assert_every_train_is_recorded_once(tmp_path / "run")
    assert rows[-1]["data/real_data"] == SMALL["max_steps"]
    assert rows[-1]["data/agent_updates"] == SMALL["max_steps"] / 2


@pytest.mark.parametrize("trainer", ["sync", "batch", "continuous"])
def test_a_train_that_fails_reaches_the_user_and_the_checkpoint_before_it_stands(
    trainer: str, tmp_path: Path, strike: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.mbpo.learn.sac import SAC

    update, counted = SAC.update, [0]

    def struck(agent: SAC, sample: Any) -> Any:
        counted[0] += 1
        if counted[0] == 3 * 8 + 4:  # in the middle of the fourth train
            raise RuntimeError("struck in the middle of a train")
        return update(agent, sample)

    more = {"checkpoint_every": 2, "eval_every": 0, **({"max_train_ahead": 0} if trainer == "continuous" else {})}
    with monkeypatch.context() as patch:
        patch.setattr(SAC, "update", struck)
        with pytest.raises(RuntimeError, match="struck in the middle of a train"):
            main(arguments(tmp_path / "run", trainer, **more))
    assert f"--resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert "so its state is not saved" in (tmp_path / "run" / "run.log").read_text()
    state = state_of(tmp_path / "run")
    assert (state["coordinator"]["gate"]["trained"], state["counters"]["agent_updates"]) == (2, 16)
    assert main(["--resume", str(tmp_path / "run")]) == 0
    rows = assert_every_train_is_recorded_once(tmp_path / "run")
    assert rows[-1]["data/agent_updates"] == SMALL["max_steps"] / 2


def test_dynamics_that_keep_failing_end_the_run_with_their_error(tmp_path: Path, strike: Any) -> None:
    strike("broken fit 2")
    trainer = make(tmp_path / "run", "continuous", max_restarts=2, max_steps=0, max_seconds=FOREVER, eval_every=0)
    restart = trainer.dynamics.restart

    def in_vain() -> None:
        strike("broken fit 1")
        restart()

    trainer.dynamics.restart = in_vain  # type: ignore[method-assign]
    try:
        with pytest.raises(RuntimeError, match="struck at fit 1"):
            trainer.run()
        assert trainer.coordinator.get_statistics()["restarts"] == trainer.dynamics.restarts == 2
        assert trainer._dynamics_version() == 1
    finally:
        trainer.close()
    assert_every_train_is_recorded_once(tmp_path / "run")


def test_a_role_that_raises_is_made_anew_and_goes_on_from_the_last_weights(tmp_path: Path, strike: Any) -> None:
    """Dynamics and rollouts that raise with work done which they have not told; neither has died."""
    strike("once fit 3", "once roll 3")
    trainer = make(tmp_path / "run", "continuous", max_steps=0, max_seconds=FOREVER, eval_every=0)
    given: list[tuple[int, int]] = []
    reported: list[tuple[int, int]] = []
    rolled: list[int] = []
    call, trained, note = trainer.dynamics.call, trainer._trained, trainer._worked

    def look(method: str, *words: Any, **more: Any) -> Any:
        found = call(method, *words, **more)
        if method == "restore":
            now = call("state").open()["dynamics"]
            last = trainer.dynamics_weights.latest()
            given.append((now["version"], now["updates"]))
            assert last.version == now["version"]
            assert all(torch.equal(now["weights"][name], value) for name, value in last.state.open().items())
        if method == "fit":
            reported.append((found["dynamics_version"], found["dynamics_updates"]))
        return found

    def work(role: str, *words: Any, **more: Any) -> None:
        note(role, *words, **more)
        if role == "rollouts":
            rolled.append(trainer.rollouts.restarts)

    def until_both_are_back() -> None:
        trained()
        if given and len(reported) >= 4 and 1 in rolled:
            trainer.coordinator.stop("both are back")

    trainer.dynamics.call, trainer._trained, trainer._worked = look, until_both_are_back, work  # type: ignore[method-assign]
    try:
        assert trainer.run().reason == "both are back"
        assert (trainer.dynamics.restarts, trainer.rollouts.restarts) == (1, 1)
        assert given == [reported[1]]  # what the third fit did is lost with the role
        versions, updates = zip(*reported, strict=True)
        assert versions == tuple(range(1, len(reported) + 1))
        assert list(updates) == sorted(set(updates))
        known = {tuple(row) for row in trainer.learner.call("observations")}
        for role in (trainer.dynamics, trainer.rollouts):
            own = [tuple(row) for row in role.call("observations")]
            assert len(own) == len(set(own)) and set(own) <= known
    finally:
        trainer.close()


def test_a_restarted_role_that_cannot_be_given_its_data_is_restarted_again(tmp_path: Path, strike: Any) -> None:
    trainer = make(tmp_path / "run", "continuous", max_steps=0, eval_every=0)
    refused: list[int] = []
    killed: list[int] = []
    call, trained = trainer.dynamics.call, trainer._trained

    def refuse_once(method: str, *words: Any, **more: Any) -> Any:
        if method == "restore" and not refused:
            refused.append(1)
            raise RuntimeError("not yet")
        return call(method, *words, **more)

    def strike_once() -> None:
        trained()
        version = trainer._dynamics_version()
        if version >= 2 and not killed:
            killed.append(version)
            trainer.dynamics.kill()
        if killed and version >= killed[0] + 2 and refused:
            trainer.coordinator.stop("it is back")

    trainer.dynamics.call, trainer._trained = refuse_once, strike_once  # type: ignore[method-assign]
    try:
        assert trainer.run().reason == "it is back"
        assert (len(refused), trainer.dynamics.restarts) == (1, 2)
        updates = [row["data/dynamics_updates"] for row in rows_of(tmp_path / "run")]
        assert updates == sorted(updates)
    finally:
        trainer.close()


def test_a_checkpoint_made_while_the_dynamics_are_dead_has_those_of_the_one_before(
    tmp_path: Path, strike: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make(tmp_path / "run", "continuous", eval_every=0)
    try:
        trainer.run()
        trainer.save()
        version = checkpoint.load(trainer.last_checkpoint, KIND)["other"]["dynamics"]["version"]
        assert version > 0
        trainer.dynamics.kill()
        trainer.save()
        assert "they just died" in caplog.text
    finally:
        trainer.close()
    again = make(tmp_path / "run", "continuous", eval_every=0)
    try:
        go_on(again)
        assert again._dynamics_version() == version
        again.dynamics.kill()
        again.save()
        assert checkpoint.load(again.last_checkpoint, KIND)["other"]["dynamics"]["version"] == version
    finally:
        again.close()


def test_a_checkpoint_made_before_restarted_dynamics_have_their_state_has_those_of_the_one_before(
    tmp_path: Path, strike: Any
) -> None:
    trainer = make(tmp_path / "run", "continuous", max_steps=0, eval_every=0, max_train_ahead=0)
    trained, call = trainer._trained, trainer.dynamics.call
    between: list[dict[str, Any]] = []

    def saved() -> dict[str, Any]:
        trainer.save()
        return checkpoint.load(trainer.last_checkpoint, KIND)["other"]["dynamics"]

    def save_before(method: str, *words: Any, **more: Any) -> Any:
        if method == "restore":
            between.append(saved())
        return call(method, *words, **more)

    def until_fitted() -> None:
        trained()
        if trainer._dynamics_version():
            trainer.coordinator.stop("fitted")

    trainer._trained = until_fitted  # type: ignore[method-assign]
    try:
        assert trainer.run().reason == "fitted"
        before = saved()
        assert before["version"] > 0
        trainer.dynamics.call = save_before  # type: ignore[method-assign]
        trainer.dynamics.kill()
        trainer._bring_back(trainer.dynamics)
        assert len(between) == 1 and equal(between[0], before)
        trainer.dynamics.call("fit", [BATCH_STEPS], [])
        assert saved()["version"] == before["version"] + 1  # now it is asked again
    finally:
        trainer.close()


def test_an_evaluator_that_keeps_dying_ends_the_run(tmp_path: Path, strike: Any) -> None:
    trainer = make(tmp_path / "run", "batch", max_restarts=1, max_steps=0, eval_every=1)
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
    assert_every_train_is_recorded_once(tmp_path / "run")


def test_ctrl_c_at_a_terminal_ends_every_process_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, str(ENTRY), *arguments(folder, "continuous", backend=None, max_steps=10**6)]
    process = Command(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if LINE.match(line):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            break
    output, errors = process.communicate(timeout=FOREVER)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "ended by: SIGINT" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of its group is left
    assert_every_train_is_recorded_once(folder)
    counters = results_of(folder)["counters"]
    assert counters == state_of(folder)["counters"]
    assert counters.keys() == set(COUNTERS)
