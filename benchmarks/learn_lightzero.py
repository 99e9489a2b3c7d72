"""What does the degree do to the learning of LightZero's configs? UniZero on cartpole and Sampled AlphaZero on tic-tac-toe.

    python -m benchmarks.learn_lightzero                            3 seeds, degrees 0, 2 and 8 and LightZero's own serial entry
    python -m benchmarks.learn_lightzero --seconds 300 --seeds 0 1 2 3 4
    python -m benchmarks.learn_lightzero --only_report              print and draw what is there

Every run gets --seconds of training, without imports and the start of roles, one torch thread per role, and the same values
of its config: as shipped, but for CONFIGS, which makes cartpole's search and batch smaller, since a round of 25 simulations
takes half a minute on two cores. 'serial' is LightZero's own entry. From degree 1 on evaluations run in the background
(--async_eval), at degree 0 and in the serial entry between two trains, as LightZero has it. Scores are those of LightZero's
evaluator (tic-tac-toe: against its bot); a score counts at the second at which its evaluation was over, and at the steps and
updates of its weights. Finished runs are kept in benchmarks/results/lightzero_learning and not repeated; one that failed is
named and tried again by the next call. Several --jobs share the cores, which costs an asynchronous run more than a serial
one.

Printed are, per config and degree, the final score (mean of a run's last three evaluations, median over seeds) and the time to
the serial entry's final score: when the mean of three evaluations in a row first reached it, as a part of the serial entry's own
median time, with the range over seeds. A run that never did counts as later than all others ('never'). The picture is
docs/learning-lightzero.png: medians, bands from the lowest to the highest seed.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lightzero import NO_STOP, ROOT, Failed, play

RESULTS = ROOT / "benchmarks" / "results" / "lightzero_learning"
PICTURE = ROOT / "docs" / "learning-lightzero.png"
COLOURS = {"serial": "tab:gray", "0": "tab:blue", "2": "tab:orange", "8": "tab:green"}
SMOOTH = 3  # evaluations that one score of a run is the mean of
CONFIGS = {  # LightZero looks once a round whether eval_freq updates were made: here each round owes about as many
    "cartpole_unizero": ("policy.eval_freq=30", "policy.num_simulations=5", "policy.batch_size=64"),
    "tictactoe_sampled_alphazero_sp_mode": ("policy.eval_freq=50",),
}
Runs = dict[str, list[dict[str, Any]]]  # of one config, by degree


def train(config: str, degree: str, seed: int, options: argparse.Namespace) -> str:
    """One run, kept when it is finished; what to say of it."""
    order = {
        "settings": [NO_STOP, *CONFIGS[config], *options.set], "seed": seed, "seconds": options.seconds,
        "options": {"async_eval": degree not in ("serial", "0"), "checkpoint_seconds": 0},
    }  # fmt: skip
    try:
        found = play(config, degree if degree == "serial" else int(degree), **order)
    except Failed as error:
        return f"FAILED: {config}, degree {degree}, seed {seed}: {error}"
    kept = {
        "config": config, "degree": degree, "seed": seed, "seconds": options.seconds, "settings": order["settings"],
        "updates": max((row[0] for row in found["updates"]), default=0), "staleness_max": found["staleness_max"],
        "rows": [row for row in found["rows"] if row[1] <= options.seconds],
    }  # fmt: skip
    options.results.mkdir(parents=True, exist_ok=True)
    path(options.results, config, degree, seed).write_text(json.dumps(kept) + "\n")
    last = f"last score {kept['rows'][-1][3]:.2f}" if kept["rows"] else "no evaluation in time"
    return f"{config}, degree {degree}, seed {seed}: {kept['updates']} updates, {len(kept['rows'])} evaluations, {last}"


def path(results: Path, config: str, degree: str, seed: int) -> Path:
    """Where a finished run is kept."""
    return results / f"{config}-{degree}-{seed}.json"


# -- what is made of it ------------------------------------------------------------------------------------------------


def smoothed(run: dict[str, Any]) -> np.ndarray:
    """The score after each evaluation: the mean of the last SMOOTH, of fewer at the beginning."""
    scores = [row[3] for row in run["rows"]]
    return np.asarray([np.mean(scores[max(0, i + 1 - SMOOTH) : i + 1]) for i in range(len(scores))])


def reached(run: dict[str, Any], target: float) -> float:
    """Seconds after which SMOOTH evaluations in a row had this mean; infinite if they never had."""
    for row, score in list(zip(run["rows"], smoothed(run), strict=True))[SMOOTH - 1 :]:
        if score >= target - 1e-9:
            return float(row[1])
    return math.inf


def said(value: float, digits: int = 2) -> str:
    """A number, or that there is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "never"


def ratio(value: float, base: float) -> float:
    """`value / base`, infinite if either is."""
    return value / base if math.isfinite(value) and math.isfinite(base) and base > 0 else math.inf


