"""The environments of `zoo.mbpo` and the roles that play in them."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import error as gym_error
from gymnasium import spaces

from lzero_async import ConfigError, LzeroAsyncError, Parcel, Stopped, make_backend
from lzero_async.workers.calls import CallStop
from tests.zoo.mbpo.gym_envs import asked_collector
from zoo.mbpo.collect import roles as collecting
from zoo.mbpo.collect.playing import NumpyPlaying
from zoo.mbpo.collect.recycling import KEPT_SETS, RecycledRows
from zoo.mbpo.collect.roles import (
    CollectOrder,
    CollectorRole,
    evaluator,
    gym_collector,
    tensor_collector,
    tensor_evaluator,
)
from zoo.mbpo.collect.tensor_playing import TensorActor, TensorPlaying
from zoo.mbpo.envs import guarding
from zoo.mbpo.envs.tensor_envs import TensorEnvs, check_contract, tensor_envs
from zoo.mbpo.envs.tensor_pendulum import MAX_STEPS, TensorPendulum
from zoo.mbpo.envs.vectorised import EnvSpec, GymEnvs, describe, split
from zoo.mbpo.envs.waiting import WaitingEnvs
from zoo.mbpo.learn.transitions import Transitions, check

ROOT = Path(__file__).resolve().parents[3]
COUNTING = "tests.zoo.mbpo.gym_envs:Counting-v0"
LENGTH, COUNT = 0, 1  # places in what Counting observes
PENDULUM = "zoo.mbpo.envs.tensor_pendulum:TensorPendulum"


def ignore(event: Any) -> None: ...


def actor_weights(obs_size: int, action_size: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = [obs_size, 8, 2 * action_size]
    weights = {}
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        weights[f"layer{index}.weight"] = rng.standard_normal((fan_in, fan_out), dtype=np.float32)
        weights[f"layer{index}.bias"] = rng.standard_normal(fan_out, dtype=np.float32)
    return weights


def counting_collector(num_envs: int = 3, worker: int = 0, seed: int = 0, step_seconds: float = 0.0) -> CollectorRole:
    return gym_collector(COUNTING, num_envs, None, step_seconds, worker, seed, ignore)


def assert_equal(one: Transitions, other: Transitions) -> None:
    for name, left, right in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


def by_env(rows: Transitions, num_envs: int) -> Transitions:
    """Each field as [T, N, ...]."""
    return Transitions(*(np.asarray(field).reshape(-1, num_envs, *field.shape[1:]) for field in rows))


# -- gymnasium's environments --------------------------------------------------------------------------------------------


def test_actions_are_scaled_to_the_bounds_and_observations_flattened() -> None:
    envs = GymEnvs(COUNTING, 3)
    obs = envs.reset(0)
    assert obs.shape == (3, 4) and obs.dtype == np.float32
    step = envs.step(np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]], dtype=np.float32))
    np.testing.assert_allclose(step.next_obs[:, 2:], [[0.0, -3.0], [0.5, 3.0], [1.0, 5.0]])
    assert step.reward.dtype == np.float32 and step.next_obs.dtype == np.float32


def test_the_next_observation_is_true_at_an_episodes_end() -> None:
    envs = GymEnvs(COUNTING, 3)
    try:
        obs, ends = envs.reset([1, 2]), {"terminated": 0, "truncated": 0}
        for _ in range(30):
            step = envs.step(np.zeros((3, 2), dtype=np.float32))
            np.testing.assert_array_equal(step.next_obs[:, COUNT], obs[:, COUNT] + 1)
            np.testing.assert_array_equal(step.next_obs[:, LENGTH], obs[:, LENGTH])
            ended = step.terminated | step.truncated
            np.testing.assert_array_equal(ended, step.next_obs[:, COUNT] == step.next_obs[:, LENGTH])
            np.testing.assert_array_equal(step.obs[:, COUNT], np.where(ended, 0, step.next_obs[:, COUNT]))
            np.testing.assert_array_equal(step.terminated[ended], step.next_obs[ended, LENGTH] % 2 == 0)
            ends["terminated"] += int(step.terminated.sum())
            ends["truncated"] += int(step.truncated.sum())
            obs = step.obs
        assert min(ends.values()) > 0
    finally:
        envs.close()


def test_every_environment_has_a_seed_of_its_own() -> None:
    envs = GymEnvs("Pendulum-v1", 8)
    first, again, other = envs.reset([0, 1]), envs.reset([0, 1]), envs.reset([0, 2])
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first, other])[:, 0])) == 16


def test_what_is_kept_of_a_step_is_not_overwritten_by_the_next() -> None:
    envs = GymEnvs("Pendulum-v1", 2)
    obs = envs.reset(0)
    before = obs.copy()
    envs.step(np.ones((2, 1), dtype=np.float32))
    np.testing.assert_array_equal(obs, before)


def test_describe() -> None:
    assert describe("Pendulum-v1") == EnvSpec(3, 1, 200)
    assert describe("Pendulum-v1", {"max_episode_steps": 17}) == EnvSpec(3, 1, 17)
    assert describe(COUNTING) == EnvSpec(4, 2, None)


@pytest.mark.parametrize(
    ("env_id", "env_args", "message"),
    [
        ("Pendulm-v1", {}, r"'Pendulm-v1'.* Did you mean 'Pendulum-v1'\?"),
        ("Pendulum-v0", {}, "Did you mean 'Pendulum-v1'"),
        ("qqqqqq-v9", {}, r"'qqqqqq-v9'.*gymnasium.registry"),
        ("", {}, "id of a gymnasium environment"),
        ("no.such.module:Pendulum-v1", {}, "no.such.module"),
        ("CartPole-v1", {}, r"Discrete\(2\), but SAC needs continuous actions"),
        ("tests.zoo.mbpo.gym_envs:Discrete-v0", {}, "SAC needs continuous actions"),
        ("tests.zoo.mbpo.gym_envs:Whole-v0", {}, "SAC needs continuous actions"),
        ("tests.zoo.mbpo.gym_envs:Unbounded-v0", {}, "without finite bounds"),
        ("tests.zoo.mbpo.gym_envs:Dict-v0", {}, "observes Dict; a Box"),
        ("Pendulum-v1", {"gravity": 3}, r"\{'gravity': 3\} do not fit Pendulum-v1.*gravity"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_what_cannot_be_played_is_refused(env_id: str, env_args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe(env_id, env_args)


@pytest.mark.parametrize(
    ("env_id", "missing", "message"),
    [
        ("Hopper-v4", gym_error.DependencyNotInstalled("No module named 'mujoco'"), r"pip install '.\[mujoco\]'"),
        ("Hopper-v4", ModuleNotFoundError("No module named 'imageio'"), r"pip install '.\[mujoco\]'"),
        ("Hopper-v3", gym_error.DependencyNotInstalled("No module named 'mujoco_py'"), "use 'Hopper-v4'"),
        ("LunarLander-v2", gym_error.DependencyNotInstalled("Box2D is not installed"), "Box2D is not installed"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, env_id: str, missing: Exception, message: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise missing

    monkeypatch.setattr(gymnasium, "make", fail)
    with pytest.raises(ConfigError, match=message):
        GymEnvs(env_id, 2)


def test_split() -> None:
    assert split(64, 8) == [8] * 8
    assert split(10, 4) == [3, 3, 2, 2]
    assert split(3, 3) == [1, 1, 1]
    with pytest.raises(ConfigError, match="num_collectors is 5, but there are only 4"):
        split(4, 5)
    with pytest.raises(ConfigError, match="num_collectors"):
        split(4, 0)


# -- waiting -------------------------------------------------------------------------------------------------------------


class CountedStop(CallStop):
    """A stop that notes how long it is waited for, and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.is_set()


