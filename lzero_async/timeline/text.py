"""What the roles of a run did in a stretch of time, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.run_files import Run, Span, busy_seconds, by_role

WIDTH: Final = 60  # characters of a row, its name and share left out
MOST_COLLECTORS: Final = 8  # rows; the others are shown as one
CELLS: Final = ((0.02, "."), (1 / 3, "-"), (2 / 3, "+"))  # below this share of a cell the role is shown as
CYCLES: Final = 8  # of collect and train, in turn, that a window shows
LEGEND: Final = "# active, + about half of the time, - less, . idle"


def window(sync: Run | None, asynchronous: Run | None) -> float:
    """Seconds to show of both runs: some collects and trains of the synchronous one, at most half of the shorter run."""
    runs = [run for run in (sync, asynchronous) if run is not None and run.seconds > 0]
    if not runs:
        return 0.0
    trains = len(runs[0].of("train"))
    cycle = runs[0].seconds / max(1, trains)
    return min(CYCLES * cycle, *(run.seconds / 2 for run in runs))


def start_of(run: Run, seconds: float) -> float:
    """When a window of this length begins: in the middle of the run."""
    return max(0.0, min(run.seconds / 2, run.seconds - seconds))


def draw(run: Run, seconds: float, width: int = WIDTH) -> list[str]:
    """The lines of one run: a row per role from the middle of the run on, `seconds` long, and a time axis below."""
    start = start_of(run, seconds)
    end = start + seconds
    rows = shown_rows(run.spans)
    label = max((len(name) for name, _ in rows), default=0)
    lines = [f"{'':{label}}  {'':{width}}   busy"]
    for name, tracks in rows:
        lines.append(f"{name:{label}}  {_row(tracks, start, end, width)}  {_share(tracks, start, end):4.0%}".rstrip())
    marks, words = axis(start, seconds, width)
    return [*lines, f"{'':{label}}  {marks}", f"{'':{label}}  {words}"]


def shown_rows(spans: Sequence[Span]) -> list[tuple[str, list[list[Span]]]]:
    """Names of the rows and the roles behind each: one each, but collectors beyond the first few share a row."""
    roles = by_role(spans)
    collectors = [role for role in roles if role.startswith("collector ")]
    folded = collectors[MOST_COLLECTORS:] if len(collectors) > MOST_COLLECTORS + 1 else []
    rows = []
    for role, mine in roles.items():
        if role not in folded:
            rows.append((role, [mine]))
        elif role == folded[0]:
            rows.append((f"{len(folded)} more", [roles[other] for other in folded]))
    return rows


def _share(tracks: Sequence[Sequence[Span]], start: float, end: float) -> float:
    if end <= start:
        return 0.0
    return sum(busy_seconds(track, start, end) for track in tracks) / (len(tracks) * (end - start))


def _row(tracks: Sequence[Sequence[Span]], start: float, end: float, width: int) -> str:
    step = (end - start) / width
    return "".join(_cell(_share(tracks, start + place * step, start + (place + 1) * step)) for place in range(width))


def _cell(share: float) -> str:
    return next((mark for below, mark in CELLS if share < below), "#")


def axis(start: float, seconds: float, width: int) -> tuple[str, str]:
    """A line with a mark at every quarter, and a line with the seconds at the marks."""
    marks, words = ["-"] * width, [" "] * (width + 8)
    digits = 0 if seconds >= 40 else 1 if seconds >= 4 else 2
    for quarter in range(4):
        place = quarter * width // 4
        marks[place] = "|"
        word = f"{start + seconds * quarter / 4:.{digits}f} s"
        words[place : place + len(word)] = word
    return "".join(marks), "".join(words).rstrip()
