"""The bars of MBPO: `python -m benchmarks.mbpo`. Learning has its own command, `python -m benchmarks.learn_mbpo`.

    python -m benchmarks.mbpo --only "a collector is killed"
    python -m benchmarks.mbpo --seconds 10 --output /tmp/mbpo.json     a quick look, which renews nothing

--seconds is how long each run is measured, and how long each minute of the kills lasts. The runs are left in runs/mbpo_bench; the
picture is drawn from those with waiting environments.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import _timeline, mbpo_kills, mbpo_speed
from benchmarks._mbpo_runs import ROOT, lengths
from benchmarks.harness import main_guard, run_bars

GROUPS = {
    "waiting environments": mbpo_speed.waiting_bars,
    "CPU-bound environments": mbpo_speed.computing_bars,
    "a collector is killed": mbpo_kills.bars,
}
OUTPUT = Path(__file__).parent / "results" / "mbpo.json"
PAGE = ROOT / "docs" / "measured-mbpo.md"
PICTURE = ROOT / "docs" / "mbpo-timeline.png"
SHOWN = 8.0  # seconds of each run
COLOURS = {"collect": "tab:blue", "train": "tab:orange", "replay": "moccasin", "fit": "tab:green", "roll": "tab:purple"}
TITLES = {"sync": "sync: in turn", "batch": "v2, batch by batch", "continuous": "v1, continuous"}


def run() -> int:
    """Measure, write the table, draw the timeline of the runs that were measured."""
    output = _own_options()
    code = run_bars("MBPO", GROUPS, OUTPUT, PAGE)
    if mbpo_speed.waiting.cache_info().currsize:
        draw(mbpo_speed.waiting(), PICTURE if output == OUTPUT else output.with_suffix(".png"))
    return code


def _own_options() -> Path:
    """Take --seconds from the command line, and look at --output; the rest is `run_bars`'s."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float)
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    if own.seconds is not None:
        lengths.measured = lengths.kills = own.seconds
        lengths.warm = min(lengths.warm, own.seconds)
        lengths.calibration = min(lengths.calibration, own.seconds)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_known_args(rest)[0].output


def draw(found: dict[str, Any], picture: Path) -> None:
    """A few seconds from the middle of each trainer's run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    shown = {name: found[name] for name in TITLES}
    rows = {name: _rows(measured.run) for name, measured in shown.items()}
    figure, axes = pyplot.subplots(
        len(rows), 1, figsize=(9, 6), dpi=130, sharex=True, height_ratios=[len(found) + 1 for found in rows.values()]
    )
    for axis, (name, measured) in zip(axes, shown.items(), strict=True):
        steady = measured.steady
        middle = (steady.start + steady.end) / 2
        _timeline.panel(axis, rows[name], COLOURS, middle, middle + SHOWN)
        title = f"{TITLES[name]}: {steady.rate:.0f} real transitions trained per second"
        axis.set_title(title, fontsize=9, loc="left")
    axes[-1].set_xlabel("seconds")
    words = {
        "train": "agent (sync, v2: all learning)",
        "replay": "agent, no new data",
        "fit": "dynamics",
        "roll": "rollouts",
    }
    figure.legend(
        handles=[Patch(color=colour, label=words.get(name, name)) for name, colour in COLOURS.items()],
        ncols=len(COLOURS), fontsize=8, loc="upper center", frameon=False,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(picture)
    pyplot.close(figure)


def _rows(run: Any) -> dict[str, list[Any]]:
    """Spans by role, collectors first."""
    order = sorted(run.roles(), key=lambda role: (not role.startswith("collector"), role != "learner", role))
    return {role: [span for span in run.spans if span.role == role] for role in order}


if __name__ == "__main__":
    main_guard(run)