def test_a_step_of_all_environments_waits_once() -> None:
    envs, plain = WaitingEnvs(GymEnvs(COUNTING, 4), 30.0), GymEnvs(COUNTING, 4)
    envs.stop = stop = CountedStop()
    np.testing.assert_array_equal(envs.reset(5), plain.reset(5))
    action = np.zeros((4, 2), dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(envs.step(action).next_obs, plain.step(action).next_obs)
    assert stop.waits == [30.0] * 3
    assert (envs.num_envs, envs.obs_size, envs.action_size) == (4, 4, 2)


def test_a_wait_without_a_stop_is_real_and_counted() -> None:
    envs = WaitingEnvs(GymEnvs(COUNTING, 1), 0.02)
    envs.reset(0)
    envs.step(np.zeros((1, 2), dtype=np.float32))
    assert envs.waited_seconds >= 0.019


def test_a_stop_ends_a_collect_that_waits() -> None:
    class HeardStop(CallStop):
        heard = threading.Event()

        def wait(self, seconds: float) -> bool:
            self.heard.set()
            return super().wait(seconds)

    role = counting_collector(step_seconds=600.0)
    stop, failures = HeardStop(), []

    def collect() -> None:
        try:
            role.collect(CollectOrder(0, 0, 5, random=True), None, stop)
        except Stopped as failure:
            failures.append(failure)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    assert stop.heard.wait(20)
    stop.set("SIGINT")
    thread.join(20)
    assert not thread.is_alive()
    assert [failure.origin for failure in failures] == [stop]


def test_waiting_is_reported_and_step_seconds_checked() -> None:
    role = counting_collector(step_seconds=0.01)
    meta = role.collect(CollectOrder(0, 0, 3, random=True), None).meta
    assert 0.029 <= meta["wait_seconds"] <= meta["seconds"]
    assert "wait_seconds" not in counting_collector().collect(CollectOrder(0, 0, 3, random=True), None).meta
    for bad in (-1.0, "1", float("nan"), True):
        with pytest.raises(ConfigError, match="step_seconds"):
            counting_collector(step_seconds=bad)  # type: ignore[arg-type]


# -- collectors ----------------------------------------------------------------------------------------------------------


def test_episodes_go_on_from_one_collect_to_the_next() -> None:
    role, weights = counting_collector(), Parcel(actor_weights(4, 2))
    parts, returns, lengths = [], [], []
    for number in range(5):
        parcel = role.collect(CollectOrder(7, number, 4), weights)
        rows = parcel.open()
        check(rows)
        assert all(field.dtype == np.float32 for field in rows)
        assert (parcel.meta["steps"], parcel.meta["version"], parcel.meta["number"]) == (12, 7, number)
        returns += parcel.meta["returns"]
        lengths += parcel.meta["lengths"]
        parts.append(rows)
    rows = by_env(Transitions(*(np.concatenate(fields) for fields in zip(*parts, strict=True))), 3)
    assert np.abs(rows.action).max() <= 1
    np.testing.assert_array_equal(rows.next_obs[..., COUNT], rows.obs[..., COUNT] + 1)
    ended = rows.next_obs[..., COUNT] == rows.next_obs[..., LENGTH]
    np.testing.assert_array_equal(rows.terminated, ended & (rows.next_obs[..., LENGTH] % 2 == 0))
    np.testing.assert_array_equal(rows.obs[1:, :, COUNT], np.where(ended, 0, rows.next_obs[..., COUNT])[:-1])
    assert lengths == rows.next_obs[ended][:, LENGTH].tolist() and len(lengths) > 3
    assert returns == [length * (length + 1) / 2 for length in lengths]


def test_a_collect_depends_on_seed_worker_and_number_only() -> None:
    weights = Parcel(actor_weights(4, 2))

    def play(worker: int = 1, seed: int = 2, number: int = 3) -> Transitions:
        return counting_collector(worker=worker, seed=seed).collect(CollectOrder(0, number, 4), weights).open()

    assert_equal(play(), play())
    for changed in ({"worker": 5}, {"seed": 5}, {"number": 5}):
        assert not np.array_equal(play().action, play(**changed).action), changed
        assert not np.array_equal(play().obs[:3], play(**changed).obs[:3]), f"{changed} begins with the same episodes"


def test_the_policy_plays_on_the_weights_of_its_version() -> None:
    role, first, second = counting_collector(), actor_weights(4, 2), actor_weights(4, 2, seed=1)
    for weights in (first, second):  # the most certain policy there is, so that actions show the weights
        weights["layer1.bias"][2:] = weights["layer1.weight"][:, 2:] = -50.0
    mean = NumpyPlaying(role.envs)

    def distance(rows: Transitions, weights: dict[str, np.ndarray]) -> float:
        mean.load(weights)
        return float(np.abs(rows.action - mean.act(rows.obs, np.random.default_rng(0), deterministic=True)).max())

    rows = role.collect(CollectOrder(0, 0, 4), Parcel(first)).open()
    assert distance(rows, first) < 0.05 < distance(rows, second)
    rows = role.collect(CollectOrder(0, 1, 4), Parcel(second)).open()
    assert distance(rows, first) < 0.05, "the same version is not loaded again"
    rows = role.collect(CollectOrder(1, 2, 4), Parcel(second)).open()
    assert distance(rows, second) < 0.05
    rows = role.collect(CollectOrder(1, 3, 200, random=True), None).open()
    assert np.all(np.abs(rows.action.mean(axis=0)) < 0.1) and np.allclose(rows.action.std(axis=0), 3**-0.5, atol=0.05)
    with pytest.raises(ConfigError, match="weights is None"):
        role.collect(CollectOrder(2, 4, 4), None)
    with pytest.raises(ConfigError, match="steps is 0"):
        role.collect(CollectOrder(1, 4, 0), Parcel(second))


def test_a_stopped_collect_keeps_the_episodes_progress() -> None:
    class StopAtThird(CallStop):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 2

    role, stop = counting_collector(), StopAtThird()
    with pytest.raises(Stopped) as failure:
        role.collect(CollectOrder(0, 0, 4, random=True), None, stop)
    assert failure.value.origin is stop
    parcel = role.collect(CollectOrder(0, 1, 12, random=True), None)
    rows = by_env(parcel.open(), 3)
    assert set(rows.obs[0, :, COUNT]) <= {2.0, 0.0}, "two steps were made, or an episode of two ended"
    ended = rows.next_obs[..., COUNT] == rows.next_obs[..., LENGTH]
    assert parcel.meta["lengths"] == rows.next_obs[ended][:, LENGTH].tolist()


def test_after_a_failure_of_the_environments_new_episodes_begin() -> None:
    """The environment fails at its fourth step; the one that takes its place does so, too."""
    events: list[Any] = []
    role = gym_collector("tests.zoo.mbpo.gym_envs:Failing-v0", 1, None, 0.0, 0, 0, events.append)
    assert role.collect(CollectOrder(0, 0, 3, random=True), None).open().count == 3
    parcel = role.collect(CollectOrder(0, 1, 3, random=True), None)
    assert parcel.open().obs[:, COUNT].tolist() == [0.0, 1.0]
    assert (parcel.meta["lengths"], parcel.meta["left_out"]) == ([], 1)
    words = "collector 0: environment 0 at step 4 failed with RuntimeError: the simulator broke"
    assert events == [(guarding.BAD_EPISODE, "crash", words)]


def test_meta_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "EVENT_EVERY", 0.0)
    events: list[Any] = []
    role = gym_collector(COUNTING, 3, None, 0.0, 4, 0, events.append)
    assert role.ready() == {"num_envs": 3, "obs_size": 4, "action_size": 2}
    meta = role.collect(CollectOrder(0, 0, 2, random=True), None).meta
    assert events == [("steps", 3), ("steps", 3)]
    assert (meta["worker"], meta["left_out"], meta["idle_seconds"]) == (4, 0, 0.0)
    seconds = [meta["seconds"]]
    for number in (1, 2):
        meta = role.collect(CollectOrder(0, number, 2, random=True), None).meta
        seconds.append(meta["seconds"])
    assert meta["recent_seconds"] == pytest.approx(np.mean(seconds))
    assert meta["idle_seconds"] > 0


