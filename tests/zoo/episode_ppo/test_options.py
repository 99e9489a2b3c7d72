"""The command line of `zoo.episode_ppo`: defaults, how options are written, and bad input in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.options import as_dict
from tests.sentences import assert_one_sentence
from tests.zoo.episode_ppo.envs import SPEC
from tests.zoo.episode_ppo.test_nasim import hide
from zoo.episode_ppo import options as options_module
from zoo.episode_ppo.learn.saving import KIND
from zoo.episode_ppo.options import COMMAND, FIXED, OPTIONS, EpisodePPOOptions, build_options, rounds_at_once, shares_of
from zoo.episode_ppo.train import changes_of, main, parse_arguments

FOLDER = Path(__file__).resolve().parents[3] / "zoo" / "episode_ppo"
SCRIPT = FOLDER / "run_async_training.sh"


def read(*arguments: str) -> EpisodePPOOptions:
    return build_options(changes_of(parse_arguments(list(arguments))))


# -- defaults ------------------------------------------------------------------------------------------------------------


def test_the_defaults() -> None:
    options = read()
    assert (options.env, options.collector, options.num_envs) == ("CartPole-v1", "async", 100)
    assert (options.total_episodes, options.episodes_per_update) == (100_000, 100)
    assert (options.off_policy_degree, options.staleness_policy) == (2, "wait")


def test_the_command_of_the_manual() -> None:
    command = "--env CartPole-v1 --n-envs 100 --total-episodes 100000 --episodes-per-update 100"
    assert read(*command.split()) == read()


def test_the_barrier_is_strictly_in_turn_unless_it_is_said() -> None:
    assert read("--collector", "sync").off_policy_degree == 0
    assert read("--collector", "sync", "--off_policy_degree", "1").off_policy_degree == 1


def test_environments_are_shared_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module.os, "cpu_count", lambda: 4)
    assert shares_of(read("--n-envs", "10")) == [3, 3, 2, 2]
    assert shares_of(read("--n-envs", "2")) == [1, 1]
    assert shares_of(read("--n-envs", "10", "--num-workers", "3")) == [4, 3, 3]
    assert shares_of(read("--n-envs", "10", "--collector", "sync")) == [10]
    assert shares_of(read("--n-envs", "10", "--collector", "sync", "--num-workers", "2")) == [5, 5]
    monkeypatch.setattr(options_module.os, "cpu_count", lambda: None)
    assert shares_of(read("--n-envs", "10")) == [10]


def test_as_many_rounds_are_played_at_once_as_may_be_old() -> None:
    assert rounds_at_once(read()) == 2
    assert rounds_at_once(read("--off_policy_degree", "5")) == 5
    assert rounds_at_once(read("--collector", "sync", "--off_policy_degree", "5")) == 1


# -- how options are written -----------------------------------------------------------------------------------------------


def test_hyphens_and_underscores_are_the_same() -> None:
    with_hyphens = read("--n-envs", "8", "--total-episodes=12", "--exp-name", "my-run_1", "--env-arg", "a=b-c_d")
    assert (with_hyphens.num_envs, with_hyphens.total_episodes, with_hyphens.exp_name) == (8, 12, "my-run_1")
    assert with_hyphens == read(
        "--n_envs", "8", "--total_episodes=12", "--exp_name", "my-run_1", "--env_arg", "a=b-c_d"
    )


def test_arguments_of_the_environment_are_text_or_json_and_may_come_one_by_one() -> None:
    words = [
        "--env-arg",
        "red_agent=B_lineAgent",
        "--env-arg",
        "max-steps=50",
        "--env-arg=deep=[1, true]",
        "--env-arg",
        "e=",
    ]
    assert read(*words).env_args == {"red_agent": "B_lineAgent", "max_steps": 50, "deep": [1, True], "e": ""}
    assert read("--env_args", '{"red_agent": "B_lineAgent"}').env_args == read(*words[:2]).env_args


def test_the_opponent_goes_to_the_factory() -> None:
    assert read("--red-agent", "B_lineAgent").env_args == {"red_agent": "B_lineAgent"}
    assert read("--red_agent", "7", "--env-arg", "a=1").env_args == {"a": 1, "red_agent": "7"}  # a name, never a number


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    for name in (*OPTIONS, "resume", "env_arg"):
        assert f"--{name} " in said or f"--{name}\n" in said, name
    for title in COMMAND.groups:
        assert title in said
    assert "--red-agent B_lineAgent" in said and "nasim" in said


def test_help_of_the_program_works_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "train.py"), "--help"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("usage: lzero-async train episode_ppo [options]")
    assert list(tmp_path.iterdir()) == []


# -- runs that are saved -------------------------------------------------------------------------------------------------


def test_a_saved_run_keeps_its_options_and_takes_new_ones() -> None:
    saved = read("--n-envs", "8", "--off_policy_degree", "5", "--staleness_policy", "drop", "--learning_rate", "0.5")
    again = build_options({"n_envs": 9}, saved=as_dict(saved))
    assert (again.num_envs, again.off_policy_degree, again.staleness_policy, again.learning_rate) == (9, 5, "drop", 0.5)
    same = build_options({"collector": "async"}, saved=as_dict(saved))
    assert (same.off_policy_degree, same.staleness_policy) == (5, "drop")


def test_a_saved_run_goes_on_with_the_other_collector() -> None:
    saved = read("--off_policy_degree", "5", "--staleness_policy", "drop", "--n-envs", "8")
    sync = build_options({"collector": "sync"}, saved=as_dict(saved))
    assert (sync.collector, sync.off_policy_degree, sync.staleness_policy, sync.num_envs) == ("sync", 0, "wait", 8)
    back = build_options({"collector": "async"}, saved=as_dict(sync))
    assert (back.off_policy_degree, back.staleness_policy) == (2, "wait")


def test_what_a_resumed_run_cannot_change_are_options() -> None:
    assert set(FIXED) <= set(OPTIONS)


# -- bad input -----------------------------------------------------------------------------------------------------------

BAD_VALUES: dict[str, list[str]] = {
    "--n-envs 0": ["num_envs is 0", "at least 1"],
    "--n-envs many": ["num_envs is 'many'", "whole number"],
    "--num-workers 8 --n-envs 4": ["num_workers is 8", "num_envs 4"],
    "--off-policy-degree 0": ["off_policy_degree 0", "at least 1", "--collector sync"],
    "--off-policy-degree -1": ["off_policy_degree is -1"],
    "--collector sync --staleness-policy drop": ["staleness_policy is 'drop'", "leave it out"],
    "--collector both": ["collector is 'both'", "async, sync"],
    "--staleness-policy maybe": ["staleness_policy is 'maybe'", "wait, drop, allow"],
    "--target-return 5 --eval-every 0": ["target_score", "eval_every"],
    "--step-sigma 1": ["step_sigma", "step_seconds"],
    "--episodes-per-update 0": ["episodes_per_update is 0"],
    "--total-episodes -5": ["total_episodes is -5"],
    "--learning-rate 0": ["learning_rate is 0"],
    "--clip nan": ["clip is nan"],
    "--discount 1.5": ["discount is 1.5", "0", "1"],
    "--seed -1": ["seed is -1"],
    "--device tpu": ["device is 'tpu'", "cpu"],
    "--exp_name=": ["exp_name is empty"],
    "--env=": ["env is empty"],
    "--nenvs 3": ["no option nenvs", "did you mean n_envs?"],
    "--total-episode=3": ["no option total_episode", "did you mean total_episodes?"],
    "--env-argument a=b": ["no option env_argument"],
    "--env-ar a=b": ["no option env_ar", "did you mean env_arg"],
    "--resum x": ["no option resum", "did you mean resume?"],
    "--n-envs": ["--n_envs", "expected one argument"],
    "--env-arg": ["--env_arg", "expected one argument"],
    "--red-agent B_line --env_args a=1": ["env_args and red_agent"],
    "--red-agent B_line --env-arg red_agent=x": ["red_agent is given twice"],
    "--red-agent B_lineAgent": ["CartPole-v1", "red_agent"],
    "--qqqqqq 3": ["no option qqqqqq", "--help"],
    "CartPole-v1": ["'CartPole-v1' cannot be read", "--num_envs 100"],
    "--env-arg red_agent": ["env_arg is 'red_agent'", "NAME=VALUE"],
    "--env-arg =3": ["env_arg is '=3'", "NAME=VALUE"],
    "--env-arg a=1 --env-arg a=2": ["env_arg a is given twice"],
    "--env-arg a=1 --env_args b=2": ["env_args and env_arg"],
    "--env CartPol-v1": ["CartPol-v1", "Did you mean 'CartPole-v1'?"],
    "--env CartPole-v1 --env-arg wheels=3": ["CartPole-v1", "wheels"],
    "--env no_module_of_this_name:make": ["no_module_of_this_name", "cannot be imported"],
    "--env tests.zoo.episode_ppo.envs:mak": ["has no function 'mak'", "Did you mean tests.zoo.episode_ppo.envs:make?"],
    "--env tests.zoo.episode_ppo.envs:SPEC": ["has no function 'SPEC'"],
    "--env tests.zoo.episode_ppo.envs:make_needy": ["env_args {} do not fit", "red_agent"],
    "--env tests.zoo.episode_ppo.envs:make_needy --env-arg red_agnt=x": ["{'red_agnt': 'x'} do not fit", "red_agent"],
    "--env tests.zoo.episode_ppo.envs:length_of --env-arg seed=3": ["gives a int without observation_space"],
    "--resume": ["no checkpoint at", "run", "last.safetensors"],
    "--resume nowhere.safetensors": ["no checkpoint at nowhere.safetensors"],
}


@pytest.mark.parametrize("line", BAD_VALUES)
def test_bad_input_is_exit_code_2_and_one_sentence_and_the_name_stays_free(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = line.split(" ") if "exp_name" in line else ["--exp_name", "run", *line.split(" ")]
    assert main(words) == 2
    assert_one_sentence(capsys.readouterr().err, BAD_VALUES[line])
    assert list(tmp_path.iterdir()) == []


def test_an_extra_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, "nasim")
    for env in ("nasim:Tiny-v0", "zoo.episode_ppo.envs.network_attack:make"):
        assert main(["--env", env, "--exp_name", str(tmp_path / "run")]) == 2
        assert_one_sentence(capsys.readouterr().err, [env, "pip install '.[nasim]'"])
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--device", "cuda:3", "--exp_name", str(tmp_path / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, ["device is 'cuda:3'", "--device cpu"])
    assert not (tmp_path / "run").exists()


def _other_application(path: Path) -> None:
    checkpoint.save(path, {"options": {}}, checkpoint.CheckpointKind("lzero-async.mbpo", 1, "MBPO"))


def _torn(path: Path) -> None:
    checkpoint.save(path, {"options": {}, "text": "x" * 1_000}, KIND)
    path.write_bytes(path.read_bytes()[:-400])


def _no_checkpoint(path: Path) -> None:
    path.write_text("hello")


def _of_the_future(path: Path) -> None:
    checkpoint.save(path, {"options": {}}, KIND._replace(version=KIND.version + 1))


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (_other_application, ["not a checkpoint of episode PPO"]),
        (_torn, ["damaged"]),
        (_no_checkpoint, ["damaged or not one"]),
        (_of_the_future, ["checkpoint format 2.3", "reads 2.2"]),
        (lambda path: checkpoint.save(path, {"options": {}}, KIND), ["best weights", "last.safetensors"]),
        (lambda path: checkpoint.save(path, {"options": {"n_envs": -1}}, KIND), ["num_envs is -1"]),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_sentence(
    write: Callable[[Path], None], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "some.safetensors"
    write(saved)
    assert main(["--resume", str(saved), "--exp_name", str(tmp_path / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert list(tmp_path.iterdir()) == [saved]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["--env", SPEC, "--exp_name", str(tmp_path / "file" / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, ["cannot be made", "--exp_name"])


def test_a_disk_that_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path, application: str) -> None:
        raise OSError(28, "No space left on device", str(folder / "run.log"))

    monkeypatch.setattr("zoo.episode_ppo.train.logging_to", full)
    assert main(["--env", SPEC, "--exp_name", str(tmp_path / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, ["No space left on device", "choose another --exp_name"])


def test_what_a_bad_combination_says_names_both_options() -> None:
    with pytest.raises(ConfigError, match=r"num_workers is 3, more than num_envs 2"):
        build_options({"num_workers": 3, "n_envs": 2})


# -- the start script ------------------------------------------------------------------------------------------------------


def passed_on(*arguments: str, **variables: str) -> list[str]:
    """What the start script gives the training program, with only these variables of its own set."""
    environment = {"PATH": os.environ["PATH"], "PYTHON": "echo", **variables}
    command = [str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    program, *words = done.stdout.split()
    assert Path(program).resolve() == FOLDER / "train.py"
    return words


def test_the_start_script_starts_the_asynchronous_collector() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert passed_on() == ["--collector", "async"]
    assert read(*passed_on()) == read()
    assert passed_on("--resume", "runs/x", ENV="") == ["--collector", "async", "--resume", "runs/x"]


@pytest.mark.parametrize("name", ["env", "num_envs", "total_episodes", "episodes_per_update", "num_workers"])
def test_every_variable_of_the_start_script_is_one_option(name: str) -> None:
    assert passed_on("--seed", "3", **{name.upper(): "7"}) == ["--collector", "async", f"--{name}", "7", "--seed", "3"]
    assert name in OPTIONS


def test_the_start_script_knows_the_older_name_of_num_envs() -> None:
    assert passed_on(N_ENVS="7") == passed_on(NUM_ENVS="7")
    assert passed_on(N_ENVS="7", NUM_ENVS="8") == passed_on(NUM_ENVS="8")
