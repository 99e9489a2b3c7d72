"""Several vLLM servers that somebody else runs, as one: balance.py says who is asked, this module asks.

The servers must have the same model with the same weights (agreement.py), which is checked whenever one is taken in. One
that was left out is looked at again, in the background, by a later call; before its first question it gets the weights that
were loaded last.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm.vllm.agreement import MARK_QUESTION, Mark, difference, joined, odd_ones
from zoo.jericho.priorzero.llm.vllm.balance import Balance, Server
from zoo.jericho.priorzero.llm.vllm.protocol import PROBE_TIMEOUT, Answer, EngineFailure, Question
from zoo.jericho.priorzero.llm.vllm.server import HttpTransport

log = logging.getLogger(__name__)
CLOSED = "the engine is closed"


class PoolTransport:
    """The servers at `urls`, each with at most `connections` questions of this client at a time.

    One that fails is left out and its questions are asked elsewhere, each at each server at most once. All servers out is an
    EngineFailure. May be used by several threads; nobody who asks waits for a lock that is held while a server is talked to.
    """

    name = "servers"
    owns_engine = False

    def __init__(
        self,
        urls: Sequence[str],
        model: str = "",
        *,
        request_timeout: float = 300.0,
        connections: int = 32,
        clock: Callable[[], float] = time.monotonic,
        first: int | None = None,
        **rules: Any,
    ) -> None:
        self.model, self.base_weights, self.context_length = model, "", 0
        self._named = bool(model)
        self._timeout, self._clock = request_timeout, clock
        # Where ties begin is left to chance, so that many clients with few episodes each do not all ask the first server.
        first = random.SystemRandom().randrange(len(urls)) if first is None else first
        self._balance = Balance(urls, first=first, **rules)
        self._ways = {
            server: HttpTransport(server.url, model, request_timeout=request_timeout, connections=connections)
            for server in self._balance.servers
        }
        self.ids_per_question = min(way.ids_per_question for way in self._ways.values())
        self._threads = {server: ThreadPoolExecutor(connections, "vllm-ask") for server in self._ways}
        self._keepers = ThreadPoolExecutor(2 * len(urls), "vllm-keep")
        self._visits: dict[Server, Future[None]] = {}
        self._loading = threading.Lock()  # one restart or reload at a time; nobody who asks takes it
        self._lock = threading.Lock()  # of the balance and of all that follows
        self._started = self._closed = False
        self._weights: str | None = None  # what a server must be given; None while all have those they started with
        self._generation = 0  # of the weights
        self._mark: Mark | None = None

    # -- asking ---------------------------------------------------------------

    def ask(self, questions: Sequence[Question], timeout: float | None = None) -> list[Answer | EngineFailure]:
        """Answers in the order of the questions, all in flight at once; `timeout` (seconds) only shortens the usual one."""
        patience = min(self._timeout, timeout or self._timeout)
        self._visit_servers()
        done: SimpleQueue[tuple[int, Answer | BaseException]] = SimpleQueue()
        replies: dict[int, Answer | EngineFailure] = {}
        tried: list[list[Server]] = [[] for _ in questions]

        def send(episodes: Sequence[tuple[Hashable, list[int]]], failure: EngineFailure | None = None) -> None:
            with self._lock:  # all get their places before the first one is answered, so that they are spread evenly
                places = [self._place(key, len(members), tried[members[0]]) for key, members in episodes]
                failure = failure or (self._nobody() if None in places else None)
            for (_, members), place in zip(episodes, places, strict=True):
                for i in members:
                    if place is None:
                        assert failure is not None
                        replies[i] = failure
                    else:
                        tried[i].append(place[0])
                        self._send(i, questions[i], *place, patience, done)

        send(_by_episode(questions))
        while len(replies) < len(questions):
            i, reply = done.get()
            if isinstance(reply, Answer):
                replies[i] = reply
            elif isinstance(reply, EngineFailure):
                send([(questions[i].key, [i])], reply)
            else:
                raise reply
        return [replies[i] for i in range(len(questions))]

    def _place(self, key: Hashable, count: int, tried: Sequence[Server]) -> tuple[Server, int] | None:
        """The server for questions of one episode, and its life; None if there is none. Call it with the lock."""
        server = None if self._closed else self._balance.place(key, count, tried)
        return None if server is None else (server, server.life)

    def _send(
        self, i: int, question: Question, server: Server, life: int, patience: float, done: SimpleQueue[Any]
    ) -> None:
        """Have one of the server's threads ask; `done` gets what came of it, whatever happens to the thread."""

        def ask() -> Answer | EngineFailure | None:
            with self._lock:
                if not self._balance.is_alive(server, life):
                    return None  # it failed others while this question was waiting
            return self._ways[server].ask_one(question, patience)

        def finish(future: Future[Answer | EngineFailure | None]) -> None:
            error = EngineFailure(CLOSED) if future.cancelled() else future.exception()
            reply = error or future.result()
            done.put((i, self._count(server, life, reply)))

        try:
            self._threads[server].submit(ask).add_done_callback(finish)
        except RuntimeError:  # closed under this call
            done.put((i, self._count(server, life, None)))

    def _count(self, server: Server, life: int, reply: Answer | BaseException | None) -> Answer | BaseException:
        """Tell the balance what came of one question; what the asker gets, a failure for a question that was not asked."""
        with self._lock:
            if reply is None:
                self._balance.skipped(server)
                return EngineFailure(CLOSED if self._closed else f"{server.url} failed: {server.why}")
            if isinstance(reply, Answer):
                self._balance.answered(server)
            elif not isinstance(reply, EngineFailure):
                self._balance.refused(server)
            elif self._balance.failed(server, life, str(reply), self._clock()) and not self._closed:
                left = len(self._balance.usable)
                log.warning("the vLLM server at %s is left out, %d can be asked: %s", server.url, left, reply)
        return reply

    def _nobody(self) -> EngineFailure:
        whys = "; ".join(f"{server.url}: {server.why}" for server in self._balance.servers if not server.ok)
        return EngineFailure(CLOSED if self._closed else f"no server can be asked ({whys})")

    # -- servers that come back -----------------------------------------------

    def _visit_servers(self) -> None:
        """Look in the background at the servers whose pause is over; raises what an earlier look did not expect."""
        with self._lock:
            over = [self._visits.pop(server) for server, visit in list(self._visits.items()) if visit.done()]
            for server in [] if self._closed else self._balance.visit_due(self._clock()):
                self._visits[server] = self._keepers.submit(self._visit, server)
        for visit in over:
            if not visit.cancelled():
                visit.result()

    def _visit(self, server: Server) -> None:
        """Take the server in with the newest weights, or leave it out for another pause."""
        try:
            while not self._take_back(server):
                pass  # there are newer weights by now
        except BaseException as error:
            with self._lock:
                news = server.why != str(error) and not self._closed
                self._balance.leave_out(server, str(error), self._clock())
            log.log(logging.WARNING if news else logging.INFO, "the vLLM server at %s stays out: %s", server.url, error)
            if not isinstance(error, (EngineFailure, ConfigError)):
                raise
        else:
            log.warning("the vLLM server at %s is back", server.url)

    def _take_back(self, server: Server) -> bool:
        with self._lock:
            generation, weights = self._generation, self._weights
        mark = self._bring_up(server, weights)
        with self._lock:
            if generation != self._generation:
                return False
            if why := self._misfit(server, mark):
                raise ConfigError(why)
            self._balance.take_in(server)
        return True

    def _bring_up(self, server: Server, weights: str | None) -> Mark:
        """Check that the server works, give it the weights, and see what it says with them."""
        self._ways[server].restart()
        if weights is not None:
            self._load(server, weights)
        return self._mark_of(server)

    def _load(self, server: Server, path: str) -> None:
        # the weights that they started with may lie elsewhere on each machine
        self._ways[server].reload(self._ways[server].base_weights if path == self.base_weights else path)

    def _mark_of(self, server: Server) -> Mark:
        way = self._ways[server]
        answer = way.ask_one(MARK_QUESTION, min(self._timeout, PROBE_TIMEOUT))
        if isinstance(answer, EngineFailure):
            raise answer
        return Mark(server.url, "" if self._named else Path(way.base_weights).name, answer.log_probs)

    def _misfit(self, server: Server, mark: Mark) -> str:
        """Why the server does not go with those that were taken in before it, if so."""
        length = self._ways[server].context_length
        if length and length < self.context_length:
            return f"it reads at most {length} tokens, but the others {self.context_length}"
        return difference(mark, self._mark) if self._mark else ""

    # -- all servers ----------------------------------------------------------

    def restart(self) -> None:
        """Look at every server now and take in those that work; ConfigError names one that does not go with the others.

        A server that does not answer is left out, as long as another one does. After the first time, so is one that does not fit.
        """
        with self._loading:
            with self._lock:
                weights = self._weights
            marks, errors = self._at_each(partial(self._bring_up, weights=weights), self._balance.servers)
            reference, odd = odd_ones(marks) if marks else (None, {})
            wrong = [error for error in (errors | odd).values() if isinstance(error, ConfigError)]
            if wrong and (not self._started or len(wrong) == len(self._balance.servers)):
                raise wrong[0]
            if reference is None:
                raise joined(errors)
            fitting = [server for server in self._balance.servers if server.url in marks.keys() - odd.keys()]
            self._describe(reference, fitting)
            self._take_in(reference, fitting, errors | odd)
            self._started = True

    def reload(self, path: str) -> None:
        """Load the weights of a folder, as each server's machine knows it, into every server that can be asked.

        One that fails is left out until it has them. When every one fails, or they then differ, the old weights stay: those that
        may have others are left out until they have the old ones again.
        """
        with self._loading:
            with self._lock:
                targets = self._balance.usable or list(self._balance.servers)
            marks, errors = self._at_each(partial(self._load_and_mark, path=path), targets)
            if not marks:
                said_no = [url for url, e in errors.items() if isinstance(e, ConfigError) or e.answered]
                self._keep_old_weights([server for server in targets if server.url not in said_no])
                raise next((e for e in errors.values() if isinstance(e, ConfigError)), None) or joined(errors)
            reference, odd = odd_ones(marks)
            if odd:
                self._keep_old_weights(targets)
                raise next(iter(odd.values()))
            with self._lock:
                self._weights = path
            self._take_in(reference, [server for server in targets if server.url in marks], errors)

    def _load_and_mark(self, server: Server, path: str) -> Mark:
        self._load(server, path)
        try:
            return self._mark_of(server)
        except (EngineFailure, ConfigError) as error:  # it has the new weights, so this is no refusal of them
            raise EngineFailure(str(error)) from error

    def _at_each(
        self, work: Callable[[Server], Mark], servers: Sequence[Server]
    ) -> tuple[dict[str, Mark], dict[str, Any]]:
        """Do something at several servers at once; what it gave and how it failed, by address, in their order."""
        marks: dict[str, Mark] = {}
        errors: dict[str, Any] = {}
        try:
            futures = {server.url: self._keepers.submit(work, server) for server in servers}
        except RuntimeError as error:
            raise EngineFailure(CLOSED) from error
        for url, future in futures.items():
            try:
                marks[url] = future.result()
            except (EngineFailure, ConfigError) as error:
                errors[url] = error
            except CancelledError:
                errors[url] = EngineFailure(CLOSED)
        return marks, errors

    def _describe(self, reference: Mark, servers: Sequence[Server]) -> None:
        way = next(self._ways[server] for server in servers if server.url == reference.url)
        self.model, self.base_weights = self.model or way.model, self.base_weights or way.base_weights
        lengths = [self._ways[server].context_length for server in servers]
        self.context_length = self.context_length or min(filter(None, lengths), default=0)

    def _take_in(self, reference: Mark, servers: Sequence[Server], errors: dict[str, Any]) -> None:
        """From now on these servers are asked, and no others."""
        with self._lock:
            self._generation += 1
            self._mark = reference
            for server in self._balance.servers:
                if server in servers:
                    self._balance.take_in(server)
                elif server.url in errors or server.ok:
                    why = str(errors.get(server.url, "it does not have the newest weights"))
                    self._balance.leave_out(server, why, self._clock())
                    log.warning("the vLLM server at %s is left out: %s", server.url, why)

    def _keep_old_weights(self, unsure: Sequence[Server]) -> None:
        """Leave out the servers that may have other weights than those before."""
        if not unsure:
            return
        with self._lock:
            self._generation += 1
            self._weights = self.base_weights if self._weights is None else self._weights
            for server in unsure:
                self._balance.leave_out(server, "it may have other weights than the newest", self._clock())

    def statistics(self) -> dict[str, Any]:
        """`servers`: for each its address, whether it is asked, questions outstanding, served and failed, episodes moved away."""
        with self._lock:
            return {"servers": [server.statistics() for server in self._balance.servers]}

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._closed = True
        for way in self._ways.values():
            way.close()
        for threads in (*self._threads.values(), self._keepers):
            threads.shutdown(wait=False, cancel_futures=True)


def _by_episode(questions: Sequence[Question]) -> list[tuple[Hashable, list[int]]]:
    """The numbers of the questions of each key, in the order of their first ones; those without a key by themselves."""
    found: dict[Hashable, list[int]] = {}
    alone = [(None, [i]) for i, question in enumerate(questions) if question.key is None]
    for i, question in enumerate(questions):
        if question.key is not None:
            found.setdefault(question.key, []).append(i)
    return [*found.items(), *alone]