# -- recycled arrays -----------------------------------------------------------------------------------------------------


def address(rows: Transitions) -> int:
    return rows.obs.__array_interface__["data"][0]


def test_arrays_that_nobody_holds_are_used_again() -> None:
    rows = RecycledRows(3, 1)
    first = address(rows.take(10))
    assert address(rows.take(10)) == first
    assert address(rows.take(11)) != first


@pytest.mark.parametrize(
    "hold",
    [
        lambda rows: rows,
        lambda rows: rows.terminated[2:],
        lambda rows: torch.from_numpy(rows.reward),
        lambda r: r.obs.T,
    ],
    ids=["all", "slice", "tensor", "view"],
)
def test_arrays_that_somebody_holds_are_left_alone(hold: Any) -> None:
    rows = RecycledRows(3, 1)
    held = hold(rows.take(10))
    taken = [rows.take(10) for _ in range(KEPT_SETS + 2)]
    assert len({address(one) for one in taken}) == len(taken)
    mine = held if isinstance(held, Transitions) else (held,)
    assert not any(np.shares_memory(np.asarray(own), field) for own in mine for one in taken for field in one)


def test_a_collector_in_a_thread_does_not_touch_what_it_gave_away() -> None:
    backend = make_backend("thread")
    try:
        worker = backend.start("collector", partial(gym_collector, COUNTING, 2, None, 0.0, 0, 0))
        parts = [worker.call("collect", CollectOrder(0, number, 4, True), None).open() for number in range(8)]
        copies = [Transitions(*(field.copy() for field in part)) for part in parts]
        again = [worker.call("collect", CollectOrder(0, number, 4, True), None).open() for number in range(8, 16)]
        for part, copy in zip(parts, copies, strict=True):
            assert_equal(part, copy)
        assert len({address(part) for part in [*parts, *again]}) == 16
    finally:
        backend.close()


