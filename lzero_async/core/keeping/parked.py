"""What waits at the gate, and who holds what it gave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lzero_async.core.gate import Ticket
from lzero_async.errors import Stopped
from lzero_async.types import Waiter

REPLAY: Final = Ticket(-1, -1, -1)
PAUSED: Final = "the coordinator is paused"
MakeWaiter = Callable[[], Waiter]


class Holder:
    """Whoever passes through the gate: what is given out is somebody's. `run` is the run whose role this is, or None."""

    def __init__(self, run: object = None) -> None:
        self.run = run


ANYBODY: Final = Holder()


class Parked:
    """One request that waits: what it asks for, and what it was given."""

    __slots__ = ("error", "grant", "held_back", "holder", "kind", "paused", "rank", "since", "ticket", "waiter")

    def __init__(
        self, kind: str, waiter: Waiter, since: float, ticket: Ticket | None = None, holder: Holder = ANYBODY
    ) -> None:
        self.kind = kind
        self.waiter = waiter
        self.since = since
        self.ticket = ticket
        self.holder = holder
        self.grant: Ticket | None = None
        self.error: Stopped | None = None
        self.held_back = False
        self.paused = 0.0  # seconds of all pauses before it
        self.rank = (0, 0)  # of a finished collect: its deadline (or start), and who came first

    def __lt__(self, other: Parked) -> bool:
        return self.rank < other.rank


class Nobody:
    """Where nobody waits: the call of a finished collect was interrupted, and its batch is in line."""

    def wait(self, timeout: float | None) -> bool:
        """Nobody waits here."""
        raise AssertionError("nobody waits here")

    def wake(self) -> None:
        """Nobody has to be told."""
