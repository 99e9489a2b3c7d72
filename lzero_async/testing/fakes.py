"""Fakes of the three roles: they take a drawn time on the clock, can fail on demand, and note what they were given."""

from __future__ import annotations

import json
import os
import pickle
import random
import textwrap
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from lzero_async.errors import Stopped
from lzero_async.simulate.distributions import Distribution, sample
from lzero_async.types import Batch, Clock, CollectContext, EvalContext
from lzero_async.workers.parcels import Parcel


class Interrupted(RuntimeError):
    """What a fake raises when it is told to fail."""


class _FakeStage:
    """Each worker of each role draws from its own stream, so durations do not depend on the interleaving."""

    role = ""

    def __init__(self, clock: Clock, seconds: Distribution, *, seed: int = 0, fail_at: Collection[int] = ()) -> None:
        self._clock = clock
        self._seconds = seconds
        self._seed = seed
        self._streams: dict[int, random.Random] = {}
        self._calls: dict[int, int] = {}
        self._fail_at = set(fail_at)
        self.calls = 0

    def _spend(self, worker: int) -> None:
        call, self.calls = self.calls, self.calls + 1
        index = self._calls.get(worker, 0)
        self._calls[worker] = index + 1
        stream = self._streams.setdefault(worker, random.Random(f"{self._seed}/{self.role}/{worker}"))
        self._clock.sleep(sample(self._seconds, stream, index))
        if call in self._fail_at:
            raise Interrupted(f"call {call} was told to fail")


class FakeCollector(_FakeStage):
    """A collect that returns (ticket, version)."""

    role = "collect"

    def __call__(self, context: CollectContext) -> tuple[int, int]:
        """Collect one batch."""
        self._spend(context.worker)
        return context.ticket, context.version


class FakeLearner(_FakeStage):
    """A train that keeps its batches' ids, the largest staleness, and a weight that counts the trains."""

    role = "train"

    def __init__(
        self,
        clock: Clock,
        seconds: Distribution,
        *,
        seed: int = 0,
        fail_at: Collection[int] = (),
        drift: float | None = None,
    ) -> None:
        super().__init__(clock, seconds, seed=seed, fail_at=fail_at)
        self._drift = drift
        self.trained: list[int] = []
        self.max_staleness = 0
        self.weight = 0

    def __call__(self, batch: Batch) -> float | None:
        """Train one batch."""
        self.weight += 1
        self._spend(0)
        self.max_staleness = max(self.max_staleness, batch.staleness)
        if not batch.replay:
            self.trained.append(batch.id)
        return self._drift

    def get_weights(self) -> dict[str, Any]:
        """The weights to publish."""
        return {"weight": self.weight}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a train changes."""
        return {"weight": self.weight, "trained": list(self.trained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to an earlier state."""
        self.weight, self.trained = state["weight"], list(state["trained"])


class FakeEvaluator(_FakeStage):
    """An evaluation whose score is the version it looked at."""

    role = "eval"

    def __init__(self, clock: Clock, seconds: Distribution, *, seed: int = 0, fail_at: Collection[int] = ()) -> None:
        super().__init__(clock, seconds, seed=seed, fail_at=fail_at)
        self.seen: list[tuple[int, Any]] = []

    def __call__(self, context: EvalContext) -> float:
        """Evaluate once."""
        before = None if context.snapshot is None else context.snapshot.state["weight"]
        self._spend(0)
        after = None if context.snapshot is None else context.snapshot.state["weight"]
        if before != after:
            raise AssertionError("the snapshot changed under the evaluation")
        self.seen.append((context.version, after))
        return float(context.version)


# -- roles for backends: no clock, no numpy, fast to start -----------------------------------------------------------------


