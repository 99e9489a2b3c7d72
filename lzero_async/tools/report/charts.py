"""Charts as inline SVG. The picture stretches with the page while every word stays HTML of its own size, so that a phone and
a printer show the same chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lzero_async.tools.report.markup import Html, html, join, moment, number, short

MOST: Final = 5
MINUTE: Final = 60.0
HOUR: Final = 3600.0
STEPS: Final = (
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR,
    3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR,
)  # fmt: skip
Ticks = list[tuple[float, str]]


def ticks(low: float, high: float, most: int = MOST) -> list[float]:
    """At most `most` round numbers from low to high, or a few more where no round step fits better."""
    if not high > low:
        return [low]
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return _multiples(low, high, next(power * f for f in (1, 2, 2.5, 5, 10, 20) if power * f >= rough * 0.999))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)] or [low]


def numbers(low: float, high: float) -> Ticks:
    """Round numbers and how they are written."""
    return [(value, short(value)) for value in ticks(low, high)]


def times(low: float, high: float) -> Ticks:
    """Times of a run, in seconds, and how they are written."""
    wanted = (high - low) / MOST
    step = next((step for step in STEPS if step >= wanted), None)
    if wanted > 0.5 and step is not None:
        return [(value, moment(value)) for value in _multiples(low, high, step)]
    if step is None:  # days
        return [(value, moment(value)) for value in _multiples(low, high, 24 * HOUR * math.ceil(wanted / (24 * HOUR)))]
    return [(value, f"{number(round(value, 9))} s" if high < 100 else f"{value:,.10g} s") for value in ticks(low, high)]


def below(marks: Ticks, low: float, high: float) -> Html:
    """The words below an axis, those at its ends inside it."""
    found = []
    for value, text in marks:
        share = (value - low) / (high - low) if high > low else 0.5
        side = "left" if share < 0.04 else "right" if share > 0.96 else None
        found.append(html("span", text, style=f"left:{100 * share:.1f}%", class_=side))
    return html("div", found, class_="xs", aria_hidden="true")


WIDTH: Final = 1000
HEIGHT: Final = 300
COLOURS: Final = 8  # c0 to c7 of the style
MOST_POINTS: Final = 400
FEW_POINTS: Final = 50
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A curve; `look` is "", "thin" or "dashed". `dots` marks its points, and `say` gives each a tooltip."""

    name: str
    points: Points
    colour: int = 0
    look: str = ""
    dots: bool = False
    say: Callable[[float, float], str] | None = None


@dataclass(frozen=True)
class Band:
    """A range around a curve: (x, low, high)."""

    name: str
    points: Sequence[tuple[float, float, float]]
    colour: int = 0


@dataclass(frozen=True)
class Mark:
    """A horizontal line with a name: a bound, the highest score."""

    name: str
    value: float


def plot(
    caption: str,
    about: str,
    lines: Sequence[Line],
    *,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    x_name: str,
    time: bool = False,
    from_zero: bool = False,
    until: float | None = None,
) -> Html:
    """Curves over a common axis. `about` describes the chart to those who do not see it; `time`: x are seconds of the run;
    `until`: x goes from 0 to there."""
    xs = [x for line in lines for x, _ in line.points] + [x for band in bands for x, *_ in band.points]
    ys = [y for line in lines for _, y in line.points] + [mark.value for mark in marks]
    ys += [y for band in bands for _, *pair in band.points for y in pair]
    if not xs:
        return html("figure", html("figcaption", caption), html("p", "nothing to show", class_="note"), class_="chart")
    x_low, x_high = _extent(xs, pad=0.0, floor=0.0 if min(xs) >= 0 else None) if until is None else (0.0, until)
    y_low, y_high = _extent([*ys, 0.0] if from_zero else ys, pad=0.06, floor=0.0 if min(ys) >= 0 else None)
    frame = _Frame(x_low, x_high, y_low, y_high)
    inner = [
        *(frame.grid(y) for y in ticks(y_low, y_high)),
        *(frame.band(band) for band in bands),
        *(frame.mark(mark) for mark in marks),
        *(frame.line(line) for line in lines),
        *(frame.dots(line) for line in lines if line.dots),
    ]
    names = _legend(lines, bands, marks)
    return html(
        "figure",
        html("figcaption", caption, names),
        html(
            "div",
            html("div", _y_labels(frame), class_="ys", aria_hidden="true"),
            html("div", picture(caption, about, inner, HEIGHT), class_="pic"),
            below((times if time else numbers)(x_low, x_high), x_low, x_high),
            html("div", x_name, class_="xname", aria_hidden="true"),
            class_="plot",
        ),
        class_="chart",
    )


def picture(title: str, about: str, inner: Iterable[Html], height: int, class_: str | None = None) -> Html:
    """An SVG of WIDTH by `height` that fills its box."""
    return html(
        "svg", html("title", title), html("desc", about), inner,
        viewbox=f"0 0 {WIDTH} {height}", preserveaspectratio="none", role="img", aria_label=f"{title}. {about}", class_=class_,
    )  # fmt: skip


def thin(points: Points, most: int = MOST_POINTS) -> Points:
    """The same curve in fewer points: the lowest and highest of every stretch stay."""
    if len(points) <= most:
        return points
    share = math.ceil(2 * len(points) / most)
    found: list[tuple[float, float]] = []
    for first in range(0, len(points), share):
        part = points[first : first + share]
        ends = {min(part, key=_height), max(part, key=_height)}
        found += sorted(ends)
    return [points[0], *found, points[-1]]


def _height(point: tuple[float, float]) -> float:
    return point[1]


