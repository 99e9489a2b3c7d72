"""What does the degree do to learning? Trains the embedded preset at degree 0, 2 and 8 with five seeds each, one run at a time.

    python -m benchmarks.learn_async                 (make learn-async)
    python -m benchmarks.learn_async --minutes 8     the longest that is meant
    python -m benchmarks.learn_async --draw_only     draw what is there

Each run has the whole machine for --minutes of training, then plays eight episodes with its last weights. All of them start with
the same files of priors and valid actions, made by a run before them: otherwise the language model's first look at every room
would fill most of so short a time, whatever the degree. Finished runs are
kept in runs/learn_async and not repeated, so a call that was interrupted is simply made again. The curve is the mean score of
the episodes that each batch brought (they are played anyway, with their exploration), over environment steps and over seconds;
bands are 95 % bootstrap intervals of the mean over seeds. Numbers go to benchmarks/results/learn_async.json, the picture to
docs/learning-async.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._runs import ROOT, Run, play, read
from lzero_async.runs.summary import is_finished
from zoo.jericho.priorzero.play.components import CACHE_FILE

RESULTS = ROOT / "benchmarks" / "results" / "learn_async.json"
PICTURE = ROOT / "docs" / "learning-async.png"
COLOURS = {0: "tab:blue", 2: "tab:orange", 8: "tab:green"}
SMOOTH = 3  # batches that one point of a curve is the mean of
DRAWS = 2_000
WARM_SEED, WARM_MINUTES = 1_000, 3.0


def main() -> int:
    """Train what is not trained yet, then write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--degrees", type=int, nargs="+", default=[0, 2, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="of training, per run (default %(default)s, at most 8)"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/learn_async"))
    parser.add_argument("--draw_only", action="store_true", help="only write and draw what is there")
    args = parser.parse_args()
    if not 0 < args.minutes <= 8:
        parser.error(f"--minutes is {args.minutes:g}; it must be above 0 and at most 8")
    runs: dict[int, list[Run]] = {}
    if not args.draw_only and not is_finished(args.folder / "warm"):
        print("priors and valid actions: one run before all others", flush=True)
        train(args.folder / "warm", 0, WARM_SEED, WARM_MINUTES)
    for seed in args.seeds:  # in this order a part of the runs is a fair part, too
        for degree in args.degrees:
            folder = args.folder / f"{args.minutes:g}-minutes" / f"degree-{degree}-seed-{seed}"
            if not args.draw_only and not is_finished(folder):
                print(f"degree {degree}, seed {seed}: {args.minutes:g} minutes, see {folder}.log", flush=True)
                train(folder, degree, seed, args.minutes)
            if is_finished(folder):
                runs.setdefault(degree, []).append(read(folder))
    if not runs:
        raise SystemExit(f"there is no finished run in {args.folder}; leave --draw_only out")
    summary = summarise(runs, args.minutes)
    RESULTS.write_text(json.dumps(summary, indent=1) + "\n")
    draw(runs, summary)
    print(json.dumps({key: value for key, value in summary.items() if key != "curves"}, indent=1))
    return 0


def train(folder: Path, degree: int, seed: int, minutes: float) -> None:
    """One run from its beginning to its end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    actions, warm = Path(f"{folder.absolute()}-actions.sqlite"), folder.parents[1] / "warm"
    actions.unlink(missing_ok=True)
    if warm.is_dir():
        shutil.copy(warm / CACHE_FILE, folder / CACHE_FILE)
        shutil.copy(f"{warm.absolute()}-actions.sqlite", actions)
    settings = [
        f"policy_config.off_policy_degree={degree}", f"run_config.max_seconds={60 * minutes:.0f}", "run_config.max_env_step=0",
        "run_config.eval_every=0", "run_config.eval_episodes=8", "run_config.final_eval_modes=['prior']",
        "run_config.checkpoint_every=0", f"env_config.valid_action_store={actions}",
    ]  # fmt: skip
    play(folder, ["--seed", str(seed)], settings)


def curve(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Environment steps, seconds since the first collect, and mean score of the last batches, after each train."""
    first = min(span.start for span in run.spans)
    ended = {span.batch: span.end - first for span in run.of("train")}
    scores = np.asarray([row["collector/score_mean"] for row in run.rows])
    smooth = np.asarray([scores[max(0, i + 1 - SMOOTH) : i + 1].mean() for i in range(len(scores))])
    steps = np.asarray([row["collector/env_steps"] for row in run.rows], dtype=float)
    return steps, np.asarray([ended[row["batch/id"]] for row in run.rows]), smooth


def interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """Mean, and its 95 % bootstrap interval."""
    means = rng.choice(values, size=(DRAWS, len(values))).mean(axis=1)
    return float(values.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def summarise(runs: dict[int, list[Run]], minutes: float) -> dict[str, Any]:
    """Final scores, amounts of work, staleness, and the score at one number of steps and at one time for all degrees."""
    rng = np.random.default_rng(0)
    common_steps = min(curve(run)[0][-1] for found in runs.values() for run in found)
    common_seconds = min(curve(run)[1][-1] for found in runs.values() for run in found)
    degrees = {}
    for degree, found in runs.items():
        final = np.asarray([run.results["final_evaluation"][0]["mean"] for run in found])
        curves = [curve(run) for run in found]
        at_steps = np.asarray([np.interp(common_steps, steps, score) for steps, _, score in curves])
        at_seconds = np.asarray([np.interp(common_seconds, seconds, score) for _, seconds, score in curves])
        degrees[degree] = {
            "seeds": len(found),
            "final_evaluation": final.tolist(),
            "final_evaluation_mean": interval(final, rng),
            "score_at_common_steps": interval(at_steps, rng),
            "score_at_common_seconds": interval(at_seconds, rng),
            "env_steps": [run.results["env_steps"] for run in found],
            "updates": [run.results["updates"] for run in found],
            "staleness_mean": [round(run.results["statistics"]["staleness_mean"], 3) for run in found],
            "staleness_max": max(run.results["statistics"]["staleness_max"] for run in found),
            "max_lag": max(run.results["statistics"]["max_lag"] for run in found),
        }
    return {
        "minutes": minutes,
        "max_score": next(iter(runs.values()))[0].results["max_score"],
        "common_steps": common_steps,
        "common_seconds": common_seconds,
        "degrees": degrees,
        "curves": {
            degree: [[list(map(float, part)) for part in curve(run)] for run in found] for degree, found in runs.items()
        },
    }


def draw(runs: dict[int, list[Run]], summary: dict[str, Any]) -> None:
    """Two panels, over steps and over seconds, and the final evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2), dpi=130, width_ratios=(2, 2, 1))
    for degree, found in runs.items():
        colour = COLOURS.get(degree, "tab:gray")
        for place, axis in ((0, axes[0]), (1, axes[1])):
            curves = [(part[place], part[2]) for part in map(curve, found)]
            grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 80)
            values = np.asarray([np.interp(grid, x, y) for x, y in curves])
            rng = np.random.default_rng(0)
            bands = np.asarray([interval(values[:, i], rng) for i in range(len(grid))])
            axis.plot(grid, bands[:, 0], color=colour, label=f"degree {degree} ({len(found)} seeds)")
            axis.fill_between(grid, bands[:, 1], bands[:, 2], color=colour, alpha=0.18, linewidth=0)
        final = summary["degrees"][degree]
        mean, low, high = final["final_evaluation_mean"]
        position = list(runs).index(degree)
        axes[2].errorbar([position], [mean], [[mean - low], [high - mean]], fmt="o", color=colour, capsize=4)
        axes[2].scatter([position + 0.15] * len(found), final["final_evaluation"], s=12, color=colour, alpha=0.5)
    axes[0].set(xlabel="environment steps", ylabel=f"mean score of the collected episodes (of {summary['max_score']})")
    axes[1].set(xlabel="seconds")
    axes[2].set(xlabel="off_policy_degree", ylabel="final evaluation, mean of 8 episodes")
    axes[2].set_xticks(range(len(runs)), [str(degree) for degree in runs])
    axes[2].set_xlim(-0.5, len(runs) - 0.5)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    title = f"PriorZero, embedded preset, {summary['minutes']:g} minutes a run on two cores"
    figure.suptitle(f"{title}; bands: 95 % bootstrap over seeds", fontsize=10)
    figure.tight_layout()
    figure.savefig(PICTURE)


if __name__ == "__main__":
    sys.exit(main())
