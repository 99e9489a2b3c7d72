"""One frame of the live view: a run at one moment as lines that fit a terminal. Pure functions; needs rich."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group
from rich.text import Text

from lzero_async.telemetry.quantities import TROUBLES, label
from lzero_async.telemetry.terminal.frame_roles import ASCII, BLOCKS, Line, Signs, cut, fold, role_lines
from lzero_async.telemetry.terminal.progress import duration
from lzero_async.telemetry.view import SECONDS

if TYPE_CHECKING:
    from lzero_async.telemetry.view import Count, View

MOST_ROLES: Final = 12  # rows; more collectors than that tell no more one by one
MOST_WARNINGS: Final = 3
ALWAYS: Final = ("dropped", "failed", "restarts")  # troubles that are told when there are none
WIDEST: Final = 110


def frame(view: View, recent: View | None, width: int, height: int, *, ascii_only: bool = False) -> Group:
    """The view as at most `height` lines of at most `width` columns; `recent` is the view of some seconds ago, for the shares
    and rates since then. What does not fit is folded (roles of one kind) or left out, the least important first."""
    width, signs = min(width, WIDEST), ASCII if ascii_only else BLOCKS
    before = _gauges(view, recent, width, signs)
    behind = [Line(80, _scores(view)), *_measures(view), _troubles(view), *_warnings(view)]
    room = min(MOST_ROLES, height - len(before) - len(behind) - 2)
    rows = fold(view, recent, room)
    lines = [Line(100, _title(view, width)), *before]
    if rows:
        lines += role_lines(rows, _seconds(view, recent), width, signs)
    lines += behind
    kept = sorted(sorted(range(len(lines)), key=lambda place: -lines[place].worth)[: max(1, height)])
    texts = [lines[place].text for place in kept]
    for text in texts:
        text.no_wrap = True
        text.truncate(width, overflow="ellipsis")
        if ascii_only:
            text.plain = text.plain.replace("…", "~").encode("ascii", "replace").decode()
    return Group(*texts)


def render_text(view: View, recent: View | None = None, width: int = 80, height: int = 24) -> str:
    """A frame as plain text."""
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(frame(view, recent, width, height))
    return captured.get()


def render_svg(view: View, path: Path, recent: View | None = None, width: int = 80, height: int = 24) -> None:
    """Write a frame as a picture of a terminal; it names no font that would have to be fetched."""
    console = Console(
        file=io.StringIO(), record=True, width=width, height=height, force_terminal=True, color_system="truecolor"
    )
    console.print(frame(view, recent, width, height))
    picture = console.export_svg(title=view.title, unique_id="live")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8")


def _title(view: View, width: int) -> Text:
    limit = next((count.limit for count in view.counts if count.name == SECONDS and count.limit), None)
    times = duration(view.elapsed) + (f" of {duration(limit)}" if limit else "") + " gone"
    times += f", {duration(view.remaining)} left" if view.remaining is not None else ""
    title = cut(view.title, max(0, width - len(times) - 2))
    return Text(title, style="bold").append(times.rjust(width - Text(title).cell_len), style="not bold")


def _gauges(view: View, recent: View | None, width: int, signs: Signs) -> list[Line]:
    """Counts against their limits with their rates, lag and staleness against their bound, fills."""
    s = view.statistics
    degree, capacity = s.get("off_policy_degree", 0), s.get("queue_capacity")
    bound = f"{label('off_policy_degree')} {degree}" if capacity is None else f"queue of {capacity}"
    bounded = capacity is None and s.get("staleness_policy") != "allow"
    lag, mean, most = s.get("collect_train_lag", 0), s.get("staleness_mean", 0.0), s.get("staleness_max", 0)
    found: list[tuple[int, str, float | None, str]] = []
    for place, count in enumerate(view.counted):
        share, of = (count.value / count.limit, f" of {count.limit:,.0f}") if count.limit else (None, "")
        found.append(
            (50 if place else 90, label(count.name), share, f"{count.value:,.0f}{of}{_growth(count, view, recent)}")
        )
    found.append((60, label("collect_train_lag"), lag / s.get("lag_bound", max(1, degree)),
                  f"{lag} now, mean {s.get('mean_lag', 0.0):.1f}, max {s.get('max_lag', 0)}; {bound}"))  # fmt: skip
    found.append((55, label("staleness_counts"), mean / degree if degree > 0 and bounded else None,
                  f"mean {mean:.1f}, max {most}; {bound if bounded else 'no bound'}"))  # fmt: skip
    labels = min(max(len(name) for _, name, _, _ in found), width // 3)
    bar = min(20, max(0, (width - labels) // 4))
    lines = []
    for worth, name, share, text in found:
        line = Text(cut(name, labels).ljust(labels + 1)).append_text(_gauge(share, bar, signs))
        lines.append(Line(worth, line.append(f" {text}")))
    if view.fills:
        lines.append(Line(45, _fills(view.fills.items(), labels, bar, signs)))
    return lines


def _growth(count: Count, view: View, recent: View | None) -> str:
    """How fast a count grows: over the run, and since the recent view."""
    rate = view.rates.get(count.name)
    text = "" if rate is None else f"  {_number(rate)}/s"
    seconds = _seconds(view, recent)
    before = next((one.value for one in recent.counts if one.name == count.name), None) if recent else None
    if before is not None and seconds is not None:
        text += f"  now {_number((count.value - before) / seconds)}/s"
    return text


def _gauge(share: float | None, width: int, signs: Signs) -> Text:
    if share is None:
        return Text(" " * width)
    full = round(min(1.0, max(0.0, share)) * width)
    return Text(signs.full * full, style="cyan").append(signs.empty * (width - full), style="bright_black")


def _fills(fills: Iterable[tuple[str, float | None]], labels: int, bar: int, signs: Signs) -> Text:
    """The first as a gauge like the others, the rest behind it."""
    text = Text()
    for room, share in fills:
        name, known = label(f"{room}_fill"), "unknown" if share is None else f"{share:.0%}"
        if not text:
            text.append(cut(name, labels).ljust(labels + 1)).append_text(_gauge(share, bar, signs)).append(f" {known}")
            continue
        text.append("  ").append_text(_gauge(share, min(bar, 10), signs) if share is not None else Text())
        text.append(f"{' ' if share is not None else ''}{name} {known}")
    return text


def _measures(view: View) -> list[Line]:
    """The application's own numbers, in a line."""
    found = ", ".join(f"{name} {value:.3g}" for name, value in view.measures.items())
    return [Line(40, Text(found))] if found else []