def test_a_collector_alone_uses_the_same_arrays_each_time() -> None:
    role = counting_collector()
    order = [address(role.collect(CollectOrder(0, number, 4, True), None).open()) for number in range(5)]
    assert len(set(order)) == 1


# -- in a process --------------------------------------------------------------------------------------------------------


def test_a_collector_in_a_process_plays_the_same_without_torch() -> None:
    weights = Parcel(actor_weights(3, 1))
    backend = make_backend("process")
    try:
        worker = backend.start("collector", partial(asked_collector, "Pendulum-v1", 64, None, 0.0, 0, 3))
        here = gym_collector("Pendulum-v1", 64, None, 0.0, 0, 3, ignore)
        for number in range(3):
            order = CollectOrder(number, number, 24)
            parcel = worker.call("collect", order, weights)
            rows = parcel.open()
            assert isinstance(rows, Transitions)
            assert_equal(rows, here.collect(order, weights).open())
            assert parcel.meta["steps"] == 24 * 64
        assert worker.call("has_imported", "numpy")
        assert not worker.call("has_imported", "torch")
        stop = CallStop()
        stop.set("SIGTERM")
        with pytest.raises(Stopped) as failure:
            worker.call("collect", CollectOrder(5, 5, 24), weights, stop=stop)
        assert failure.value.origin is stop
    finally:
        backend.close()


