"""Does the language model learn to play? Trains it with the world model on the shipped game, and plays without any search.

    python -m benchmarks.learn_llm                        (make learn-llm) three seeds, at most 60 minutes each, one at a time
    python -m benchmarks.learn_llm --seeds 0 --minutes 20 --jobs 2
    python -m benchmarks.learn_llm --only_report          print and draw what is there

Each seed is one run of priorzero_entry.py (TRAINING) in runs/learn-llm/seed-N, from the shipped SmolLM2-135M-Instruct. Afterwards
the language model alone plays 40 episodes at temperature 0.25, without search and world model, as it is now and as it was at
first, with the same seeds; and the game's walkthrough says how often it likes the right action best. `held out` is its agreement
with what the search visited most in prompts that were never trained on (llm_holdout), over the run's last trains.

Finished seeds are kept in benchmarks/results/llm_learning and not repeated. The picture is docs/learning-llm.png.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"
RESULTS = ROOT / "benchmarks" / "results" / "llm_learning"
PICTURE = ROOT / "docs" / "learning-llm.png"
TRAINING = (
    "--llm_train", "distill", "--off_policy_degree", "2", "--prior_temperature", "1", "--repeatable_prior", "false",
    "--llm_warmup", "30", "--llm_every", "2", "--llm_updates", "24", "--llm_batch_size", "4", "--llm_learning_rate",
    "1e-3", "--llm_holdout", "0.1", "--eval_every", "10", "--eval_modes", "llm", "--eval_episodes", "4",
    "--final_eval_modes", "[]", "--checkpoint_every", "10", "--max_env_steps", "0",
)  # fmt: skip
EPISODES = 40
LAST = 20  # trains whose held-out prompts count
BARS = {"alone": 60.0, "held_out": 0.8}


def train(seed: int, options: argparse.Namespace) -> str:
    """One run and what its language model can do then; what to say of it."""
    folder = options.folder / f"seed-{seed}"
    began = time.monotonic()
    resumed = ["--resume", str(folder)] if (folder / "ckpt" / "last.safetensors").is_file() else []
    words = resumed or ["--exp_name", str(folder), "--seed", str(seed), *TRAINING, *options.more]
    words += ["--max_seconds", f"{options.minutes * 60:g}", "--plain"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"seed-{seed}.out").open("a") as output:
        code = subprocess.run(
            [sys.executable, str(ENTRY), *words], stdout=output, stderr=output, check=False
        ).returncode
    if code:
        return f"FAILED: seed {seed} ended with code {code}; see {folder.parent / f'seed-{seed}.out'}"
    seconds = time.monotonic() - began
    found = json.loads(subprocess.run(
        [sys.executable, "-m", "benchmarks.learn_llm", "--look", str(folder)], stdout=subprocess.PIPE, check=True, cwd=ROOT
    ).stdout.splitlines()[-1])  # fmt: skip
    kept = {
        "seed": seed,
        "minutes": options.minutes,
        "wall_seconds": seconds,
        "training": [*TRAINING, *options.more],
        **found,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path(options.results, seed).write_text(json.dumps(kept) + "\n")
    return f"seed {seed}: alone {found['alone']:.1f}, before {found['before']:.1f}, held out {found['held_out']:.2f}"


def path(results: Path, seed: int) -> Path:
    """Where a finished seed is kept."""
    return results / f"seed-{seed}.json"


def look(folder: Path) -> dict[str, Any]:
    """What the language model of a finished run can do."""
    from lzero_async import load_policy

    found: dict[str, Any] = {}
    for name, mode in (("alone", "llm"), ("before", "llm_frozen")):
        with load_policy(folder, "last", mode=mode) as policy:
            scores = [episode.score for episode in policy.play(EPISODES, seed=1_000)]
            found |= {name: statistics.fmean(scores), f"{name}_scores": scores}
            if name == "alone":
                found["walkthrough"] = along_the_walkthrough(policy, frozen=False)
                found["walkthrough_before"] = along_the_walkthrough(policy, frozen=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "llm/version" in row]
    held = [(row["llm/top1_held_out"], row["llm/held_out"]) for row in trained if "llm/top1_held_out" in row][-LAST:]
    values, weights = zip(*held, strict=True) if held else ((float("nan"),), (1.0,))
    held_out = float(np.average(values, weights=weights))
    summary = json.loads((folder / "summary.json").read_text())
    names = (
        "llm/version",
        "llm/top1",
        "llm/distill_loss",
        "llm/top1_held_out",
        "prior/top1",
        "prior/kl",
        "learner/staleness",
    )
    return {
        **found, "held_out": held_out,
        "curve": [[row["collector/env_steps"], *(row.get(name) for name in names)] for row in rows],
        "evaluations": [[row["env_steps"], row["seconds"], row["mean"]] for row in summary["evaluations"]],
        "staleness_max": summary["statistics"]["staleness_max"], "llm": summary["results"]["llm"],
        "steps": summary["counts"]["steps trained"], "trains": summary["statistics"]["train_count"],
        "seconds": summary["seconds"] + summary["earlier_seconds"],
    }  # fmt: skip


def along_the_walkthrough(policy: Any, *, frozen: bool) -> float:
    """How often the prior likes the walkthrough's next action best."""
    from zoo.jericho.priorzero.games.files import SHIPPED_FOLDER
    from zoo.jericho.priorzero.llm.prior import PriorRequest

    role = policy._evaluator
    role.parts.use_llm(None if frozen else role._llm)
    env, right, asked = policy.new_env(), 0, 0
    try:
        obs = env.reset()
        for command in (SHIPPED_FOLDER / "walkthrough.txt").read_text().split("\n")[:-1]:
            actions = tuple(obs["valid_actions"])
            (prior,) = role.parts.prior([PriorRequest(obs["state"], actions)])
            right, asked = right + (actions[int(prior.argmax())] == command), asked + 1
            obs = env.step(actions.index(command)).obs
    finally:
        env.close()
        role.parts.use_llm(role._llm)
    return right / max(1, asked)


