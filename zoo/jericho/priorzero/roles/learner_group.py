"""The learner as the coordinating process sees it: one role, or rank 0 with the other ranks of a data-parallel learner.

Rank 0 is the learner in every respect; the others only follow it through a train. A rank that is lost during one is made anew,
gets rank 0's state, and the train is made again from where it began.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lzero_async.clock import RealClock
from lzero_async.errors import WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.types import StopSignal
from lzero_async.validation import backoff
from lzero_async.workers.backend import Worker
from lzero_async.workers.calls import interrupted, stopped
from zoo.jericho.priorzero.learn.rank_errors import GroupBroken, RankFailed

LOOPBACK = "127.0.0.1"
log = logging.getLogger(__name__)
_LOST = (GroupBroken, RankFailed, WorkerDied)


def on_loopback() -> dict[str, str]:
    """The environment variables with which torch.distributed stays on this machine."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo0" if sys.platform == "darwin" else "lo")


class LearnerGroup:
    """Trains the ranks together. `given_up()`: whether the run is being closed; `on_restart()` follows a rank's restart."""

    def __init__(
        self,
        learner: Worker,
        ranks: Sequence[Worker],
        *,
        max_restarts: int,
        restart_backoff: float,
        given_up: Callable[[], bool],
        on_restart: Callable[[], None],
    ) -> None:
        self.learner, self.ranks = learner, list(ranks)
        self._max_restarts, self._backoff = max_restarts, restart_backoff
        self._given_up, self._on_restart = given_up, on_restart
        self._generation = 0  # a group that broke is followed by a new one
        self._address: tuple[str, int] | None = None

    def train(self, *arguments: Any, stop: StopSignal) -> dict[str, Any]:
        """Have the learner train; with ranks, all of them. What fails in one of them is raised here with its own traceback;
        lost ranks are made anew at most `max_restarts` times in a row, after a pause that doubles."""
        if not self.ranks:
            done: dict[str, Any] = self.learner.call("train", *arguments)
            return done
        for attempt in range(self._max_restarts + 1):
            try:
                self._bring_back()
                return self._train_together(arguments)
            except _LOST as error:
                if attempt == self._max_restarts or not self.learner.alive:
                    raise
                pause = backoff(self._backoff, attempt)
                log.warning("the learner lost a rank (%s); the train is made again after %.3g s", error, pause)
                if (stop.wait(pause) and interrupted(stop)) or self._given_up():
                    raise stopped(stop) from error
        raise AssertionError

    def _bring_back(self) -> None:
        """Make the ranks that died anew, and wait for them."""
        lost = [rank for rank in self.ranks if not rank.alive]
        for rank in lost:
            rank.restart()
            self._on_restart()
        self._generation += bool(lost)
        for rank in lost:
            rank.call("ready")

    def _train_together(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if self._address is None:
            self._address = self.learner.call("meet", LOOPBACK)
        errors: list[Exception] = []
        threads = ThreadGroup(RealClock(), "lzero-rank")
        for rank in self.ranks:
            threads.start(rank.name, partial(self._follow, rank, self._generation, errors))
        done: dict[str, Any] = {}
        failure: Exception | None = None
        try:
            done = self.learner.call("lead", self._generation, *arguments)
        except Exception as error:
            failure = error
            self._dismiss()
        threads.join(None)
        self._generation += bool(failure or errors)
        if failure is not None:
            raise _reason(failure, errors)
        if errors:  # after the last update: the train is made
            log.warning("a rank of the learner was lost after a train: %s", errors[0])
        return done

    def _follow(self, rank: Worker, generation: int, errors: list[Exception]) -> None:
        try:
            rank.call("follow", self._address, generation)
        except Exception as error:
            errors.append(error)

    def _dismiss(self) -> None:
        """Let no rank wait for a train that failed, also when rank 0 never heard of it."""
        try:
            self.learner.call("dismiss")
        except Exception:  # nobody leads them any more
            for rank in self.ranks:
                rank.kill()


def _reason(error: Exception, others: Sequence[Exception]) -> Exception:
    """Why a train failed, of what rank 0 and the others raised: a failure before a death before what follows from these."""
    every = [error, *others]
    for consequences in (_LOST, (GroupBroken, RankFailed)):
        for one in every:
            if not isinstance(one, consequences):
                return one
    return error
