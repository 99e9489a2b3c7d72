"""The bars of PriorZero at full speed: `python -m benchmarks.priorzero_async`. Learning has its own command,
`python -m benchmarks.learn_async`."""

from __future__ import annotations

from pathlib import Path

from benchmarks import env_asynchrony, llm_latency, memory, publish, throughput
from benchmarks.harness import main_guard, run_bars

GROUPS = {
    "throughput": throughput.bars,
    "engine that waits": llm_latency.bars,
    "games at their own pace": env_asynchrony.bars,
    "weights": publish.bars,
    "memory": memory.bars,
}
OUTPUT = Path(__file__).parent / "results" / "priorzero_async.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured-async.md"
PICTURE = PAGE.with_name("async-timeline.png")


def run() -> int:
    """Measure, write the table, draw the timeline of the runs that were measured."""
    code = run_bars("PriorZero, asynchronous", GROUPS, OUTPUT, PAGE)
    if throughput.runs.cache_info().currsize:
        draw(throughput.runs())
    return code


def draw(runs: dict) -> None:
    """What learner and collector did at degree 0 and at degree 2, one row per process."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    colours = {
        "collect": "tab:blue",
        "train": "tab:orange",
        "wait collect": "0.88",
        "wait commit": "0.88",
        "wait train": "0.88",
    }
    shown = ("degree 0, 1 thread", "degree 2")
    figure, axes = pyplot.subplots(len(runs) * 2, 1, figsize=(9, 1.5 * 2 * len(runs)), dpi=130, sharex=True)
    for place, (agent, schedule) in zip(axes, ((a, s) for a in runs for s in shown), strict=True):
        run = runs[agent][schedule]
        first = min(span.start for span in run.spans)
        for name, colour in colours.items():
            for span in run.of(name):
                row = 1 if "train" in name else 0
                place.broken_barh(
                    [(span.start - first, span.end - span.start)], (row + 0.1, 0.8), color=colour, ec="white"
                )
        wall = max(span.end for span in run.spans) - first
        place.set_yticks([0.5, 1.5], ["collector", "learner"])
        place.set_title(f"{agent}, {schedule}: {len(run.rows)} trains in {wall:.0f} s", fontsize=9, loc="left")
        place.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds since the first collect")
    axes[0].legend(
        handles=[Patch(color=colours[name], label=name) for name in ("collect", "train")] + [Patch(color="0.88", label="waits")],
        ncols=3, fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.5), frameon=False,
    )  # fmt: skip
    figure.tight_layout()
    figure.savefig(PICTURE)


if __name__ == "__main__":
    main_guard(run)