def report(results: Path, seeds: list[int], picture: Path) -> int:
    """The table and the picture; 1 if a bar is missed."""
    runs = [json.loads(path(results, seed).read_text()) for seed in seeds if path(results, seed).is_file()]
    if not runs:
        print(f"there is no finished seed in {results}")
        return 1
    print(f"{'seed':>5}{'minutes':>9}{'steps':>8}{'trains':>8}{'LLM trains':>11}{'alone':>8}{'before':>8}{'held out':>10}"
          f"{'walkthrough':>13}{'before':>8}{'staleness':>11}{'of the LLM':>11}")  # fmt: skip
    for run in runs:
        print(
            f"{run['seed']:>5}{run['seconds'] / 60:>9.0f}{run['steps']:>8.0f}{run['trains']:>8}{run['llm']['version']:>11}"
            f"{run['alone']:>8.1f}{run['before']:>8.1f}{run['held_out']:>10.2f}{run['walkthrough']:>13.2f}"
            f"{run['walkthrough_before']:>8.2f}{run['staleness_max']:>11}{run['llm']['oldest']:>11}"
        )
    middle = {name: statistics.median(run[name] for run in runs) for name in BARS}
    met = all(run[name] >= bar for run in runs for name, bar in BARS.items())
    print(
        "; ".join(f"{name}: median {middle[name]:.2f}, bar {bar:g}" for name, bar in BARS.items()),
        "met" if met else "MISSED",
    )
    draw(runs, picture)
    return 0 if met else 1


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """The language model alone over time, and its agreement with the search."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), dpi=130)
    for run in runs:
        left.plot(
            [row[1] / 60 for row in run["evaluations"]],
            [row[2] for row in run["evaluations"]],
            label=f"seed {run['seed']}",
        )
        rows = [row for row in run["curve"] if row[1] is not None]
        right.plot([row[0] for row in rows], [row[2] for row in rows], label=f"seed {run['seed']}: trained prompts")
        held = [(row[0], row[4]) for row in rows if row[4] is not None]
        right.plot(*zip(*held, strict=True), ":", label=f"seed {run['seed']}: held out") if held else None
    left.set(xlabel="minutes", ylabel="score of 100, language model alone", ylim=(0, 105))
    right.set(xlabel="environment steps", ylabel="agreement with the search's visits", ylim=(0, 1.02))
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle("SmolLM2-135M learns beside the world model (degree 2, two cores)", fontsize=10)
    figure.tight_layout()
    figure.savefig(picture)


def main() -> int:
    """Train what is not trained yet, then print and draw; 1 if a run failed or a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of training at most, per seed (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("runs/learn-llm"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--only_report", "--only-report", action="store_true", help="print and draw what is there")
    parser.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("more", nargs="*", help="further options of the runs, behind --")
    options = parser.parse_args()
    if options.look:
        print(json.dumps(look(options.look)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = [seed for seed in options.seeds if not options.only_report and not path(options.results, seed).is_file()]
    failed = False
    with ThreadPoolExecutor(options.jobs) as pool:
        for words in pool.map(lambda seed: train(seed, options), wanted):
            print(words, flush=True)
            failed |= words.startswith("FAILED")
    return report(options.results, options.seeds, options.picture) or int(failed)


if __name__ == "__main__":
    sys.exit(main())
