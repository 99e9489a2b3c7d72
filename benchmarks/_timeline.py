"""Draw what the roles of a run did: one row per role, one coloured bar per span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def panel(axis: Any, rows: Mapping[str, Sequence[Any]], colours: Mapping[str, str], start: float, end: float) -> None:
    """The spans (name, start, end in seconds) of each row between `start` and `end`, the first row on top."""
    for place, spans in enumerate(reversed(list(rows.values()))):
        for span in spans:
            left, right = max(span.start, start), min(span.end, end)
            if right > left and span.name in colours:
                colour = colours[span.name]
                edge = "white" if right - left > (end - start) / 100 else colour  # white would hide a narrow one
                axis.broken_barh([(left - start, right - left)], (place + 0.1, 0.8), color=colour, ec=edge, lw=0.5)
    axis.set_yticks([place + 0.5 for place in range(len(rows))], list(reversed(rows)))
    axis.set_xlim(0, end - start)
    axis.spines[["top", "right"]].set_visible(False)
