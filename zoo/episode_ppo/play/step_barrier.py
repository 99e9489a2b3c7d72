"""The synchronous collector: all environments step together, and at every step everybody waits for the slowest.

The baseline. It plays the same episodes as the asynchronous one: numbers, seeds, policy and steps are the same code.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from lzero_async.errors import WorkerDied
from lzero_async.types import CollectContext, StopSignal
from lzero_async.workers.backend import Worker
from lzero_async.workers.calls import stopped
from lzero_async.workers.parcels import Parcel
from lzero_async.workers.step_watch import StepWatch
from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.parallel_env_async import Ended, Policies, by_round
from zoo.episode_ppo.play.episode import Episode
from zoo.episode_ppo.play.patience import ended_soon
from zoo.episode_ppo.play.player import MAX_STEPS, STEP_TIMEOUT, Failure, Look, Player, Slot
from zoo.episode_ppo.play.rounds import Pool, Progress, Round

RETURN_AFTER = 0.1  # seconds after which a worker that plays alone returns what has ended


class StepEnvs:
    """`num_envs` environments of one worker that make one step each when they are asked to.

    Environments that wait (for a simulator elsewhere) make it at the same time, in threads; those that compute one after the
    other, which is faster for them. The first steps are looked at to tell which they are. `step_timeout` is that of `AsyncEnvs`,
    but a call in the main thread of a process is interrupted, and fails its episode only.
    """

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
        look, thinking = Look(self._decided), threading.Lock()
        self._emit = emit
        self._watch = watch = StepWatch(step_timeout, on_overdue=emit)
        self._players = [
            Player(make_env, worker, seed, max_steps, thinking=thinking, look=look, watch=watch)
            for _ in range(num_envs)
        ]
        self._slots: list[Slot | None] = [None] * num_envs
        self._begun = [False] * num_envs
        self._queue: deque[Slot] = deque()  # episodes that wait for an environment
        self._round = -1
        self._policies = Policies()
        self._threads: ThreadPoolExecutor | None = None

    def ready(self) -> dict[str, Any]:
        """Answered once the role is made: its environments."""
        return {"num_envs": len(self._players), "spaces": tuple(self._players[0].env.spaces)}

    def step(
        self,
        wanted: int,
        slots: Sequence[Slot],
        weights: Sequence[tuple[int, Parcel]],
        alone: bool,
        stop: StopSignal | None = None,
    ) -> list[Ended]:
        """Take these episodes of the round `wanted` on, and make one step of every episode that is played.

        If no other worker plays (`alone`), make steps until all have ended, or some have and it is time to hand them over:
        then the barrier is in here, and nobody need be asked at every step. Returns what has ended. Episodes of another round
        are given up; `weights` replace all others.
        """
        begun = time.monotonic()
        if weights:
            self._policies.take(weights, weights[0][0])
        if wanted != self._round:
            self._round, self._slots = wanted, [None] * len(self._players)
            self._queue.clear()
        self._queue.extend(Slot(*slot) for slot in slots)
        ended = self._step_all()
        while alone and (self._queue or any(self._slots)) and not (stop is not None and stop.is_set()):
            failed = any(isinstance(found, Failure) for _, found in ended)  # which may be the end of the run
            if failed or (ended and time.monotonic() - begun > RETURN_AFTER):
                break
            ended += self._step_all()
        return by_round(ended, 1 if self._threads is None else len(self._players))

    def _step_all(self) -> list[tuple[Slot, Episode | Failure]]:
        """Let free environments begin an episode, and make one step of every one that has an episode; what has ended."""
        for place, slot in enumerate(self._slots):
            if slot is None and self._queue:
                self._slots[place], self._begun[place] = self._queue.popleft(), False
        playing = [place for place, slot in enumerate(self._slots) if slot is not None]
        ended = []
        for place, found in zip(playing, self._all(playing), strict=True):
            slot = self._slots[place]
            if found is not None and slot is not None:
                ended.append((slot, found))
                self._slots[place] = None
        return ended

    def _decided(self, waits: bool) -> None:
        if waits and len(self._players) > 1:
            self._threads = ThreadPoolExecutor(len(self._players))

    def _all(self, playing: Sequence[int]) -> list[Episode | Failure | None]:
        return list(map(self._one, playing) if self._threads is None else self._threads.map(self._one, playing))

    def _one(self, place: int) -> Episode | Failure | None:
        player, slot = self._players[place], self._slots[place]
        assert slot is not None
        try:
            if not self._begun[place]:
                player.begin(slot, self._policies[slot.version])
                self._begun[place] = True
            return player.step()
        except Exception as error:
            failure = player.fail(slot, error)
            self._emit(failure)
            return failure

    def close(self) -> None:
        """End the environments."""
        if self._threads is not None:
            self._threads.shutdown()
        for player in self._players:
            player.close()
        self._watch.close()


class BarrierPool(Pool):
    """Plays one round at a time with workers (`StepEnvs`) that step together; a collector's thread does all of it."""

    def __init__(self, workers: Sequence[Worker], shares: Sequence[int], on_progress: Progress | None = None) -> None:
        super().__init__(workers, shares, on_progress)
        self._threads = ThreadPoolExecutor(len(self.workers)) if len(self.workers) > 1 else None

    def play(self, context: CollectContext, count: int) -> Round:
        assert context.snapshot is not None
        self.bring_back()
        with self._changed:
            wanted = self._open(context.snapshot, count)
        try:
            with ended_soon(self.workers, context.stop):  # a stop ends the wait for environments that hang
                self._play(wanted, context)
        finally:
            with self._changed:
                self._close(wanted)
        return wanted

    def _play(self, wanted: Round, context: CollectContext) -> None:
        pending = deque(wanted.slots)
        playing: list[dict[int, Slot]] = [{} for _ in self.workers]
        told = [False] * len(self.workers)  # whether each worker has the weights
        while wanted.missing:
            if context.stop.is_set():
                raise stopped(context.stop)
            orders = []
            for place in range(len(self.workers)):
                room = len(pending) if len(self.workers) == 1 else self.shares[place] - len(playing[place])
                slots = [pending.popleft() for _ in range(min(room, len(pending)))]
                playing[place].update((slot.number, slot) for slot in slots)
                if playing[place]:
                    weights = [] if told[place] else [(wanted.snapshot.version, wanted.snapshot.state)]
                    orders.append((place, (wanted.number, slots, weights)))
                    told[place] = True
            for (place, _), found in zip(orders, self._step(orders, context.stop), strict=True):
                if isinstance(found, Failure):
                    pending.extend(self._replace(place, playing[place], found))
                    told[place] = False
                    continue
                for _, parcel, failures in found:
                    pending.extend(self._take(wanted, place, playing[place], parcel, failures))
            if wanted.error is not None:
                raise wanted.error

    def _step(self, orders: Sequence[tuple[int, tuple[Any, ...]]], stop: StopSignal) -> list[list[Ended] | Failure]:
        """One step of every worker; the barrier is here."""
        alone = len(orders) == 1  # and then nothing waits to be begun elsewhere
        calls = [partial(self._ask, place, (*order, alone), stop) for place, order in orders]
        if self._threads is None or alone:
            return [call() for call in calls]
        futures = [self._threads.submit(call) for call in calls]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def _ask(self, place: int, order: tuple[Any, ...], stop: StopSignal) -> list[Ended] | Failure:
        """What a worker returns, or the episode in which one of its environments hung, so that it ended."""
        try:
            return self.workers[place].call("step", *order, stop=stop)  # type: ignore[no-any-return]
        except WorkerDied as error:
            if stop.is_set():
                raise stopped(stop) from error
            if (hung := self._hung(place, error)) is None:
                raise
            return hung

    def _replace(self, place: int, playing: dict[int, Slot], hung: Failure) -> list[Slot]:
        """A worker ended because an environment hung: it is made anew; those of its episodes that are to be played again."""
        self.workers[place].restart()
        with self._changed:
            again = self._lost(playing, hung)
        playing.clear()
        return again

    def _take(
        self, wanted: Round, place: int, playing: dict[int, Slot], parcel: Parcel, failures: Sequence[Failure]
    ) -> list[Slot]:
        """Episodes came back; those that are to be played again."""
        with self._changed:
            for ended in parcel.meta["numbers"]:
                del playing[ended]
            changed = self._count(place, wanted, parcel)
            again = [self._again(wanted, playing.pop(failure.number), failure) for failure in failures]
        self._tell(wanted, changed or None in again)
        return [slot for slot in again if slot is not None]

    def bring_back(self) -> None:
        """Make dead workers anew."""
        for worker in self.workers:
            if not worker.alive:
                worker.restart()

    def close(self) -> None:
        """End the threads that wait for the workers."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
