"""Who can go on: waits for games and for the language model, and brings those that are ready together.

A game under way is stepping (in its own process), thinking (its prior is asked for in the background) or in hand (waiting
to be acted on). In lockstep the hand is acted on when every game is in it; else when the first has waited `max_wait`
seconds for company. Nothing here polls: it waits on the games' pipes and on one of the prior's thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from typing import TYPE_CHECKING, Any

from lzero_async.errors import BadData, ConfigError
from zoo.jericho.priorzero.games.process import GameHung

if TYPE_CHECKING:
    from zoo.jericho.priorzero.play.open_game import OpenGame

_logger = logging.getLogger(__name__)
STOP_INTERVAL = 0.2
"""Most seconds between two looks at `should_stop`, which nobody can wait on."""


class AllEnvironmentsFailed(RuntimeError):
    """Every environment of a player failed too often in a row, or every episode of a call did; says how the last one did."""


@dataclass(frozen=True)
class Window:
    """How long games wait for each other: until `most` are in hand, or `max_wait` seconds (inf: lockstep)."""

    most: int
    max_wait: float = math.inf

    @property
    def in_step(self) -> bool:
        """Whether every game waits for every other."""
        return math.isinf(self.max_wait)


class Roster:
    """The environments that still play; one that fails `max_abnormal` times in a row is left out from then on."""

    def __init__(self, envs: Sequence[Any], max_abnormal: int) -> None:
        self._envs, self._max_abnormal = list(envs), max_abnormal
        self._failures = [0] * len(self._envs)
        self._last: BaseException | str = ""

    @property
    def usable(self) -> list[Any]:
        """The environments that are not left out."""
        return [env for env, count in zip(self._envs, self._failures, strict=True) if count < self._max_abnormal]

    def succeeded(self, env: Any) -> None:
        """An episode of this environment ended as it should."""
        self._failures[self._number(env)] = 0

    def failed(self, env: Any, why: BaseException | str) -> None:
        """An episode of this environment ended abnormally or could not be begun."""
        number, self._last = self._number(env), why
        self._failures[number] += 1
        if self._failures[number] == self._max_abnormal:
            _logger.warning(
                "environment %d of %d (%r) is not used any more: it failed %d times in a row, the last time because %s",
                number + 1,
                len(self._envs),
                env,
                self._max_abnormal,
                why,
            )

    def check(self) -> None:
        """Raise AllEnvironmentsFailed when none is left."""
        if not self.usable:
            raise AllEnvironmentsFailed(
                f"none of the {len(self._envs)} environments can play any more: each failed {self._max_abnormal} times in a "
                f"row; the last failure: {self._last}"
            ) from (self._last if isinstance(self._last, BaseException) else None)

    def _number(self, env: Any) -> int:
        return next(number for number, one in enumerate(self._envs) if one is env)


class Thinker:
    """Asks the prior in one thread of its own, which takes all that was asked while it was busy as one batch."""

    def __init__(self, prior: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._prior = prior
        self._lock = threading.Lock()
        self._asked: list[tuple[Any, Any]] = []
        self._answers: list[tuple[Any, Any]] = []
        self._error: BaseException | None = None
        self._busy = False
        self._era = 0  # what was asked before the last `forget` is of an older one
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lzero-prior")
        self.pipe, self._wake = Pipe(duplex=False)  # `pipe` is readable when `take` has something

    def ask(self, questions: Sequence[tuple[Any, Any]]) -> None:
        """Ask for the prior of each (key, request), without waiting."""
        with self._lock:
            self._asked += questions
            if self._asked and not self._busy:
                self._executor.submit(self._work)  # which waits for the lock; it may be refused a thread
                self._busy = True

    def take(self) -> list[tuple[Any, Any]]:
        """The (key, answer) pairs that came since the last time; raises what the prior raised."""
        with self._lock:
            if self.pipe.poll():
                self.pipe.recv_bytes()
            answers, self._answers = self._answers, []
            error, self._error = self._error, None
        if error is not None:
            raise error
        return answers

    def forget(self) -> None:
        """Drop what was asked; a question that the prior is at is answered to nobody."""
        with self._lock:
            error, self._era = self._error, self._era + 1
            self._asked, self._answers, self._error = [], [], None
            if self.pipe.poll():
                self.pipe.recv_bytes()
        if error is not None:
            _log_unheard(error)

    def close(self) -> None:
        """End the thread, after the batch that it is at."""
        self.forget()
        self._executor.shutdown()
        self.pipe.close()
        self._wake.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                batch, self._asked, era = self._asked, [], self._era
                self._busy = bool(batch)
            if not batch:
                return
            answers: list[tuple[Any, Any]] = []
            error: BaseException | None = None
            try:
                found = self._prior([request for _, request in batch])
                answers = [(key, answer) for (key, _), answer in zip(batch, found, strict=True)]
            except BaseException as raised:  # comes out of `take`, in the thread that plays
                error = raised
            with self._lock:
                if era == self._era:
                    self._answers, self._error = self._answers + answers, error or self._error
                    if not self.pipe.poll():
                        self._wake.send_bytes(b"!")
                elif error is not None:
                    _log_unheard(error)


class Rounds:
    """Plays games to their ends: one call of `Player.play`.

    `act` chooses the next action of games in hand and returns those that can step; the others think, or are `broken`. An
    episode that fails is played once more, with another seed; if that fails, too, it is left out. `on_trouble` is told of each
    failure by its name.
    """

    def __init__(
        self,
        games: Sequence[OpenGame],
        roster: Roster,
        act: Callable[[list[OpenGame]], list[OpenGame]],
        window: Window,
        thinker: Thinker | None = None,
        on_step: Callable[[int], None] | None = None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_trouble = on_trouble
        self.last_failure: BaseException | str = ""
        self._waiting, self._roster, self._act, self._window = deque(games), roster, act, window
        self._thinker, self._on_step = thinker, on_step
        self._free = deque(roster.usable)
        self._stepping: list[OpenGame] = []
        self._thinking = 0
        self._hand: list[OpenGame] = []
        self._ended: list[OpenGame] = []

    def run(self, should_stop: Callable[[], bool]) -> list[OpenGame]:
        """The games that have ended when all have, or when `should_stop` says so."""
        self._begin_games()
        while self._gather(should_stop):
            self._act_on_hand()
        return self._ended

    def _gather(self, should_stop: Callable[[], bool]) -> bool:
        """Fetch answers until it is time to act; False when nothing is left to do or `should_stop` says so."""
        while True:
            stepping = self._fetch()
            if self._time_to_act():
                return not should_stop()
            pipes = [pipe for _, pipe in stepping] + ([self._thinker.pipe] if self._thinker and self._thinking else [])
            if not pipes:
                return False
            wait(pipes, self._patience([game for game, _ in stepping]))
            if should_stop():
                return False

    def _fetch(self) -> list[tuple[OpenGame, Any]]:
        """Take every answer that is there; the games that step on come with what to wait on."""
        if self._thinker is not None and self._thinking:
            for game, prior in self._thinker.take():
                self._thinking -= 1
                game.take_prior(prior)
                self._take_in_hand(game)
        while True:
            pipes = [(game, _waitable(game.env)) for game in self._stepping]
            under_way = [(game, pipe) for game, pipe in pipes if pipe is not None]
            if len(under_way) == len(pipes) or (under_way and self._window.in_step):
                return under_way
            self._stepping = [game for game, _ in under_way]
            steps = sum([self._end(game) for game, pipe in pipes if pipe is None])
            if steps and self._on_step is not None:
                self._on_step(steps)
            self._begin_games()

    def _begin_games(self) -> None:
        """Begin the next games in the environments that are free."""
        while self._waiting and self._free:
            game, env = self._waiting.popleft(), self._free.popleft()
            game.env = env
            env.seed(game.seed)
            if hasattr(env, "begin_reset"):
                env.begin_reset()
            self._stepping.append(game)
        if self._waiting:
            self._roster.check()

    def _end(self, game: OpenGame) -> int:
        """Fetch what became of a step or the beginning of a game; the number of steps that were taken."""
        env, steps = game.env, int(game.begun)
        failure: BaseException | str | None = None
        try:
            if steps:
                game.record(env.end_step())
                failure = game.failure
            else:
                game.begin(env.end_reset() if hasattr(env, "begin_reset") else env.reset())
        except ConfigError:
            raise  # another seed changes nothing
        except (BadData, RuntimeError, ValueError) as error:  # a GameProcessError is a RuntimeError
            failure = error
        if failure is not None:
            self._fail(game, failure)
            self._release(env, failure)
        elif game.done:
            self._ended.append(game)
            self._release(env, None)
        else:
            self._take_in_hand(game)
        return steps

    def _fail(self, game: OpenGame, why: BaseException | str) -> None:
        """An episode failed: play it once more, or leave it out."""
        self.last_failure = why
        self._on_trouble("bad_episodes")
        if isinstance(why, GameHung) or game.info.get("hung"):
            self._on_trouble("env_timeouts")
        again = game.again()
        if again is not None:
            self._waiting.appendleft(again)
        else:
            self._on_trouble("left_out_episodes")
        what = "it is left out" if again is None else "it is played once more, with another seed"
        _logger.warning("episode %d, in %r, failed: %s; %s", game.number, game.env, why, what)

    def _release(self, env: Any, failure: BaseException | str | None) -> None:
        if failure is None:
            self._roster.succeeded(env)
        else:
            self._roster.failed(env, failure)
        if any(env is usable for usable in self._roster.usable):
            self._free.append(env)

    def _take_in_hand(self, game: OpenGame) -> None:
        game.since = time.monotonic()
        self._hand.append(game)

    def _time_to_act(self) -> bool:
        if not self._hand:
            return False
        alone = not self._stepping and not self._thinking
        late = time.monotonic() >= self._hand[0].since + self._window.max_wait
        return alone or late or len(self._hand) >= self._window.most

    def _patience(self, stepping: list[OpenGame]) -> float:
        """Seconds to wait at most: to the next look at `should_stop`, the end of the hand's wait, a game's watchdog."""
        now = time.monotonic()
        ends = [getattr(game.env, "deadline", math.inf) for game in stepping]
        ends += [self._hand[0].since + self._window.max_wait] if self._hand else []
        return max(0.0, min([STOP_INTERVAL, *(end - now for end in ends)]))

    def _act_on_hand(self) -> None:
        """Act on the games that waited longest, in the order of their numbers, so that no order of arrival shows."""
        batch, self._hand = self._hand[: self._window.most], self._hand[self._window.most :]
        batch.sort(key=lambda game: game.number)
        moving = self._act(batch)
        broken = [game for game in batch if game.broken is not None]
        self._thinking += len(batch) - len(moving) - len(broken)
        for game in moving:
            game.env.begin_step(game.action)
        self._stepping += moving
        for game in broken:  # not by its environment
            self._fail(game, game.broken or "")
            self._free.append(game.env)
        if broken:
            self._begin_games()


def _waitable(env: Any) -> Any:
    """What to wait on for the environment; None when its answer is there, as always in one that cannot tell."""
    return env.waitable() if hasattr(env, "waitable") else None


def _log_unheard(error: BaseException) -> None:
    _logger.warning("the prior failed when nobody waited for it any more", exc_info=error)
