"""Does whole-episode PPO learn with both collectors? CartPole to a mean return of 475, and network attacks, three seeds each.

    python -m benchmarks.learn_episode_ppo                  (make learn-episode-ppo)
    python -m benchmarks.learn_episode_ppo --tasks cartpole --collectors async --seeds 10
    python -m benchmarks.learn_episode_ppo --draw_only      draw what is there

--print_commands shows how to make one run by hand. Runs are kept in runs/learn_episode_ppo. One that is finished is not repeated
and one that was interrupted is made anew, so a call that was interrupted is simply made again. Every run may take eight
minutes. Evaluations are of 50 episodes with the most likely actions.

CartPole has 16 environments and 50 episodes per update, and ends with the first evaluation of at least 475. The network attacks
(nasim's tiny scenario) are made where nasim is installed; they have learned if the last evaluation is above the mean return of
200 episodes of random actions. Numbers go to benchmarks/results/learn_episode_ppo.json, the picture to
docs/learning-episode-ppo.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ENTRY = Path("zoo") / "episode_ppo" / "train.py"
RESULTS = ROOT / "benchmarks" / "results" / "learn_episode_ppo.json"
PICTURE = ROOT / "docs" / "learning-episode-ppo.png"
FOLDER = ROOT / "runs" / "learn_episode_ppo"
TARGET = 475.0
MINUTES = 8.0
TRAINING = 0.95  # the share of them that a run may train for; starting and the last evaluation take the rest
RANDOM_EPISODES = 200
COLLECTORS = ("async", "sync")
COMMON = {"eval_episodes": 50, "device": "cpu", "trace": False}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1", "n_envs": 16, "episodes_per_update": 50, "total_episodes": 10_000, "eval_every": 4,
        "target_return": TARGET,
    },
    "nasim": {
        "env": "zoo.episode_ppo.network_attack:make", "n_envs": 16, "episodes_per_update": 50, "total_episodes": 3_000,
        "eval_every": 4, "discount": 0.95,
    },
}  # fmt: skip
NAMES = {"cartpole": "CartPole-v1", "nasim": "nasim, tiny network"}
COLOURS = {"async": "tab:blue", "sync": "tab:orange"}
LABELS = {"async": "no barrier", "sync": "barrier"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
INTERRUPTED = 130


def main() -> int:
    """Train what is not trained yet, then write and draw; 1 if a finished run did not learn."""
    args = parse()
    wanted = [(task, collector, seed) for task in args.tasks for seed in args.seeds for collector in args.collectors]
    if args.print_commands:
        for run in wanted:
            print(f"python {ENTRY}", *words_of({**options(*run), "exp_name": folder_of(args.folder, *run)}))
        return 0
    if not args.draw_only:
        for run in wanted:
            train(folder_of(args.folder, *run), *run, minutes=args.minutes)
    random = {task: random_return(task) for task in args.tasks}
    found = [outcome(folder_of(args.folder, *run), *run, random[run[0]]) for run in wanted]
    runs = [run for run in found if run is not None]
    if not runs:
        raise SystemExit(f"there is no finished run in {args.folder}; leave --draw_only out")
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(summarise(runs, random), indent=1) + "\n")
    draw(runs, random, args.picture)
    say(runs, random)
    return 0 if all(run["learned"] and run["seconds"] <= 60 * MINUTES for run in runs) else 1


def parse() -> argparse.Namespace:
    """The command line; network attacks are among the tasks if they can be made."""
    possible = [task for task in TASKS if task != "nasim" or importlib.util.find_spec("nasim")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=possible, default=possible)
    parser.add_argument("--collectors", nargs="+", choices=COLLECTORS, default=list(COLLECTORS))
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[10, 11, 12],
        help="(default: seeds that had no part in choosing the options)",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=MINUTES, help="a run at most (default %(default)s, at most 8)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write (default: %(default)s)")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--draw_only", action="store_true", help="only write and draw what is there")
    parser.add_argument("--print_commands", action="store_true", help="print the commands of the runs and end")
    args = parser.parse_args()
    if not 0 < args.minutes <= MINUTES:
        parser.error(f"--minutes is {args.minutes:g}; it must be above 0 and at most {MINUTES:g}")
    args.folder = args.folder.absolute()
    return args


# -- training --------------------------------------------------------------------------------------------------------------


def options(task: str, collector: str, seed: int) -> dict[str, Any]:
    """The options of one run."""
    return {**COMMON, **TASKS[task], "collector": collector, "seed": seed}


def words_of(settings: dict[str, Any]) -> list[str]:
    """Options as words of the command line."""
    return [f"--{name}={json.dumps(value) if isinstance(value, bool) else value}" for name, value in settings.items()]


def folder_of(folder: Path, task: str, collector: str, seed: int) -> Path:
    """Where a run is kept."""
    return folder / f"{task}-{collector}-seed-{seed}"


def train(folder: Path, task: str, collector: str, seed: int, *, minutes: float) -> None:
    """Make a run; nothing if it is finished."""
    if finished(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(folder.name + ".log")
    print(f"{task}, {collector}, seed {seed}: starts, see {log}", flush=True)
    words = words_of({**options(task, collector, seed), "exp_name": folder, "max_seconds": 60 * minutes * TRAINING})
    environment = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    begun = time.time()
    with log.open("w") as out:
        code = subprocess.run(
            [sys.executable, ENTRY, *words], stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, check=False
        ).returncode  # fmt: skip
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(f"{folder} ended with code {code}; its log is {log}")
    (folder / "seconds.json").write_text(json.dumps(round(time.time() - begun, 1)) + "\n")


def finished(folder: Path) -> bool:
    """Whether a run came to its end, by its target, its episodes or its time."""
    return (folder / "seconds.json").is_file()


def random_return(task: str) -> float:
    """The mean return of random actions; the same episodes each time."""
    sys.path.insert(0, str(ROOT))
    from zoo.episode_ppo.factories import make_env

    env, returns = make_env(TASKS[task]["env"]), []
    for seed in range(RANDOM_EPISODES):
        rng, total, over = np.random.default_rng(seed), 0.0, False
        env.reset(seed=seed)
        while not over:
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(env.spaces.action_size)))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


# -- what came of it -------------------------------------------------------------------------------------------------------


def outcome(folder: Path, task: str, collector: str, seed: int, random: float) -> dict[str, Any] | None:
    """One finished run: its curve, the first evaluation that reached the target, and its last one."""
    if not finished(folder):
        return None
    results = json.loads((folder / "results.json").read_text())
    names = {
        "episodes": "trained_episodes",
        "steps": "trained_steps",
        "seconds": "seconds_at",
        "mean_return": "mean_return",
    }
    curve = [{name: row[key] for name, key in names.items()} for row in results["evaluations"]]
    target = TASKS[task].get("target_return")
    reached = next((point for point in curve if target is not None and point["mean_return"] >= target), None)
    final = results["final_evaluation"]["mean_return"]
    return {
        "task": task,
        "collector": collector,
        "seed": seed,
        "learned": final > random if target is None else reached is not None,
        "reached": reached,
        "final": final,
        "best": results["best"]["return"],
        "episodes": results["counters"]["episodes"],
        "steps": results["counters"]["steps"],
        "staleness": results["staleness"],
        "seconds": json.loads((folder / "seconds.json").read_text()),
        "ended_by": results["ended_by"],
        "curve": curve,
    }


def summarise(runs: list[dict[str, Any]], random: dict[str, float]) -> dict[str, Any]:
    """Per task and collector, how many runs learned, and how soon; then every run."""
    groups = {}
    for task, collector in sorted({(run["task"], run["collector"]) for run in runs}):
        mine = [run for run in runs if (run["task"], run["collector"]) == (task, collector)]
        reached = [run["reached"] for run in mine if run["reached"] is not None]
        groups[f"{task}, {collector}"] = {
            "runs": len(mine),
            "learned": sum(run["learned"] for run in mine),
            "episodes_to_target": [point["episodes"] for point in reached],
            "steps_to_target": [point["steps"] for point in reached],
            "seconds_to_target": [round(point["seconds"], 1) for point in reached],
            "final_mean": float(np.mean([run["final"] for run in mine])),
            "random_mean": random[task],
            "seconds": [run["seconds"] for run in mine],
        }
    return {
        "target": TARGET,
        "made": time.strftime("%Y-%m-%d"),
        "settings": {task: {**COMMON, **TASKS[task]} for task in random},
        "groups": groups,
        "runs": runs,
    }


def say(runs: list[dict[str, Any]], random: dict[str, float]) -> None:
    """One line per run."""
    from lzero_async.progress import table

    rows = [["run", "learned", "target after episodes", "steps", "seconds", "final", "random", "whole run (s)"]]
    for run in runs:
        reached = run["reached"]
        rows.append([
            f"{run['task']}, {run['collector']}, seed {run['seed']}", "yes" if run["learned"] else "NO",
            *(["-"] * 3 if reached is None else
              [f"{reached['episodes']:,}", f"{reached['steps']:,}", f"{reached['seconds']:.0f}"]),
            f"{run['final']:.1f}", f"{random[run['task']]:.1f}", f"{run['seconds']:.0f}",
        ])  # fmt: skip
    print(table(rows), flush=True)


def draw(runs: list[dict[str, Any]], random: dict[str, float], picture: Path) -> None:
    """The evaluations over episodes and over seconds, one row of the picture per task; seeds thin, their mean thick as far as
    all of them go."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = [task for task in TASKS if any(run["task"] == task for run in runs)]
    figure, axes = pyplot.subplots(len(tasks), 2, figsize=(11, 3.8 * len(tasks)), dpi=130, sharey="row", squeeze=False)
    for row, task in zip(axes, tasks, strict=True):
        for axis, over in zip(row, ("episodes", "seconds"), strict=True):
            for collector in COLLECTORS:
                _curves(axis, [run for run in runs if (run["task"], run["collector"]) == (task, collector)], over)
            axis.axhline(random[task], color="0.6", linestyle=":", linewidth=1.2, label="random actions")
            if "target_return" in TASKS[task]:
                axis.axhline(TARGET, color="0.4", linestyle="--", linewidth=1, label=f"{TARGET:g}")
            axis.set_xlabel("episodes trained on" if over == "episodes" else "seconds")
            axis.grid(alpha=0.3)
        row[0].set_ylabel(f"{NAMES[task]}: mean return of {COMMON['eval_episodes']}", fontsize=8)
        row[1].legend(fontsize=8, loc="lower right")
    figure.suptitle("Whole-episode PPO, evaluations, two cores; thin: seeds, thick: their mean", fontsize=10)
    figure.tight_layout()
    figure.savefig(picture)
    pyplot.close(figure)


def _curves(axis: Any, runs: list[dict[str, Any]], over: str) -> None:
    curves = [
        ([point[over] for point in run["curve"]], [point["mean_return"] for point in run["curve"]])
        for run in runs
        if run["curve"]
    ]
    if not curves:
        return
    colour, collector = COLOURS[runs[0]["collector"]], runs[0]["collector"]
    for x, y in curves:
        axis.plot(x, y, color=colour, alpha=0.4, linewidth=0.8)
        axis.plot(x[-1], y[-1], color=colour, marker="o", markersize=3)
    grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 80)
    mean = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
    axis.plot(grid, mean, color=colour, linewidth=2.2, label=f"{LABELS[collector]} ({len(runs)} seeds)")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
