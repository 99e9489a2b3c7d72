"""Bad data never reaches the learner of `zoo.mbpo`: bad episodes, batches and updates are left out, counted and named."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lzero_async import ConfigError, Parcel, Stopped
from lzero_async.errors import BadData
from lzero_async.runs import checkpoint
from lzero_async.runs.summary import read_results
from lzero_async.workers.calls import CallStop
from tests.commands import Command
from tests.zoo.mbpo import poisoned as mbpo_poisoned
from zoo.mbpo.collect import roles as collecting
from zoo.mbpo.collect.roles import CollectOrder, CollectorRole, evaluator, gym_collector
from zoo.mbpo.collect.tensor_playing import TensorPlaying
from zoo.mbpo.envs.guarding import BAD_EPISODE
from zoo.mbpo.envs.tensor_envs import TensorEnvs
from zoo.mbpo.envs.tensor_pendulum import TensorPendulum
from zoo.mbpo.learn.bad_updates import MOST_IN_A_ROW, NotFinite
from zoo.mbpo.learn.learner import AgentLearner
from zoo.mbpo.learn.roles import LearnerRole
from zoo.mbpo.learn.transitions import Transitions
from zoo.mbpo.options import LearnerOptions, build_options
from zoo.mbpo.saving import KIND, load_whole
from zoo.mbpo.troubles import Troubles

ROOT = Path(__file__).resolve().parents[3]
WRONG = "tests.zoo.mbpo.poisoned:Wrong-v0"
EPISODE, COUNT = 0, 1
FAR = 3600.0


@pytest.fixture
def roles() -> Iterator[list[Any]]:
    made: list[Any] = []
    mbpo_poisoned.Wrong.made = 0
    yield made
    for role in made:
        role.close()


def wrong_collector(roles: list[Any], events: list[Any], how: str, envs: int = 2, **wrong: Any) -> CollectorRole:
    timeout = wrong.pop("step_timeout", 300.0)
    role = gym_collector(WRONG, envs, {"how": how, **wrong}, 0.0, 1, 0, events.append, step_timeout=timeout)
    roles.append(role)
    return role


# -- collectors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("nan reward", "not_finite", "reward of environment 1 at step 4 is nan"),
        ("nan observation", "not_finite", "observation of environment 1 at step 4 is nan at [0] (and 1 more of 2"),
        ("inf", "not_finite", "observation of environment 1 at step 4 is inf at [0]"),
        ("shape", "shape", "observation of environment 1 at step 4 has the shape [3]; it must be [2]"),
        ("no reward", "type", "reward of environment 1 at step 4 is of object"),
        ("crash", "crash", "environment 1 at step 4 failed with RuntimeError: the simulator broke"),
        ("hang", "timeout", "environment 1 did not return within 0.2 s (step_timeout)"),
    ],
)
def test_a_bad_episode_is_left_out_and_named(roles: list[Any], how: str, kind: str, words: str) -> None:
    """Of two environments the second one's first episode is bad: its rows are gone, those of all others are there."""
    events: list[Any] = []
    role = wrong_collector(roles, events, how, bad=[2], step_timeout=0.2)
    parcel = role.collect(CollectOrder(0, 0, 30, random=True), None)
    rows = parcel.open()
    assert all(np.isfinite(field).all() for field in rows)
    episodes, lengths = np.unique(rows.obs[:, EPISODE], return_counts=True)
    assert 2 not in episodes and lengths.tolist() == [10, 10, 10, 10, 10, 6]
    assert parcel.meta["left_out"] == 4 and parcel.meta["steps"] == 56
    assert parcel.meta["lengths"] == [10] * 5 and parcel.meta["returns"] == [10.0] * 5
    bad = [event for event in events if event[0] == BAD_EPISODE]
    assert [event[1] for event in bad] == [kind]
    assert bad[0][2].startswith("collector 1") and words in bad[0][2]


