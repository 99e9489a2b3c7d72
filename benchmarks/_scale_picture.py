"""The picture of docs/scale.md: batches per second over collectors, for each workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INK, SOFT = "#1f2933", "#52606d"
# Colours that can be told apart with any kind of colour vision, and by their markers without any.
RANKS = {1: ("#0072b2", "o"), 2: ("#e69f00", "s"), 4: ("#009e73", "^"), 8: ("#cc79a7", "D")}
FREE, STRICT, SMALL = "2 x collectors, allow", "2 x collectors, wait", "8, wait"
SETTINGS = {
    ("10 Gbit/s", FREE): ("#cc79a7", "D"),
    ("1 Gbit/s", FREE): ("#d55e00", "v"),
    ("10 Gbit/s", STRICT): ("#56b4e9", "o"),
    ("10 Gbit/s", SMALL): ("#1f2933", "P"),
}


def draw(path: Path, points: list[dict[str, Any]], full: float) -> None:
    """Write the picture: above by ranks, below by network and degree; a ring where `full` of a curve's highest is reached."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point["workload"] for point in points))
    figure = Figure(figsize=(4.2 * len(names), 8.6), layout="constrained")
    rows = figure.subfigures(2, 1)
    panels = [row.subplots(1, len(names), squeeze=False)[0] for row in rows]
    for name, above, below in zip(names, *panels, strict=True):
        mine = [point for point in points if point["workload"] == name]
        for place, (ranks, look) in enumerate(RANKS.items()):
            _curve(above, _chosen(mine, ranks, "10 Gbit/s", FREE), look, place, ranks_in_words(ranks), full)
        fastest = next(point["ranks"] for point in mine if point["bound"] == STRICT)
        for place, ((network, bound), look) in enumerate(SETTINGS.items()):
            _curve(below, _chosen(mine, fastest, network, bound), look, place, f"{network}, degree {bound}", full)
        below.axhline(
            mine[0]["possible"]["owner's CPU"], color=SOFT, lw=1.2, ls="--", label="what the owner's CPU allows"
        )
        above.set_title(f"{name}: learner ranks, 10 Gbit/s", fontsize=11, color=INK)
        below.set_title(f"{name}: network and degree, {ranks_in_words(fastest)}", fontsize=11, color=INK)
    for row, axes in zip(rows, panels, strict=True):
        for axis in axes:
            _frame(axis)
        axes[0].set_ylabel("batches per second")
        handles, labels = axes[-1].get_legend_handles_labels()
        handles.append(_ring("#52606d"))
        labels.append(f"{full:.0%} of the curve's highest")
        row.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    figure.savefig(path, dpi=110, format="png")


def ranks_in_words(number: int) -> str:
    """1 rank, 2 ranks."""
    return f"{number} rank{'s' * (number > 1)}"


def _chosen(points: list[dict[str, Any]], ranks: int, network: str, bound: str) -> list[dict[str, Any]]:
    return [p for p in points if (p["ranks"], p["network"], p["bound"]) == (ranks, network, bound)]


def _curve(axis: Any, points: list[dict[str, Any]], look: tuple[str, str], place: int, label: str, full: float) -> None:
    """Later curves are thinner, so that those below them show."""
    numbers, rates = [point["collectors"] for point in points], [point["rate"] for point in points]
    colour, marker = look
    axis.plot(numbers, rates, color=colour, marker=marker, ms=9 - 1.7 * place, lw=3.4 - 0.8 * place, label=label)
    first = next(place for place, rate in enumerate(rates) if rate >= full * max(rates))
    ring = _ring(colour)
    ring.set_data([numbers[first]], [rates[first]])
    axis.add_line(ring)


def _ring(colour: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", marker="o", ms=15, mfc="none", mec=colour, mew=1.4)


def _frame(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if axis.get_ylim()[1] / axis.get_ylim()[0] < 100 else (1,)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("collectors")
    axis.grid(which="major", color="#e4e7eb", lw=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
