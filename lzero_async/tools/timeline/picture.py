"""A stretch of a run as a picture: bars, arrows, and the lag against its bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from lzero_async.tools.timeline.kinds import KINDS, WAIT, kind_of
from lzero_async.tools.timeline.stretch import Arrow, Item, Stretch

WIDTH: Final = 12.0  # inches
ROW: Final = 0.36
MOST_ARROWS: Final = 120  # more of them hide what they point at
ARROWS: Final = {"batch": "#1f2933", "weights": "#3d7fd6"}
LABELLED: Final = 0.028  # of the width: a bar that is wider is labelled
SOFT: Final = "#52606d"


def draw(path: Path, title: str, whole: Stretch | None, window: Stretch, batch: int | None = None) -> None:
    """Write the picture: the whole run as shares of time (if given), the window as bars with arrows, the lag below.

    The arrows of `batch` are drawn bold. OSError where the file cannot be written.
    """
    from matplotlib.figure import Figure

    rows = len(window.rows())
    heights = ([0.75 + ROW * rows] if whole is not None else []) + [1.1 + ROW * rows]
    with_lag = bool(window.line("lag"))
    heights += [1.4] if with_lag else []
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.9), layout="constrained")
    figure.suptitle(title, fontsize=12)
    panels = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if whole is not None:
        axis = panels.pop(0)
        shares(axis, whole)
        axis.axvspan(window.start, window.end, fc="none", ec="#1f2933", lw=1, zorder=5)
        axis.set_title("the whole run, as shares of time; the frame is the part below", loc="left", fontsize=9)
    bars(panels[0], window)
    dense = ": too many spans for bars, so shares of time" if window.items is None else ""
    panels[0].set_title(f"{window.start:.2f} to {window.end:.2f} s{dense}", loc="left", fontsize=9)
    arrows(panels[0], window, batch)
    if with_lag:
        lag(panels[1], window)
    panels[-1].set_xlabel("seconds of the run")
    handles = handles_of((whole.kinds if whole is not None else set()) | window.kinds)
    handles += handles_of_arrows(window.arrows())
    figure.legend(handles=handles, loc="outside lower center", ncols=min(8, len(handles)), frameon=False, fontsize=8)
    figure.savefig(path, dpi=130, format="png")


def bars(axis: Any, stretch: Stretch) -> None:
    """A row of bars for each role; as shares of time where there are too many spans for bars."""
    if stretch.items is None:
        shares(axis, stretch)
        return
    rows = stretch.rows()
    spots = _spots(rows)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for item in stretch.items:
        left, right = max(item.span.start, stretch.start), min(item.span.end, stretch.end)
        found.setdefault((item.span.role, kind_of(item.span.name)), []).append((left, right - left))
        _label(axis, item, left, right, spots, stretch)
    for (role, kind), pieces in found.items():
        middle, height = spots[role]
        wide = [piece for piece in pieces if piece[1] > stretch.length / 150]
        narrow = [piece for piece in pieces if piece[1] <= stretch.length / 150]
        place = (middle - height / 2, height)
        style = _style(kind)
        axis.broken_barh(wide, place, ec="#9aa5b1" if kind == WAIT else "white", lw=0 if kind == WAIT else 0.7, **style)
        axis.broken_barh(narrow, place, ec=style["fc"], lw=0.3, **style)  # a white edge would hide a narrow one
    _frame(axis, stretch, rows)


def _style(kind: str) -> dict[str, Any]:
    look = KINDS[kind].colour
    return {"fc": look, "hatch": "////" if kind == WAIT else None, "zorder": 1 if kind == WAIT else 2}


def _label(
    axis: Any, item: Item, left: float, right: float, spots: dict[str, tuple[float, float]], stretch: Stretch
) -> None:
    middle, height = spots[item.span.role]
    if item.label and height > 0.5 and right - left > stretch.length * LABELLED * max(1.0, len(item.label) / 3):
        axis.text(
            (left + right) / 2, middle, item.label, ha="center", va="center", fontsize=7, color="white", zorder=4, clip_on=True
        )  # fmt: skip


def shares(axis: Any, stretch: Stretch) -> None:
    """A row for each role in which the height of a colour is its share of the time."""
    rows = stretch.rows()
    step = stretch.length / stretch.bins
    edges = [stretch.start + place * step for place in range(stretch.bins + 1)]
    for row, (_, roles) in enumerate(reversed(rows)):
        cells = stretch.shares(roles, stretch.bins)
        below = [row - 0.4] * stretch.bins
        for kind in KINDS:
            above = [floor + 0.8 * cell.get(kind, 0.0) for floor, cell in zip(below, cells, strict=True)]
            if above != below:
                axis.fill_between(
                    edges, [*below, below[-1]], [*above, above[-1]], step="post", fc=KINDS[kind].colour, lw=0
                )
            below = above
    _frame(axis, stretch, rows)


def _spots(rows: list[tuple[str, list[str]]]) -> dict[str, tuple[float, float]]:
    """Middle and height of each role's bars; those that share a row lie above each other."""
    spots = {}
    for row, (_, roles) in enumerate(reversed(rows)):
        height = 0.8 / len(roles)
        for place, role in enumerate(roles):
            spots[role] = row + 0.4 - (place + 0.5) * height, height
    return spots


