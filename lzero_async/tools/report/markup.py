"""HTML elements from values: whatever is not HTML already is escaped, so that no file can put its own into the page;
and numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final, TypeGuard

UNKNOWN: Final = "\N{EN DASH}"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
_SIZES: Final = ("B", "kB", "MB", "GB", "TB")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value out of a file is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any) -> str:
    """Whole numbers as 12,345, others with three digits; a dash for what is no number."""
    if not is_number(value):
        return UNKNOWN
    size = abs(value)
    if value == int(value) and size < 1e15:
        return _signed(f"{int(value):,}")
    if size >= 1e15 or size < 1e-4:
        return _signed(f"{value:.2e}")
    digits = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:,.{digits}f}"
    return _signed(text.rstrip("0").rstrip(".") if "." in text else text)


def short(value: float) -> str:
    """A number for an axis: 1.5k, 20M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return _signed(f"{value / scale:.4g}{unit}")
    return _signed(f"{value:.4g}") if abs(value) >= 1e-4 or value == 0 else _signed(f"{value:.1e}")


def percent(share: Any) -> str:
    """A share as a percentage; a dash for what is no number."""
    return f"{100 * share:.0f} %" if is_number(share) else UNKNOWN


def duration(seconds: Any) -> str:
    """Seconds as 0.35 s, 41.2 s, 3 min 20 s or 2 h 05 min."""
    if not is_number(seconds):
        return UNKNOWN
    if seconds < 10:
        return f"{number(seconds) if seconds < 1 else f'{seconds:.1f}'} s"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def moment(seconds: float) -> str:
    """A time of the run for a table or an axis: 4:05, 1:02:03; below a minute 12.3 s."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def size(count: Any) -> str:
    """Bytes as 12.3 MB."""
    if not is_number(count):
        return UNKNOWN
    value, place = float(count), 0
    while value >= 1000 and place < len(_SIZES) - 1:
        value, place = value / 1000, place + 1
    return f"{number(round(value, 1) if place else int(value))} {_SIZES[place]}"


def ratio(value: Any, first: Any) -> str:
    """How many times the first one a value is; nothing where that says nothing."""
    if not is_number(value) or not is_number(first) or first == 0 or value * first < 0:
        return ""
    times = value / first
    return f"{TIMES} {times:.2f}" if times < 10 else f"{TIMES} {number(round(times, 1))}"


def plural(count: float, word: str) -> str:
    """3 trains, 1 train."""
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def _signed(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}") if text.startswith("-") else text


_EMPTY: Final = frozenset({"br", "hr", "meta", "rect", "path", "line"})


class Html(str):
    """Text that is HTML already."""


Child = str | None | Iterable["Child"]  # text is escaped unless it is Html


def html(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. Attributes that are None or False are left out; `class_` is class, and `aria_label` aria-label."""
    words = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _EMPTY and not children:
        return Html(f"<{name}{words}>" if name in ("br", "hr", "meta") else f"<{name}{words}/>")
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    name = key.rstrip("_").replace("_", "-")
    name = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}.get(name, name)
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def join(children: Iterable[Any]) -> Html:
    """Children one after the other: HTML as it is, text escaped, None left out."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, Iterable) and not isinstance(child, str):
            parts.append(str(join(child)))
        else:
            parts.append(escape(str(child)).replace(" %", "&nbsp;%"))  # a number and its unit stay on one line
    return Html("".join(parts))


def section(name: str, heading: str, *children: Any) -> Html:
    """A part of the page with a heading; `name` is its anchor."""
    return html("section", html("h2", heading, id=f"{name}-h"), children, id=name, aria_labelledby=f"{name}-h")


def note(*children: Any) -> Html:
    """A paragraph that says something about what is shown or missing."""
    return html("p", children, class_="note")


def details(summary: str, *children: Any, open_: bool = False) -> Html:
    """A part that the reader opens."""
    return html("details", html("summary", summary), children, open=open_)


def table(
    label: str, head: Sequence[Any], rows: Iterable[Sequence[Any]], *, numbers: bool = True, tall: bool = False
) -> Html:
    """A table that scrolls inside its own box; the first column names the row, with `numbers` the others are right-aligned;
    one that is `tall` scrolls downwards, too."""
    top = html("tr", [html("th", cell, scope="col") for cell in head])
    body = [html("tr", html("th", row[0], scope="row"), [html("td", cell) for cell in row[1:]]) for row in rows]
    inner = html("table", html("thead", top), html("tbody", body), class_="numbers" if numbers else None)
    return html("div", inner, class_="scroll tall" if tall else "scroll", role="region", aria_label=label, tabindex="0")