def test_the_environments_need_no_torch_and_no_gymnasium_before_they_are_used() -> None:
    script = (
        "import sys, zoo.mbpo.collect.roles; print([name for name in ('torch', 'gymnasium') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- evaluation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("episodes", [3, 4, 10])
def test_each_environment_plays_its_share_of_an_evaluation(episodes: int) -> None:
    role = evaluator(COUNTING, 4, None, 0.0, 9, ignore)
    found = role.evaluate(5, Parcel(actor_weights(4, 2)), episodes)
    seeds = np.random.SeedSequence([9, collecting.EVAL_STREAM, 5]).generate_state(4)
    lengths = []
    for row, seed in enumerate(seeds):
        env = gymnasium.make("Counting-v0", disable_env_checker=True)
        for number in range(episodes // 4 + (row < episodes % 4)):
            env.reset(**({"seed": int(seed)} if number == 0 else {}))
            lengths.append(env.unwrapped.length)
    returns = [length * (length + 1) / 2 for length in lengths]
    assert sorted(found["returns"]) == sorted(returns) and found["episodes"] == episodes
    assert found["mean_return"] == pytest.approx(np.mean(returns))
    assert (found["min_return"], found["max_return"]) == (min(returns), max(returns))
    assert found["mean_length"] == pytest.approx(np.mean(lengths))
    assert (found["min_length"], found["max_length"]) == (min(lengths), max(lengths))


def test_an_evaluation_is_deterministic_and_begins_anew_each_time() -> None:
    role, weights = evaluator("Pendulum-v1", 3, None, 0.0, 0, ignore), Parcel(actor_weights(3, 1))
    first, again = role.evaluate(1, weights, 3), role.evaluate(1, weights, 3)
    assert first["returns"] == again["returns"]
    assert first["returns"] != role.evaluate(2, weights, 3)["returns"]
    assert first["returns"] != role.evaluate(1, weights, 3, 1)["returns"]  # one that confirms plays other episodes


def test_an_evaluation_gives_up_when_interrupted_but_not_at_the_runs_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    role, weights = evaluator(COUNTING, 2, None, 0.0, 0, ignore), Parcel(actor_weights(4, 2))
    stop = CallStop()
    stop.set("max_train")
    assert role.evaluate(0, weights, 2, stop=stop)["episodes"] == 2
    stop.set("SIGINT")
    with pytest.raises(Stopped):
        role.evaluate(0, weights, 2, stop=stop)
    monkeypatch.setattr(collecting, "MAX_EVAL_STEPS", 50)
    endless = evaluator("tests.zoo.mbpo.gym_envs:Endless-v0", 2, None, 0.0, 0, ignore)
    with pytest.raises(LzeroAsyncError, match="time limit"):
        endless.evaluate(0, weights, 2)


# -- tensors -------------------------------------------------------------------------------------------------------------


def test_a_step_of_the_tensor_pendulum_is_gymnasiums() -> None:
    rows = 50
    env, gym_env = TensorPendulum(rows, seed=1), gymnasium.make("Pendulum-v1").unwrapped
    env.reset()
    env.angle = env.angle * 3  # beyond one turn
    env.speed = env.speed * 8
    angles, speeds = env.angle.double().numpy(), env.speed.double().numpy()
    torques = torch.linspace(-3, 3, rows)[:, None]  # beyond the limit
    obs, reward, terminated, time_outs, _ = env.step(torques)
    for row in range(rows):
        gym_env.state = np.array([angles[row], speeds[row]])
        expected, gym_reward, *_ = gym_env.step(torques[row].numpy().astype(np.float64))
        np.testing.assert_allclose(obs["policy"][row].numpy(), expected, atol=1e-5)
        assert float(reward[row]) == pytest.approx(gym_reward, abs=1e-4)
    assert not terminated.any() and not time_outs.any()


def test_the_tensor_pendulum_resets_its_rows_apart() -> None:
    env = TensorPendulum(5, seed=3)
    first, _ = env.reset(seed=7)
    assert len(set(first["policy"][:, 0].tolist())) == 5
    again, _ = env.reset(seed=7)
    assert torch.equal(first["policy"], again["policy"])
    env.age[2] = MAX_STEPS - 1
    before, _, terminated, time_outs, extras = env.step(torch.zeros(5, 1))
    assert time_outs.tolist() == [False, False, True, False, False] and not terminated.any()
    assert (before["policy"] != extras["final_obs"]["policy"]).any(dim=1).tolist() == time_outs.tolist()
    assert env.age.tolist() == [1, 1, 0, 1, 1]
    assert float(before["policy"][2, 2].abs()) <= 1.0


class Breach:
    """A tensor pendulum with one fault."""

    def __init__(self, **faults: Any) -> None:
        self._env, self._faults = TensorPendulum(4), faults
        for name in ("num_envs", "device", "single_observation_space", "single_action_space"):
            setattr(self, name, faults.get(name, getattr(self._env, name)))

    def reset(self, seed: int | None = None) -> Any:
        obs, extras = self._env.reset(seed)
        return self._faults["reset"]((obs, extras)) if "reset" in self._faults else (obs, extras)

    def step(self, action: torch.Tensor) -> Any:
        parts = list(self._env.step(action))
        for place, name in enumerate(("obs", "reward", "terminated", "time_outs", "extras")):
            if name in self._faults:
                parts[place] = self._faults[name](parts[place])
        return self._faults["step"](tuple(parts)) if "step" in self._faults else tuple(parts)

    def close(self) -> None: ...


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-1, 1, shape)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"num_envs": 0}, "num_envs .* is 0"),
        ({"single_observation_space": box(3)}, "must be a Dict with a Box"),
        ({"single_observation_space": spaces.Dict({"policy": spaces.Dict({})})}, "concatenate_terms"),
        ({"single_observation_space": spaces.Dict({"policy": box(4)})}, r"shape \[4, 3\]; it must be \[4, 4\]"),
        ({"single_action_space": spaces.Discrete(3)}, "SAC needs continuous actions"),
        ({"reset": lambda found: found[0]}, r"reset\(\) .* returned a dict .*must be \(observations, extras\)"),
        ({"reset": lambda found: (found[0]["policy"], {})}, "a Tensor; they must be a dictionary with 'policy'"),
        ({"reset": lambda found: ({"policy": found[0]["policy"].numpy()}, {})}, "is a ndarray; it must be a torch"),
        ({"step": lambda found: found[:4]}, "returned a tuple of 4"),
        ({"obs": lambda found: {"state": found["policy"]}}, "must be a dictionary with 'policy'"),
        ({"obs": lambda found: {"policy": found["policy"].double()}}, "is of torch.float64; it must be torch.float32"),
        ({"obs": lambda found: {"policy": found["policy"].to("meta")}}, "is on meta; everything must stay on .* cpu"),
        ({"reward": lambda found: found[:, None]}, r"reward .* shape \[4, 1\]; it must be \[4\]"),
        ({"reward": lambda found: 1.0}, "reward .* is a float"),
        ({"terminated": lambda found: found.float()}, "terminated .* torch.float32; it must be torch.bool"),
        ({"time_outs": lambda found: found.long()}, "time_outs .* torch.int64; it must be torch.bool"),
        ({"extras": lambda found: None}, "extras .* must be a dictionary"),
        ({"extras": lambda found: {"final_obs": torch.zeros(4, 2)}}, r"final observation .* \[4, 2\]"),
    ],
)
def test_a_breach_of_the_tensor_contract_is_refused(faults: dict[str, Any], message: str) -> None:
    check_contract(Breach())
    with pytest.raises(ConfigError, match=message):
        TensorEnvs(Breach(**faults))


