"""The picture of docs/scale.md: batches per second over collectors, for each workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INK, SOFT = "#1f2933", "#52606d"
# Colours that can be told apart with any kind of colour vision, and by their markers without any.
RANKS = {1: ("#0072b2", "o"), 2: ("#e69f00", "s"), 4: ("#009e73", "^"), 8: ("#cc79a7", "D")}
SETTINGS = {
    ("10 Gbit/s", "2 x collectors"): ("#cc79a7", "D", "10 Gbit/s, degree 2 x collectors"),
    ("1 Gbit/s", "2 x collectors"): ("#d55e00", "v", "1 Gbit/s, degree 2 x collectors"),
    ("10 Gbit/s", "8"): ("#56b4e9", "P", "10 Gbit/s, degree 8"),
}
MOST = 8  # ranks of the panels below


def draw(path: Path, points: list[dict[str, Any]], full: float) -> None:
    """Write the picture: above by ranks, below by network and degree; a ring where `full` of a curve's highest is reached."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point["workload"] for point in points))
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, len(names), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        mine = [point for point in points if point["workload"] == name]
        above, below = panels[0][column], panels[1][column]
        for ranks, (colour, marker) in RANKS.items():
            chosen = [
                p for p in mine if (p["ranks"], p["network"], p["degree"]) == (ranks, "10 Gbit/s", "2 x collectors")
            ]
            _curve(above, chosen, colour, marker, f"{ranks} rank{'s' * (ranks > 1)}", full)
        for (network, degree), (colour, marker, label) in SETTINGS.items():
            chosen = [p for p in mine if (p["ranks"], p["network"], p["degree"]) == (MOST, network, degree)]
            _curve(below, chosen, colour, marker, label, full)
        _owner(below, mine)
        above.set_title(f"{name}: learner ranks (10 Gbit/s, degree 2 x collectors)", fontsize=10, color=INK)
        below.set_title(f"{name}: network and degree ({MOST} ranks)", fontsize=10, color=INK)
        below.set_xlabel("collectors")
    for axis in panels.flat:
        _frame(axis)
    figure.savefig(path, dpi=120, format="png")


def _curve(axis: Any, points: list[dict[str, Any]], colour: str, marker: str, label: str, full: float) -> None:
    numbers, rates = [point["collectors"] for point in points], [point["rate"] for point in points]
    axis.plot(numbers, rates, color=colour, marker=marker, ms=5, lw=1.6, label=label)
    first = next(place for place, rate in enumerate(rates) if rate >= full * max(rates))
    axis.plot(numbers[first], rates[first], marker="o", ms=13, mfc="none", mec=colour, mew=1.4)


def _owner(axis: Any, points: list[dict[str, Any]]) -> None:
    """What the owner's CPU allows, where a curve comes near it."""
    allowed = points[0]["possible"]["owner's CPU"]
    if allowed < 20 * max(point["rate"] for point in points):
        axis.axhline(allowed, color=SOFT, lw=1.2, ls="--", label="what the owner's CPU allows")


def _frame(axis: Any) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axis.set_ylabel("batches per second")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.grid(which="major", color="#e4e7eb", lw=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelbottom=True)
    axis.legend(loc="lower right", fontsize=8.5, frameon=True, framealpha=0.9, edgecolor="none")
