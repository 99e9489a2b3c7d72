"""The comparison as a picture: rates, use against targets, and what the roles did."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from lzero_async.telemetry.utilisation import TARGETS
from lzero_async.tools.compare.numbers import PAIR, ROLES_TARGET, UseRow
from lzero_async.tools.compare.show import Comparison
from lzero_async.tools.timeline.picture import bars, handles_of, legend

COLOURS: Final = {"sync": "#bdc1c6", "async": "#7fb2dd"}
TARGET: Final = "#d9ead3"


def draw(found: Comparison, path: Path) -> None:
    """Write the picture; its kind is that of the file's name."""
    heights = [3.4, *(0.9 + 0.34 * len(stretch.rows()) for stretch in found.stretches.values())]
    figure = Figure(figsize=(11, sum(heights) + 0.6), layout="constrained")
    figure.suptitle(_title(found), fontsize=12)
    top, *panels = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    rates, use = top.subplots(1, 2, width_ratios=[1, 1.5])
    _rates(rates, found)
    _use(use, found.use)
    for panel, (name, stretch) in zip(panels, found.stretches.items(), strict=True):
        axis = panel.subplots(1, 1)
        bars(axis, stretch)
        axis.set_title(f"{name}: {stretch.length:.2f} s from its middle", loc="left", fontsize=10)
        axis.set_xlabel("seconds of the run")
        legend(axis, handles_of(stretch.kinds))
    figure.savefig(path, dpi=130)


def _title(found: Comparison) -> str:
    if found.limit is None:
        return f"{found.app}: one of two runs"
    limit = found.limit
    gain = f"{limit.speed_up:.2f} times the effective samples/s"
    return f"{found.app}: {gain}; the limit is {limit.limit:.2f}, set by: {limit.bound}"


def _rates(axis: Any, found: Comparison) -> None:
    """Rates of both runs, the synchronous one as 1."""
    rows = [row for row in found.rows if row.ratio is not None]
    if not rows:
        axis.set_axis_off()
        return
    places = list(range(len(rows)))[::-1]
    axis.barh([place + 0.2 for place in places], [1.0] * len(rows), 0.38, color=COLOURS["sync"], label="synchronous")
    axis.barh(
        [place - 0.2 for place in places],
        [row.ratio for row in rows],
        0.38,
        color=COLOURS["async"],
        label="asynchronous",
    )
    most = max(1.0, *(float(row.ratio or 0) for row in rows))
    for place, row in zip(places, rows, strict=True):
        for offset, value in ((0.2, row.sync), (-0.2, row.asynchronous)):
            axis.text(most / 60, place + offset, f"{value:,.{row.digits}f}", va="center", fontsize=8)
    if found.limit is not None:
        axis.axvline(found.limit.limit, color="black", lw=1, ls="--", label=f"limit {found.limit.limit:.2f}")
        most = max(most, found.limit.limit)
    axis.set_yticks(
        places, [row.name.replace(" steps/s", "\nsteps/s").replace(" samples/s", "\nsamples/s") for row in rows]
    )
    axis.set_xlim(0, most * 1.1)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel("times the synchronous run")
    legend(axis, None)


def _use(axis: Any, rows: list[UseRow]) -> None:
    """Shares of both runs; the green band is the target."""
    places = list(range(len(rows)))[::-1]
    for place, row in zip(places, rows, strict=True):
        low, high = (ROLES_TARGET, 1.0) if row.name in PAIR else TARGETS.get(row.name, (0.0, 0.0))
        axis.barh(place, 100 * (high - low), 0.9, left=100 * low, color=TARGET, zorder=0)
        for offset, value, kind in ((0.2, row.sync, "sync"), (-0.2, row.asynchronous, "async")):
            if value is not None:
                axis.barh(place + offset, 100 * value, 0.36, color=COLOURS[kind], zorder=1)
    axis.set_yticks(places, [row.name for row in rows])
    axis.set_xlim(0, 100)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel("use, % (green: target; of collectors and learner one should reach it)")
    axis.spines[["top", "right"]].set_visible(False)
