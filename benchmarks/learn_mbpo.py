"""Do all three trainers of MBPO learn? Trains Pendulum with three seeds each, every run to 15,000 collected real steps.

    python -m benchmarks.learn_mbpo                  (make learn-mbpo)
    python -m benchmarks.learn_mbpo --parallel 2     two runs at once: sooner done, but every run is slower
    python -m benchmarks.learn_mbpo --trainers sync --seeds 10 11
    python -m benchmarks.learn_mbpo --draw_only      draw what is there

--print_commands shows how to make one run by hand. Runs are kept in runs/learn_mbpo. One that is finished is not repeated, and
one that was interrupted goes on from its last checkpoint, so a call that was interrupted is simply made again. Every run may
take eight minutes, resumes included. Evaluations are of 50 episodes with the most likely actions, about every 1,000 real steps.
A run has learned when one of them has a mean return of at least -200; it is not stopped there. Numbers go to
benchmarks/results/learn_mbpo.json, the picture to docs/learning-mbpo.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._mbpo_runs import ROOT, log_of, start, words_of
from lzero_async.runs.run_dir import LAST_CHECKPOINT
from lzero_async.runs.summary import is_finished, read_results

RESULTS = ROOT / "benchmarks" / "results" / "learn_mbpo.json"
PICTURE = ROOT / "docs" / "learning-mbpo.png"
FOLDER = ROOT / "runs" / "learn_mbpo"
TARGET = -200.0
STEPS = 15_000
MINUTES = 8.0
TRAINING = 0.95  # the share of them that a run may train for; starting and the last evaluation take the rest
# A batch is 200 transitions in sync and batch and 100 in continuous, whose two collectors wait rather than drop: every real step
# is learned from, and the policy that made it is at most two batches old. All three evaluate every 1,000 transitions.
COMMON = {
    "env": "Pendulum-v1", "num_envs": 8, "max_steps": STEPS, "random_steps": 1_000,
    "eval_episodes": 50, "device": "cpu", "trace": False,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"num_steps_per_env": 25, "torch_threads": 1, "eval_every": 5, "checkpoint_every": 5},
    "batch": {"num_steps_per_env": 25, "batch_queue_size": 2, "eval_every": 5, "checkpoint_every": 5},
    "continuous": {
        "num_collectors": 2, "collection_batch_size": 100, "max_queue_size": 200, "when_full": "wait", "max_train_ahead": 0,
        "eval_every": 10, "checkpoint_every": 10,
    },
}  # fmt: skip
COLOURS = {"sync": "tab:blue", "batch": "tab:orange", "continuous": "tab:green"}
INTERRUPTED = 130


def main() -> int:
    """Train what is not trained yet, then write and draw; 1 if a finished run did not learn."""
    args = parse()
    wanted = [
        (trainer, seed) for seed in args.seeds for trainer in args.trainers
    ]  # so that a part of them is a fair part
    if args.print_commands:
        for trainer, seed in wanted:
            place = args.folder / f"{trainer}-seed-{seed}"
            print("python zoo/mbpo/train.py", *words_of({**options(trainer, seed), "exp_name": place}))
        return 0
    if not args.draw_only:
        train_all(wanted, args.folder, args.parallel, args.minutes)
    runs = {trainer: [] for trainer in args.trainers}
    for trainer, seed in wanted:
        found = outcome(args.folder / f"{trainer}-seed-{seed}", trainer, seed)
        if found is not None:
            runs[trainer].append(found)
    runs = {trainer: found for trainer, found in runs.items() if found}
    if not runs:
        raise SystemExit(f"there is no finished run in {args.folder}; leave --draw_only out")
    summary = summarise(runs, args.parallel)
    args.results.write_text(json.dumps(summary, indent=1) + "\n")
    draw(runs, args.picture)
    say(runs)
    return 0 if all(trainer["met"] for trainer in summary["trainers"].values()) else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[10, 11, 12],
        help="(default: seeds that had no part in choosing the options)",
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs at once (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="a run at most (default %(default)s, at most 8)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--draw_only", action="store_true", help="only write and draw what is there")
    parser.add_argument("--print_commands", action="store_true", help="print the commands of the runs and end")
    args = parser.parse_args()
    if not 0 < args.minutes <= MINUTES:
        parser.error(f"--minutes is {args.minutes:g}; it must be above 0 and at most {MINUTES:g}")
    if args.parallel < 1:
        parser.error(f"--parallel is {args.parallel}; it must be at least 1")
    args.folder = args.folder.absolute()
    return args


# -- training --------------------------------------------------------------------------------------------------------------


def options(trainer: str, seed: int) -> dict[str, Any]:
    """The options of one run."""
    return {**COMMON, "trainer": trainer, **SETTINGS[trainer], "seed": seed}


def train_all(wanted: list[tuple[str, int]], folder: Path, parallel: int, minutes: float) -> None:
    """Make every run that is not finished; the first failure ends all."""
    with ThreadPoolExecutor(parallel) as pool:
        jobs = [
            pool.submit(train, folder / f"{trainer}-seed-{seed}", trainer, seed, minutes) for trainer, seed in wanted
        ]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # those that run end by the same Ctrl+C
            raise


def train(folder: Path, trainer: str, seed: int, minutes: float) -> None:
    """Make a run, or go on with it; nothing if it is finished."""
    if finished(folder):
        return
    spent = seconds_spent(folder)
    resumed = (folder / LAST_CHECKPOINT).is_file() and spent > 0
    if resumed:
        words = ["--resume", str(folder)]
        note_part(folder, spent)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        log_of(folder).unlink(missing_ok=True)
        words = ["--exp_name", str(folder), *words_of(options(trainer, seed))]
    print(f"{trainer}, seed {seed}: {'goes on' if resumed else 'starts'}, see {log_of(folder)}", flush=True)
    begun = time.time()
    code = start(folder, [*words, f"--max_seconds={max(1.0, 60 * minutes * TRAINING - spent):.1f}"])
    note_seconds(folder, spent + time.time() - begun)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(f"{folder} ended with code {code}; its log is {log_of(folder)}")


def finished(folder: Path) -> bool:
    """Whether a run came to its end, by steps or by time."""
    return is_finished(folder) and not read_results(folder)["ended_by"].startswith("SIG")


def seconds_spent(folder: Path) -> float:
    """Seconds that a run has taken so far; of a part that was killed, as far as its metrics tell."""
    noted, begun, metrics = (folder / name for name in ("seconds.json", "options.json", "metrics.jsonl"))
    seconds = float(json.loads(noted.read_text())) if noted.is_file() else 0.0
    if metrics.is_file() and (not noted.is_file() or metrics.stat().st_mtime > noted.stat().st_mtime):
        seconds += max(0.0, metrics.stat().st_mtime - begun.stat().st_mtime)
    return seconds


def note_seconds(folder: Path, seconds: float) -> None:
    """Remember how long a run has taken, start-up included."""
    if folder.is_dir():
        (folder / "seconds.json").write_text(json.dumps(round(seconds, 1)) + "\n")


def note_part(folder: Path, spent: float) -> None:
    """A run goes on: from its next evaluation on, `spent` seconds are missing in what it says."""
    from zoo.mbpo.saving import load_description

    evaluations = len(load_description(folder / LAST_CHECKPOINT)["history"])
    parts = folder / "parts.json"
    parts.write_text(json.dumps([*parts_of(folder), [evaluations, round(spent, 1)]]) + "\n")


def parts_of(folder: Path) -> list[list[float]]:
    """Number of the first evaluation, and seconds before it, of every part of a run but the first."""
    parts = folder / "parts.json"
    return json.loads(parts.read_text()) if parts.is_file() else []


# -- what came of it -------------------------------------------------------------------------------------------------------


def outcome(folder: Path, trainer: str, seed: int) -> dict[str, Any] | None:
    """One finished run: its curve, the first evaluation that reached the target, and its last one."""
    if not finished(folder):
        return None
    results = read_results(folder)
    curve = [
        {"steps": row["collected_steps"], "seconds": seconds, "mean_return": row["mean_return"]}
        for row, seconds in zip(
            results["evaluations"], all_seconds(results["evaluations"], parts_of(folder)), strict=True
        )
    ]
    return {
        "trainer": trainer,
        "seed": seed,
        "reached": next((point for point in curve if point["mean_return"] >= TARGET), None),
        "final": (results["final_evaluation"] or {}).get("mean_return"),
        "best": results["best"]["return"],
        "real_steps": results["collectors"]["steps"],
        "agent_updates": results["counters"]["agent_updates"],
        "dynamics_updates": results["counters"]["dynamics_updates"],
        "staleness": {name: results["statistics"][f"staleness_{name}"] for name in ("mean", "max")},
        "dropped": results["statistics"]["dropped"],
        "restarts": results["statistics"]["restarts"],
        "seconds": seconds_spent(folder),
        "ended_by": results["ended_by"],
        "curve": curve,
    }


def all_seconds(rows: list[dict[str, Any]], parts: list[list[float]]) -> list[float]:
    """The seconds of every evaluation since the run began; a run that goes on counts from 0 again."""
    before = [max((spent for first, spent in parts if first <= number), default=0.0) for number in range(len(rows))]
    return [row["seconds_at"] + spent for row, spent in zip(rows, before, strict=True)]


def summarise(runs: dict[str, list[dict[str, Any]]], parallel: int) -> dict[str, Any]:
    """Per trainer, in how many runs and after how many real steps the target was reached; then every run."""
    trainers = {}
    for trainer, found in runs.items():
        reached = [run["reached"] for run in found if run["reached"] is not None]
        trainers[trainer] = {
            "runs": len(found),
            "reached": len(reached),
            "steps_to_target": [point["steps"] for point in reached],
            "seconds_to_target": [round(point["seconds"], 1) for point in reached],
            "final_mean": float(np.mean([run["final"] for run in found])),
            "seconds": [run["seconds"] for run in found],
            "met": len(reached) == len(found)
            and all(point["steps"] <= STEPS for point in reached)
            and all(run["seconds"] <= 60 * MINUTES for run in found),
        }
    return {
        "target": TARGET,
        "steps": STEPS,
        "made": time.strftime("%Y-%m-%d"),
        "parallel": parallel,
        "settings": {trainer: {**COMMON, **SETTINGS[trainer]} for trainer in runs},
        "trainers": trainers,
        "runs": [run for found in runs.values() for run in found],
    }


def say(runs: dict[str, list[dict[str, Any]]]) -> None:
    """One line per run."""
    from lzero_async.telemetry.terminal.progress import table

    rows = [["run", f"{TARGET:g} after", "seconds then", "final", "real steps", "updates", "seconds"]]
    for run in (run for found in runs.values() for run in found):
        reached = run["reached"]
        rows.append([
            f"{run['trainer']}, seed {run['seed']}",
            "never" if reached is None else f"{reached['steps']:,}",
            "-" if reached is None else f"{reached['seconds']:.0f}",
            f"{run['final']:.1f}", f"{run['real_steps']:,}", f"{run['agent_updates']:,}", f"{run['seconds']:.0f}",
        ])  # fmt: skip
    print(table(rows), flush=True)


def draw(runs: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    """The evaluations over real steps and over seconds: seeds thin, their mean thick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), dpi=130, sharey=True)
    for axis, over in zip(axes, ("steps", "seconds"), strict=True):
        for trainer, found in runs.items():
            curves = [
                ([point[over] for point in run["curve"]], [point["mean_return"] for point in run["curve"]])
                for run in found
            ]
            for x, y in curves:
                axis.plot(x, y, color=COLOURS[trainer], alpha=0.35, linewidth=0.8)
            grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 80)
            mean = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
            axis.plot(grid, mean, color=COLOURS[trainer], linewidth=2.2, label=f"{trainer} ({len(found)} seeds)")
        axis.axhline(TARGET, color="0.4", linestyle="--", linewidth=1)
        axis.grid(alpha=0.3)
    axes[0].set(
        xlabel="real environment steps collected",
        ylabel=f"evaluation: mean return of {COMMON['eval_episodes']} episodes",
    )
    axes[1].set(xlabel="seconds")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.suptitle(f"MBPO on Pendulum-v1, two cores; thin: seeds, thick: their mean, dashed: {TARGET:g}", fontsize=10)
    figure.tight_layout()
    figure.savefig(picture)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
