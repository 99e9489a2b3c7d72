"""Whole runs, small: what a user types, what is on disk afterwards, and what becomes of roles and runs that are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command, run_command
from tests.lightzero.small import CASES
from tests.process_tools import children, ended

ROOT = Path(__file__).parents[2]
LIGHTZERO = [sys.executable, "-m", "lzero_async", "lightzero"]
SMALL = [
    "--plain", "--threads", "1", "--set", "policy.num_simulations=4", "--set", "policy.batch_size=8", "--set",
    "policy.update_per_collect=4", "--set", "env.collector_env_num=2", "--set", "policy.collector_env_num=2", "--set",
    "policy.n_episode=2", "--set", "env.evaluator_env_num=1", "--set", "policy.evaluator_env_num=1", "--set",
    "env.n_evaluator_episode=1",
]  # fmt: skip


def lightzero(*words: str, folder: Path, timeout: float = 200) -> Any:
    return run_command([*LIGHTZERO, *words], capture_output=True, text=True, cwd=folder, timeout=timeout)


def trained(folder: Path) -> tuple[list[int], int]:
    """The batches that were trained, and their steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["batch/id"] for row in rows], sum(row["batch/steps"] for row in rows)


def program(*words: str, folder: Path) -> list[str]:
    """The digests that `tests.lightzero.small` prints."""
    done = run_command(
        [sys.executable, "-m", "tests.lightzero.small", *words], capture_output=True, text=True, cwd=folder, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "config",
    [
        "cartpole_muzero", "tictactoe_gumbel_muzero_bot_mode", "tictactoe_sampled_alphazero_sp_mode",
        pytest.param("tictactoe_efficientzero_bot_mode", marks=pytest.mark.soak),
        pytest.param("cartpole_unizero", marks=pytest.mark.soak),
        pytest.param("pendulum_cont_sampled_muzero", marks=pytest.mark.soak),
        "muzero segments",
        *(pytest.param(case, marks=pytest.mark.soak) for case in CASES if case != "muzero segments"),
    ],
)  # fmt: skip
def test_degree_0_is_lightzeros_serial_entry_bit_by_bit(config: str, tmp_path: Path) -> None:
    updates = "25" if config in CASES else "50"
    serial, own = (program(config, how, updates, "w", folder=tmp_path) for how in ("serial", "ours"))
    assert len(set(serial)) == len(serial) >= int(updates)
    different = [number for number, (one, other) in enumerate(zip(serial, own, strict=True)) if one != other]
    assert not different, f"the weights differ from update {different[0]} on"


