"""What `make` runs, and how it finds Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

from zoo.jericho.priorzero.priorzero_config import policy_config

ROOT = Path(__file__).resolve().parents[2]


def make(*words: str, **more: str) -> str:
    """What `make` would run."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_train_is_asynchronous_and_the_program_is_not() -> None:
    command = next(line for line in make("train", "ARGS=--seed 3").splitlines() if "priorzero_entry.py" in line)
    assert "--off_policy_degree 2 --async_eval" in command
    assert command.endswith("--seed 3")
    assert policy_config["off_policy_degree"] == 0
    assert policy_config["enable_async_eval"] is False