def test_an_episode_that_failed_begins_again_with_another_seed(
    roles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[Any] = []
    reset = mbpo_poisoned.Wrong.reset

    def noted(self: Any, *, seed: int | None = None, options: Any = None) -> Any:
        seeds.append(seed)
        return reset(self, seed=seed)

    monkeypatch.setattr(mbpo_poisoned.Wrong, "reset", noted)
    role = wrong_collector(roles, [], "crash", envs=1, bad=[1, 2])
    role.collect(CollectOrder(0, 0, 12, random=True), None)
    assert len(seeds) == 3 and None not in seeds and len(set(seeds)) == 3


def test_an_environment_that_hangs_while_it_is_made_anew_is_watched(
    roles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    role = wrong_collector(roles, events, "crash", envs=1, bad=[1], step_timeout=0.2)
    make, begun = role.envs._make, []

    def made() -> Any:
        begun.append(1)
        if len(begun) == 1:
            threading.Event().wait(60)
        return make()

    monkeypatch.setattr(role.envs, "_make", made)
    role.collect(CollectOrder(0, 0, 12, random=True), None)
    assert [event[1] for event in events if event[0] == BAD_EPISODE] == ["crash", "timeout"]
    assert len(begun) == 2


def test_what_was_collected_before_an_episode_failed_stays(roles: list[Any]) -> None:
    role = wrong_collector(roles, [], "crash", envs=1, bad=[1], at=6)
    assert role.collect(CollectOrder(0, 0, 3, random=True), None).open().obs[:, COUNT].tolist() == [0.0, 1.0, 2.0]
    rows = role.collect(CollectOrder(0, 1, 6, random=True), None).open()
    assert rows.obs[:, EPISODE].tolist() == [2.0] * 3


@pytest.mark.parametrize("env", ["OldReset-v0", "OldStep-v0"])
def test_what_can_never_succeed_is_refused_in_one_sentence(roles: list[Any], env: str) -> None:
    role = gym_collector(f"tests.zoo.mbpo.poisoned:{env}", 2, None, 0.0, 0, 0, lambda event: None)
    roles.append(role)
    with pytest.raises(ConfigError, match=f"{env} cannot be used: environment . at .* failed with") as refused:
        for number in range(5):
            role.collect(CollectOrder(0, number, 1, random=True), None)
    assert "\n" not in str(refused.value)


def test_environments_of_which_every_episode_is_bad_are_given_up(roles: list[Any]) -> None:
    role = wrong_collector(roles, [], "nan reward", at=2)
    with pytest.raises(BadData, match=r"the last \d+ episodes of collector 1 were all bad"):
        for number in range(1000):
            role.collect(CollectOrder(0, number, 10, random=True), None)


def test_weights_that_are_not_finite_are_not_played_with(roles: list[Any]) -> None:
    role = wrong_collector(roles, [], "", envs=1)
    weights = {"layer0.weight": np.zeros((2, 2), np.float32), "layer0.bias": np.array([0.0, np.nan], np.float32)}
    with pytest.raises(BadData, match=r"layer0.bias of the weights of version 3 is nan at \[1\]"):
        role.collect(CollectOrder(3, 0, 5), Parcel(weights))


def test_an_evaluation_plays_bad_episodes_again(roles: list[Any]) -> None:
    role = evaluator(WRONG, 2, {"how": "nan reward", "bad": [1, 3]}, 0.0, 0, lambda event: None)
    roles.append(role)
    weights = {"layer0.weight": np.zeros((2, 2), np.float32), "layer0.bias": np.zeros(2, np.float32)}
    result = role.evaluate(0, Parcel(weights), 4)
    assert result["returns"] == [10.0] * 4 and role.guard.bad_episodes == 2


@pytest.mark.parametrize("timeout", [FAR])
def test_a_stop_ends_a_step_that_hangs(roles: list[Any], timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its own time-out."""
    monkeypatch.setattr(collecting, "HURRY", 0.1)
    events: list[Any] = []
    role = wrong_collector(roles, events, "hang", envs=1, step_timeout=timeout)
    stop, hanging = CallStop(), threading.Event()
    monkeypatch.setattr(mbpo_poisoned.time, "sleep", lambda seconds: (hanging.set(), time.monotonic(), _sleep(seconds)))
    threading.Thread(target=lambda: (hanging.wait(), stop.set("SIGTERM")), daemon=True).start()
    with pytest.raises(Stopped) as failure:
        role.collect(CollectOrder(0, 0, 30, random=True), None, stop)
    assert failure.value.origin is stop
    assert events == []  # nobody has failed


_sleep = time.sleep


def test_a_stop_waits_for_one_environment_that_hangs_and_not_for_one_after_the_other(
    roles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "HURRY", 0.1)
    role = wrong_collector(roles, [], "hang", envs=8)
    stop, hangs = CallStop(), []

    def hang(seconds: float) -> None:
        hangs.append(seconds)
        stop.set("SIGTERM")
        _sleep(seconds)

    monkeypatch.setattr(mbpo_poisoned.time, "sleep", hang)
    with pytest.raises(Stopped):
        role.collect(CollectOrder(0, 0, 30, random=True), None, stop)
    assert len(hangs) == 1


# -- tensors --------------------------------------------------------------------------------------------------------------


class PoisonedPendulum(TensorPendulum):
    """`bad` has (step, environment): what the reward is there."""

    bad: dict[tuple[int, int], float]
    steps = -1  # the contract's check makes the first

    def step(self, action: torch.Tensor) -> Any:
        obs, reward, terminated, time_outs, extras = super().step(action)
        for (step, row), value in self.bad.items():
            if step == self.steps:
                reward[row] = value
        self.steps += 1
        return obs, reward, terminated, time_outs, extras


def test_rows_of_tensors_that_are_not_finite_are_left_out(roles: list[Any]) -> None:
    env = PoisonedPendulum(num_envs=3)
    env.bad = {(4, 1): math.nan, (6, 1): math.inf}
    events: list[Any] = []
    role = CollectorRole(lambda: TensorEnvs(env), 0, 0, events.append, TensorPlaying)
    roles.append(role)
    parcel = role.collect(CollectOrder(0, 0, 250, random=True), None)
    rows = parcel.open()
    assert all(bool(field.isfinite().all()) for field in rows)
    assert rows.count == 3 * 250 - 200, "one episode of one environment"
    assert len(parcel.meta["returns"]) == 2 and np.isfinite(parcel.meta["returns"]).all()
    bad = [event for event in events if event[0] == BAD_EPISODE]
    assert bad == [(BAD_EPISODE, "not_finite", "collector 0: reward of environment 1 is nan")]


# -- learner --------------------------------------------------------------------------------------------------------------


def transitions(count: int, reward: float = 1.0) -> Transitions:
    rng = np.random.default_rng(0)
    obs, action = (
        rng.standard_normal((2, count, 3), dtype=np.float32),
        rng.uniform(-1, 1, (count, 1)).astype(np.float32),
    )
    return Transitions(obs[0], action, np.full(count, reward, np.float32), obs[1], np.zeros(count, np.float32))


def small_role(**changes: Any) -> LearnerRole:
    options = build_options(
        {"batch_size": 16, "hidden_size": 8, "dynamics_hidden_size": 8, "trainer": "sync", "device": "cpu", **changes}
    )
    return LearnerRole(options, (3, 1), lambda event: None)


def parcel_of(rows: Transitions) -> Parcel:
    return Parcel(rows, {"version": 0})


@pytest.mark.parametrize("field", Transitions._fields)
def test_the_learner_refuses_a_batch_that_is_not_finite(field: str, caplog: pytest.LogCaptureFixture) -> None:
    role = small_role()
    role.train(0, 0, parcel_of(transitions(32)))
    bad = transitions(32)
    getattr(bad, field)[3] = np.nan
    report = role.train(0, 1, parcel_of(bad))
    assert (report["bad_batches"], report["real_data"]) == (1, 32)
    assert f"a batch of 32 transitions is refused: {field} of the batch is nan" in caplog.text
    assert role.learner.agent.unsound() == ""


def test_updates_that_are_not_finite_are_left_out_until_there_are_too_many() -> None:
    """Rewards whose squares are too large for float32 give losses that are not finite."""
    learner = AgentLearner(LearnerOptions(batch_size=16, hidden_size=8), 3, 1)
    learner.take(transitions(32), 0)
    learner.train_agent(3)
    before = learner.agent.state_dict()
    learner.take(transitions(1000, 1e30), 0)
    report = learner.train_agent(5)
    assert learner.bad_updates == 5 and learner.agent_updates == 3
    assert not [value for value in report.values() if not math.isfinite(value)]
    for part in ("actor", "critic", "target", "critic_optimizer", "actor_optimizer"):
        for name, value in learner.agent.state_dict()[part].items():
            assert torch.equal(value, before[part][name]), f"{part} {name} has changed"
    with pytest.raises(
        NotFinite, match=f"like those of the {MOST_IN_A_ROW - 1} tries before it; lower the learning rate"
    ):
        learner.train_agent(MOST_IN_A_ROW)
    assert learner.bad_updates == MOST_IN_A_ROW


def test_dynamics_updates_that_are_not_finite_are_left_out() -> None:
    role = small_role()
    role.train(0, 0, parcel_of(transitions(64)))
    before = role.learner.dynamics.state_dict()["optimizer"]
    role.learner.dynamics._network.parameters[0].data[0] *= 1e38
    assert role.learner.dynamics.fit(role.learner.real, 3, 16)["dynamics_loss"] == 0.0
    assert role.learner.dynamics.bad.count == 3
    after = role.learner.dynamics.state_dict()["optimizer"]
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_on_bad_update_stop_ends_at_the_first() -> None:
    learner = AgentLearner(LearnerOptions(batch_size=16, hidden_size=8, on_bad_update="stop"), 3, 1)
    learner.take(transitions(32, 1e30), 0)
    with pytest.raises(NotFinite, match="update 1 of the agent is not finite, and on_bad_update is 'stop'"):
        learner.train_agent(1)
    with pytest.raises(ConfigError, match="on_bad_update is 'go on'; choose one of skip, stop"):
        build_options({"on_bad_update": "go on"})


def test_a_good_checkpoint_is_never_overwritten_by_one_that_is_not_finite(tmp_path: Path) -> None:
    role, path = small_role(), tmp_path / "last.safetensors"
    role.train(0, 0, parcel_of(transitions(64)))
    role.save(str(path), {}, [])
    good = path.read_bytes()
    role.learner.agent.critic.parameters[0].data[0] = math.nan
    with pytest.raises(NotFinite, match=r"not saved, because learner.agent.critic.layer0.weight is nan at \[0, 0, 0\]"):
        role.save(str(path), {}, [])
    with pytest.raises(NotFinite, match=r"is not finite|are not finite"):
        role.train(0, 1, parcel_of(transitions(64)))
    with pytest.raises(ConfigError):
        role.save(str(path), {}, [])
    assert path.read_bytes() == good


def test_a_checkpoint_that_is_not_finite_cannot_be_resumed(tmp_path: Path) -> None:
    role, path = small_role(), tmp_path / "last.safetensors"
    role.train(0, 0, parcel_of(transitions(64)))
    role.save(str(path), {}, [])
    state = load_whole(path)
    state["learner"]["agent"]["actor_optimizer"]["0.exp_avg"][2] = math.inf
    checkpoint.save(path, state, KIND)
    with pytest.raises(ConfigError, match=r"cannot be used: learner.agent.actor_optimizer.0.exp_avg is inf at \[2\]"):
        small_role().load(str(path))


def test_bounds_of_the_dynamics_may_be_infinite_but_not_nan(tmp_path: Path) -> None:
    role, path = small_role(), tmp_path / "last.safetensors"
    role.save(str(path), {}, [])  # no data yet, so no bounds
    small_role().load(str(path))
    state = load_whole(path)
    state["learner"]["dynamics"]["weights"]["high"][:] = math.nan
    checkpoint.save(path, state, KIND)
    with pytest.raises(ConfigError, match=r"learner.dynamics.weights.high is nan"):
        small_role().load(str(path))


def test_what_was_left_out_stays_counted_when_a_role_is_made_anew() -> None:
    troubles = Troubles()
    for dynamics in (2, 5, 0, 1, 0):
        troubles.learned({"bad_batches": 0, "bad_updates": 3, "dynamics_bad_updates": dynamics})
    assert troubles.counts()["bad_updates"] == 3 + 5 + 1


def test_troubles_are_counted_over_resumes_and_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles()
    assert troubles.line() == ""
    for number in range(5):
        troubles.episode("not_finite", f"sentence {number}")
    troubles.episode("timeout", "it hung")
    troubles.learned({"bad_batches": 2, "bad_updates": 3, "dynamics_bad_updates": 4})
    again = Troubles()
    again.load_state_dict(json.loads(json.dumps(troubles.state_dict())))
    again.learned({"bad_batches": 1, "bad_updates": 0})
    assert again.counts() == {"bad_episodes": 6, "env_timeouts": 1, "bad_batches": 3, "bad_updates": 7}
    assert "6 bad episodes (not finite 5, timeout 1), 3 batches, 7 updates" in again.line()
    said = [record.getMessage().rpartition(" ")[2] for record in caplog.records]
    assert said == ["0", "1", "3", "hung"]


# -- whole runs -----------------------------------------------------------------------------------------------------------


def start_run(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "zoo.mbpo.train", "--env", WRONG, "--exp_name", str(folder), "--num_envs", "2"]
    small = (
        "--hidden_size 8 --dynamics_hidden_size 8 --batch_size 32 --random_steps 0 --eval_every 0 --device cpu "
        "--torch_threads 1 --updates_per_step 0.1 --dynamics_updates_per_step 0.1 --rollouts_per_step 0.1"
    )
    return Command(
        [*command, *small.split(), *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_run_goes_on_and_tells_what_it_left_out(tmp_path: Path) -> None:
    """Every second episode has a NaN."""
    bad = json.dumps({"how": "nan reward", "bad": list(range(2, 400, 2))})
    run = start_run(tmp_path / "run", "--trainer", "sync", "--env_args", bad, "--max_steps", "400")
    out, errors = run.communicate(timeout=600)
    assert run.returncode == 0, errors
    results = read_results(tmp_path / "run")
    counted = results["troubles"]
    assert counted["bad_episodes"] > 5 and counted["bad_episodes_by_kind"] == {"not_finite": counted["bad_episodes"]}
    assert f"left out: {counted['bad_episodes']} bad episodes (not finite" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(), parse_constant=_refuse)
    assert summary["statistics"]["bad_episodes"] == counted["bad_episodes"]
    assert any("reward of environment" in event["text"] for event in summary["events"])
    report = (tmp_path / "run" / "report.html").read_text()
    assert f"bad episodes {counted['bad_episodes']:,}" in report and "No failures, no restarts" not in report
    load_whole(next((tmp_path / "run").glob("**/last*")))  # refuses what is not finite


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("words", ["--trainer sync", "--trainer batch"])
def test_a_run_whose_environment_hangs_ends_when_its_time_is_over(tmp_path: Path, words: str) -> None:
    """It would hang for an hour, and its time-out is 300 s."""
    hang = json.dumps({"how": "hang", "at": 8})
    run = start_run(tmp_path / "run", *words.split(), "--env_args", hang, "--max_seconds", "1")
    out, errors = run.communicate(timeout=250)
    assert run.returncode == 0, errors
    assert "ended by: max_seconds" in out


def test_a_run_whose_environment_hangs_can_be_ended_by_a_signal(tmp_path: Path) -> None:
    note = tmp_path / "hangs"
    hang = json.dumps({"how": "hang", "at": 8, "note": str(note)})
    run = start_run(tmp_path / "run", "--trainer", "continuous", "--num_collectors", "2", "--env_args", hang)
    while not note.exists():
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=250)
    assert run.returncode == 130, errors
