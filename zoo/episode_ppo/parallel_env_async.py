"""Environments without a barrier: each has a thread of its own, plays whole episodes, and waits for nobody.

One worker has many of them. While one waits for its simulator the others go on; Python's lock is free in a wait. Environments
that compute are spread over several workers, which are processes.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from lzero_async.calls import listen
from lzero_async.clock import RealClock
from lzero_async.parcels import Parcel
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from zoo.episode_ppo.episode import Episode, pack
from zoo.episode_ppo.factories import FlatEnv
from zoo.episode_ppo.playing import MAX_STEPS, Failure, Player, Slot

Ended = tuple[int, Parcel, list[Failure]]  # of one round: its number, the episodes packed, and those that failed


class Weights:
    """The policies that a worker has, by version."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, np.ndarray]] = {}

    def take(self, new: Sequence[tuple[int, Parcel]], oldest: int) -> None:
        """Keep these, and forget those below `oldest`."""
        for version, parcel in new:
            self._kept[version] = {name: value.copy() for name, value in parcel.read().items()}
        for version in [version for version in self._kept if version < oldest]:
            del self._kept[version]

    def __getitem__(self, version: int) -> dict[str, np.ndarray]:
        return self._kept[version]


class AsyncEnvs:
    """`num_envs` environments of one worker that play episodes as they are asked to."""

    def __init__(
        self,
        make_env: Callable[[], FlatEnv],
        num_envs: int,
        worker: int,
        seed: int,
        emit: Callable[[Any], None],
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._slots: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Slot, Episode | Failure] | None] = queue.SimpleQueue()
        self._weights = Weights()
        self._players = [Player(make_env, worker, seed, max_steps) for _ in range(num_envs)]
        self._threads = ThreadGroup(RealClock(), "envs")
        for place, player in enumerate(self._players):
            self._threads.start(f"env-{place}", partial(self._play_on, player))

    def ready(self) -> dict[str, Any]:
        """Answered once the role is made: its environments."""
        return {"num_envs": len(self._players), "spaces": tuple(self._players[0].env.spaces)}

    def play(
        self, slots: Sequence[Slot], weights: Sequence[tuple[int, Parcel]], oldest: int, stop: StopSignal | None = None
    ) -> list[Ended]:
        """Take these episodes on, and return those that have ended as soon as there is one.

        `weights` are of versions not seen before; those below `oldest` are forgotten. `stop` ends the wait, not the episodes.
        """
        self._weights.take(weights, oldest)
        for slot in slots:
            self._slots.put(Slot(*slot))
        unlisten = listen(stop, lambda reason: self._ended.put(None))
        try:
            ended = [self._ended.get()]
        finally:
            unlisten()
        while not self._ended.empty():
            ended.append(self._ended.get())
        return by_round([item for item in ended if item is not None])

    def _play_on(self, player: Player) -> None:
        """The body of an environment's thread."""
        while (slot := self._slots.get()) is not None:
            try:
                found: Episode | Failure = player.play(slot, self._weights[slot.version])
            except Exception as error:
                found = player.fail(slot, error)
            self._ended.put((slot, found))

    def close(self) -> None:
        """End the environments; those that are in the middle of an episode end with the process."""
        for _ in self._players:
            self._slots.put(None)
        busy = set(self._threads.join(1.0))
        for place, player in enumerate(self._players):
            if f"env-{place}" not in busy:
                player.close()


def by_round(ended: Sequence[tuple[Slot, Episode | Failure]]) -> list[Ended]:
    """What ended, packed by round."""
    found = []
    for wanted in sorted({slot.round for slot, _ in ended}):
        mine = [item for slot, item in ended if slot.round == wanted]
        episodes = [item for item in mine if isinstance(item, Episode)]
        meta = {
            "numbers": [episode.number for episode in episodes],
            "returns": [episode.ret for episode in episodes],
            "lengths": [episode.length for episode in episodes],
            "seconds": sum(episode.seconds for episode in episodes),
        }
        found.append((wanted, Parcel(pack(episodes), meta), [item for item in mine if isinstance(item, Failure)]))
    return found
