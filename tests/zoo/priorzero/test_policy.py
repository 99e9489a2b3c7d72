"""What runs of PriorZero have learned can be used: played as evaluated, acted with, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lzero_async import ConfigError, load_policy
from lzero_async.__main__ import main as command
from lzero_async.runs import checkpoint
from tests.zoo.priorzero.test_engine import write_encoder, write_model
from tests.zoo.priorzero.test_run import arguments
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.priorzero_entry import main
from zoo.jericho.priorzero.roles.policy import TextPolicy

pytestmark = pytest.mark.slow
STEPS = 10  # of an episode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its best weights are those of version 3, its last ones those of version 4."""
    folder, patch = tmp_path_factory.mktemp("policy"), pytest.MonkeyPatch()
    patch.setenv("LZERO_ASYNC_CACHE", str(folder / "cache"))
    write_encoder(folder / "encoder")
    words = arguments(write_model(folder / "llm"), folder / "run", "--max_iter", "4")
    assert main([*words, "--set", "run_config.final_eval_modes=()"]) == 0
    yield folder / "run"
    patch.undo()


@pytest.fixture(scope="module")
def policy(run: Path) -> Iterator[TextPolicy]:
    with load_policy(run) as found:
        assert isinstance(found, TextPolicy)
        yield found


def commands_of(policy: TextPolicy, seed: int) -> list[str]:
    """What it does in an environment of one's own."""
    env, commands = policy.new_env(), []
    try:
        observation, over = env.reset(seed), False
        while not over:
            commands.append(policy(observation))
            observation, _, over, info = env.step(commands[-1])
        assert len(commands) == info["steps"]
        return commands
    finally:
        env.close()


def test_the_table_of_a_run_is_the_same_twice(
    run: Path, policy: TextPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["play", str(run), "--episodes", "2", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["episode", "seed", "score", "steps"]
    rows = policy.play(2, seed=3)
    assert [line.split() for line in lines[2:4]] == [
        [str(number), str(row.seed), f"{row.score:.2f}", str(row.steps)] for number, row in enumerate(rows, 1)
    ]
    assert all(0 < row.steps <= STEPS for row in rows)


def test_acting_in_an_environment_of_ones_own_is_what_is_played(policy: TextPolicy) -> None:
    """All of it: the window of the search, the prior's history, the dice. Another episode begins where the timestep is 0."""
    played = policy._evaluator.play("prior", 0)
    for _ in range(2):
        assert commands_of(policy, 0) == list(played.info["commands"])


def test_the_last_weights_are_loaded_too(run: Path, policy: TextPolicy) -> None:
    """They are those of another version, and as good as the model's own."""
    with load_policy(run, weights="last", mode="world_model") as last:
        assert isinstance(last, TextPolicy)
        models = [one._evaluator.model.state_dict() for one in (policy, last)]
        assert models[0].keys() == models[1].keys()
        differing = [name for name, value in models[0].items() if not value.equal(models[1][name])]
        assert "world_model.head_policy.head_module.0.weight" in differing
        saved = checkpoint.load(run / "ckpt" / "last.safetensors", CHECKPOINT)["learner"]["policy"]["model"]
        assert all(saved[f"_orig_mod.{name}"].equal(models[1][name]) for name in differing)
        assert last._evaluator.parts.prior is None  # the search alone needs no language model
        assert 0 < last.play_episode(1).steps <= STEPS


def test_the_language_model_alone(run: Path) -> None:
    with load_policy(run, mode="llm") as policy:
        assert policy.play(1) == policy.play(1)


@pytest.mark.parametrize("observation", ["You are in a room.", {"state": None, "timestep": 0}])
def test_an_observation_without_valid_actions_is_refused(observation: Any, policy: TextPolicy) -> None:
    with pytest.raises(ConfigError, match="give the dictionary that JerichoEnv returns"):
        policy(observation)


def test_what_does_not_fit_is_refused_in_one_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes((run / "summary.json").read_bytes())
    state = checkpoint.load(run / "ckpt" / "best.safetensors", CHECKPOINT)
    best = tmp_path / "ckpt" / "best.safetensors"
    with pytest.raises(ConfigError, match="mode is 'both'; choose one of prior, world_model, llm"):
        load_policy(run, mode="both")
    checkpoint.save(best, {**state, "game": {**state["game"], "md5": "0"}}, CHECKPOINT)
    with pytest.raises(ConfigError, match=r"is of the game .*, but .* is another one"):
        load_policy(tmp_path)
    checkpoint.save(best, {**state, "weights": {"x": state["weights"].popitem()[1]}}, CHECKPOINT)
    with pytest.raises(ConfigError, match="does not fit this program"):
        load_policy(tmp_path, mode="world_model")
