"""What runs of `zoo.episode_ppo` have learned can be used: played as evaluated, acted with, from the best or the last weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lzero_async import load_policy
from lzero_async.__main__ import main as command
from lzero_async.errors import BadData
from lzero_async.runs import checkpoint
from tests.zoo.episode_ppo.envs import Counting, length_of, watch
from tests.zoo.episode_ppo.test_run import run_main
from zoo.episode_ppo.learn.saving import KIND
from zoo.episode_ppo.play.policy import NumpyPolicy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "run"
    assert run_main(folder, "sync").code == 0
    return folder


@pytest.fixture
def turned(run: Path, tmp_path: Path) -> Path:
    """The same run, but the best weights always take action 1 and the last ones action 0."""
    folder = shutil.copytree(run, tmp_path / "turned")
    for name, action in (("best", 1), ("last", 0)):
        path = folder / "ckpt" / f"{name}.safetensors"
        state = checkpoint.load(path, KIND)
        weights = state["weights"] if name == "best" else state["learner"]["agent"]["policy"]
        weights["layer1.bias"][action] += 1000.0
        checkpoint.save(path, state, KIND)
    return folder


def test_the_table_of_a_run_is_the_same_twice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for _ in range(2):
        assert command(["play", str(run), "--episodes", "4", "--seed", "9"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    steps = [int(line.split()[3]) for line in tables[0].splitlines()[2:6]]
    assert steps == [length_of(seed) for seed in range(9, 13)]  # the environment has the very seeds of the table


def test_the_best_weights_are_played_or_the_last_ones(turned: Path) -> None:
    for weights, action in (("best", 1), ("last", 0)):
        with load_policy(turned, weights=weights) as policy:
            assert policy(np.array([0.5, 0.0, -1.0])) == action
            rows = policy.play(5)
            assert [row.score for row in rows] == [action * length_of(seed) for seed in range(5)]
            assert [row.steps for row in rows] == [length_of(seed) for seed in range(5)]


def test_acting_in_an_environment_of_ones_own_is_what_is_played(run: Path) -> None:
    env = Counting()
    with load_policy(run) as policy:
        for row in policy.play(3, seed=5):
            obs, _ = env.reset(seed=row.seed)
            total, over = 0.0, False
            while not over:
                action = policy(obs)
                assert env.action_space.contains(action)
                obs, reward, over, _, _ = env.step(action)
                total += reward
            assert (total, env.count) == (row.score, row.steps)


def test_continuous_actions_are_scaled_to_the_environment(tmp_path: Path) -> None:
    """With the environment's arguments, and its observation a dictionary, which is flattened as in training."""
    folder, spec = tmp_path / "run", "tests.zoo.episode_ppo.test_policy:Pushed"
    assert run_main(folder, "sync", "--env_arg", "force=8", env=spec, total_episodes=6).code == 0
    env = Pushed(force=8)
    weights = checkpoint.load(folder / "ckpt" / "best.safetensors", KIND)["weights"]
    with load_policy(folder) as policy:
        obs, _ = env.reset(seed=3)
        assert env.action_space.contains(policy(obs))
        expected = 8.0 * NumpyPolicy(weights).greedy(np.concatenate([obs["a"], obs["b"]]))
        assert policy(obs) == pytest.approx(np.clip(expected, -8, 8).reshape(2, 1))


class Pushed(gymnasium.Env[Any, Any]):
    """One step; observes two parts, and takes actions in a column."""

    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Box(-1, 1, (1,)), "b": gymnasium.spaces.Box(-1, 1, (2,))}
    )

    def __init__(self, force: float) -> None:
        self.action_space = gymnasium.spaces.Box(-force, force, (2, 1))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        return self._observe(), 1.0, True, False, {}

    def _observe(self) -> dict[str, Any]:
        return {name: space.sample() for name, space in self.observation_space.items()}


def test_what_does_not_fit_and_what_fails_is_raised(run: Path) -> None:
    with load_policy(run) as policy:
        with pytest.raises(BadData, match="observation"):
            policy(np.zeros(4))

        def fail(env: Counting) -> None:
            raise RuntimeError("out of order")

        watch.before_step = fail
        try:
            with pytest.raises(RuntimeError, match="out of order"):
                policy.play_episode(0)
        finally:
            watch.clear()
        assert policy.play_episode(0).steps == length_of(0)
