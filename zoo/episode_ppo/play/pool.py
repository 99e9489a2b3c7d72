"""The asynchronous collector: episodes are dealt out one by one to whichever environment is free, and nobody waits for anybody.

While a round waits for its last episodes, free environments play those of the next one, within the bound that the gate keeps.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lzero_async.errors import Stopped, WorkerDied
from lzero_async.types import BackgroundContext, CollectContext, Snapshot, StopSignal
from lzero_async.workers.backend import Worker
from lzero_async.workers.calls import CallStop, listen, stopped
from lzero_async.workers.parcels import Parcel
from zoo.episode_ppo.parallel_env_async import HAND_OVER
from zoo.episode_ppo.play.player import Failure, Slot
from zoo.episode_ppo.play.rounds import Pool, Progress, Round

AHEAD = 2 * HAND_OVER  # seconds of playing that a worker is given at a time where environments take turns
CLOSE_SECONDS = 2.0
LEAST_ROOM, MOST_ROOM = 2, 100  # at least one episode to play, and one for while the first is handed over

log = logging.getLogger(__name__)


class EpisodePool(Pool):
    """Deals episodes out to workers (`AsyncEnvs`), each of which plays as many at once as it has environments.

    `play` is called by collector threads and waits for a whole round; `drive` is the background role of one worker.
    """

    def __init__(self, workers: Sequence[Worker], shares: Sequence[int], on_progress: Progress | None = None) -> None:
        super().__init__(workers, shares, on_progress)
        self._pending: deque[Slot] = deque()
        self._playing: list[dict[int, Slot]] = [{} for _ in workers]
        self._room = list(shares)  # episodes that each worker may have
        self._known: list[set[int]] = [set() for _ in workers]  # versions whose weights each worker has
        self._fallen: dict[
            int, Failure | None
        ] = {}  # workers that failed and were not made anew yet; what hung in them
        self._calls: list[CallStop | None] = [None] * len(self.workers)  # what ends the wait of each worker's call

    # -- rounds --------------------------------------------------------------------------------------------------------

    def play(self, context: CollectContext, count: int) -> Round:
        assert context.snapshot is not None
        wanted = self._deal(context.snapshot, count)
        unlisten = listen(context.stop, lambda reason: self._wake())
        try:
            with self._changed:
                while wanted.missing and wanted.error is None and not context.stop.is_set():
                    self._changed.wait()
        finally:
            unlisten()
            with self._changed:
                self._close(wanted)
                self._forget(wanted)
        if wanted.error is not None:
            raise wanted.error
        if wanted.missing:
            raise stopped(context.stop)
        return wanted

    def _deal(self, snapshot: Snapshot, count: int) -> Round:
        with self._changed:
            wanted = self._open(snapshot, count)
            self._pending.extend(wanted.slots)
            self._changed.notify_all()
            idle = [call for place, call in enumerate(self._calls) if call is not None and self._free(place)]
        for call in idle:  # its worker waits for an episode to end, with environments that could begin one
            call.set("there are more episodes to play")
        return wanted

    def _forget(self, wanted: Round) -> None:
        """Under the lock: nobody is to begin what is left of a round."""
        if wanted.missing or wanted.error is not None:
            self._pending = deque(slot for slot in self._pending if slot.round != wanted.number)

    # -- workers -------------------------------------------------------------------------------------------------------

    def drive(self, place: int, context: BackgroundContext) -> None:
        """One pass of a worker: give it what it has room for, and take what has ended."""
        worker = self.workers[place]
        if place in self._fallen:
            self._bring_back(place)
        worker.wait_until_ready(context.stop)  # before it is given episodes, which others could play meanwhile
        call, *order = self._wait_for_work(place, context.stop)
        unlisten = listen(context.stop, call.set)
        try:
            found = worker.call("play", *order, stop=call)
        except Exception as error:
            if isinstance(error, Stopped):
                raise
            self._end(worker, error)
            hung = self._fallen[place] = self._hung(place, error) if isinstance(error, WorkerDied) else None
            if hung is None:
                raise
            return
        finally:
            unlisten()
            with self._changed:
                self._calls[place] = None
        for number, parcel, failures in found:
            self._take(place, number, parcel, failures)

    def _end(self, worker: Worker, error: Exception) -> None:
        """What a worker that failed has of its episodes cannot be known: it is ended, and the next pass makes it anew."""
        if not isinstance(error, WorkerDied):
            try:
                worker.close(CLOSE_SECONDS)  # its environments may hold something
            except Exception as late:  # the first error is the one to show
                log.warning("while closing %s after %r: %r", worker.name, error, late)
        worker.kill()

    def _wait_for_work(
        self, place: int, stop: StopSignal
    ) -> tuple[CallStop, list[Slot], list[tuple[int, Parcel]], int]:
        """What to call a worker with; the first item ends its wait, from now on, when there is more to play."""
        unlisten = listen(stop, lambda reason: self._wake())
        try:
            with self._changed:
                while not self._playing[place] and not self._pending and not stop.is_set():
                    self._changed.wait()
                if stop.is_set():
                    raise stopped(stop)
                slots = [self._pending.popleft() for _ in range(min(self._free(place), len(self._pending)))]
                self._playing[place].update((slot.number, slot) for slot in slots)
                call = self._calls[place] = CallStop()
                return call, slots, self._weights_for(place, slots), self._oldest()
        finally:
            unlisten()

    def _weights_for(self, place: int, slots: Sequence[Slot]) -> list[tuple[int, Parcel]]:
        """Weights of versions that a worker has not seen."""
        new = {
            slot.version: self._rounds[slot.round].snapshot.state
            for slot in slots
            if slot.version not in self._known[place]
        }
        self._known[place].update(new)
        return sorted(new.items())

    def _oldest(self) -> int:
        """The oldest version that an episode may still need."""
        slots = [*self._pending, *(slot for playing in self._playing for slot in playing.values())]
        oldest = min((slot.version for slot in slots), default=0)
        for known in self._known:
            known -= {version for version in known if version < oldest}
        return oldest

    def _free(self, place: int) -> int:
        return max(0, self._room[place] - len(self._playing[place]))

    def _look_at_pace(self, place: int, meta: Mapping[str, Any]) -> None:
        """Under the lock: a worker whose environments take turns gets what it plays in a moment, however many it has: so much
        that it need not ask after every episode, and no long queue that others could play from."""
        share, episodes = self.shares[place], len(meta["numbers"])
        if meta["at_once"] >= share:
            self._room[place] = share
        elif episodes:
            ahead = math.ceil(AHEAD * episodes / max(meta["seconds"], 1e-9))
            self._room[place] = min(MOST_ROOM, max(LEAST_ROOM, ahead))

    def _take(self, place: int, number: int, parcel: Parcel, failures: Sequence[Failure]) -> None:
        """Episodes of one round came back."""
        with self._changed:
            wanted = self._rounds.get(number)
            for ended in parcel.meta["numbers"]:
                self._playing[place].pop(ended, None)
            changed = self._count(place, wanted, parcel)
            self._look_at_pace(place, parcel.meta)
            for failure in failures:
                slot = self._playing[place].pop(failure.number, None)
                again = self._again(wanted, slot, failure)
                self._pending.extendleft([] if again is None else [again])
                changed |= again is None
            if wanted is not None and wanted.error is not None:
                self._forget(wanted)
            self._changed.notify_all()
        self._tell(wanted, changed)

    def _bring_back(self, place: int) -> None:
        """A worker died: its episodes are played again, from the start, by whoever is free."""
        self.workers[place].restart()
        with self._changed:
            lost = self._lost(self._playing[place], self._fallen.pop(place))
            self._playing[place].clear()
            self._known[place].clear()
            self._pending.extendleft(reversed(lost))
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
