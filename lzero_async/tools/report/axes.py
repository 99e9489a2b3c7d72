"""The words along an axis: round numbers, and times at full seconds, minutes and hours."""

from __future__ import annotations

import math
from typing import Final

from lzero_async.tools.report.formatting import moment, number, short
from lzero_async.tools.report.markup import Html, html

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
