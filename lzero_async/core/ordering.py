"""Two orders that the gate keeps under its lock, at O(log n) a step: deadlines of open collects, and batches out of turn."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Final, Generic, Protocol, TypeVar


class Dated(Protocol):
    """What has a deadline."""

    @property
    def deadline(self) -> int:
        """The last version at which its train may start."""


T = TypeVar("T", bound=Dated)
SPARE: Final = 64  # entries that a line's heaps may keep of what has left


class Deadlines:
    """How many of the collects `of` a gate end by which deadline.

    A binary tree over the bits of the deadlines. A node covers the deadlines that share their higher bits and knows how many
    collects end there, and its pressure: the largest "collects that end by d, less m d" of its deadlines d, where a train
    takes m of them. Collects in the order of their deadlines stand at the places p, p + 1, ..., and those of version v are
    m v, ..., m v + m - 1. So they need "collects that end by d <= m (d + 1) - p" for every d, and a pressure of m - p is the
    most that the place p allows. The highest level has at most two nodes.
    """

    __slots__ = ("_levels", "_per_train", "of")

    def __init__(self, of: Mapping[int, Dated], per_train: int = 1) -> None:
        self.of, self._per_train = of, per_train
        self._levels: list[dict[int, tuple[int, int]]] = [{}]
        for ticket in of.values():
            self.change(ticket.deadline, 1)

    def change(self, deadline: int, by: int) -> None:
        """One more, or one less, ends by this deadline."""
        levels = self._levels
        known = levels[0].get(deadline)
        count = by if known is None else known[0] + by
        node = (count, count - self._per_train * deadline) if count else None
        key, top = deadline, levels[-1]
        for nodes in levels:
            if node is None:
                del nodes[key]
            else:
                nodes[key] = node
            if nodes is not top:
                other = nodes.get(key ^ 1)
                if other is not None:
                    node = other if node is None else _joined(other, node) if key & 1 else _joined(node, other)
                key >>= 1
        while len(levels[-1]) > 2:
            self._grow()

    def _grow(self) -> None:
        """Add a level."""
        higher: dict[int, tuple[int, int]] = {}
        for key, node in sorted(self._levels[-1].items()):
            left = higher.get(key >> 1)
            higher[key >> 1] = node if left is None else _joined(left, node)
        self._levels.append(higher)

    def pressed(self, place: int) -> int | None:
        """The first deadline that is missed if the first of the collects stands at this place, or None."""
        limit, before = self._per_train - place, 0
        top = len(self._levels) - 1
        roots = self._levels[top]
        for key in roots if len(roots) < 2 else sorted(roots):
            count, pressure = roots[key]
            if before + pressure > limit:
                for nodes in self._levels[top - 1 :: -1] if top else ():
                    key *= 2
                    left = nodes.get(key)
                    if left is None:
                        key += 1
                    elif before + left[1] <= limit:
                        before += left[0]
                        key += 1
                return key
            before += count
        return None


def _joined(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] + right[0], max(left[1], left[0] + right[1])


class Line(Generic[T]):
    """Waiting batches of which some leave out of turn: the highest priority goes first, the lowest is dropped first, and those
    past their deadline are dropped, too. Of equals the oldest goes first.

    Three heaps hold what came in; what has left stays in them until it comes up, or until half of them is that.
    """

    __slots__ = ("_best", "_earliest", "_first", "_here", "_number", "_worst")

    def __init__(self) -> None:
        self._here: dict[int, tuple[float, T]] = {}  # priority and batch, by the number of its arrival
        self._number = 0
        self._first = -1  # the number of the batch that goes next
        self._best: list[tuple[float, int]] = []
        self._worst: list[tuple[float, int]] = []
        self._earliest: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[T]:
        order = sorted((n != self._first, -priority, n) for n, (priority, _) in self._here.items())
        return iter([self._here[number][1] for _, _, number in order])

    def __getitem__(self, place: int) -> T:
        if place == 0 and self._here:
            return self._here[self._first][1]
        return list(self)[place]

    def copy(self) -> Line[T]:
        """Another line with the same batches."""
        twin: Line[T] = Line()
        twin._here, twin._number, twin._first = self._here.copy(), self._number, self._first
        twin._best, twin._worst, twin._earliest = self._best.copy(), self._worst.copy(), self._earliest.copy()
        return twin

    def put(self, ticket: T, priority: float = 0.0, *, first_stays: bool = False) -> None:
        """Line a batch up behind those of its priority; with `first_stays`, also behind the first."""
        number, here = self._number, self._here
        self._number += 1
        here[number] = priority, ticket
        heapq.heappush(self._best, (-priority, number))
        heapq.heappush(self._worst, (priority, number))
        heapq.heappush(self._earliest, (ticket.deadline, number))
        if len(here) == 1 or (not first_stays and priority > here[self._first][0]):
            self._first = number

    def popleft(self) -> T:
        """Take the first batch."""
        return self._take(self._first)

    def drop_worst(self, *, first_stays: bool = False) -> T:
        """Take the batch of lowest priority, of equals the oldest; with `first_stays`, of those behind the first."""
        heap, here = self._worst, self._here
        kept = None
        while heap[0][1] not in here or (first_stays and heap[0][1] == self._first):
            top = heapq.heappop(heap)
            if top[1] in here:
                kept = top
        number = heapq.heappop(heap)[1]
        if kept is not None:
            heapq.heappush(heap, kept)
        return self._take(number)

    def drop_late(self, version: int) -> list[T]:
        """Take the batches whose deadline is before `version`."""
        heap = self._earliest
        late: list[T] = []
        while heap and heap[0][0] < version:
            number = heapq.heappop(heap)[1]
            if number in self._here:
                late.append(self._take(number))
        return late

    def remove(self, ticket: T) -> None:
        """Take this batch, wherever it is."""
        self._take(next(number for number, (_, found) in self._here.items() if found is ticket))

    def mend(self) -> None:
        """After an interrupt between any two lines: make the heaps anew from what is here."""
        here = self._here
        self._best[:] = sorted((-priority, number) for number, (priority, _) in here.items())
        self._worst[:] = sorted((priority, number) for number, (priority, _) in here.items())
        self._earliest[:] = sorted((ticket.deadline, number) for number, (_, ticket) in here.items())
        if self._first not in here:
            self._first = self._best[0][1] if here else -1

    def _take(self, number: int) -> T:
        here = self._here
        _, ticket = here.pop(number)
        if number == self._first:
            best = self._best
            while best and best[0][1] not in here:
                heapq.heappop(best)
            self._first = best[0][1] if best else -1
        if len(self._best) + len(self._worst) + len(self._earliest) > 6 * len(here) + SPARE:
            self._tidy()
        return ticket

    def _tidy(self) -> None:
        """Let the heaps forget what has left."""
        here = self._here
        self._best[:] = sorted(key for key in self._best if key[1] in here)
        self._worst[:] = sorted(key for key in self._worst if key[1] in here)
        self._earliest[:] = sorted(key for key in self._earliest if key[1] in here)
