"""Environments without a barrier: each has a thread of its own, plays whole episodes, and waits for nobody.

One worker has many of them. While one waits for its simulator the others go on; Python's lock is free in a wait. Environments
that compute are spread over several workers, which are processes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lzero_async.calls import listen
from lzero_async.clock import RealClock
from lzero_async.parcels import Parcel
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from zoo.episode_ppo.episode import Episode, Recording, pack
from zoo.episode_ppo.factories import FlatEnv
from zoo.episode_ppo.policy import NumpyPolicy

ENV_STREAM, ACTION_STREAM = 1, 2
MAX_STEPS = 1_000_000  # of an episode, after which it is cut: an environment without a time limit must not hold a batch for ever


class Slot(NamedTuple):
    """One episode to be played: its number, in the order in which they are started, and the round that wants it."""

    number: int
    round: int
    version: int


class Failure(NamedTuple):
    """An episode that an environment could not play to its end."""

    number: int
    error: str


class AsyncEnvs:
    """`num_envs` environments of one worker that play episodes as they are asked to.

    Everything random in an episode follows from the seed and the episode's number, whichever environment plays it.
    """

    def __init__(
        self,
        make_env: Callable[[], FlatEnv],
        num_envs: int,
        worker: int,
        seed: int,
        emit: Callable[[Any], None],
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._make_env, self._worker, self._seed, self._max_steps = make_env, worker, seed, max_steps
        self._slots: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Slot, Episode | Failure] | None] = queue.SimpleQueue()
        self._weights: dict[int, dict[str, np.ndarray]] = {}  # by version; those that an episode may still need
        self._emit = emit
        self._envs = [make_env() for _ in range(num_envs)]
        self._threads = ThreadGroup(RealClock(), "envs")
        for place in range(num_envs):
            self._threads.start(f"env-{place}", lambda place=place: self._play_on(place))  # type: ignore[misc]

    def ready(self) -> dict[str, Any]:
        """Answered once the role is made: its environments."""
        return {"num_envs": len(self._envs), "spaces": tuple(self._envs[0].spaces)}

    def play(
        self, slots: Sequence[Slot], weights: Sequence[tuple[int, Parcel]], oldest: int, stop: StopSignal | None = None
    ) -> list[tuple[int, Parcel, list[Failure]]]:
        """Take these episodes on, and return those that have ended as soon as there is one: by round, packed, with failures.

        `weights` are of versions not seen before; those below `oldest` are forgotten. `stop` ends the wait, not the episodes.
        """
        for version, parcel in weights:
            self._weights[version] = {name: value.copy() for name, value in parcel.read().items()}
        for version in [version for version in self._weights if version < oldest]:
            del self._weights[version]
        for slot in slots:
            self._slots.put(Slot(*slot))
        unlisten = listen(stop, lambda reason: self._ended.put(None))
        try:
            ended = [self._ended.get()]
        finally:
            unlisten()
        while not self._ended.empty():
            ended.append(self._ended.get())
        return _by_round([item for item in ended if item is not None])

    def _play_on(self, place: int) -> None:
        """The body of an environment's thread."""
        policy: NumpyPolicy | None = None
        version = -1
        while (slot := self._slots.get()) is not None:
            try:
                weights = self._weights[slot.version]
                if policy is None:
                    policy = NumpyPolicy(weights)
                elif slot.version != version:
                    policy.load(weights)
                version = slot.version
                found: Episode | Failure = self._play(self._envs[place], policy, slot)
            except (
                Exception
            ) as error:  # the environment is made anew; whoever asked decides what becomes of the episode
                found = Failure(slot.number, repr(error))
                self._renew(place)
            self._ended.put((slot, found))

    def _play(self, env: FlatEnv, policy: NumpyPolicy, slot: Slot) -> Episode:
        begun = time.monotonic()
        rng = np.random.default_rng([self._seed, ACTION_STREAM, slot.number])
        first = np.random.SeedSequence([self._seed, ENV_STREAM, slot.number]).generate_state(1)[0]
        obs, _ = env.reset(int(first) >> 1)
        recording = Recording(slot.number, slot.version, self._worker)
        for _ in range(self._max_steps):
            action, log_prob = policy.act(obs, rng)
            following, reward, terminated, truncated, _ = env.step(action)
            recording.add(obs, action, log_prob, reward)
            obs = following
            if terminated or truncated:
                return recording.finish(obs, terminated, truncated, time.monotonic() - begun)
        return recording.finish(obs, False, True, time.monotonic() - begun)

    def _renew(self, place: int) -> None:
        try:
            self._envs[place].close()
        except Exception:  # it is given up anyway
            pass
        try:
            self._envs[place] = self._make_env()
        except Exception:  # the next episode fails with what this raises
            return

    def close(self) -> None:
        """End the environments; those that are in the middle of an episode end with the process."""
        for _ in self._envs:
            self._slots.put(None)
        busy = set(self._threads.join(1.0))
        for place, env in enumerate(self._envs):
            if f"env-{place}" not in busy:
                env.close()


def _by_round(ended: Sequence[tuple[Slot, Episode | Failure]]) -> list[tuple[int, Parcel, list[Failure]]]:
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
