"""What there is to draw of a stretch of a run: bounded in size, however many events the stretch has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lzero_async.core.activity import rank
from lzero_async.tools.timeline.kinds import WAIT, kind_of
from lzero_async.tools.traces import Span

CELLS: Final = 72  # characters of a row of text
LEAST_BINS: Final = 360  # of a stretch, for a picture; a character is made of whole ones
MOST_SPANS: Final = 4_000  # kept one by one; a stretch with more of them is drawn from its bins
MOST_ROWS: Final = 8  # of roles that differ by their number only; the others are shown as one
_SHORT: Final = 1e-9


class Item(NamedTuple):
    """A span with its label, such as v12 or s1; `batch` is -1 where it has none."""

    span: Span
    label: str = ""
    batch: int = -1


class End(NamedTuple):
    """Where an arrow begins or ends."""

    role: str
    at: float


class Arrow(NamedTuple):
    """From the collect of a batch to its train, or from a publication to a collect that loaded it."""

    kind: str
    number: int
    tail: End
    head: End


class Steps:
    """A counter over a stretch: the largest value in each bin, and its single changes while they are few."""

    def __init__(self, start: float, end: float, count: int) -> None:
        self._start, self._end, self._count = start, end, count
        self._before: tuple[float, float] | None = None
        self._most: list[float | None] = [None] * count
        self._last: list[tuple[float, float] | None] = [None] * count
        self._points: list[tuple[float, float]] | None = []

    def add(self, at: float, value: float) -> None:
        """From `at` on the counter is `value`."""
        if at <= self._start:
            if self._before is None or at >= self._before[0]:
                self._before = at, value
        elif at < self._end:
            place = min(self._count - 1, int((at - self._start) / (self._end - self._start) * self._count))
            most, last = self._most[place], self._last[place]
            self._most[place] = value if most is None else max(most, value)
            self._last[place] = (at, value) if last is None or at >= last[0] else last
            if self._points is not None:
                self._points.append((at, value))
                if len(self._points) > MOST_SPANS:
                    self._points = None

    def largest(self) -> list[float | None]:
        """The largest value in each bin, None before the first."""
        found: list[float | None] = []
        carried = None if self._before is None else self._before[1]
        for most, last in zip(self._most, self._last, strict=True):
            known = [value for value in (carried, most) if value is not None]
            found.append(max(known) if known else None)
            carried = carried if last is None else last[1]
        return found

    def line(self) -> list[tuple[float, float]]:
        """Moments and values of a step line through the stretch, in order."""
        if self._points is None:
            step = (self._end - self._start) / self._count
            found = [
                (self._start + place * step, value) for place, value in enumerate(self.largest()) if value is not None
            ]
        else:
            before = [] if self._before is None else [(self._start, self._before[1])]
            found = before + sorted(self._points, key=lambda point: point[0])
        return [*found, (self._end, found[-1][1])] if found else []


class Stretch:
    """What the roles did from `start` to `end`, in seconds of the run."""

    def __init__(self, start: float, end: float, cells: int = CELLS) -> None:
        self.start, self.end, self.cells = start, end, cells
        self.bins = cells * math.ceil(LEAST_BINS / cells)
        self.seconds: dict[str, dict[str, list[float]]] = {}  # by role, kind and bin
        self.items: list[Item] | None = []
        self.counters: dict[str, Steps] = {}
        self._tails: dict[tuple[str, int], End] = {}
        self._heads: dict[tuple[str, int], End] = {}

    @property
    def length(self) -> float:
        """In seconds."""
        return self.end - self.start

    @property
    def kinds(self) -> set[str]:
        """What there was to see."""
        return {kind for kinds in self.seconds.values() for kind, bins in kinds.items() if any(bins)}

    def meet(self, role: str) -> None:
        """This role has a row, also if it does nothing here."""
        self.seconds.setdefault(role, {})

    def add(self, span: Span, label: str = "", batch: int = -1) -> None:
        """What a role did; only the part inside counts."""
        left, right = max(span.start, self.start), min(span.end, self.end)
        if right < left or self.length <= 0:
            return
        kinds = self.seconds.setdefault(span.role, {})
        kind = kind_of(span.name)
        if (bins := kinds.get(kind)) is None:
            bins = kinds[kind] = [0.0] * self.bins
        self._fill(bins, left, right)
        if self.items is not None:
            self.items.append(Item(span, label, batch))
            if len(self.items) > MOST_SPANS:
                self.items = None
                self._tails.clear()
                self._heads.clear()

    def _fill(self, bins: list[float], left: float, right: float) -> None:
        step = self.length / self.bins
        place = min(self.bins - 1, int((left - self.start) / step))
        if right - left < _SHORT:  # a failure of no length shows, too
            bins[place] += _SHORT
            return
        while place < self.bins and left < right:
            until = right if place == self.bins - 1 else min(right, self.start + (place + 1) * step)
            bins[place] += max(0.0, until - left)
            left, place = max(left, until), place + 1

    def count(self, name: str, at: float, value: float) -> None:
        """A counter changed."""
        if name not in self.counters:
            self.counters[name] = Steps(self.start, self.end, self.bins)
        self.counters[name].add(at, value)

    def line(self, name: str) -> list[tuple[float, float]]:
        """Moments and values of a counter as a step line; empty where it was not counted."""
        return self.counters[name].line() if name in self.counters else []

    def bound(self) -> list[tuple[float, float]]:
        """The same of the bound on the lag: the degree (at 0, the one batch in work), or with a queue that drops batches what it
        holds and the one in work."""
        queue = self.line("queue capacity")
        return [(at, size + 1) for at, size in queue] or [(at, max(1.0, degree)) for at, degree in self.line("degree")]

    def arrow_end(self, kind: str, number: int, end: End, *, head: bool) -> None:
        """One end of an arrow; those with both ends inside are shown."""
        if self.items is not None and self.start <= end.at <= self.end:
            (self._heads if head else self._tails)[kind, number] = end

    def arrows(self) -> list[Arrow]:
        """The arrows that begin and end here."""
        return [Arrow(*key, tail, self._heads[key]) for key, tail in self._tails.items() if key in self._heads]

    def rows(self) -> list[tuple[str, list[str]]]:
        """Names of the rows and the roles behind each: one each, but beyond the first few of a kind the others share one."""
        families: dict[str, list[str]] = {}
        for role in sorted(self.seconds, key=rank):
            word, _, number = role.rpartition(" ")
            families.setdefault(word if word and number.isdigit() else role, []).append(role)
        rows: list[tuple[str, list[str]]] = []
        for family in families.values():
            shown = family if len(family) <= MOST_ROWS + 1 else family[:MOST_ROWS]
            rows += [(role, [role]) for role in shown]
            if rest := family[len(shown) :]:
                rows.append((f"{len(rest)} more", rest))
        return rows

    def shares(self, roles: Sequence[str], parts: int) -> list[dict[str, float]]:
        """For each of `parts` equal parts (`cells` or `bins`), the share of the time that these roles spent on each kind; never
        above 1 in all."""
        found: list[dict[str, float]] = [{} for _ in range(parts)]
        whole, many = len(roles) * self.length / parts, self.bins // parts
        for role in roles:
            for kind, bins in self.seconds[role].items():
                for place, seconds in enumerate(bins):
                    if seconds > 0:
                        part = found[place // many]
                        part[kind] = part.get(kind, 0.0) + seconds / whole
        return [_at_most_one(part) for part in found]


def totals(shares: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Mean shares of work and of waiting."""
    if not shares:
        return 0.0, 0.0
    waits = sum(cell.get(WAIT, 0.0) for cell in shares)
    return (sum(sum(cell.values()) for cell in shares) - waits) / len(shares), waits / len(shares)


def _at_most_one(cell: dict[str, float]) -> dict[str, float]:
    total = sum(cell.values())
    return cell if total <= 1 else {kind: share / total for kind, share in cell.items()}
