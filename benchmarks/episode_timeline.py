"""A picture of what a step barrier costs: a second of eight environments that wait unevenly, with and without it.

Each environment notes when its steps begin and end; between its steps it waits for the others, or for the program.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._episode_envs import MODULE
from benchmarks._episode_runs import ASYNC_NAME, SYNC_NAME, Work, play
from benchmarks.harness import Bar

SHOWN = 1.0  # seconds
AFTER = 1.5  # seconds after the first step of all: past the warm-up
WORK = Work(f"{MODULE}:recorded", 8, 32, 2, {"steps": 30, "seconds": 0.01, "sigma": 1.0})
COLOURS = {"odd": "tab:blue", "even": "tab:cyan", "waits": "#f2c6c2"}
WORDS = {"odd": "in a step", "even": "in a step of its next episode", "waits": "waits for the others"}
TITLES = {SYNC_NAME: "a barrier at every step", ASYNC_NAME: "no barrier: whole episodes"}


@dataclass
class Place:
    """Where the picture goes."""

    picture: Path = Path(__file__).resolve().parents[1] / "docs" / "step-barriers.png"


place = Place()


class Span(NamedTuple):
    """A step, or the wait after it, in seconds of the monotonic clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Second:
    """What every environment did in the second that is shown."""

    start: float
    rows: dict[str, list[Span]]

    @property
    def steps(self) -> int:
        """Steps that ended in it."""
        spans = [span for row in self.rows.values() for span in row if span.name != "waits"]
        return sum(self.start < span.end <= self.start + SHOWN for span in spans)

    @property
    def busy(self) -> float:
        """Share of the environments' time that was in a step."""
        spans = [span for row in self.rows.values() for span in row if span.name != "waits"]
        inside = (min(span.end, self.start + SHOWN) - max(span.start, self.start) for span in spans)
        return sum(max(0.0, seconds) for seconds in inside) / SHOWN / len(self.rows)


@lru_cache(maxsize=2)
def second(collector: str) -> Second:
    """Play a few episodes and take one second of them."""
    with tempfile.TemporaryDirectory() as folder:
        play(replace(WORK, env_args={**WORK.env_args, "folder": folder}), collector)
        files = [file for file in sorted(Path(folder).iterdir()) if file.stat().st_size]
        steps = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    start = min(first[0][0] for first in steps) + AFTER
    rows = {f"env {number}": _spans(own) for number, own in enumerate(steps)}
    return Second(start, rows)


def _spans(steps: list[Any]) -> list[Span]:
    """The steps of one environment and the waits between them."""
    found = []
    for (begun, ended, episode), following in zip(steps, [*steps[1:], None], strict=True):
        found.append(Span("even" if episode % 2 == 0 else "odd", begun, ended))
        if following is not None:
            found.append(Span("waits", ended, following[0]))
    return found


def draw() -> None:
    """The barrier above, no barrier below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(2, 1, figsize=(9, 5.4), dpi=130, sharex=True)
    for axis, collector in zip(axes, TITLES, strict=True):
        shown = second(collector)
        for lane, spans in enumerate(reversed(shown.rows.values())):
            for name, colour in COLOURS.items():
                bars = [_inside(span, shown.start) for span in spans if span.name == name]
                edge = "white" if name != "waits" else colour
                axis.broken_barh([bar for bar in bars if bar], (lane + 0.12, 0.76), color=colour, ec=edge, lw=0.4)
        axis.set_yticks([lane + 0.5 for lane in range(len(shown.rows))], list(reversed(shown.rows)), fontsize=8)
        axis.set_xlim(0, SHOWN)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(
            f"{TITLES[collector]}: {shown.steps} steps in this second, environments busy {shown.busy:.0%}",
            fontsize=9, loc="left",
        )  # fmt: skip
    axes[-1].set_xlabel("seconds")
    handles = [Patch(color=colour, label=WORDS[name]) for name, colour in COLOURS.items()]
    figure.legend(handles=handles, ncols=len(handles), fontsize=8, loc="upper center", frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(place.picture)
    pyplot.close(figure)
    print(f"  drawn: {place.picture}", flush=True)


def _inside(span: Span, start: float) -> tuple[float, float] | None:
    left, right = max(span.start - start, 0.0), min(span.end - start, SHOWN)
    return (left, right - left) if right > left else None


def bars() -> list[Bar]:
    """The numbers of the picture; it is drawn with the first of them."""

    def first() -> float:
        draw()
        return second(SYNC_NAME).busy

    return [
        Bar("the second in the picture: environments busy, barrier", None, True, first, 1),
        Bar("environments busy, no barrier", None, True, lambda: second(ASYNC_NAME).busy, 1),
        Bar("steps, barrier", None, True, lambda: second(SYNC_NAME).steps, 1),
        Bar("steps, no barrier", None, True, lambda: second(ASYNC_NAME).steps, 1),
    ]
