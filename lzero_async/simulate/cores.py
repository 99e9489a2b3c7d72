"""Stages in virtual time: each alone on the machine, or all of them on cores that they share."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from lzero_async.errors import ConfigError
from lzero_async.validation import number_between, positive_number

HALVINGS = 60  # of the interval that a stretch is looked for in: to the last bit


class Ended(NamedTuple):
    """A stage that ended: whose it was, what it was started with, and how long it took."""

    role: str
    payload: Any
    seconds: float


class Alone:
    """Every stage takes as long as it takes. `busy` is what was begun so far, in seconds by role."""

    def __init__(self) -> None:
        self.now = 0.0
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: float | None = None
        self._events: list[tuple[float, int, Ended]] = []
        self._order = 0

    def start(self, role: str, seconds: float, payload: Any) -> None:
        """Begin a stage that takes this long."""
        self.busy[role] += seconds
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, Ended(role, payload, seconds)))

    def next(self) -> Ended:
        """Go on to the next end of a stage."""
        self.now, _, ended = heapq.heappop(self._events)
        return ended


class _Stage:
    __slots__ = ("begun", "left", "payload", "role")

    def __init__(self, role: str, left: float, payload: Any, begun: float) -> None:
        self.role, self.left, self.payload, self.begun = role, left, payload, begun


class Shared:
    """Stages on `cores` that they share, as a fluid: a stage waits for a part of its time and computes for the rest, evenly
    mixed; where all of them together want more cores than there are, computing goes slower for all in proportion.

    `cpu` is the share of a role's time alone on the machine that it computes; above 1 it computes on several cores at once.
    `busy` is the time so far in stages, in seconds by role.
    """

    def __init__(self, cores: float, cpu: Mapping[str, float]) -> None:
        self.now = 0.0
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: float | None = 0.0
        self._cores, self._cpu = cores, cpu
        self._stages: list[_Stage] = []
        self._stretches: dict[tuple[tuple[str, int], ...], float] = {}

    def start(self, role: str, seconds: float, payload: Any) -> None:
        """Begin a stage that would take this long alone."""
        self._stages.append(_Stage(role, seconds, payload, self.now))

    def next(self) -> Ended:
        """Go on to the next end of a stage."""
        active = Counter(stage.role for stage in self._stages)
        stretch = self._stretch(active)
        paces = {role: _pace(self._cpu[role], stretch) for role in active}
        first = min(self._stages, key=lambda stage: stage.left / paces[stage.role])
        passed = first.left / paces[first.role]
        self.now += passed
        assert self.cpu_seconds is not None
        for role, number in active.items():
            self.busy[role] += number * passed
            self.cpu_seconds += number * passed * paces[role] * self._cpu[role]
        for stage in self._stages:
            stage.left -= passed * paces[stage.role]
        self._stages.remove(first)
        return Ended(first.role, first.payload, self.now - first.begun)

    def _stretch(self, active: Mapping[str, int]) -> float:
        """How many times longer computing takes with these stages at once."""
        key = tuple(sorted(active.items()))
        if key not in self._stretches:
            self._stretches[key] = stretch_of([(self._cpu[role], number) for role, number in key], self._cores)
        return self._stretches[key]


def stretch_of(wanted: list[tuple[float, int]], cores: float) -> float:
    """How many times longer computing takes when `wanted`, pairs of a CPU share and a number of stages, run at once."""

    def used(stretch: float) -> float:
        return sum(number * share * _pace(share, stretch) for share, number in wanted)

    if used(1.0) <= cores:
        return 1.0
    low, high = 1.0, sum(number * max(1.0, share) for share, number in wanted) / cores
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if used(middle) > cores else (low, middle)
    return high


def _pace(share: float, stretch: float) -> float:
    """How fast a stage goes on, 1 being its speed alone, when its computing takes `stretch` times as long."""
    return 1 / (max(0.0, 1 - share) + min(1.0, share) * stretch)


def make_stages(cores: float | None, cpu: Mapping[str, float] | None, roles: list[str]) -> Alone | Shared:
    """The virtual time for these roles; a role that `cpu` does not name computes all the time."""
    if cores is None:
        if cpu is not None:
            raise ConfigError(f"cpu is {dict(cpu)!r}, but cores is None, so that nobody shares them; give cores too.")
        return Alone()
    positive_number("cores", cores)
    shares = dict.fromkeys(roles, 1.0)
    for role, share in (cpu or {}).items():
        if role not in shares:
            raise ConfigError(f"cpu names {role!r}; the roles here are {', '.join(roles)}.")
        shares[role] = number_between(f"cpu[{role!r}]", share, 0, 1e6)
    return Shared(cores, shares)
