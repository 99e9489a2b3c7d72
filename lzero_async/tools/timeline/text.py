"""A stretch of a run as text: one row per role, the lag below, a time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.tools.timeline.kinds import WAIT, kind_of, mark
from lzero_async.tools.timeline.stretch import Stretch, totals

BARS: Final = "▁▂▃▄▅▆▇█"
LABELS: Final = "[ begins a span; v12: the version of its weights; s1: a train on a batch that is 1 version old"
_LEAST_CELLS: Final = 2  # of a span that is shown with its beginning


def start_of(whole: float, seconds: float) -> float:
    """When a window of this length begins: in the middle of the run, which lasted `whole` seconds."""
    return max(0.0, min(whole / 2, whole - seconds))


def draw(stretch: Stretch) -> list[str]:
    """The lines: a heading, a row per role with its shares, the lag if it was counted, and a time axis."""
    rows, width = stretch.rows(), stretch.cells
    label = max((len(name) for name, _ in rows), default=0)
    lines = [f"{'':{label}}  {'':{width}}   busy waits"]
    for name, roles in rows:
        shares = stretch.shares(roles, width)
        cells = [mark(share) for share in shares]
        if len(roles) == 1:
            _write_labels(cells, stretch, roles[0])
        busy, waits = totals(shares)
        lines.append(f"{name:{label}}  {''.join(cells)}  {busy:5.0%} {waits:5.0%}".rstrip())
    marks, words = axis(stretch.start, stretch.length, width)
    lag = [f"{'lag':{label}}  {line}" for line in _lag(stretch)]
    return [*lines, *lag, f"{'':{label}}  {marks}", f"{'':{label}}  {words}"]


def _write_labels(cells: list[str], stretch: Stretch, role: str) -> None:
    """Mark where the spans begin that are wide enough, and say what is known of them."""
    step = stretch.length / len(cells)
    for span, label, _ in stretch.items or ():
        first, last = (round((moment - stretch.start) / step) for moment in (span.start, span.end))
        if span.role == role and first >= 0 and last - first >= _LEAST_CELLS and kind_of(span.name) != WAIT:
            words = f"[{label}" if len(label) + 2 <= last - first else "["
            cells[first : first + len(words)] = words[: len(cells) - first]


def _lag(stretch: Stretch) -> list[str]:
    """The lag as a row of bars, its largest value of the stretch, and its bound."""
    values = _of_cells(stretch.counters["lag"].largest(), stretch.cells) if "lag" in stretch.counters else []
    most = max((value for value in values if value is not None), default=None)
    if most is None:
        return []
    bound = max((value for _, value in stretch.bound()), default=None)
    top = max(most, bound or 0.0, 1.0)
    bars = "".join(" " if value is None else BARS[round(value / top * (len(BARS) - 1))] for value in values)
    return [f"{bars}  at most {most:g}{'' if bound is None else f' of {bound:g}'}"]


def _of_cells(values: Sequence[float | None], cells: int) -> list[float | None]:
    many = len(values) // cells
    groups = (
        [value for value in values[place * many : (place + 1) * many] if value is not None] for place in range(cells)
    )
    return [max(group) if group else None for group in groups]


def axis(start: float, seconds: float, width: int) -> tuple[str, str]:
    """A line with a mark at every quarter, and a line with the seconds at the marks."""
    marks, words = ["-"] * width, [" "] * (width + 8)
    digits = 0 if seconds >= 40 else 1 if seconds >= 4 else 2 if seconds >= 0.4 else 3
    for quarter in range(4):
        place = quarter * width // 4
        marks[place] = "|"
        word = f"{start + seconds * quarter / 4:.{digits}f} s"
        words[place : place + len(word)] = word
    return "".join(marks), "".join(words).rstrip()