def _frame(axis: Any, stretch: Stretch, rows: list[tuple[str, list[str]]]) -> None:
    axis.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlim(stretch.start, stretch.end)
    axis.tick_params(length=0, axis="y")
    axis.spines[["top", "right"]].set_visible(False)


def arrows(axis: Any, stretch: Stretch, batch: int | None = None) -> None:
    """Thin arrows between spans, unless there are too many to be read; those of `batch` are always there, and bold."""
    found = stretch.arrows()
    mine = [arrow for arrow in found if arrow.number == batch]
    spots = _spots(stretch.rows())
    for arrow in found if len(found) <= MOST_ARROWS else mine:
        bold = arrow in mine
        tail, head = ((end.at, _side(spots, end.role, other.role)) for end, other in _ends(arrow))
        look = {"arrowstyle": "-|>", "color": ARROWS.get(arrow.kind, SOFT), "shrinkA": 0, "shrinkB": 0}
        look |= {"lw": 1.8 if bold else 0.6, "mutation_scale": 10 if bold else 6, "alpha": 1.0 if bold else 0.75}
        axis.annotate("", head, tail, arrowprops=look, zorder=6, annotation_clip=False)


def _ends(arrow: Arrow) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    return (arrow.tail, arrow.head), (arrow.head, arrow.tail)


def _side(spots: dict[str, tuple[float, float]], role: str, other: str) -> float:
    """The edge of the role's bar that faces the other role."""
    middle, height = spots[role]
    towards = spots[other][0]
    return middle if towards == middle else middle + (height / 2 if towards > middle else -height / 2)


def lag(axis: Any, stretch: Stretch) -> None:
    """Batches that wait for training, and the bound on them."""
    line = stretch.line("lag")
    axis.step(*zip(*line, strict=True), where="post", color="#1f2933", lw=1.2, label="lag (batches not trained yet)")
    axis.fill_between(*zip(*line, strict=True), step="post", color="#1f2933", alpha=0.08, lw=0)
    if bound := stretch.bound():
        axis.step(*zip(*bound, strict=True), where="post", color="#c1121f", lw=1.2, ls="--", label="its bound")
    top = max(value for _, value in [*line, *bound])
    axis.set_xlim(stretch.start, stretch.end)
    axis.set_ylim(0, max(1.0, top) * 1.15)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.set_ylabel("lag")
    legend(axis, None)


def handles_of(kinds: Collection[str]) -> list[Any]:
    """What the colours of these kinds mean, for a legend."""
    from matplotlib.patches import Patch

    shown = [(kind, look) for kind, look in KINDS.items() if kind in kinds]
    return [Patch(label=look.label, ec="#9aa5b1" if kind == WAIT else "none", **_style(kind)) for kind, look in shown]


def handles_of_arrows(found: Sequence[Arrow]) -> list[Any]:
    """What the arrows mean, if they are drawn."""
    from matplotlib.lines import Line2D

    kinds = {arrow.kind for arrow in found} if len(found) <= MOST_ARROWS else set()
    words = {"batch": "from a collect to its train", "weights": "from a publication to a collect that loaded it"}
    return [
        Line2D([], [], color=ARROWS[kind], lw=1, marker=">", markersize=4, label=label)
        for kind, label in words.items()
        if kind in kinds
    ]


def legend(axis: Any, handles: list[Any] | None) -> None:
    """The legend above an axis without its frame; None: of what was drawn with a label."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=5,
        frameon=False,
        fontsize=8,
        borderaxespad=0.1,
    )