class ScriptedRole:
    """A role that runs whatever source text it is given, for tests of what a role may do to its worker."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self.names: dict[str, Any] = {"emit": emit, "Parcel": Parcel, "PickleBuffer": pickle.PickleBuffer, "role": self}

    def do(self, source: str, *args: Any, stop: Any = None) -> Any:
        """Run the text with `args` and `stop`; return what it calls `result`. Names live on until the next call."""
        self.names.update(args=args, stop=stop, result=None)
        exec(textwrap.dedent(source), self.names)
        result = self.names.pop("result")
        self.names.update(args=None, stop=None)
        return result


class Block:
    """Bytes that travel and are copied like an array, without numpy."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def __reduce_ex__(self, protocol: Any) -> tuple[type[Block], tuple[Any]]:
        return Block, (pickle.PickleBuffer(self.data) if protocol >= 5 else bytes(self.data),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        return Block(bytearray(self.data))


class LearnerRole:
    """Trains on parcels of a CollectorRole: counts versions, notes every batch, and saves itself with the run's state."""

    def __init__(self, emit: Callable[[Any], None], *, seconds: float = 0.0, size: int = 40_000) -> None:
        self._emit = emit
        self._seconds = seconds
        self._weights = bytearray(size)
        self.version = 0
        self.trained: list[tuple[int, tuple[Any, ...]]] = []

    def train(self, batch: int, data: Parcel, linger: float = 0.0, *, stop: Any = None) -> int:
        """Train one batch, which must be what its collector put together; return the version after it."""
        self._emit("train")
        _dwell(self._seconds + linger, stop)
        check_uniform(data.open(), data.meta[-1])
        self.trained.append((batch, data.meta))
        self.version += 1
        self._weights[:] = _pattern(self.version, len(self._weights))
        return self.version

    def weights(self) -> Parcel:
        """The weights as they are now."""
        return Parcel(Block(self._weights), self.version, live=True)

    def history(self) -> list[tuple[int, tuple[Any, ...]]]:
        """Every batch that was trained: its number and the tag that its collector gave it."""
        return self.trained

    def save(self, path: str, state: Any) -> None:
        """Write a checkpoint, with the batches that wait: all of it, or the one before stays."""
        batches = [[bytes(parcel.open()).hex(), parcel.meta] for parcel in state["batches"]]
        saved = {"version": self.version, "trained": self.trained, "state": {**state, "batches": batches}}
        partly = Path(f"{path}.partly")
        partly.write_text(json.dumps(saved))
        partly.replace(path)

    def load(self, path: str) -> Any:
        """Go back to a checkpoint; return the state that was saved with it."""
        saved = json.loads(Path(path).read_text())
        self.version, self.trained = saved["version"], saved["trained"]
        self._weights[:] = _pattern(self.version, len(self._weights))
        batches = [Parcel(Block(bytearray.fromhex(data)), tuple(meta)) for data, meta in saved["state"]["batches"]]
        return {**saved["state"], "batches": batches}


class CollectorRole:
    """Returns parcels tagged with (worker, life, number, version), of bytes that say the version that it played with."""

    def __init__(
        self,
        emit: Callable[[Any], None],
        *,
        worker: int = 0,
        seconds: float = 0.0,
        size: int = 40_000,
        poisoned: bool = False,
    ) -> None:
        self._emit = emit
        self._worker, self._life = worker, os.urandom(4).hex()
        self._seconds, self._size, self._poisoned = seconds, size, poisoned
        self._number = 0

    def collect(self, weights: Parcel, linger: float = 0.0, *, stop: Any = None) -> Parcel:
        """Collect one batch with these weights."""
        if self._poisoned:
            raise Interrupted(f"collector {self._worker} always fails")
        self._emit("collect")
        opened = weights.open()
        _dwell(self._seconds + linger, stop)
        check_uniform(opened, weights.meta)
        self._number += 1
        data = _pattern(weights.meta, self._size)
        return Parcel(Block(data), (self._worker, self._life, self._number, weights.meta))


class EvaluatorRole:
    """Scores weights with their version."""

    def __init__(self, emit: Callable[[Any], None], *, seconds: float = 0.0) -> None:
        self._emit = emit
        self._seconds = seconds

    def evaluate(self, weights: Parcel, linger: float = 0.0, *, stop: Any = None) -> float:
        """The score of these weights."""
        self._emit("evaluate")
        opened = weights.open()
        _dwell(self._seconds + linger, stop)
        check_uniform(opened, weights.meta)
        return float(weights.meta)


def check_uniform(data: Any, version: int) -> None:
    """Raise AssertionError unless the bytes are of this one version throughout."""
    found = bytes(data)
    if found != _pattern(version, len(found)):
        raise AssertionError(f"the bytes are not those of version {version}")


def _pattern(version: int, size: int) -> bytearray:
    return bytearray(version.to_bytes(8, "little") * (size // 8 + 1))[:size]


def _dwell(seconds: float, stop: Any) -> None:
    """Spend time; give up as soon as the run stops."""
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        error = Stopped(stop.stop_reason)
        error.origin = stop
        raise error