def _scores(view: View) -> Text:
    text = Text(f"{view.score}: ")
    if view.last_score is None:
        text.append("no evaluation yet", style="dim")
    else:
        text.append(f"last {view.last_score:,.1f}", style="bold")
    if view.best_score is not None:
        text.append(f", best {view.best_score:,.1f}", style="bold")
    if view.best_score is not None and view.highest_score is not None:
        text.append(f" of {view.highest_score:,.0f}")
    if view.recent_score is not None:
        text.append(f"; collected episodes {view.recent_score:,.1f}")
    return text


def _troubles(view: View) -> Line:
    text, any_of_them = Text(), False
    for key in (*TROUBLES, "degree_changes"):
        number = view.statistics.get(key, 0)
        if number or key in ALWAYS:
            bad = bool(number) and key in TROUBLES
            any_of_them |= bad
            text.append(", " if text else "").append(f"{label(key)} {number:,}", style="bold red" if bad else "dim")
    return Line(65 if any_of_them else 30, text)


def _warnings(view: View) -> list[Line]:
    last = view.warnings[-MOST_WARNINGS:]
    return [
        Line(58 if place == len(last) - 1 else 20 + place, Text(" ".join(warning.split()), style="yellow"))
        for place, warning in enumerate(last)
    ]


def _seconds(view: View, recent: View | None) -> float | None:
    """From the recent view to this one; None if there is no such time."""
    return view.elapsed - recent.elapsed if recent is not None and view.elapsed > recent.elapsed else None


def _number(value: Any) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
