"""The command line of `zoo.mbpo`: defaults, presets, what belongs to which trainer, and bad input in one sentence."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.options import as_dict
from tests.sentences import assert_one_sentence
from zoo.mbpo import train_isaac_async
from zoo.mbpo.options import (
    BATCH,
    COMMAND,
    CONTINUOUS,
    OPTIONS,
    PRESETS,
    SYNC,
    MbpoOptions,
    backend_of,
    build_options,
    check_options,
)
from zoo.mbpo.saving import KIND
from zoo.mbpo.train import main, make_parser, parse_arguments

FOLDER = Path(__file__).resolve().parents[3] / "zoo" / "mbpo"
TRAINERS = (SYNC, BATCH, CONTINUOUS)
SIZES = ("num_collectors", "max_queue_size", "collection_batch_size", "num_envs")
TINY = (
    "--num_envs", "2", "--random_steps", "8", "--hidden_size", "8", "--batch_size", "8", "--ensemble_size", "2",
    "--num_elites", "1", "--dynamics_hidden_size", "8", "--dynamics_batch_size", "8", "--eval_every", "0",
    "--updates_per_step", "0.25",
)  # fmt: skip


def sizes_of(options: MbpoOptions) -> list[int]:
    return [getattr(options, name) for name in SIZES]


def read(*arguments: str) -> MbpoOptions:
    flags = parse_arguments(list(arguments))
    return build_options(COMMAND.changes(flags), preset=flags.preset)


# -- defaults and presets ------------------------------------------------------------------------------------------------


def test_the_default_is_the_batch_trainer() -> None:
    options = read()
    assert (options.trainer, options.env) == (BATCH, "Pendulum-v1")
    assert (options.num_steps_per_env, options.batch_queue_size, options.num_envs) == (24, 10, 64)
    assert backend_of(options) == "process"


def test_the_defaults_of_the_continuous_trainer() -> None:
    options = read("--trainer", "continuous")
    assert sizes_of(options) == [4, 1_000, 256, 64]
    assert options.when_full == "drop_oldest"
    assert backend_of(options) == "process"


def test_the_synchronous_trainer_is_one_process() -> None:
    assert backend_of(read("--trainer", "sync")) == "inline"


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("envs64", [8, 2_000, 512, 64]),
        ("envs128", [16, 4_000, 1_024, 128]),
        ("envs256", [32, 8_000, 2_048, 256]),
    ],
)
def test_presets(preset: str, sizes: list[int]) -> None:
    options = read("--preset", preset)
    assert options.trainer == CONTINUOUS
    assert sizes_of(options) == sizes
    assert read("--preset", preset, "--num_collectors", "3").num_collectors == 3


def test_there_are_no_other_presets() -> None:
    assert list(PRESETS) == ["envs64", "envs128", "envs256"]


@pytest.mark.parametrize("trainer", [SYNC, BATCH])
def test_a_preset_is_of_the_continuous_trainer(trainer: str) -> None:
    with pytest.raises(ConfigError, match=f"envs128.*{trainer}.*--trainer continuous.*--num_envs 128"):
        read("--preset", "envs128", "--trainer", trainer)


def test_the_command_of_the_manual() -> None:
    command = (
        "--env Pendulum-v1 --num_envs 64 --num_collectors 8 --max_queue_size 2000 --collection_batch_size 512 "
        "--trainer continuous --device cpu"
    )
    options = read(*command.split())
    assert sizes_of(options) == [8, 2_000, 512, 64]
    assert (options.trainer, options.device, options.env) == (CONTINUOUS, "cpu", "Pendulum-v1")


def test_every_default_is_a_value_that_its_own_check_takes() -> None:
    for trainer in TRAINERS:
        assert check_options({"trainer": trainer}).trainer == trainer


# -- how options are written -----------------------------------------------------------------------------------------------


def test_hyphens_and_underscores_are_the_same() -> None:
    with_hyphens = read("--num-envs", "8", "--num-steps-per-env=12", "--exp-name", "my-run_1")
    assert (with_hyphens.num_envs, with_hyphens.num_steps_per_env, with_hyphens.exp_name) == (8, 12, "my-run_1")
    assert with_hyphens == read("--num_envs", "8", "--num_steps_per_env=12", "--exp_name", "my-run_1")


def test_task_is_another_name_of_env() -> None:
    assert read("--task", "A-v0") == read("--env", "A-v0")
    assert read("--task=A-v0").env == "A-v0"


def test_headless_is_accepted() -> None:
    assert read("--headless") == read()


@pytest.mark.parametrize(("text", "value"), [("true", True), ("off", False), ("1", True), ("No", False), (None, True)])
def test_flags_may_be_written_as_one_would(text: str | None, value: bool) -> None:
    words = ["--trainer", "continuous", "--adaptive_queue", *([] if text is None else [text])]
    assert read(*words).adaptive_queue is value


def test_numbers_may_be_negative_or_hold_underscores() -> None:
    options = read("--target_return", "-200.5", "--max_steps", "50_000")
    assert (options.target_score, options.max_env_steps) == (-200.5, 50_000)


@pytest.mark.parametrize("text", ["g=9.81,name=a b", '{"g": 9.81, "name": "a b"}'])
def test_arguments_of_the_environment_may_be_pairs_or_json(text: str) -> None:
    assert read("--env_args", text).env_args == {"g": 9.81, "name": "a b"}


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    for name in (*OPTIONS, "task", "preset", "resume", "headless"):
        assert f"--{name} " in said or f"--{name}," in said or f"--{name}\n" in said, name
    for title in COMMAND.groups:
        assert title in said


def test_every_option_is_explained() -> None:
    assert all(option.help for option in OPTIONS.values())
    assert {name for name, option in OPTIONS.items() if not set(option.only) <= set(TRAINERS)} == set()


def test_defaults_are_shown_as_they_may_be_given() -> None:
    actions = (action for action in make_parser()._actions if action.help != argparse.SUPPRESS)
    helps = {action.dest: action.help or "" for action in actions}
    for name, option in OPTIONS.items():
        if option.default not in (None, {}, ""):
            shown = re.search(r"default: ([^()]*)\)$", helps[name])
            assert shown is not None, name
            assert COMMAND.changes(parse_arguments([f"--{name}={shown[1]}"])) == {name: option.default}


def test_how_much_may_wait_is_said_once_when_collectors_wait() -> None:
    waiting = ("--trainer", "continuous", "--when_full", "wait")
    assert read(*waiting, "--max_queue_size", "512").max_queue_size == 512
    assert read(*waiting, "--off_policy_degree", "2").off_policy_degree == 2
    dropping = read("--trainer", "continuous", "--max_queue_size", "512", "--off_policy_degree", "2")
    assert (dropping.when_full, dropping.max_queue_size, dropping.off_policy_degree) == ("drop_oldest", 512, 2)
    assert read("--preset", "envs64", "--when_full", "wait", "--off_policy_degree", "2").off_policy_degree == 2
    for saved in (read(*waiting, "--max_queue_size", "512"), read("--preset", "envs64", "--when_full", "wait")):
        again = build_options({"off_policy_degree": 2}, saved=as_dict(saved))
        assert (again.max_queue_size, again.off_policy_degree) == (saved.max_queue_size, 2)
        with pytest.raises(ConfigError, match="give one of them"):
            build_options({"off_policy_degree": 2, "max_queue_size": 600}, saved=as_dict(saved))


# -- options of another trainer --------------------------------------------------------------------------------------------

ELSEWHERE = [
    (name, trainer) for name, option in OPTIONS.items() for trainer in TRAINERS if not option.belongs_to(trainer)
]


@pytest.mark.parametrize(("name", "trainer"), ELSEWHERE)
def test_an_option_of_another_trainer_is_refused_with_a_hint(name: str, trainer: str) -> None:
    home = OPTIONS[name].only
    with pytest.raises(ConfigError) as caught:
        build_options({"trainer": trainer, name: OPTIONS[name].default})
    said = str(caught.value)
    assert said.startswith(f"{name} belongs to the {' and '.join(home)} trainer, and this run's is {trainer}")
    assert any(f"--trainer {one}" in said for one in home)


@pytest.mark.parametrize(
    ("name", "trainer", "instead"),
    [
        ("num_steps_per_env", CONTINUOUS, "--collection_batch_size"),
        ("batch_queue_size", CONTINUOUS, "--max_queue_size"),
        ("collection_batch_size", BATCH, "--num_steps_per_env"),
        ("collection_batch_size", SYNC, "--num_steps_per_env"),
        ("num_collectors", BATCH, "--num_envs"),
        ("num_collectors", SYNC, "--num_envs"),
    ],
)
def test_the_hint_names_what_the_trainer_has_instead(name: str, trainer: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        build_options({"trainer": trainer, name: OPTIONS[name].default})


def test_which_options_are_whose() -> None:
    owned = {trainer: {name for name, home in ELSEWHERE if home == trainer} for trainer in TRAINERS}
    assert owned[CONTINUOUS] == {"num_steps_per_env", "batch_queue_size"}
    assert owned[SYNC] - owned[BATCH] == {"batch_queue_size", "max_queue_size"}
    assert {"num_collectors", "collection_batch_size"} < owned[BATCH] < owned[SYNC]


def test_a_saved_run_goes_on_with_another_trainer() -> None:
    saved = build_options({"trainer": CONTINUOUS, "num_collectors": 8, "hidden_size": 16, "num_envs": 32})
    options = build_options({"trainer": BATCH, "batch_queue_size": 3}, saved=as_dict(saved))
    assert (options.trainer, options.batch_queue_size, options.hidden_size, options.num_envs) == (BATCH, 3, 16, 32)
    back = build_options({}, saved=as_dict(saved))
    assert (back.trainer, back.num_collectors) == (CONTINUOUS, 8)


def test_where_roles_live_follows_the_trainer_that_goes_on() -> None:
    saved = build_options({"trainer": BATCH, "backend": "thread"})
    assert build_options({"trainer": SYNC}, saved=as_dict(saved)).backend == "auto"
    assert build_options({"trainer": CONTINUOUS}, saved=as_dict(saved)).backend == "thread"
    assert (
        build_options({"trainer": BATCH}, saved=as_dict(build_options({"trainer": SYNC, "backend": "inline"}))).backend
        == "auto"
    )
    with pytest.raises(ConfigError, match="inline"):
        build_options({"trainer": SYNC, "backend": "thread"}, saved=as_dict(saved))


# -- bad input -------------------------------------------------------------------------------------------------------------

BAD_VALUES = {
    "--num_envs 0": ["num_envs is 0", "at least 1"],
    "--num_envs -3": ["num_envs is -3", "at least 1"],
    "--num_envs many": ["num_envs is 'many'", "whole number"],
    "--num_envs 2.5": ["num_envs is '2.5'", "whole number"],
    "--max_steps -1": ["max_env_steps is -1"],
    "--max_seconds nan": ["max_seconds is nan"],
    "--learning_rate 0": ["learning_rate is 0.0", "above 0"],
    "--learning_rate fast": ["learning_rate is 'fast'", "a number"],
    "--discount 1.5": ["discount is 1.5", "between 0 and 1"],
    "--real_ratio -0.1": ["real_ratio is -0.1"],
    "--tau 2": ["tau is 2.0"],
    "--target_return high": ["target_score is 'high'", "number"],
    "--target_return -200 --eval_every 0": ["target_score", "eval_every"],
    "--seed -1": ["seed is -1"],
    "--seed 2147483648": ["seed", "below 2**31"],
    "--trainer v3": ["trainer is 'v3'", "sync, batch, continuous"],
    "--device tpu": ["device is 'tpu'", "cuda"],
    "--backend mpi": ["backend is 'mpi'", "thread"],
    "--trainer sync --backend process": ["backend is 'process'", "sync", "inline"],
    "--trainer batch --backend inline": ["backend is 'inline'", "batch"],
    "--trainer continuous --backend inline": ["backend is 'inline'", "continuous"],
    "--wandb maybe": ["wandb is 'maybe'", "offline"],
    "--trace perhaps": ["trace is 'perhaps'", "true or false"],
    "--sampling random": ["sampling is 'random'", "uniform, recent, priority"],
    "--num_elites 8": ["num_elites is 8", "ensemble_size 7"],
    "--ensemble_size 0": ["ensemble_size is 0"],
    "--real_buffer_size 100 --batch_size 256": ["real_buffer_size is 100", "batch_size 256"],
    "--env_args g": ["env_args has 'g'", "NAME=VALUE"],
    "--env_args {": ["env_args is '{'", "not JSON"],
    "--env_args g=1,unknown=2": ["env_args", "Pendulum-v1"],
    "--exp_name=": ["exp_name is empty"],
    "--env=": ["env is empty"],
    "--num_steps_per_env 0": ["num_steps_per_env is 0"],
    "--batch_queue_size 0": ["batch_queue_size is 0"],
    "--num_collectors 4": ["num_collectors belongs to the continuous trainer", "--trainer continuous"],
    "--trainer continuous --num_steps_per_env 24": ["num_steps_per_env belongs to the sync and batch trainer"],
    "--trainer continuous --num_collectors 0": ["num_collectors is 0"],
    "--trainer continuous --num_envs 3": ["num_collectors is 4", "only 3 environment(s)", "num_envs"],
    "--trainer continuous --max_queue_size 255": ["max_queue_size is 255", "one batch of 256"],
    "--trainer continuous --off_policy_degree 0": ["off_policy_degree 0", "--trainer sync"],
    "--trainer continuous --off_policy_degree -2": ["off_policy_degree is -2", "at least -1"],
    "--trainer continuous --when_full wait --adaptive_queue": ["adaptive_queue", "drop_oldest"],
    "--trainer continuous --when_full wait --queue_order newest": ["queue_order", "drop_oldest"],
    "--trainer continuous --when_full wait --max_queue_size 1000 --off_policy_degree 2": [
        "max_queue_size and off_policy_degree",
        "give one of them",
    ],
    "--trainer continuous --queue_order best": ["queue_order is 'best'", "fifo, newest, reward"],
    "--preset envs64 --trainer batch": ["envs64", "batch", "--trainer continuous"],
    "--numenvs 3": ["no option numenvs", "did you mean num_envs?"],
    "--num-colectors=3": ["no option num_colectors", "did you mean num_collectors?"],
    "--resum runs/x": ["no option resum", "did you mean resume?"],
    "--presets envs64": ["no option presets", "did you mean preset?"],
    "--preset envs99": ["--preset", "'envs99'", "envs64"],
    "--num_envs": ["--num_envs", "expected one argument"],
    "--batch_queue_size 3 --max_queue_size 4": ["max_queue_size and batch_queue_size", "give one of them"],
    "--max_steps 3 --max_env_step 4": ["no option max_env_step", "did you mean max_env_steps?"],
    "--qqqqqq 3": ["no option qqqqqq", "--help"],
    "Pendulum-v1": ["'Pendulum-v1' cannot be read", "--num_envs 64"],
    "--env CartPole-v1": ["CartPole-v1", "continuous actions", "Pendulum-v1"],
    "--env Pendulm-v1": ["Pendulm-v1", "Did you mean 'Pendulum-v1'?"],
    "--env nothing_like:It-v0": ["nothing_like:It-v0"],
    "--env tests.zoo.mbpo.gym_envs:Unbounded-v0": ["without finite bounds"],
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


def test_a_gpu_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--trainer", "sync", "--device", "cuda:3", "--exp_name", str(tmp_path / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, ["device is 'cuda:3'", "--device cpu"])
    assert not (tmp_path / "run").exists()


def test_buffers_that_do_not_fit_into_memory_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trainer", "sync", "--real_buffer_size", str(10**13), "--exp_name", str(tmp_path / "run")]
    for _ in range(2):
        assert main(words) == 2
        assert_one_sentence(capsys.readouterr().err, ["not enough memory", "real_buffer_size of 10000000000000"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # the second start had the name, too


def test_an_environment_of_a_module_that_breaks_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import a_package_that_nobody_has\n")
    assert main(["--trainer", "sync", "--env", "needs_more:Env-v0", "--exp_name", "run"]) == 2
    assert_one_sentence(capsys.readouterr().err, ["a_package_that_nobody_has"])
    assert not (tmp_path / "run").exists()


def _other_application(path: Path) -> None:
    checkpoint.save(path, {"options": {}}, checkpoint.CheckpointKind("lzero-async.priorzero", 1, "PriorZero"))


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
        (_other_application, ["not a checkpoint of MBPO"]),
        (_torn, ["damaged"]),
        (_no_checkpoint, ["damaged or not one"]),
        (_of_the_future, ["checkpoint format 2.2", "reads 2.1"]),
        (lambda path: checkpoint.save(path, {"options": {}}, KIND), ["best weights", "last.safetensors"]),
        (lambda path: checkpoint.save(path, {"options": {"num_envs": -1}}, KIND), ["num_envs is -1"]),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_sentence(
    write: Callable[[Path], None], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "some.safetensors"
    write(saved)
    assert main(["--resume", str(saved), "--trainer", "sync", "--exp_name", str(tmp_path / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, words)
    assert list(tmp_path.iterdir()) == [saved]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["--trainer", "sync", "--exp_name", str(tmp_path / "file" / "run")]) == 2
    assert_one_sentence(capsys.readouterr().err, ["cannot be made", "--exp_name"])


# -- the other programs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--task no_module_of_this_name:make --trainer batch --backend thread", ["no_module_of_this_name", "imported"]),
        ("--task Isaac-Cartpole-Direct-v0 --headless --backend thread", ["Isaac Lab"]),
        ("--task Isaac-Cartpole-Direct-v0 --target_return 5 --backend thread", ["target_score is 5", "not evaluated"]),
        ("--task tensor-pendulum --env_args g=3", ["env_args is {'g': 3}", "module:function"]),
        ("--step_seconds 0.1", ["step_seconds is 0.1", "train.py"]),
        ("--num_steps_per_env 4", ["num_steps_per_env belongs to the sync and batch trainer"]),
        ("--taks x", ["did you mean task?"]),
    ],
)
def test_bad_input_for_tensor_environments(
    line: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_isaac_async.main(["--exp_name", "run", *line.split()]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert_one_sentence(said.strip().splitlines()[-1], words)


def test_help_of_the_program_for_tensor_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tensor-pendulum" in make_parser(train_isaac_async.__doc__, "train_isaac_async.py").format_help()
    with pytest.raises(SystemExit):
        train_isaac_async.main(["--help"])
    assert "train_isaac_async.py [options]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("run_async_mbpo.sh", ["--num_collectors", "2", "--max_queue_size", "64", "--collection_batch_size", "16"]),
        ("run_async_mbpo_v2.sh", ["--num_steps_per_env", "8"]),
    ],
)
def test_the_start_scripts_start_their_trainer(script: str, options: list[str], tmp_path: Path) -> None:
    assert os.access(FOLDER / script, os.X_OK)
    command = ["sh", str(FOLDER / script), *TINY, *options, "--max_steps", "32", "--backend", "thread"]
    environment = {**os.environ, "PYTHON": sys.executable}
    run = subprocess.run(
        [*command, "--exp_name", "run"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert "[AsyncMBPO] step=" in run.stdout
    written = (tmp_path / "run" / "options.json").read_text()
    assert f'"trainer": "{"batch" if "v2" in script else "continuous"}"' in written


SCRIPTS = {"run_async_mbpo.sh": "continuous", "run_async_mbpo_v2.sh": "batch"}


@pytest.fixture
def passed_on(tmp_path: Path) -> Callable[..., list[str]]:
    """What a start script gives the training program, with these arguments and only these variables of its own set."""
    python = tmp_path / "a python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)

    def run(script: str, *arguments: str, **variables: str) -> list[str]:
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), **variables}
        command = [str(FOLDER / script), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        program, *words = done.stdout.splitlines()
        assert Path(program).resolve() == FOLDER / "train.py"
        return words

    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_defaults_of_the_start_scripts_are_those_of_their_trainer(script: str, passed_on: Any) -> None:
    assert passed_on(script) == ["--trainer", SCRIPTS[script]]
    options = read(*passed_on(script, "--seed", "3", NUM_ENVS="8", ENV="Other-v0"))
    assert options == read("--trainer", SCRIPTS[script], "--num_envs", "8", "--env", "Other-v0", "--seed", "3")
    assert passed_on(script, NUM_ENVS="") == passed_on(script)


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("run_async_mbpo.sh", ["env", "num_envs", "num_collectors", "max_queue_size", "collection_batch_size"]),
        ("run_async_mbpo_v2.sh", ["env", "num_envs", "num_steps_per_env", "batch_queue_size"]),
    ],
)
def test_every_variable_of_a_start_script_is_one_option(script: str, names: list[str], passed_on: Any) -> None:
    for name in names:
        assert passed_on(script, **{name.upper(): "7 8"})[2:] == [f"--{name}", "7 8"]


def test_a_start_script_does_not_overrule_a_preset_or_a_run_that_is_resumed(passed_on: Any) -> None:
    words = passed_on("run_async_mbpo.sh", "--preset", "envs128")
    assert read(*words) == read("--preset", "envs128")
    for script, trainer in SCRIPTS.items():
        words = passed_on(script, "--resume", "runs/x")
        assert words == ["--trainer", trainer, "--resume", "runs/x"]
        saved = build_options({"trainer": trainer, "num_envs": 8, "env": "Other-v0"})
        assert build_options(COMMAND.changes(parse_arguments(words)), saved=as_dict(saved)) == saved


def test_the_python_of_a_start_script_may_be_a_name_on_the_path(tmp_path: Path, passed_on: Any) -> None:
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert passed_on("run_async_mbpo.sh", PYTHON="a python", PATH=path) == ["--trainer", "continuous"]


@pytest.mark.parametrize("word", ["-200", "-1e3", "-.5", "-2.5E+2"])
def test_a_negative_number_is_a_value_and_not_a_flag(word: str) -> None:
    flags = parse_arguments(["--target-return", word, "--num_envs", "8"])
    assert COMMAND.changes(flags) == {"target_score": float(word), "num_envs": 8}


def test_a_function_that_cannot_be_called_so_is_one_sentence() -> None:
    from zoo.mbpo.envs.tensor_envs import tensor_envs

    with pytest.raises(ConfigError, match="cannot be called with num_envs, gravity"):
        tensor_envs("zoo.mbpo.envs.tensor_pendulum:TensorPendulum", {"num_envs": 2, "gravity": 9.81})
