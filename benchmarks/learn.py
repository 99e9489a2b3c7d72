"""Does it learn? Trains the embedded preset on the shipped game with several seeds and draws the curves.

    python -m benchmarks.learn                    (make learn)
    python -m benchmarks.learn --seeds 0 --minutes 10

Each seed is one run of priorzero_entry.py, at most --minutes long, in runs/learn/seed-N. A second call goes on where the
first one was stopped, and does nothing for seeds that have ended. Scores, baselines and the command go to
benchmarks/results/learn.json, the picture to docs/learning.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lzero_async.runs.summary import is_finished, read_results

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"
RESULTS = ROOT / "benchmarks" / "results" / "learn.json"
PICTURE = ROOT / "docs" / "learning.png"
BAR = 0.5  # of the maximum score, the mean of the seeds' last evaluations


def main() -> int:
    """Train what is not trained yet, then write and draw; 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="of training at most, per seed (default %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="seeds at once, one core each (default %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("runs/learn"))
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="SECTION.OPTION=VALUE")
    parser.add_argument("--draw_only", action="store_true", help="only write and draw what is there")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the seeds end with us, and in order
    if not args.draw_only:
        train(args.seeds, args.minutes, args.jobs, args.folder, args.assignments)
    runs = {seed: read(args.folder / f"seed-{seed}") for seed in args.seeds}
    baselines = json.loads((ROOT / "benchmarks" / "results" / "game_baselines.json").read_text())
    summary = summarise(runs, baselines)
    if args.draw_only or not args.assignments:
        RESULTS.write_text(json.dumps(summary, indent=2) + "\n")
        draw(runs, baselines, PICTURE)
    print(json.dumps({key: value for key, value in summary.items() if key != "curves"}, indent=2))
    return 0 if summary["met"] else 1


def train(seeds: list[int], minutes: float, jobs: int, folder: Path, assignments: list[str]) -> None:
    """Run the seeds that have not ended, `jobs` at a time, each in a process of its own with a log file."""
    waiting = [seed for seed in seeds if not ended(folder / f"seed-{seed}")]
    running: dict[int, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                seed = waiting.pop(0)
                running[seed] = start(seed, minutes, folder / f"seed-{seed}", assignments)
                print(f"seed {seed}: training, see {folder}/seed-{seed}.log", flush=True)
            seed, process = next(iter(running.items()))
            for other in list(running):
                if running[other].poll() is not None:
                    seed, process = other, running[other]
            try:
                code = process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                continue
            del running[seed]
            if code:
                raise SystemExit(f"seed {seed} ended with code {code}; its log is {folder}/seed-{seed}.log")
            print(f"seed {seed}: done", flush=True)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def ended(folder: Path) -> bool:
    """Whether a run came to its own end, with a last evaluation."""
    return is_finished(folder) and bool(read_results(folder)["final_evaluation"])


def start(seed: int, minutes: float, folder: Path, assignments: list[str]) -> subprocess.Popen:
    """One seed's run, new or resumed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    spent, resume = 0.0, []
    if (folder / "ckpt" / "last.safetensors").is_file():
        spent, resume = seconds_spent(folder), ["--resume"]
    else:
        shutil.rmtree(folder, ignore_errors=True)  # it ended before its first checkpoint
    left = max(1.0, 60 * minutes - spent)
    settings = [f"run_config.max_seconds={left:.0f}", "run_config.max_env_step=0", *assignments]
    command = [sys.executable, str(ENTRY), "--seed", str(seed), "--exp_name", str(folder), *resume]
    command += [word for setting in settings for word in ("--set", setting)]
    with (folder.parent / f"seed-{seed}.log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def seconds_spent(folder: Path) -> float:
    """Seconds that a stopped run has collected, trained and evaluated, from its checkpoint."""
    from lzero_async.runs import checkpoint
    from zoo.jericho.priorzero.learn.saving import CHECKPOINT

    sums = checkpoint.load(folder / "ckpt" / "last.safetensors", CHECKPOINT)["coordinator"]["statistics"]["sums"]
    return float(sum(sums[f"{stage}_total_time"] for stage in ("collect", "train", "eval")))


def read(folder: Path) -> dict[str, Any]:
    """A finished run's results."""
    return read_results(folder)


def summarise(runs: dict[int, dict[str, Any]], baselines: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of the bar: each seed's last evaluations beside chance and the language model alone."""
    highest = next(iter(runs.values()))["max_score"]
    final = {seed: {row["mode"]: row["mean"] for row in run["final_evaluation"]} for seed, run in runs.items()}
    mean = float(np.mean([row["prior"] for row in final.values()]))
    alone = [row["mean_score"] for row in baselines if row["mode"] == "llm"]
    return {
        "game": next(iter(runs.values()))["game"],
        "md5": next(iter(runs.values()))["story_file_md5"],
        "max_score": highest,
        "final_scores": final,
        "mean_final_score": mean,
        "bar": BAR * highest,
        "met": mean >= BAR * highest,
        "best_evaluation": {seed: run["best"]["score"] for seed, run in runs.items()},
        "random_play": next(row["mean_score"] for row in baselines if row["mode"] == "random"),
        "llm_alone": max(alone),
        "minutes": {seed: minutes(run["statistics"]) for seed, run in runs.items()},
        "env_steps": {seed: run["env_steps"] for seed, run in runs.items()},
        "updates": {seed: run["updates"] for seed, run in runs.items()},
        "curves": {
            seed: [[row["env_steps"], row["mean"]] for row in run["evaluations"] if row["mode"] == "prior"]
            for seed, run in runs.items()
        },
    }


def minutes(statistics: dict[str, Any]) -> float:
    """What collecting, training and evaluating took together."""
    return sum(statistics[f"{stage}_total_time"] for stage in ("collect", "train", "eval")) / 60


def draw(runs: dict[int, dict[str, Any]], baselines: list[dict[str, Any]], path: Path) -> None:
    """Score of every evaluation over environment steps, with the baselines as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    highest = next(iter(runs.values()))["max_score"]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150)
    for seed, run in runs.items():
        rows = [row for row in run["evaluations"] if row["mode"] == "prior"]
        axes.plot([row["env_steps"] for row in rows], [row["mean"] for row in rows], marker=".", label=f"seed {seed}")
    for mode, name, colour in (
        ("llm", "LLM alone (best temperature)", "tab:red"),
        ("random", "random play", "tab:gray"),
    ):
        score = max(row["mean_score"] for row in baselines if row["mode"] == mode)
        axes.axhline(score, color=colour, linestyle="--", linewidth=1, label=f"{name}: {score:.1f}")
    axes.axhline(
        BAR * highest, color="black", linestyle=":", linewidth=1, label=f"half of the maximum: {BAR * highest:.0f}"
    )
    axes.set(xlabel="environment steps", ylabel=f"evaluation score (of {highest})", ylim=(-2, highest + 2))
    axes.set_title(f"{next(iter(runs.values()))['game']}: PriorZero, embedded preset, degree 0")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
