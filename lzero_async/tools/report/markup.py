"""HTML elements from values: whatever is not HTML already is escaped, so that no file can put its own into the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

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
