"""Environments without a barrier: they play whole episodes and wait for nobody.

One worker has many of them. Environments that wait, for a simulator elsewhere, have a thread each: while one waits the others go
on. Those that compute take turns, a whole episode at a time, since threads would only push each other aside; they are spread
over several workers, which are processes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lzero_async.clock import RealClock
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.workers.calls import listen
from lzero_async.workers.parcels import Parcel
from lzero_async.workers.step_watch import StepWatch
from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.play.episode import Episode, pack
from zoo.episode_ppo.play.player import MAX_STEPS, STEP_TIMEOUT, Failure, Look, Player, Slot
from zoo.episode_ppo.play.policy import NumpyPolicy

LOOK_SECONDS = (
    0.2  # a first environment that has not made its first steps by then is slow: the others do not wait for it
)
HAND_OVER = 0.02  # seconds for which episodes are gathered where they come quickly
Ended = tuple[int, Parcel, list[Failure]]  # of one round: its number, the episodes packed, and those that failed


class Policies:
    """The policies that a worker has, by version."""

    def __init__(self) -> None:
        self._kept: dict[int, NumpyPolicy] = {}

    def take(self, new: Sequence[tuple[int, Parcel]], oldest: int) -> None:
        """Keep these, given as weights, and forget those below `oldest`."""
        for version, parcel in new:
            self._kept[version] = NumpyPolicy(parcel.read())
        for version in [version for version in self._kept if version < oldest]:
            del self._kept[version]

    def __getitem__(self, version: int) -> NumpyPolicy:
        return self._kept[version]


class AsyncEnvs:
    """`num_envs` environments of one worker that play episodes as they are asked to. A call of one that takes longer than
    `step_timeout` seconds ends the worker's process, or, where it has none of its own, is told with `emit`. Failures are told
    with `emit` at once and returned as well: an environment that hangs a moment later may end the worker before it returns."""

    def __init__(
        self,
        make_env: Callable[[], FlatEnv],
        num_envs: int,
        worker: int,
        seed: int,
        emit: Callable[[Any], None],
        max_steps: int = MAX_STEPS,
        step_timeout: float = STEP_TIMEOUT,
    ) -> None:
        self._slots: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Slot, Episode | Failure] | None] = queue.SimpleQueue()
        self._policies = Policies()
        self._open = 0  # episodes taken on that have not been returned
        self._waits: bool | None = None  # whether environments wait; None until the first steps have told
        look, thinking = Look(self._decided), threading.Lock()
        self._emit = emit
        self._watch = watch = StepWatch(step_timeout, on_overdue=emit)
        self._players = [
            Player(make_env, worker, seed, max_steps, thinking=thinking, look=None if place else look, watch=watch)
            for place in range(num_envs)
        ]
        self._threads = ThreadGroup(RealClock(), "envs")
        self._started = 0
        self._closed = False
        self._start(1)

    def _start(self, number: int) -> None:
        """So many environments play at the same time from now on."""
        for place in range(self._started, number):
            self._threads.start(f"env-{place}", partial(self._play_on, self._players[place]))
        self._started = max(self._started, number)

    def _decided(self, waits: bool) -> None:
        if self._waits is None:
            self._waits = waits
            self._ended.put(None)  # whoever gathers looks again

    def ready(self) -> dict[str, Any]:
        """Answered once the role is made: its environments."""
        return {"num_envs": len(self._players), "spaces": tuple(self._players[0].env.spaces)}

    def play(
        self, slots: Sequence[Slot], weights: Sequence[tuple[int, Parcel]], oldest: int, stop: StopSignal | None = None
    ) -> list[Ended]:
        """Take these episodes on, and return those that have ended as soon as there is one, or, of environments that compute, a
        moment later with those that end by then.

        `weights` are of versions not seen before; those below `oldest` are forgotten. `stop` ends the wait, not the episodes.
        """
        self._policies.take(weights, oldest)
        self._open += len(slots)
        for slot in slots:
            self._slots.put(Slot(*slot))
        unlisten = listen(stop, lambda reason: self._ended.put(None))
        try:
            found = self._gather()
        finally:
            unlisten()
        ended = [item for item in found if item is not None]
        self._open -= len(ended)
        return by_round(ended, self._started)

    def _gather(self) -> list[tuple[Slot, Episode | Failure] | None]:
        """What has ended, or None where the wait was ended. Half of the episodes are enough: those that compute play the others
        until new ones come."""
        found = [self._first()]
        until = time.monotonic() + (HAND_OVER if self._waits is False else 0.0)
        while None not in found:
            enough = 2 * len(found) >= self._open
            try:
                found.append(self._ended.get(timeout=0.0 if enough else max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return found

    def _first(self) -> tuple[Slot, Episode | Failure] | None:
        """What ends next. All environments play from when it is known that they wait, or the first one makes no headway."""
        if self._waits is None and self._started < len(self._players):
            try:
                return self._ended.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._waits = True
        if self._waits:
            self._start(len(self._players))
        return self._ended.get()

    def _play_on(self, player: Player) -> None:
        """The body of an environment's thread."""
        while (slot := self._slots.get()) is not None:
            try:
                found: Episode | Failure = player.play(slot, self._policies[slot.version])
            except BaseException as error:  # whatever it is, somebody waits for this episode
                found = player.fail(slot, error)
                self._emit(found)
            self._ended.put((slot, found))
        if self._closed:  # late: nobody else does it
            player.close()
            self._watch.close()

    def close(self) -> None:
        """End the environments; those that are in the middle of an episode end after it, or with the process."""
        while not self._slots.empty():
            self._slots.get()
        for _ in range(self._started):
            self._slots.put(None)
        busy = set(self._threads.join(1.0))
        for place, player in enumerate(self._players):
            if f"env-{place}" not in busy:
                player.close()
        self._closed = True  # a step that begins from here on starts the watch again
        self._watch.close()


def by_round(ended: Sequence[tuple[Slot, Episode | Failure]], at_once: int) -> list[Ended]:
    """What ended, packed by round; `at_once` environments of this worker play at the same time."""
    found = []
    for wanted in sorted({slot.round for slot, _ in ended}):
        mine = [item for slot, item in ended if slot.round == wanted]
        episodes = [item for item in mine if isinstance(item, Episode)]
        meta = {
            "numbers": [episode.number for episode in episodes],
            "returns": [episode.ret for episode in episodes],
            "lengths": [episode.length for episode in episodes],
            "seconds": sum(episode.seconds for episode in episodes),
            "at_once": at_once,
        }
        found.append((wanted, Parcel(pack(episodes), meta), [item for item in mine if isinstance(item, Failure)]))
    return found