def _extent(values: Sequence[float], pad: float, floor: float | None = None) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * pad if high > low else (abs(high) * 0.05 or 0.5)
    low, high = low - room, high + room
    return (max(low, floor) if floor is not None else low), high


class _Frame:
    """Places values in the picture."""

    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self.y_low, self.y_high = y_low, y_high
        self._x_low, self._x_scale = x_low, WIDTH / (x_high - x_low)
        self._y_scale = HEIGHT / (y_high - y_low)

    def x(self, value: float) -> str:
        return f"{(value - self._x_low) * self._x_scale:.1f}"

    def y(self, value: float) -> str:
        return f"{HEIGHT - (value - self.y_low) * self._y_scale:.1f}"

    def share(self, value: float) -> float:
        """How far up a value is, 0 to 1."""
        return (value - self.y_low) / (self.y_high - self.y_low)

    def grid(self, value: float) -> Html:
        return html("path", d=f"M0 {self.y(value)}H{WIDTH}", class_="grid")

    def mark(self, mark: Mark) -> Html:
        return html("path", html("title", mark.name), d=f"M0 {self.y(mark.value)}H{WIDTH}", class_="mark")

    def line(self, line: Line) -> Html:
        points = thin(line.points)
        path = "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)
        return html(
            "path", html("title", line.name), d=path, class_=f"line c{line.colour % COLOURS} {line.look}".strip()
        )

    def band(self, band: Band) -> Html:
        upper = [f"{self.x(x)} {self.y(high)}" for x, _, high in band.points]
        lower = [f"{self.x(x)} {self.y(low)}" for x, low, _ in reversed(band.points)]
        return html(
            "path", html("title", band.name), d=f"M{'L'.join(upper + lower)}Z", class_=f"band c{band.colour % COLOURS}"
        )

    def dots(self, line: Line) -> Html:
        """Round ends of lines without length: circles would be stretched."""
        shown = thin(line.points, MOST_POINTS // 2)
        look = "dot" if len(shown) <= FEW_POINTS else "dot quiet"  # many would hide their line
        return join(
            html(
                "path",
                html("title", line.say(x, y)) if line.say else None,
                d=f"M{self.x(x)} {self.y(y)}h0",
                class_=f"{look} c{line.colour % COLOURS}",
            )
            for x, y in shown
        )


def _y_labels(frame: _Frame) -> list[Html]:
    marks = numbers(frame.y_low, frame.y_high)
    widest = max((text for _, text in marks), key=len)
    labels = [html("span", text, style=f"bottom:{100 * frame.share(value):.1f}%") for value, text in marks]
    return [html("b", widest), *labels]


def _legend(lines: Sequence[Line], bands: Sequence[Band], marks: Sequence[Mark]) -> Html | None:
    entries = [
        (line.name, f"key c{line.colour % COLOURS} {line.look}".strip()) for line in lines if line.look != "thin"
    ]
    entries += [(band.name, f"key area c{band.colour % COLOURS}") for band in bands]
    entries += [(mark.name, "key bound") for mark in marks]
    return keys(list(dict.fromkeys(entries)))


def keys(entries: Sequence[tuple[str, str]]) -> Html | None:
    """A legend: a name and the classes of its swatch each."""
    if not entries:
        return None
    return html("span", [html("span", html("i", class_=look), name) for name, look in entries], class_="legend")


@dataclass(frozen=True)
class Bar:
    """One bar: what stands below it, its value, what stands above it, and whether it is beyond the bound."""

    name: str
    value: float
    label: str
    beyond: bool = False


def bars(
    caption: str, about: str, entries: Sequence[Bar], *, x_name: str, bound: int | None = None, bound_name: str = ""
) -> Html:
    """Bars side by side; a dashed line stands behind the first `bound` of them."""
    top = max((entry.value for entry in entries), default=0.0) or 1.0
    width = WIDTH / max(1, len(entries))
    inner = [
        html(
            "rect",
            html("title", f"{entry.name}: {entry.label}"),
            x=f"{place * width + width * 0.12:.1f}",
            y=f"{HEIGHT * (1 - 0.9 * entry.value / top):.1f}",
            width=f"{width * 0.76:.1f}",
            height=f"{HEIGHT * 0.9 * entry.value / top:.1f}",
            class_="bar beyond" if entry.beyond else "bar",
        )
        for place, entry in enumerate(entries)
    ]
    if bound is not None:
        inner.append(
            html("path", html("title", bound_name), d=f"M{min(WIDTH - 1, bound * width):.1f} 0V{HEIGHT}", class_="mark")
        )
    every = math.ceil(len(entries) / 12)
    words = [
        html("span", entry.name, style=f"left:{100 * (place + 0.5) / len(entries):.1f}%")
        for place, entry in enumerate(entries)
        if place % every == 0
    ]
    above = [
        html(
            "span",
            entry.label,
            style=f"left:{100 * (place + 0.5) / len(entries):.1f}%;bottom:{90 * entry.value / top:.1f}%",
        )
        for place, entry in enumerate(entries)
        if len(entries) <= 8
    ]
    return html(
        "figure",
        html("figcaption", caption, keys([(bound_name, "key bound")]) if bound_name else None),
        html(
            "div",
            html(
                "div",
                picture(caption, about, inner, HEIGHT),
                html("div", above, class_="above", aria_hidden="true"),
                class_="pic",
            ),
            html("div", words, class_="xs", aria_hidden="true"),
            html("div", x_name, class_="xname", aria_hidden="true"),
            class_="plot plain",
        ),
        class_="chart",
    )
