"""Roles that a run can lose at any moment: what they send says who made it and with which weights. No numpy, fast to start."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lzero_async.errors import Stopped
from lzero_async.testing import Interrupted
from lzero_async.testing.fakes import Block
from lzero_async.workers.parcels import Parcel


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