def test_an_object_that_is_no_tensor_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="object has no num_envs"):
        TensorEnvs(object())  # type: ignore[arg-type]


class Ending:
    """Two rows: at every third step the first ends in a terminal state and the second by a time limit."""

    num_envs, device = 2, "cpu"
    single_observation_space = spaces.Dict({"policy": spaces.Box(-np.inf, np.inf, (1,))})
    single_action_space = spaces.Box(-np.inf, np.inf, (1,))

    def __init__(self) -> None:
        self.made, self.obs = 0, torch.zeros(2, 1)

    def reset(self, seed: int | None = None) -> Any:
        self.made = 0
        self.obs.zero_()
        return {"policy": self.obs}, {}

    def step(self, action: torch.Tensor) -> Any:
        self.made, self.action = self.made + 1, action
        self.obs += 1  # in place, as Isaac Lab does with some of its buffers
        terminated = torch.tensor([self.made % 3 == 0, False])
        time_outs = terminated.flip(0)
        self.obs[terminated | time_outs] = -100.0
        return {"policy": self.obs}, torch.ones(2), terminated, time_outs, {}

    def close(self) -> None: ...


def test_without_final_observations_time_outs_are_left_out_and_terminations_kept() -> None:
    role = CollectorRole(lambda: TensorEnvs(Ending()), 0, 0, ignore, TensorPlaying)
    parcel = role.collect(CollectOrder(0, 0, 4, random=True), None)
    rows = parcel.open()
    assert rows.obs[:, 0].tolist() == [0, 0, 1, 1, 2, -100, -100]
    assert rows.next_obs[:, 0].tolist() == [1, 1, 2, 2, 2, -99, -99], (
        "the observation before a terminal state stands in"
    )
    assert rows.terminated.tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert (parcel.meta["steps"], parcel.meta["left_out"]) == (7, 1)
    assert (parcel.meta["lengths"], parcel.meta["returns"]) == ([3, 3], [3.0, 3.0])


