"""Commands and dictionaries that users of asynchronous MBPO know: which trainer they mean, and that they train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs.folder_lock import holder
from zoo.mbpo import train_isaac_async, train_isaac_async_v2
from zoo.mbpo.async_trainer import AsyncTrainer
from zoo.mbpo.async_trainer_v2 import AsyncTrainerV2
from zoo.mbpo.options import MbpoOptions, build_options

V1_COMMAND = (
    "--task=tensor-pendulum", "--num_envs=128", "--num_collectors=8", "--max_queue_size=2000", "--collection_batch_size=512",
    "--device=cpu", "--headless",
)  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 8, "batch_size": 8, "ensemble_size": 2, "num_elites": 1, "dynamics_hidden_size": 8, "eval_every": 0,
    "dynamics_batch_size": 8, "random_steps": 8, "updates_per_step": 0.25, "device": "cpu", "backend": "thread", "plain": True,
}  # fmt: skip


@pytest.fixture
def meant(monkeypatch: pytest.MonkeyPatch) -> list[MbpoOptions]:
    """The options of the runs that the programs would have made."""
    found: list[MbpoOptions] = []

    def note(options: MbpoOptions, *_: Any) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr("zoo.mbpo.train._train", note)
    return found


def test_the_first_program_means_the_continuous_trainer(meant: list[MbpoOptions], tmp_path: Path) -> None:
    assert train_isaac_async.main([*V1_COMMAND, "--exp_name", str(tmp_path / "run")]) == 0
    options = meant[0]
    assert (options.trainer, options.env, options.device) == ("continuous", "tensor-pendulum", "cpu")
    assert (options.num_envs, options.num_collectors) == (128, 8)
    assert (options.max_queue_size, options.collection_batch_size) == (2_000, 512)


def test_the_second_program_means_the_batch_trainer(meant: list[MbpoOptions], tmp_path: Path) -> None:
    words = ["--num_envs=64", "--num_steps_per_env=12", "--max_queue_size=7", "--headless"]
    assert train_isaac_async_v2.main([*words, "--exp_name", str(tmp_path / "run")]) == 0
    options = meant[0]
    assert (options.trainer, options.env) == ("batch", "tensor-pendulum")
    assert (options.num_steps_per_env, options.batch_queue_size) == (12, 7)


def test_either_program_may_be_told_another_trainer(meant: list[MbpoOptions], tmp_path: Path) -> None:
    assert train_isaac_async.main(["--trainer", "batch", "--exp_name", str(tmp_path / "a")]) == 0
    assert train_isaac_async_v2.main(["--trainer", "continuous", "--exp_name", str(tmp_path / "b")]) == 0
    assert [options.trainer for options in meant] == ["batch", "continuous"]


@pytest.mark.parametrize(
    ("trainer", "config", "name"),
    [
        (AsyncTrainerV2, {"num_steps_per_env": 8, "max_queue_size": 10, "num_envs": 2}, "batch"),
        (
            AsyncTrainer,
            {"num_collectors": 2, "max_queue_size": 64, "collection_batch_size": 16, "num_envs": 2},
            "continuous",
        ),
    ],
)
def test_a_dictionary_makes_the_trainer_that_has_its_names(
    trainer: type[AsyncTrainer] | type[AsyncTrainerV2], config: dict[str, Any], name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run = trainer({**config, **SMALL, "max_env_steps": 32, "exp_name": str(folder)})
    try:
        assert run.folder == folder
        assert (run.options.trainer, run.options.num_envs) == (name, 2)
        assert holder(folder) is not None
        run.run()
    finally:
        run.close()
    assert run.counters["real_data"] >= 32
    assert json.loads((folder / "summary.json").read_text())
    assert holder(folder) is None


def test_a_dictionary_of_the_other_trainer_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_collectors belongs to the continuous trainer"):
        AsyncTrainerV2({"num_collectors": 4})
    with pytest.raises(ConfigError, match="num_steps_per_env belongs to the sync and batch trainer"):
        AsyncTrainer({"num_steps_per_env": 4})
    with pytest.raises(ConfigError, match="trainer is 'batch'; choose one of continuous"):
        AsyncTrainer(build_options({}))
    with pytest.raises(ConfigError, match="did you mean num_envs"):
        AsyncTrainer({"num_env": 4})


@pytest.mark.parametrize(
    ("older", "name", "value"),
    [("max_steps", "max_env_steps", 5), ("target_return", "target_score", -3.0), ("task", "env", "A-v0")],
)
def test_older_names_are_the_same_options(older: str, name: str, value: Any) -> None:
    assert getattr(build_options({older: value}), name) == value
    assert getattr(build_options({}, saved={older: value}), name) == value
