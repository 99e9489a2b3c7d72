"""Fakes of the three roles: they take a drawn time on the clock, can fail on demand, and note what they were given."""

from __future__ import annotations

import pickle
import random
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import Any

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
