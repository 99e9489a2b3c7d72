"""A run on Ray whose program is killed: nothing of it is left, and it goes on from its checkpoint. That each application
runs on Ray is what the commands of docs/ray.md show."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lzero_async.runs.summary import read_results

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "zoo" / "episode_ppo" / "train.py"
SMALL = {
    "env": "CartPole-v1", "n_envs": 4, "num_workers": 2, "episodes_per_update": 4, "hidden_size": 8, "hidden_layers": 1,
    "epochs": 1, "eval_every": 0, "checkpoint_every": 2, "report": "false", "backend": "ray", "max_seconds": 120,
    "total_episodes": 0,
}  # fmt: skip


def test_a_killed_program_takes_its_cluster_along_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    folder = tmp_path / "run"
    words = [word for name, value in {**SMALL, "exp_name": folder}.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(ENTRY), *words]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert program.stdout is not None
    for line in program.stdout:
        if "Update complete" in line and "update 5," in line:
            break
    everybody = psutil.Process(program.pid).children(recursive=True)
    family = [one for one in everybody if "Agent" not in one.name()]  # Ray's agents look for their parent now and then
    assert any("raylet" in " ".join(one.cmdline()) for one in family)
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [one.name() for one in alive] == []

    resume = [sys.executable, str(ENTRY), "--resume", str(folder), "--total_episodes", "40"]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    results = read_results(folder)
    assert results["ended_by"] == "total_episodes" and results["counters"]["episodes"] >= 40
    rows = [json.loads(line)["train"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, rows[-1] + 1)) and rows[-1] >= 10
