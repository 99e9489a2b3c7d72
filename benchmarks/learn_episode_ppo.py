"""Does whole-episode PPO learn with both collectors? CartPole to a mean return of 475, as it is and with steps that wait, and
network attacks, three seeds each.

    python -m benchmarks.learn_episode_ppo                  (make learn-episode-ppo)
    python -m benchmarks.learn_episode_ppo --tasks cartpole --collectors async --seeds 10
    python -m benchmarks.learn_episode_ppo --draw_only      draw what is there

--print_commands shows how to make one run by hand. Runs are kept in runs/learn_episode_ppo. One that is finished is not repeated
and one that was interrupted is made anew, so a call that was interrupted is simply made again. Every run may take eight
minutes. Evaluations are of 50 episodes with the most likely actions.

CartPole has 16 environments and 50 episodes per update, and ends with the first evaluation of at least 475; where its steps wait,
they do so for 10 ms on average, lognormal with sigma 1, and evaluations do not wait. The network attacks (nasim's tiny
scenario) are made where nasim is installed; they have learned if the last evaluation is above the mean return of 200 episodes
of random actions. The picture shows evaluations of CartPole, and of the attacks the episodes that were trained on: until late
the most likely action of their policy fails for ever, while drawn actions do not. Numbers go to
benchmarks/results/learn_episode_ppo.json, the picture to docs/learning-episode-ppo.png.
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

from lzero_async.runs.summary import read_results

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
CARTPOLE = {
    "env": "CartPole-v1", "n_envs": 16, "episodes_per_update": 50, "total_episodes": 10_000, "eval_every": 2,
    "target_return": TARGET,
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": CARTPOLE,
    "waiting": {**CARTPOLE, "step_seconds": 0.01, "step_sigma": 1.0},
    "nasim": {
        "env": "zoo.episode_ppo.envs.network_attack:make", "n_envs": 16, "episodes_per_update": 50, "total_episodes": 3_000,
        "eval_every": 4, "discount": 0.95,
    },
}  # fmt: skip
NAMES = {"cartpole": "CartPole-v1", "waiting": "CartPole-v1, steps wait 10 ms", "nasim": "nasim, tiny network"}
COLOURS = {"async": "tab:blue", "sync": "tab:orange"}
LABELS = {"async": "no barrier", "sync": "barrier"}
YLABELS = {"curve": "evaluation: mean return of 50 episodes", "trained": "mean return of the 50 episodes of an update"}
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
    from zoo.episode_ppo.envs.factories import make_env

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
    results = read_results(folder)
    names = {
        "episodes": "trained_episodes",
        "steps": "trained_steps",
        "seconds": "seconds_at",
        "mean_return": "mean_return",
    }
    curve = [{name: row[key] for name, key in names.items()} for row in results["evaluations"]]
    trains = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
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
        "staleness": {name: results["statistics"][f"staleness_{name}"] for name in ("mean", "max")},
        "seconds": json.loads((folder / "seconds.json").read_text()),
        "ended_by": results["ended_by"],
        "curve": curve,
        "trained": [{"episodes": row["data/episodes"], "mean_return": row["learner/mean_return"]} for row in trains],
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
    from lzero_async.telemetry.terminal.progress import table

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
    """CartPole's evaluations, and the episodes of the attacks that were trained on, as far as these runs were made."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        ("cartpole", "curve", "episodes"), ("cartpole", "curve", "seconds"), ("waiting", "curve", "seconds"),
        ("nasim", "trained", "episodes"),
    ]  # fmt: skip
    panels = [panel for panel in panels if any(run["task"] == panel[0] for run in runs)]
    rows = 1 if len(panels) < 4 else 2
    figure, axes = pyplot.subplots(rows, -(-len(panels) // rows), figsize=(11, 3.8 * rows), dpi=130, squeeze=False)
    for axis, (task, kind, over) in zip(axes.flat, panels, strict=False):
        for collector in COLLECTORS:
            mine = [run[kind] for run in runs if (run["task"], run["collector"]) == (task, collector)]
            _curves(axis, mine, collector, over)
        axis.axhline(random[task], color="0.6", linestyle=":", linewidth=1.2, label="random actions")
        if "target_return" in TASKS[task]:
            axis.axhline(TARGET, color="0.4", linestyle="--", linewidth=1, label=f"{TARGET:g}")
        axis.set(xlabel="episodes trained on" if over == "episodes" else "seconds", ylabel=YLABELS[kind])
        axis.set_title(NAMES[task], fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="lower right")
    figure.suptitle("Whole-episode PPO, 16 environments, two cores; one line per seed", fontsize=10)
    figure.tight_layout()
    figure.savefig(picture)
    pyplot.close(figure)


def _curves(axis: Any, runs: list[list[dict[str, Any]]], collector: str, over: str) -> None:
    for number, run in enumerate(run for run in runs if run):
        x, y = [point[over] for point in run], [point["mean_return"] for point in run]
        label = None if number else f"{LABELS[collector]} ({len(runs)} seeds)"
        axis.plot(x, y, color=COLOURS[collector], alpha=0.8, linewidth=1.2, label=label)
        axis.plot(x[-1], y[-1], color=COLOURS[collector], marker="o", markersize=4)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
