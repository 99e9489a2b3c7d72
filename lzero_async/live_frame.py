"""One frame of the live view: a run at one moment as lines that fit a terminal. Pure functions; needs rich."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console, Group
from rich.text import Text

from lzero_async.progress import duration

if TYPE_CHECKING:
    from lzero_async.activity import RoleActivity
    from lzero_async.view import View

MOST_ROLES: Final = 12  # rows; more collectors than that tell no more one by one
MOST_WARNINGS: Final = 3
SHARES_WIDTH: Final = len("whole run %")
DOING_WIDTH: Final = 18
LEAST_BAR: Final = 8
WIDEST: Final = 110
STATES: Final = (("active", "green"), ("waiting", "yellow"), ("idle", "bright_black"))
LEGENDS: Final = ((" active ", " wait ", " idle"), ("active ", "wait ", "idle"), ("a ", "w ", "i"))
Shares = tuple[float, float, float]


class Signs(NamedTuple):
    """The characters of bars; they differ without colour too."""

    states: tuple[str, str, str]
    full: str
    empty: str


BLOCKS: Final = Signs(("█", "▒", "·"), "█", "·")
ASCII: Final = Signs(("#", "=", "."), "#", ".")


class Row(NamedTuple):
    """One role, or several folded into their mean."""

    name: str
    recent: Shares | None
    whole: Shares | None
    doing: str


class Line(NamedTuple):
    """A line, and how much it is worth when there is no room for all."""

    worth: int
    text: Text


def frame(view: View, recent: View | None, width: int, height: int, *, ascii_only: bool = False) -> Group:
    """The view as at most `height` lines of at most `width` columns; `recent` is the view of some seconds ago, for the shares
    and rates since then. What does not fit is folded (roles of one kind) or left out, the least important first."""
    width, signs = min(width, WIDEST), ASCII if ascii_only else BLOCKS
    before = _gauges(view, recent, width, signs)
    behind = [Line(80, _scores(view)), _troubles(view), *_warnings(view)]
    room = min(MOST_ROLES, height - len(before) - len(behind) - 2)
    rows = fold(view, recent, room)
    lines = [Line(100, _title(view, width)), *before]
    if rows:
        lines += _role_lines(rows, _seconds(view, recent), width, signs)
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


# -- roles ---------------------------------------------------------------------------------------------------------------


def fold(view: View, recent: View | None, room: int) -> list[Row]:
    """The roles as at most `room` rows, or one for each kind if there are more kinds: the last of the largest kinds are folded
    into one row with their mean."""
    kinds = [list(roles) for _, roles in groupby(view.roles, key=lambda role: _kind(role.role)[0])]
    shown = [len(roles) for roles in kinds]
    while sum(shown) > room and max(shown, default=1) > 1:
        shown[shown.index(max(shown))] -= 1
    earlier = None if recent is None else {role.role: role for role in recent.roles}
    rows = []
    for roles, number in zip(kinds, shown, strict=True):
        alone = number if number == len(roles) else number - 1
        rows += [_row([role], earlier) for role in roles[:alone]]
        if alone < len(roles):
            rows.append(_row(roles[alone:], earlier))
    return rows


def _kind(name: str) -> tuple[str, str]:
    """What a role is, and its number if there are several."""
    found = re.fullmatch(r"(.*?)[ _-]?(\d+)", name)
    return (found[1], found[2]) if found else (name, "")


def _row(roles: Sequence[RoleActivity], earlier: Mapping[str, RoleActivity] | None) -> Row:
    """A role that was not there earlier has worked, waited and idled since then only."""
    whole = [sum(getattr(role, state) for role in roles) for state, _ in STATES]
    before = [earlier[role.role] for role in roles if role.role in earlier] if earlier else []
    recent = [now - sum(getattr(role, state) for role in before) for now, (state, _) in zip(whole, STATES, strict=True)]
    name, doing = roles[0].role, _doing(roles[0])
    if len(roles) > 1:
        (kind, first), (_, last) = _kind(roles[0].role), _kind(roles[-1].role)
        name = f"{kind}s {first}-{last}"
        doing = ", ".join(f"{n} {what}" for what, n in Counter(r.doing or r.state for r in roles).most_common())
    return Row(name, None if earlier is None else _shares(recent), _shares(whole), doing)


def _shares(seconds: Sequence[float]) -> Shares | None:
    active, waiting, idle = (max(0.0, value) for value in seconds)
    total = active + waiting + idle
    return (active / total, waiting / total, idle / total) if total > 0 else None


def _doing(role: RoleActivity) -> str:
    since = role.since
    return f"{role.doing or role.state} " + (
        f"{since:.1f} s" if since < 10 else f"{since:.0f} s" if since < 100 else duration(since)
    )


def _role_lines(rows: Sequence[Row], seconds: float | None, width: int, signs: Signs) -> list[Line]:
    names = min(max(len(row.name) for row in rows), max(LEAST_BAR, width // 3))
    bar, columns = width - names - 1, []
    wanted = ("recent", "doing", "whole") if seconds is not None else ("whole", "doing")
    for column in wanted:  # the most important first, as long as a bar is left
        wide = DOING_WIDTH if column == "doing" else SHARES_WIDTH
        if bar - wide - 1 >= LEAST_BAR:
            columns.append(column)
            bar -= wide + 1
    heading = Text(" " * (names + 1), style="dim").append_text(_legend(bar, signs))
    heading.append(f" last {seconds:2.0f} s %" if "recent" in columns else "")
    heading.append(" whole run %" if "whole" in columns else "").append(" now" if "doing" in columns else "")
    lines = [Line(40, heading)]
    for row in rows:
        text = Text(_cut(row.name, names).ljust(names + 1)).append_text(_bar(row.recent or row.whole, bar, signs))
        text.append(" " + _percentages(row.recent) if "recent" in columns else "", style="bold")
        text.append(" " + _percentages(row.whole) if "whole" in columns else "", style="dim")
        text.append(" " + row.doing if "doing" in columns else "")
        lines.append(Line(70, text))
    return lines


def _legend(width: int, signs: Signs) -> Text:
    """The names of the signs, as long as the bars are wide."""
    names = next((names for names in LEGENDS if len("".join(names)) + len(names) <= width), LEGENDS[-1])
    text = Text()
    for sign, name, (_, colour) in zip(signs.states, names, STATES, strict=True):
        text.append(sign, style=colour).append(name)
    text.truncate(width, overflow="crop", pad=True)
    return text


def _bar(shares: Shares | None, width: int, signs: Signs) -> Text:
    text, sofar, begun = Text(), 0.0, 0
    for share, sign, (_, colour) in zip(shares or (), signs.states, STATES, strict=False):
        sofar += share
        end = round(sofar * width)
        text.append(sign * (end - begun), style=colour)
        begun = end
    return text.append(" " * (width - begun))


def _percentages(shares: Shares | None) -> str:
    return " ".join(f"{100 * share:3.0f}" for share in shares) if shares else " " * SHARES_WIDTH


# -- the other lines -----------------------------------------------------------------------------------------------------


def _title(view: View, width: int) -> Text:
    times = f"{duration(view.gone)} gone" + (f", {duration(view.left)} left" if view.left is not None else "")
    title = _cut(view.title, max(0, width - len(times) - 2))
    return Text(title, style="bold").append(times.rjust(width - Text(title).cell_len), style="not bold")


def _gauges(view: View, recent: View | None, width: int, signs: Signs) -> list[Line]:
    """Counts against their limits with their rates, lag and staleness against their bound, fills."""
    s, rates = view.statistics, dict(view.rates)
    degree, capacity = s.get("off_policy_degree", 0), s.get("queue_capacity")
    bound = f"degree {degree}" if capacity is None else f"queue of {capacity}"
    lag = s.get("collect_train_lag", 0)
    lag_text = f"{lag} now, mean {s.get('mean_lag', 0.0):.1f}, max {s.get('max_lag', 0)}; {bound}"
    mean, most = s.get("staleness_mean", 0.0), s.get("staleness_max", 0)
    found: list[tuple[int, str, float | None, str]] = []
    for place, count in enumerate(view.counts):
        rate = _rate(count.name, count.value, rates.pop(f"{count.name}/s", None), view, recent)
        of = f" of {count.limit:,.0f}" if count.limit else ""
        share = count.value / count.limit if count.limit else None
        found.append((50 if place else 90, count.name, share, f"{count.value:,.0f}{of}{rate}"))
    if rates:
        found.append((35, "rates", None, ", ".join(f"{_number(value)} {name}" for name, value in rates.items())))
    found.append((60, "lag", lag / (capacity or max(1, degree)), lag_text))
    found.append((55, "staleness", mean / degree if degree > 0 and capacity is None else None,
                  f"mean {mean:.1f}, max {most}; {bound if capacity is None else 'no bound'}"))  # fmt: skip
    labels = min(max(len(label) for _, label, _, _ in found), width // 3)
    bar = min(20, max(0, (width - labels) // 4))
    lines = []
    for worth, label, share, text in found:
        line = Text(_cut(label, labels).ljust(labels + 1)).append_text(_gauge(share, bar, signs))
        lines.append(Line(worth, line.append(f" {text}")))
    if view.fills:
        lines.append(Line(45, _fills(view.fills.items(), labels, bar, signs)))
    return lines


def _rate(name: str, value: float, whole: float | None, view: View, recent: View | None) -> str:
    text = "" if whole is None else f"  {_number(whole)}/s"
    if name == "seconds":
        return ""
    before = next((count.value for count in recent.counts if count.name == name), None) if recent else None
    seconds = _seconds(view, recent)
    if before is not None and seconds:
        text += f"  now {_number((value - before) / seconds)}/s"
    return text


def _gauge(share: float | None, width: int, signs: Signs) -> Text:
    if share is None:
        return Text(" " * width)
    full = round(min(1.0, max(0.0, share)) * width)
    return Text(signs.full * full, style="cyan").append(signs.empty * (width - full), style="bright_black")


def _fills(fills: Iterable[tuple[str, float | None]], labels: int, bar: int, signs: Signs) -> Text:
    text = Text(_cut("fill", labels).ljust(labels + 1))
    for place, (name, share) in enumerate(fills):
        text.append("  " if place else "")
        text.append_text(_gauge(share, bar, signs) if share is not None or not place else Text())
        text.append(" " if share is not None or not place else "")
        text.append(name + (" unknown" if share is None else f" {share:.0%}"))
        bar = min(bar, 10)
    return text


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
    for name in ("dropped", "failed", "restarts", "abandoned", "retired", "degree_changes"):
        number = view.statistics.get(name, 0)
        if number or name in ("dropped", "failed", "restarts"):
            bad = bool(number) and name != "degree_changes"
            any_of_them |= bad
            text.append(", " if text else "").append(
                f"{name.replace('_', ' ')} {number:,}", style="bold red" if bad else "dim"
            )
    return Line(65 if any_of_them else 30, text)


def _warnings(view: View) -> list[Line]:
    last = view.warnings[-MOST_WARNINGS:]
    return [
        Line(58 if place == len(last) - 1 else 20 + place, Text(" ".join(warning.split()), style="yellow"))
        for place, warning in enumerate(last)
    ]


def _seconds(view: View, recent: View | None) -> float | None:
    """From the recent view to this one; None if there is no such time."""
    return view.gone - recent.gone if recent is not None and view.gone > recent.gone else None


def _number(value: Any) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _cut(text: str, width: int) -> str:
    """Text of at most so many columns."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 1 else text[:width]