@pytest.mark.parametrize(
    ("config", "degree"), [("cartpole_muzero", "2"), ("tictactoe_sampled_alphazero_bot_mode", "1")]
)
def test_a_config_runs_as_processes_with_the_published_weights_within_the_bound(
    config: str, degree: str, tmp_path: Path
) -> None:
    done = run_command(
        [sys.executable, "-m", "tests.lightzero.conformance", "--one", config, degree], capture_output=True, text=True,
        cwd=tmp_path, timeout=280, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["staleness_max"] <= int(degree)


def test_a_run_that_is_killed_goes_on_where_its_checkpoint_is_and_lightzero_loads_what_it_wrote(tmp_path: Path) -> None:
    run = [
        *LIGHTZERO,
        "cartpole_muzero",
        "--exp_name",
        "run",
        "--num_collectors",
        "2",
        "--checkpoint_seconds",
        "0.01",
        *SMALL,
    ]
    with Command([*run, "--set", "policy.eval_freq=8"], cwd=tmp_path, stdout=-1, stderr=-2, text=True) as process:
        assert process.stdout is not None
        evaluations = 0
        while evaluations < 3:  # the one before the first train, and two more, 8 updates apart
            line = process.stdout.readline()
            assert line, "the run ended"
            evaluations += line.startswith("evaluation")
        roles = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.close()
    assert ended(roles, 30)
    done = lightzero("--resume", "run", "--max_train_iter", "60", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    batches, steps = trained(tmp_path / "run")
    assert max(Counter(batches).values()) == 1, "a batch was trained twice"
    assert steps == summary["counts"]["steps trained"]
    assert summary["statistics"]["staleness_max"] <= 2 and summary["counts"]["updates"] >= 60
    assert summary["ended_by"] == "max_train_iter"
    assert "resumed from" in done.stdout and "Overlap makes it at most" in done.stdout
    assert (tmp_path / "run" / "total_config.py").is_file() and list((tmp_path / "run" / "log" / "serial").iterdir())
    played = run_command(
        [sys.executable, "-m", "lzero_async", "play", "run", "--weights", "best", "--episodes", "2"], capture_output=True,
        text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert played.returncode == 0 and "mean" in played.stdout, played.stderr[-2000:]
    check = (
        "from tests.lightzero.small import captured, shrink; from lzero.entry import eval_muzero; "
        "call = shrink(captured('cartpole_muzero'), env_manager='base'); call.main.exp_name = 'e'; "
        "print(eval_muzero([call.main, call.create], model_path='run/ckpt/ckpt_best.pth.tar')[0])"
    )
    loaded = run_command(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr[-2000:]


@pytest.mark.parametrize("degree", [0, 1])
def test_the_drop_in_functions_return_the_trained_policy_and_resume_with_new_limits(
    degree: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from lzero_async.lightzero import train_muzero
    from lzero_async.lightzero.parts import digest_of
    from lzero_async.lightzero.silence import quiet
    from lzero_async.runs import checkpoint
    from tests.lightzero.small import captured, shrink

    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(2)
    call = shrink(captured("cartpole_muzero"), env_manager="base", off_policy_degree=degree)
    call.main.exp_name = "run"
    options = dict(plain=True, report=False, trace=False, threads=1)
    with quiet():
        first = train_muzero([call.main, call.create], seed=1, max_train_iter=5, **options)
        policy = train_muzero([call.main, call.create], max_train_iter=15, resume="run", plain=True)
    assert torch.get_num_threads() == (
        2 if degree else 1
    )  # --threads holds where the roles are, which is here at degree 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["counts"]["updates"] == 15 and summary["statistics"]["off_policy_degree"] == degree
    from lzero_async.lightzero.learner import KIND

    saved = checkpoint.load(tmp_path / "run" / "ckpt" / "last.safetensors", KIND)["learner"]["policy"]["model"]
    assert (
        digest_of(policy._collect_model.state_dict())
        == digest_of(saved)
        != digest_of(first._collect_model.state_dict())
    )


def test_what_is_defined_in_the_program_itself_is_refused_where_roles_have_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from ding.utils import ENV_REGISTRY\n"
        "from zoo.classic_control.cartpole.config.cartpole_muzero_config import main_config, create_config\n"
        "from zoo.classic_control.cartpole.envs.cartpole_lightzero_env import CartPoleEnv\n"
        "@ENV_REGISTRY.register('mine')\n"
        "class Mine(CartPoleEnv):\n"
        "    pass\n"
        "create_config.env = dict(type='mine', import_names=[])\n"
        "if __name__ == '__main__':\n"
        "    from lzero.entry.train_muzero import train_muzero\n"
        "    train_muzero([main_config, create_config])\n"
    )
    done = lightzero("mine.py", "--exp_name", "run", folder=tmp_path)
    assert done.returncode == 2 and "Mine is defined in the program itself" in done.stderr, done.stderr[-2000:]


def test_what_cannot_be_run_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1\n")
    (tmp_path / "absent.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "keyword.py").write_text(
        "from zoo.classic_control.cartpole.config.cartpole_muzero_config import main_config, create_config\n"
        "from lzero.entry import train_muzero\n"
        "train_muzero([main_config, create_config], of_policy_degree=1)\n"
    )
    for words, said in {
        ("cartpole_muzer",): "did you mean cartpole_muzero?",
        (): "No config is named",
        ("nothing.py",): "calls none of LightZero's train functions",
        ("cartpole_stochastic_muzero",): "LightZero 0.2.0 itself cannot run this config",
        ("cartpole_muzero", "--set", "policy.batchsize=3"): "did you mean policy.batch_size?",
        ("cartpole_muzero", "--off_policy_degree", "two"): "must be a whole number",
        ("cartpole_muzero", "--resume", "run"): "keeps its config",
        ("--resume", "run"): "There is no checkpoint",
        ("cartpole_muzero", "--of_policy_degree", "4"): "did you mean --off_policy_degree?",
        ("cartpole_muzero", "--lr", "4"): "does not name it",
        ("--env", "X", "atari_muzero"): "put CONFIG before them",
        ("absent.py",): "needs a_package_that_is_not_there",
        ("keyword.py",): "did you mean off_policy_degree?",
        ("os.path",): "There is no config",
        ("cartpole_muzero", "--set", "policy.off_policy_degree=3"): "give it as --off_policy_degree 3",
        ("cartpole_muzero", "--set", "policy.random_collect_episode_num=8"): "does not take the timestep",
        ("cartpole_muzero", "--set", "policy.n_episode=2"): "raise policy.n_episode or lower env.collector_env_num",
        ("cartpole_unizero", "--set", "policy.use_priority=true"): "does not say the priorities",
        (
            "cartpole_muzero",
            "--set",
            "env.manager.shared_memory=maybe",
            "--set",
            "policy.cuda=7x",
        ): "give a value like that",
    }.items():
        done = lightzero(*words, folder=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) in ((2, 2), (2, 1)), (words, done.stderr)
        assert said in done.stderr and "Traceback" not in done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["absent.py", "keyword.py", "nothing.py"]


def test_the_configs_own_flags_and_loops_reach_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import argparse, runpy, sys\n"
        "from easydict import EasyDict\n"
        "from zoo.classic_control.cartpole.config.cartpole_muzero_config import main_config, create_config\n"
        "if __name__ == '__main__':\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--the-name', dest='name')\n"
        "    name = parser.parse_args().name\n"
        "    from lzero.entry import train_muzero\n"
        "    for seed in (1, 2):\n"
        "        main_config.exp_name = f'{name}_seed{seed}'\n"
        "        print(type(train_muzero([main_config, create_config], seed=seed, max_train_iter=4)).__name__)\n"
    )
    words = ["mine.py", "--the-name", "here", "--off_policy_degree", "0", "--report", "false", *SMALL]
    done = lightzero(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for seed in (1, 2):
        assert json.loads((tmp_path / f"here_seed{seed}" / "options.json").read_text())["seed"] == seed


def test_the_list_names_every_config_of_the_zoo_and_whether_it_runs(tmp_path: Path) -> None:
    done = lightzero("--list", folder=tmp_path)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert done.returncode == 0 and len(lines) > 80
    assert lines["cartpole_unizero"].split() == ["cartpole_unizero", "train_unizero", "unizero", "CartPole-v0", "runs"]
    assert "broken upstream" in lines["cartpole_stochastic_muzero"]
    assert "needs" in lines["lunarlander_disc_muzero"] or "runs" in lines["lunarlander_disc_muzero"]


@pytest.mark.parametrize("place", ["lzero.entry", "lzero_async.lightzero"])
def test_flags_reach_a_config_whatever_it_imports_its_entry_from(place: str, tmp_path: Path) -> None:
    """Also keywords of ours and limits that are None; and the config gets the trained policy back."""
    (tmp_path / "mine.py").write_text(
        f"from {place} import train_muzero\n"
        "from zoo.classic_control.cartpole.config.cartpole_muzero_config import main_config, create_config\n"
        "if __name__ == '__main__':\n"
        "    more = dict(max_env_step=None, num_collectors=2, off_policy_degree=2)\n"
        "    policy = train_muzero([main_config, create_config], seed=3, **more)\n"
        "    print('weights:', len(policy.learn_mode.state_dict()['model']))\n"
    )
    words = ["mine.py", "--off_policy_degree", "0", "--num_collectors", "1", "--seed", "5", "--exp_name", "given",
             "--max_train_iter", "4", "--report", "false", *SMALL]  # fmt: skip
    done = lightzero(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    options = json.loads((tmp_path / "given" / "options.json").read_text())
    assert (options["seed"], options["off_policy_degree"], options["num_collectors"]) == (5, 0, 1)
    assert "weights: " in done.stdout and "evaluation at 0 environment steps, 0 updates" in done.stderr


def test_ctrl_c_of_a_terminal_ends_a_run_in_turn_whose_environments_are_processes(tmp_path: Path) -> None:
    """A terminal sends it to all of them: the environments are not to die before the run has ended in order."""
    words = [
        "cartpole_muzero",
        "--exp_name",
        "run",
        "--off_policy_degree",
        "0",
        *SMALL,
        "--set",
        "env.manager.shared_memory=false",
    ]
    process = Command([*LIGHTZERO, *words], cwd=tmp_path, stdout=-1, stderr=-1, text=True, start_new_session=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "Overlap makes it at most" in line:
            os.killpg(process.pid, signal.SIGINT)
            break
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, (said, errors[-2000:])
    assert "Traceback" not in errors and "ending in order" in errors and "ended by: SIGINT" in output
    assert (tmp_path / "run" / "report.html").is_file() and (tmp_path / "run" / "ckpt" / "last.safetensors").is_file()


def test_a_run_that_goes_on_in_another_folder_takes_its_best_weights_along(tmp_path: Path) -> None:
    words = [
        "cartpole_muzero",
        "--exp_name",
        "one",
        "--off_policy_degree",
        "0",
        "--max_train_iter",
        "4",
        "--report",
        "false",
    ]
    assert lightzero(*words, *SMALL, folder=tmp_path).returncode == 0
    done = lightzero("--resume", "one", "--exp_name", "two", "--max_train_iter", "8", "--plain", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("best.safetensors", "ckpt_best.pth.tar"):
        assert (tmp_path / "two" / "ckpt" / name).read_bytes() == (tmp_path / "one" / "ckpt" / name).read_bytes()
    best = [json.loads((tmp_path / name / "summary.json").read_text())["score"]["best"] for name in ("one", "two")]
    assert best[0] == best[1]