def summarise(runs: Runs) -> dict[str, dict[str, Any]]:
    """By degree: final scores and times to the serial entry's final score."""
    final = {degree: [float(smoothed(run)[-1]) for run in found] for degree, found in runs.items()}
    target = statistics.median_low(final["serial"]) if "serial" in final else math.inf
    times = {degree: sorted(reached(run, target) for run in found) for degree, found in runs.items()}
    middle = {degree: statistics.median_high(found) for degree, found in times.items()}
    own = middle.get("serial", math.inf)
    return {
        degree: {
            "final": final[degree], "median": statistics.median(final[degree]), "target": target, "seconds": middle[degree],
            "ratio": [ratio(value, own) for value in (middle[degree], times[degree][0], times[degree][-1])],
            "evaluations": min(len(run["rows"]) for run in found),
            "updates": statistics.median(run["updates"] for run in found),
            "steps": statistics.median(run["rows"][-1][0] for run in found),
        }
        for degree, found in runs.items()
    }  # fmt: skip


def read(results: Path, seconds: float, seeds: list[int], degrees: list[str]) -> dict[str, Runs]:
    """The finished runs that were asked for; those of another length are named and left out."""
    found: dict[str, Runs] = {}
    for config in CONFIGS:
        for degree in degrees:
            for seed in seeds:
                file = path(results, config, degree, seed)
                if not file.is_file():
                    continue
                run = json.loads(file.read_text())
                if run["seconds"] != seconds or len(run["rows"]) < SMOOTH:
                    print(f"left out: {file.name} ({run['seconds']:g} s, {len(run['rows'])} evaluations)")
                    continue
                found.setdefault(config, {}).setdefault(degree, []).append(run)
    return found


def report(found: dict[str, Runs]) -> None:
    """The table."""
    head = (
        f"{'config':<37}{'degree':>7}{'seeds':>6}{'evals':>6}{'updates':>9}{'steps':>8}{'final':>8}{'min to max':>18}"
    )
    print(f"{head}{'s to serial':>12}{'ratio':>8}{'range':>17}")
    for config, runs in found.items():
        for degree, row in summarise(runs).items():
            middle, low, high = row["ratio"]
            spread = f"{min(row['final']):.2f} to {max(row['final']):.2f}"
            print(
                f"{config:<37}{degree:>7}{len(row['final']):>6}{row['evaluations']:>6}{row['updates']:>9.0f}{row['steps']:>8.0f}"
                f"{row['median']:>8.2f}{spread:>18}{said(row['seconds'], 0):>12}{said(middle):>8}"
                f"{f'{said(low)} to {said(high)}':>17}"
            )


def draw(found: dict[str, Runs], seconds: float, picture: Path) -> None:
    """A row per config: over steps and over seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, table = pyplot.subplots(len(found), 2, figsize=(11, 4 * len(found)), dpi=130, squeeze=False)
    for axes, (config, runs) in zip(table, found.items(), strict=True):
        for degree, some in runs.items():
            label = "LightZero's entry" if degree == "serial" else f"degree {degree}"
            for place, axis in enumerate(axes):
                curves = [(np.asarray([row[place] for row in run["rows"]], float), smoothed(run)) for run in some]
                first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
                grid = np.linspace(first, max(first, last), 80)
                values = np.asarray([np.interp(grid, x, y) for x, y in curves])
                colour = COLOURS.get(degree, "tab:purple")
                axis.plot(grid, np.median(values, axis=0), color=colour, label=f"{label} ({len(some)} seeds)")
                axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        axes[0].set(xlabel="environment steps", ylabel=f"{config}\nscore, mean of {SMOOTH} evaluations")
        axes[1].set(xlabel="seconds")
        axes[0].legend(fontsize=8)
        for axis in axes:
            axis.grid(alpha=0.3)
            axis.yaxis.label.set_fontsize(8)
    figure.suptitle(f"LightZero's configs, {seconds:g} s a run; bands: lowest to highest seed", fontsize=10)
    figure.tight_layout()
    figure.savefig(picture)


def main() -> int:
    """Train what is not trained yet, then print and draw; 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="of training, per run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--degrees", type=int, nargs="+", default=[0, 2, 8], help="besides LightZero's serial entry")
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], help="change a value of every run's config as well")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (default: %(default)s)")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="PNG to write (default: %(default)s)")
    parser.add_argument("--only_report", "--only-report", action="store_true", help="print and draw what is there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    degrees = ["serial", *map(str, options.degrees)]
    wanted = [
        (config, degree, seed)  # in this order a part of the runs is a fair part, too
        for seed in options.seeds
        for config in options.configs
        for degree in degrees
        if not options.only_report and not path(options.results, config, degree, seed).is_file()
    ]
    failed = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for words in pool.map(lambda one: train(*one, options), wanted):
            print(words, flush=True)
            failed += [words] if words.startswith("FAILED") else []
    found = read(options.results, options.seconds, options.seeds, degrees)
    if found:
        report(found)
        draw(found, options.seconds, options.picture)
    else:
        print(f"there is no finished run of {options.seconds:g} s in {options.results}")
    for words in failed:
        print(words.splitlines()[0])
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