def test_tensor_actions_are_scaled() -> None:
    action = torch.tensor([[-1.0], [0.5]])
    unbounded = Ending()
    TensorEnvs(unbounded, action_scale=3.0).step(action)
    assert unbounded.action.tolist() == [[-3.0], [1.5]]
    bounded = Ending()
    bounded.single_action_space = spaces.Box(0.0, 4.0, (1,))  # type: ignore[misc]
    TensorEnvs(bounded).step(action)
    assert bounded.action.tolist() == [[0.0], [3.0]]


@pytest.mark.parametrize("final_obs", [True, False])
def test_a_tensor_collector_collects_what_happened(final_obs: bool) -> None:
    args = {"num_envs": 6, "final_obs": final_obs}
    role = tensor_collector(PENDULUM, args, 0, 0, ignore)
    weights = Parcel({name: torch.from_numpy(value) for name, value in actor_weights(3, 1).items()})
    parcel = role.collect(CollectOrder(0, 0, MAX_STEPS + 3), weights)
    rows = parcel.open()
    check(rows)
    assert all(isinstance(field, torch.Tensor) and field.dtype is torch.float32 for field in rows)
    assert rows.count == parcel.meta["steps"] == 6 * (MAX_STEPS + (3 if final_obs else 2))
    assert parcel.meta["left_out"] == (0 if final_obs else 6) and parcel.meta["lengths"] == [MAX_STEPS] * 6
    angle = torch.atan2(rows.obs[:, 1], rows.obs[:, 0])
    speed = (rows.obs[:, 2] + (15 * angle.sin() + 6 * rows.action[:, 0]) * 0.05).clamp(-8, 8)
    assert torch.allclose(rows.next_obs[:, 2], speed, atol=1e-4)
    assert torch.allclose(rows.next_obs[:, 0], (angle + speed * 0.05).cos(), atol=1e-4)
    assert not rows.terminated.any()
    other = role.collect(CollectOrder(0, 1, 2), weights).open()
    before = rows.obs.clone()
    role.collect(CollectOrder(0, 2, 2), weights)
    assert torch.equal(rows.obs, before) and other.count == 12


