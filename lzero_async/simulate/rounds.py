"""A simulation of rounds of whole episodes on the real gate: environments that are free begin the next episode, of whichever
round is open, and a round is trained on when all of its episodes have ended."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import NamedTuple

from lzero_async.core.gate import Gate, Ticket
from lzero_async.simulate.distributions import Distribution, sample


class Rounds(NamedTuple):
    """What came of it: trains per unit of time after the first quarter, and the staleness of their batches, mean and worst."""

    rate: float
    staleness: float
    worst: int


class _Pool:
    def __init__(
        self, envs: int, episodes: int, episode: Distribution, train: Distribution, degree: int, seed: int
    ) -> None:
        self.gate = Gate(degree, num_collectors=degree)
        self.episodes, self.durations = episodes, {"episode": episode, "train": train}
        self.free, self.pending = envs, deque[Ticket]()
        self.missing: dict[int, int] = {}  # episodes that each open round waits for
        self.events: list[tuple[float, int, Ticket | None]] = []  # the end of an episode, or of a train
        self.now, self.order, self.streams = 0.0, 0, {name: random.Random(f"{seed}/{name}") for name in self.durations}
        self.finished: list[float] = []
        self.staleness: list[int] = []

    def run(self, trains: int) -> Rounds:
        self._settle()
        while len(self.finished) < trains:
            self.now, _, round_ = heapq.heappop(self.events)
            if round_ is None:
                self.gate.finish_train()
                self.gate.publish()
                self.finished.append(self.now)
            else:
                self.missing[round_.id] -= 1
                self.free += 1
                if self.missing[round_.id] and self.pending:
                    self._begin()  # nothing changes for the gate
                    continue
            self._settle()
        warm = max(1, trains // 4)
        rate = (trains - warm) / (self.finished[-1] - self.finished[warm - 1])
        return Rounds(rate, sum(self.staleness) / trains, max(self.staleness))

    def _settle(self) -> None:
        gate = self.gate
        for number in [number for number, missing in self.missing.items() if not missing]:
            if gate.try_commit(number) is not None:
                del self.missing[number]
        if gate.train_rule() is None:
            self.staleness.append(gate.version - gate.start_train().version)
            self._end_after("train", None)
        while (ticket := gate.try_collect()) is not None:
            self.missing[ticket.id] = self.episodes
            self.pending.extend([ticket] * self.episodes)
        while self.free and self.pending:
            self._begin()

    def _begin(self) -> None:
        self.free -= 1
        self._end_after("episode", self.pending.popleft())

    def _end_after(self, kind: str, round_: Ticket | None) -> None:
        self.order += 1
        seconds = sample(self.durations[kind], self.streams[kind], self.order)
        heapq.heappush(self.events, (self.now + seconds, self.order, round_))


def simulate_rounds(
    envs: int,
    episodes: int,
    episode: Distribution,
    train: Distribution,
    degree: int,
    *,
    trains: int = 60,
    seed: int = 0,
) -> Rounds:
    """Run `envs` environments for `trains` trains on rounds of `episodes` each, of which `degree` may be open at once."""
    return _Pool(envs, episodes, episode, train, degree, seed).run(trains)
