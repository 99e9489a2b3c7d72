"""The roles in a frame of the live view: one row each, or several folded into their mean. Needs rich."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.text import Text

from lzero_async.telemetry.terminal.progress import duration

if TYPE_CHECKING:
    from lzero_async.core.activity import RoleActivity
    from lzero_async.telemetry.view import View

SHARES_WIDTH: Final = len("whole run %")
DOING_WIDTH: Final = 18
LEAST_BAR: Final = 8
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


def role_lines(rows: Sequence[Row], seconds: float | None, width: int, signs: Signs) -> list[Line]:
    """A heading and a line for each row; the recent shares are of so many `seconds`, or unknown."""
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
        text = Text(cut(row.name, names).ljust(names + 1)).append_text(_bar(row.recent or row.whole, bar, signs))
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


def cut(text: str, width: int) -> str:
    """Text of at most so many columns."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 1 else text[:width]
