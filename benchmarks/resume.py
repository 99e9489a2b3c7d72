"""A run that is killed and resumed against one that is not: 20 trains straight, and 10 + kill -9 + resume + 10, at degree 0.

Both are real runs of priorzero_entry.py in their own processes, with the default language model and short episodes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from benchmarks.harness import Bar

ENTRY = Path(__file__).resolve().parents[1] / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"
TRAINS, KILL_AFTER = 20, 10
SETTINGS = (
    "env_config.max_steps=16", "env_config.collector_env_num=4", "policy_config.n_episode=4",
    "policy_config.update_per_collect=5", "policy_config.num_simulations=8", "policy_config.dropout=0.1",
    "run_config.checkpoint_every=5", "run_config.eval_every=10", "run_config.eval_episodes=1",
    "run_config.final_eval_modes=[]", "run_config.max_env_step=0",
)  # fmt: skip
TIMED = ("learner/updates_per_second", "collector/steps_per_second")


def bars() -> list[Bar]:
    return [
        Bar("trains whose losses differ after kill -9 and resume, of 20", 0, False, lambda: measure()["different"], 1),
        Bar("trains that the killed run had made beyond its checkpoint", None, True, lambda: measure()["lost"], 1),
    ]


@lru_cache(maxsize=1)
def measure() -> dict[str, float]:
    """How many of the trains differ in any number that is not a time."""
    with tempfile.TemporaryDirectory() as folder:
        straight, broken = Path(folder) / "straight", Path(folder) / "broken"
        subprocess.run(command(straight), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process = subprocess.Popen(command(broken), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if f" trains {KILL_AFTER + 2}/" in line:
                process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        lost = len(rows(broken)) - KILL_AFTER
        subprocess.run([*command(broken), "--resume"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        one, other = rows(straight), rows(broken)
        assert len(one) == len(other) == TRAINS
        return {"different": sum(a != b for a, b in zip(one, other, strict=True)), "lost": lost}


def command(folder: Path) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return [sys.executable, str(ENTRY), "--exp_name", str(folder), "--max_iter", str(TRAINS), *settings]


def rows(folder: Path) -> list[dict]:
    """metrics.jsonl without the rates."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMED} for line in lines]


if __name__ == "__main__":
    print(measure())
