"""Which of several servers gets a question, and which of them may be asked at all: the rules, without threads, clock or network.

- Questions of one episode go to one server, which has the beginning of their prompts in its prefix cache. An episode's first
  questions go to the server with the least outstanding ones; among equals the servers take turns.
- An episode leaves its server when that may not be asked, or when more than `margin` more questions are outstanding there than at
  the least busy one. Questions that are placed together stay together.
- A server that fails is left out, and looked at again after a pause that doubles from failure to failure, up to a bound; only an
  answer to a question makes it short again.
- The table of episodes is bounded: it forgets the one that was asked about longest ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Server:
    """One server as this client sees it; `outstanding`, `served` and `failed` count questions, `moved` episodes that left it."""

    url: str
    ok: bool = False
    outstanding: int = 0
    served: int = 0
    failed: int = 0
    moved: int = 0
    life: int = 0
    """How often it was taken in: what was asked in an earlier life says nothing about this one."""
    why: str = "it was not asked yet"
    """Why it is left out."""
    failures: int = 0
    """In a row, since it last answered a question."""
    due: float = 0.0
    """When to look at it again, in seconds of the caller's clock."""
    visited: bool = False
    """Whether somebody is looking at it."""

    def statistics(self) -> dict[str, Any]:
        """What a user wants to know of it."""
        return {name: getattr(self, name) for name in ("url", "ok", "outstanding", "served", "failed", "moved")}


class Balance:
    """The servers and the episodes' places; `first` is the server that wins the first tie. The caller guards it with a lock."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        first: int = 0,
        margin: int = 64,
        episodes_kept: int = 4096,
        pause: float = 1.0,
        longest_pause: float = 60.0,
    ) -> None:
        self.servers = [Server(url) for url in urls]
        self._turn, self._margin, self._episodes_kept = first % len(urls), margin, episodes_kept
        self._pause, self._longest_pause = pause, longest_pause
        self._homes: OrderedDict[Hashable, Server] = OrderedDict()

    @property
    def usable(self) -> list[Server]:
        """The servers that may be asked."""
        return [server for server in self.servers if server.ok]

    def place(self, key: Hashable, count: int = 1, tried: Collection[Server] = ()) -> Server | None:
        """The server for `count` questions of one episode, which are outstanding there from now on.

        None when no server but those in `tried` may be asked. Questions without an episode (None) go to the least busy server.
        """
        choices = [server for server in self.usable if server not in tried]
        if not choices:
            return None
        home = self._homes.get(key) if key is not None else None
        if home in choices and (tried or home.outstanding - min(s.outstanding for s in choices) <= self._margin):
            chosen = home
        else:
            chosen = self._least_busy(choices)
        if key is not None:
            if home is not None and chosen is not home:
                home.moved += 1
            self._remember(key, chosen)
        chosen.outstanding += count
        return chosen

    def answered(self, server: Server) -> None:
        """A question is answered."""
        server.outstanding -= 1
        server.served += 1
        server.failures = 0

    def refused(self, server: Server) -> None:
        """The server works, but does not take this question."""
        server.outstanding -= 1
        server.failed += 1

    def skipped(self, server: Server) -> None:
        """A question was not asked after all."""
        server.outstanding -= 1

    def failed(self, server: Server, life: int, why: str, now: float) -> bool:
        """A question that was asked in that life got no answer; whether the server is left out because of it."""
        server.outstanding -= 1
        server.failed += 1
        if not self.is_alive(server, life):
            return False
        self.leave_out(server, why, now)
        return True

    @staticmethod
    def is_alive(server: Server, life: int) -> bool:
        """Whether the server may be asked and has been since that life began."""
        return server.ok and server.life == life

    def leave_out(self, server: Server, why: str, now: float) -> None:
        """Do not ask this server until `take_in`."""
        pause = min(self._longest_pause, self._pause * 2 ** min(server.failures, 60))
        server.ok, server.visited, server.why, server.due = False, False, why, now + pause
        server.failures += 1

    def take_in(self, server: Server) -> None:
        """Ask this server from now on."""
        server.life += not server.ok
        server.ok, server.visited, server.why = True, False, ""

    def visit_due(self, now: float) -> list[Server]:
        """The servers that are to be looked at now; each ends with `take_in` or `leave_out`."""
        due = [server for server in self.servers if not (server.ok or server.visited) and server.due <= now]
        for server in due:
            server.visited = True
        return due

    def _least_busy(self, choices: list[Server]) -> Server:
        size = len(self.servers)
        number, chosen = min(
            ((i, server) for i, server in enumerate(self.servers) if server in choices),
            key=lambda pair: (pair[1].outstanding, (pair[0] - self._turn) % size),
        )
        self._turn = (number + 1) % size
        return chosen

    def _remember(self, key: Hashable, server: Server) -> None:
        self._homes[key] = server
        self._homes.move_to_end(key)
        while len(self._homes) > self._episodes_kept:
            self._homes.popitem(last=False)
