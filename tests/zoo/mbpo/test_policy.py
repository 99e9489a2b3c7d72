"""What runs of `zoo.mbpo` have learned can be used: played as evaluated, acted with, from the best and from the last weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from lzero_async import ConfigError, load_policy
from lzero_async.__main__ import main as command
from lzero_async.errors import BadData
from lzero_async.runs import checkpoint
from lzero_async.runs.policy import Policy
from tests.zoo.mbpo.test_evaluations import give_returns
from tests.zoo.mbpo.test_run import arguments
from zoo.mbpo import train_isaac_async
from zoo.mbpo.saving import KIND
from zoo.mbpo.train import main

STEPS = 20  # of an episode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its best weights are those of version 4, its last ones those of version 6."""
    folder = tmp_path_factory.mktemp("policy") / "run"
    with pytest.MonkeyPatch.context() as patch:
        give_returns(patch, lambda version: -float(version))
        assert main(arguments(folder, "sync", eval_every=4)) == 0
    return folder


@pytest.fixture(scope="module")
def policy(run: Path) -> Iterator[Policy]:
    with load_policy(run) as found:
        yield found


def test_the_table_of_a_run_is_the_same_twice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for _ in range(2):
        assert command(["play", str(run), "--episodes", "3"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    assert tables[0].splitlines()[2].split()[::3] == ["1", str(STEPS)]


def test_acting_in_an_environment_of_ones_own_is_what_is_played(policy: Policy) -> None:
    env = gymnasium.make("Pendulum-v1", max_episode_steps=STEPS)
    for row in policy.play(3, seed=5):
        obs, _ = env.reset(seed=row.seed)
        total, over = 0.0, False
        while not over:
            action = policy(obs)
            assert env.action_space.contains(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        assert (total, STEPS) == (pytest.approx(row.score, rel=1e-5), row.steps)


def test_the_best_weights_are_not_the_last_ones(run: Path, policy: Policy) -> None:
    with load_policy(run, weights="last") as last:
        observation = np.array([1.0, 0.0, 0.5], dtype=np.float32)
        assert policy(observation) != last(observation)
        assert policy.play(2) != last.play(2)


def test_the_action_is_the_mode_of_the_saved_actor(run: Path, policy: Policy) -> None:
    weights = checkpoint.load(run / "ckpt" / "best.safetensors", KIND)["weights"]
    observation = np.array([0.2, -0.9, 3.0], dtype=np.float32)
    value = observation
    for layer in range(len(weights) // 2):
        value = np.maximum(value, 0) if layer else value
        value = value @ np.asarray(weights[f"layer{layer}.weight"]) + np.asarray(weights[f"layer{layer}.bias"])
    assert policy(observation) == pytest.approx(2 * np.tanh(value[:1]), rel=1e-5)  # Pendulum's bounds are -2 and 2


@pytest.mark.parametrize("observation", [[1.0, 2.0], [1.0, 2.0, np.nan], "up"])
def test_an_observation_that_does_not_fit_is_refused(observation: Any, policy: Policy) -> None:
    with pytest.raises(BadData, match="observation"):
        policy(observation)


def test_an_episode_that_fails_is_not_taken_for_another_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load_policy(run) as policy:
        assert policy.play_episode(0).steps == STEPS
        env, steps = gymnasium.envs.classic_control.PendulumEnv, []
        step = env.step

        def fail_once(self: Any, action: Any) -> Any:
            steps.append(action)
            return step(self, action) if len(steps) != 3 else 1 / 0

        monkeypatch.setattr(env, "step", fail_once)
        with pytest.raises(BadData, match=r"The episode with seed 1 failed: .*ZeroDivisionError"):
            policy.play_episode(1)
        assert policy.play_episode(1).steps == STEPS


def test_a_run_of_before_is_refused(run: Path, tmp_path: Path) -> None:
    state = checkpoint.load(run / "ckpt" / "best.safetensors", KIND)
    del state["source"]
    checkpoint.save(tmp_path / "ckpt" / "best.safetensors", state, KIND)
    (tmp_path / "summary.json").write_bytes((run / "summary.json").read_bytes())
    with pytest.raises(ConfigError, match=r"does not fit this program .*source"):
        load_policy(tmp_path)


def test_weights_of_another_size_are_refused(run: Path, tmp_path: Path) -> None:
    state = checkpoint.load(run / "ckpt" / "best.safetensors", KIND)
    del state["weights"]["layer0.bias"]
    checkpoint.save(tmp_path / "ckpt" / "best.safetensors", state, KIND)
    (tmp_path / "summary.json").write_bytes((run / "summary.json").read_bytes())
    with pytest.raises(ConfigError, match=r"does not fit this program .*weights"):
        load_policy(tmp_path)


def test_tensor_environments_are_played_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = arguments(folder, "sync", env_args=None, eval_every=0, max_steps=48)
    assert train_isaac_async.main([*words, "--task", "tensor-pendulum"]) == 0
    assert json.loads((folder / "options.json").read_text())["env"] == "tensor-pendulum"
    with load_policy(folder) as policy:  # there is no evaluation, and no best checkpoint
        assert policy.play(2, seed=3) == policy.play(2, seed=3)
        actions = policy({"policy": torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]])})
        assert actions.shape == (2, 1)
        assert (actions.abs() <= 2.0).all()
        with pytest.raises(BadData, match="observation"):
            policy({"policy": torch.zeros(2, 4)})
