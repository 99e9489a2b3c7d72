"""Draw the pictures of the documentation: `python docs/pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).resolve().parent
INK, SOFT = "#1f2933", "#52606d"
FILLS = {"role": "#d9e8fb", "gate": "#fde7c8", "data": "#dff3e3"}


def box(axes, x: float, y: float, width: float, height: float, title: str, lines: str, kind: str) -> None:
    """A rounded box with a title and a few words."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0.02,rounding_size=0.12",
            facecolor=FILLS[kind],
            edgecolor=INK,
            linewidth=1.3,
        )
    )
    axes.text(x + width / 2, y + height - 0.24, title, ha="center", va="center", fontsize=12, weight="bold", color=INK)
    axes.text(x + width / 2, y + (height - 0.4) / 2, lines, ha="center", va="center", fontsize=9.2, color=SOFT)


def arrow(
    axes,
    start: tuple[float, float],
    end: tuple[float, float],
    words: str,
    at: tuple[float, float],
    bend: float = 0.0,
    dashed: bool = False,
) -> None:
    """An arrow with its words beside it."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=15,
            linewidth=1.4,
            color=INK,
            linestyle="--" if dashed else "-",
            connectionstyle=f"arc3,rad={bend}",
        )
    )
    axes.text(
        *at,
        words,
        ha="center",
        va="center",
        fontsize=9,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


def data_flow() -> None:
    """The one way of the data."""
    figure, axes = plt.subplots(figsize=(11, 5.6))
    axes.set_xlim(0, 11)
    axes.set_ylim(0, 5.6)
    axes.axis("off")
    box(
        axes,
        0.3,
        2.2,
        2.5,
        1.5,
        "Collectors",
        "play with one fixed\nversion of the weights,\none batch per collect",
        "role",
    )
    box(axes, 4.2, 4.1, 2.6, 1.2, "Gate", "who may go next:\nlag and staleness <= degree", "gate")
    box(axes, 4.2, 2.2, 2.6, 1.3, "Waiting batches", "in order of commit,\neach with its deadline", "data")
    box(
        axes, 8.2, 2.2, 2.5, 1.5, "Learner", "trains each batch once,\nowns model, optimizer\nand replay buffer", "role"
    )
    box(axes, 4.2, 0.3, 2.6, 1.3, "Weights", "immutable snapshots,\none per version", "data")
    box(axes, 8.2, 0.2, 2.5, 1.2, "Evaluator", "a frozen snapshot,\nin turn or in the background", "role")
    arrow(axes, (2.85, 2.9), (4.15, 2.85), "batch", (3.5, 3.1))
    arrow(axes, (6.85, 2.85), (8.15, 2.9), "train", (7.5, 3.1))
    arrow(axes, (8.3, 2.15), (6.85, 1.1), "publish\n(version + 1)", (7.75, 1.75))
    arrow(axes, (4.15, 0.95), (1.6, 2.15), "load newest,\nbetween collects", (2.5, 1.2), bend=-0.15)
    arrow(axes, (6.85, 0.7), (8.15, 0.75), "freeze", (7.5, 0.55))
    arrow(axes, (1.6, 3.75), (4.15, 4.8), "ticket?  commit?", (2.5, 4.65), bend=-0.15, dashed=True)
    arrow(axes, (9.4, 3.75), (6.85, 4.8), "train?  replay?", (8.6, 4.65), bend=0.15, dashed=True)
    figure.savefig(HERE / "data-flow.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    data_flow()
