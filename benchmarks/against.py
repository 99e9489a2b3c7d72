"""How fast this checkout is beside another revision: gate, hand-off, overlap, and the three trainers.

    make against REV=d6cf054                        10 pairs, about 40 minutes
    python -m benchmarks.against --rev d6cf054 --pairs 5 --only gate mbpo

The other revision gets a work tree in a temporary folder. Each pair runs both, in alternating order; printed are the median and
the 95 % interval (bootstrap over pairs) of "rate here / rate there": 1 is as fast, 0.95 the least that is allowed. The gate's
cycles take CPU time of one thread, which other programs disturb less. The hand-off is timed on one core: on two, one would
measure the scheduler's choice of a core. The trainers run as programs and are timed without their start; PriorZero runs without
its language model, whose time would hide everything else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "against.json"
LEAST = 0.95
GATE = """
import json, os, statistics, threading, time
from lzero_async import AsyncTrainingCoordinator
try:
    from lzero_async.core.gate import Gate
except ImportError:
    from lzero_async.gate import Gate

def stage():
    return 1

def least(step, number, blocks):
    found = []
    for _ in range(blocks):
        start = time.thread_time()
        for _ in range(number):
            step()
        found.append((time.thread_time() - start) / number)
    return min(found)

def bare():
    ticket = gate.try_collect()
    gate.commit(ticket.id)
    gate.start_train()
    gate.finish_train()
    gate.publish()

def cycle():
    coordinator.run_collect(stage)
    coordinator.run_train(stage)

def hand_off():
    pair = AsyncTrainingCoordinator(0)
    rounds = 500
    def play(pass_through):
        for _ in range(rounds):
            pass_through(stage)
    threads = [threading.Thread(target=play, args=(one,)) for one in (pair.run_collect, pair.run_train)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - start) / rounds

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
gate, coordinator = Gate(2), AsyncTrainingCoordinator(2)
print(json.dumps({
    "bare gate cycle": 1 / least(bare, 2000, 40),
    "gate cycle": 1 / least(cycle, 1000, 40),
    "hand-off": 1 / statistics.median(hand_off() for _ in range(20)),
}))
"""
OVERLAP = """
import json, time
from lzero_async import AsyncTrainingCoordinator

def collect(context):
    time.sleep(0.02)
    return 1

def train(batch):
    time.sleep(0.02)

with AsyncTrainingCoordinator(2) as coordinator:
    start = time.perf_counter()
    coordinator.run(collect, train, max_train=150, print_statistics=False)
    print(json.dumps({"overlap": 150 / (time.perf_counter() - start)}))
"""
PROGRAMS = {
    "priorzero": [
        "zoo/jericho/priorzero/priorzero_entry.py", "--quick_test", "--off_policy_degree", "2",
        "--set", "llm_config.root_policy=wm_logits", "--set", "run_config.max_iter=16", "--set", "run_config.eval_every=0",
        "--set", "run_config.eval_modes=[]", "--set", "run_config.final_eval_modes=[]",
    ],
    "mbpo": [
        "zoo/mbpo/train.py", "--num_envs", "8", "--num_steps_per_env", "25", "--batch_queue_size", "2", "--max_seconds", "15",
        "--eval_every", "0",
    ],
    "episode_ppo": [
        "zoo/episode_ppo/train.py", "--env", "CartPole-v1", "--n_envs", "16", "--episodes_per_update", "50",
        "--max_seconds", "15", "--eval_every", "0",
    ],
}  # fmt: skip


def python(checkout: Path, *words: str) -> str:
    """What a Python of this environment prints, with the library and zoo of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} failed in {checkout}:\n{done.stderr[-2000:]}")
    return done.stdout


def trainer(name: str) -> Callable[[Path], dict[str, float]]:
    """Samples per second of one trainer's run, without its start."""

    def measure(checkout: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            python(checkout, *PROGRAMS[name], "--exp_name", str(run))
            summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
        axis = summary["axis"]
        return {f"{name}: {axis} per second": summary["counts"][axis] / summary["statistics"]["wall_time"]}

    return measure


MEASURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "gate": lambda checkout: dict(json.loads(python(checkout, "-c", GATE))),
    "overlap": lambda checkout: dict(json.loads(python(checkout, "-c", OVERLAP))),
    **{name: trainer(name) for name in PROGRAMS},
}


@contextmanager
def work_tree(revision: str) -> Iterator[Path]:
    """Another revision of this repository in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(place), revision], cwd=ROOT, check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def interval(found: list[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(found, k=len(found))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main() -> int:
    """Measure, print and keep the ratios; 1 if this checkout is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rev", required=True, help="the revision to compare with")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs (default: 10)")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="what to measure")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    with work_tree(options.rev) as other:
        for pair in range(options.pairs):
            order = (ROOT, other) if pair % 2 else (other, ROOT)
            for name in options.only:
                rates = {checkout: MEASURES[name](checkout) for checkout in order}
                for (what, mine), theirs in zip(rates[ROOT].items(), rates[other].values(), strict=True):
                    ratios.setdefault(what, []).append(mine / theirs)
            print(f"pair {pair + 1} of {options.pairs}", file=sys.stderr, flush=True)
    rows = {what: (statistics.median(found), *interval(found)) for what, found in ratios.items()}
    print(f"{'speed against ' + options.rev:<55}{'median':>9}{'95 % interval':>18}{'bar':>9}")
    for what, (median, low, high) in rows.items():
        print(f"{what:<55}{median:>9.3f}{f'{low:.3f} to {high:.3f}':>18}{f'>= {LEAST}':>9}")
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[options.rev] = {
        **kept.get(options.rev, {}),
        **{what: {"median": row[0], "interval": row[1:], "ratios": ratios[what]} for what, row in rows.items()},
    }
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(row[0] < LEAST for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
