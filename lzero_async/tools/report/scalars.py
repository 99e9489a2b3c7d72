"""metrics.jsonl of any length as short series: one pass, and memory that does not grow with the number of rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lzero_async.tools.report.formatting import is_number

POINTS: Final = 120  # a series has this many at most
MOST_SERIES: Final = 80
TRAIN: Final = "train"


@dataclass
class Series:
    """A scalar over the trains, in stretches of trains: (first train, mean, lowest, highest) each, and its last value."""

    stretches: list[tuple[float, float, float, float]] = field(default_factory=list)
    last: float = 0.0
    _share: int = 1  # rows in a stretch
    _open: list[float] = field(default_factory=list)  # first train, sum, lowest, highest, rows

    def add(self, train: float, value: float) -> None:
        """One more row; when the series is full, stretches are joined two by two."""
        self.last = value
        if not self._open:
            self._open = [train, 0.0, value, value, 0]
        now = self._open
        now[1] += value
        now[2], now[3], now[4] = min(now[2], value), max(now[3], value), now[4] + 1
        if now[4] >= self._share:
            self.close()
        if len(self.stretches) >= 2 * POINTS:
            self._halve()

    def close(self) -> None:
        """End the stretch that is open."""
        if self._open:
            first, total, low, high, rows = self._open
            self.stretches.append((first, total / rows, low, high))
            self._open = []

    def _halve(self) -> None:
        pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
        self.stretches = [
            (one[0], (one[1] + two[1]) / 2, min(one[2], two[2]), max(one[3], two[3])) for one, two in pairs
        ]
        self._share *= 2

    @property
    def changes(self) -> bool:
        """Whether it ever had another value."""
        return any(low != high or mean != self.last for _, mean, low, high in self.stretches)


@dataclass
class Scalars:
    """The numbers of metrics.jsonl by name. `broken` lines could not be read; `left_out` names came after the first many."""

    series: dict[str, Series] = field(default_factory=dict)
    rows: int = 0
    broken: int = 0
    left_out: set[str] = field(default_factory=set)

    def add(self, row: dict[str, Any]) -> None:
        """One train's numbers."""
        self.rows += 1
        train = row[TRAIN] if is_number(row.get(TRAIN)) else self.rows
        for name, value in row.items():
            if name == TRAIN or not is_number(value):
                continue
            if name not in self.series and len(self.series) >= MOST_SERIES:
                if len(self.left_out) < MOST_SERIES:
                    self.left_out.add(name)
                continue
            self.series.setdefault(name, Series()).add(train, value)


def read_scalars(path: Path) -> Scalars | None:
    """The scalars of a run; None without the file. A line that a crash cut off is counted, not an error."""
    if not path.is_file():
        return None
    found = Scalars()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(line)
            except ValueError:
                found.broken += 1
                continue
            found.add(row)
    for series in found.series.values():
        series.close()
    return found
