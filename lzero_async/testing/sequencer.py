"""Force one interleaving of several threads: `with sequencer(3): ...` waits until steps 0, 1 and 2 are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lzero_async.errors import Deadlock, LzeroAsyncError


class Sequencer:
    """Numbers the blocks of a test; each number is used once. A step that never comes raises after `patience` seconds."""

    def __init__(self, patience: float = 10.0) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._next = 0
        self._claimed: set[int] = set()
        self._broken = False

    @contextmanager
    def __call__(self, position: int) -> Iterator[None]:
        """Run the block as step `position`."""
        with self._changed:
            if position in self._claimed:
                raise LzeroAsyncError(f"Step {position} is used twice in this sequence.")
            self._claimed.add(position)
            arrived = self._changed.wait_for(lambda: self._broken or self._next == position, self._patience)
            if self._broken or not arrived:
                self._broken = True
                self._changed.notify_all()
                raise Deadlock(f"Step {position} waited for step {self._next}, which did not come.")
        try:
            yield
        finally:
            with self._changed:
                self._next += 1
                self._changed.notify_all()