def test_each_tensor_collect_has_random_numbers_of_its_own() -> None:
    role = tensor_collector(PENDULUM, {"num_envs": 6}, 0, 0, ignore)
    random = [role.collect(CollectOrder(0, number, 3, random=True), None).open().action for number in (0, 1, 1)]
    assert not torch.equal(random[0], random[1]) and torch.equal(random[1], random[2])
    assert all(-1 <= float(action.min()) < 0 < float(action.max()) < 1 for action in random)


def test_tensor_and_numpy_policies_are_the_same() -> None:
    weights = {name: 0.2 * value for name, value in actor_weights(3, 2).items()}  # small, so that nothing saturates
    obs = np.random.default_rng(0).standard_normal((20_000, 3), dtype=np.float32)
    numpy_actor = NumpyPlaying(GymEnvs("Pendulum-v1", 1))
    numpy_actor.load(weights)
    tensor_actor = TensorActor(actor_weights(3, 2, seed=1), torch.device("cpu"))
    tensor_actor.load(weights)
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    mode = tensor_actor.act(torch.from_numpy(obs), generator, deterministic=True).numpy()
    np.testing.assert_allclose(mode, numpy_actor.act(obs, rng, deterministic=True), atol=1e-5)
    one_obs = np.repeat(obs[:1], len(obs), axis=0)
    drawn = tensor_actor.act(torch.from_numpy(one_obs), generator).numpy()
    expected = numpy_actor.act(one_obs, rng)
    np.testing.assert_allclose(drawn.mean(axis=0), expected.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(drawn.std(axis=0), expected.std(axis=0), rtol=0.05)
    with pytest.raises(ConfigError, match="weights are named"):
        tensor_actor.load({"layer0.weight": weights["layer0.weight"]})


def test_a_tensor_evaluator() -> None:
    role = tensor_evaluator(PENDULUM, {"num_envs": 4}, 0, ignore)
    found = role.evaluate(0, Parcel(actor_weights(3, 1)), 6)
    assert found["episodes"] == len(found["returns"]) == 6 and found["min_length"] == found["max_length"] == MAX_STEPS
    assert -2000 < found["min_return"] <= found["mean_return"] <= found["max_return"] < 0


@pytest.mark.parametrize(
    "factory", ["zoo.mbpo.envs.tensor_pendulum", "no_such_module:make", "zoo.mbpo.envs.tensor_pendulum:nothing"]
)
def test_a_factory_that_cannot_be_found_is_refused(factory: str) -> None:
    with pytest.raises(ConfigError, match=f"factory is '{factory}'"):
        tensor_envs(factory, None)
