"""One environment that plays episodes step by step: the same code for every collector; they differ in who waits for whom."""

from __future__ import annotations

import re
import resource
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lzero_async.errors import BadData, ConfigError, StepOverdue
from lzero_async.runs.soundness import check_finite
from lzero_async.workers.step_watch import StepWatch
from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.play.episode import Episode, Recording
from zoo.episode_ppo.play.policy import NumpyPolicy

ENV_STREAM, ACTION_STREAM = 1, 2
LOOKED_AT = 32  # steps after which it is decided whether environments wait or compute
WORTH_A_THREAD = 0.0002  # seconds of waiting per step on average
MAX_STEPS = 1_000_000  # of an episode, after which it is cut: an environment without a time limit must not hold a batch for ever
STEP_TIMEOUT = 300.0  # seconds
TRIES = 2  # of an episode, each with a seed of its own; then it is left out
BAD_DATA, TIMEOUT, REFUSED = "bad data", "timeout", "refused"  # sorts of failures; any other error is of none


class Slot(NamedTuple):
    """One episode to be played: its number, in the order in which they are started, the round that wants it, the version of
    the weights, and how often it was begun with another seed before."""

    number: int
    round: int
    version: int
    attempt: int = 0


class Failure(NamedTuple):
    """An episode that an environment could not play to its end: why in a few words, the traceback, its sort, and its cause: the
    type of the error and the line that raised it."""

    number: int
    error: str
    trace: str = ""
    sort: str = ""
    cause: str = ""


def timed_out(words: str) -> Failure | None:
    """The episode in which an environment hung, from what is said of a worker that ended itself; None if there is none."""
    found = re.search(r"episode (\d+)", words)
    return None if found is None else Failure(int(found[1]), words, sort=TIMEOUT, cause=TIMEOUT)


class Usage(NamedTuple):
    """What this thread has used so far: seconds that passed, seconds of a processor, and how often it gave that up to wait."""

    wall: float
    cpu: float
    waits: int


def usage() -> Usage:
    """Of the calling thread, now."""
    seen = resource.getrusage(resource.RUSAGE_THREAD)
    return Usage(time.monotonic(), seen.ru_utime + seen.ru_stime, seen.ru_nvcsw)


class Look:
    """Tells from the first steps, made while nobody else in the process plays, whether environments wait for something, such as
    a simulator elsewhere, or compute; `decided(waits)` is called once. A thread that is merely pushed aside does not wait."""

    def __init__(self, decided: Callable[[bool], None]) -> None:
        self._decided = decided
        self._steps, self._waited = 0, 0.0

    def over(self, before: Usage, after: Usage) -> bool:
        """Count a step; return whether enough of them were seen."""
        if self._steps < LOOKED_AT:
            self._steps += 1
            if after.waits > before.waits:
                self._waited += (after.wall - before.wall) - (after.cpu - before.cpu)
            if self._steps == LOOKED_AT:
                self._decided(self._waited / LOOKED_AT > WORTH_A_THREAD)
        return self._steps >= LOOKED_AT


class Player:
    """An environment and its policy.

    Everything random in an episode follows from the seed, the episode's number and the attempt, whoever plays it. `thinking` is
    held while the policy chooses: numpy gives Python's lock away in every layer, and many threads would hand it around; so
    players of one worker share a policy, too. `look` watches the first steps, `watch` how long each call takes.
    """

    def __init__(
        self,
        make_env: Callable[[], FlatEnv],
        worker: int,
        seed: int,
        max_steps: int = MAX_STEPS,
        *,
        greedy: bool = False,
        thinking: threading.Lock | None = None,
        look: Look | None = None,
        watch: StepWatch | None = None,
    ) -> None:
        self._make_env, self._worker, self._seed, self._max_steps = make_env, worker, seed, max_steps
        self._greedy, self._thinking, self._look = greedy, thinking or threading.Lock(), look
        self._watch = watch or StepWatch(STEP_TIMEOUT)
        self._own = None if watch is not None else self._watch
        self.env = make_env()
        self._policy: NumpyPolicy | None = None
        self._recording = Recording(-1, -1, worker)

    def __str__(self) -> str:
        """What it is doing, as `timed_out` reads it."""
        recording = self._recording
        return f"step {recording.length + 1} of episode {recording.number} in env {self.env.name!r}"

    def begin(self, slot: Slot, policy: NumpyPolicy, seed: int | None = None) -> None:
        """Start an episode with the policy of the slot's version; players with the same `thinking` may share it. `seed` is
        the environment's, in place of the one that follows from the slot."""
        self._policy = policy
        begun = time.monotonic()
        self._rng = np.random.default_rng(entropy(self._seed, ACTION_STREAM, slot))
        first = np.random.SeedSequence(entropy(self._seed, ENV_STREAM, slot)).generate_state(1)[0]
        first = int(first) >> 1 if seed is None else seed
        self._recording = Recording(slot.number, slot.version, self._worker)
        with self._watch.running(self):
            self._obs, _ = self.env.reset(first)
        self._seconds = time.monotonic() - begun

    def step(self) -> Episode | None:
        """One step; the episode, if that was its last."""
        assert self._policy is not None
        begun = time.monotonic()
        obs, recording = self._obs, self._recording
        with self._thinking:
            if self._greedy:
                action, log_prob = self._policy.greedy(obs), 0.0
            else:
                action, log_prob = self._policy.act(obs, self._rng)
        check_finite("the log-probability of the policy's action", log_prob)
        if self._policy.kind == "box":
            check_finite("the policy's action", action)
        before = None if self._look is None else usage()
        with self._watch.running(self):
            self._obs, reward, terminated, truncated, _ = self.env.step(action)
        if self._look is not None and before is not None and self._look.over(before, usage()):
            self._look = None
        recording.add(obs, action, log_prob, reward)
        if not terminated and recording.length >= self._max_steps:
            truncated = True
        self._seconds += time.monotonic() - begun
        if not (terminated or truncated):
            return None
        return recording.finish(self._obs, terminated, truncated, self._seconds)

    def play(self, slot: Slot, policy: NumpyPolicy) -> Episode:
        """A whole episode."""
        try:
            self.begin(slot, policy)
            while (episode := self.step()) is None:
                pass
            return episode
        finally:
            if self._own is not None:  # a player that is dropped leaves no thread
                self._own.close()

    def fail(self, slot: Slot, error: BaseException) -> Failure:
        """The environment raised: it is made anew. Whoever asked decides what becomes of the episode."""
        text, trace = _said(error), "".join(traceback.format_exception(error))
        try:
            with self._watch.running(self):
                self.env.close()
        except Exception:  # it is given up anyway
            pass
        try:
            with self._watch.running(self):
                self.env = self._make_env()
        except Exception as again:  # the next episode fails with what the broken one raises
            text += f", and the environment cannot be made anew: {again!r}"
        return Failure(slot.number, text, trace, sort_of(error), _cause(error))

    def close(self) -> None:
        """End the environment."""
        self.env.close()


def entropy(seed: int, stream: int, slot: Slot) -> list[int]:
    """What the random numbers of an episode are drawn from; another one for each attempt."""
    return [seed, stream, slot.number, *([slot.attempt] if slot.attempt else [])]


def sort_of(error: BaseException) -> str:
    """BAD_DATA, TIMEOUT, REFUSED (another seed changes nothing), or ''."""
    for kind, sort in ((BadData, BAD_DATA), (StepOverdue, TIMEOUT), (ConfigError, REFUSED)):
        if isinstance(error, kind):
            return sort
    return ""


def _said(error: BaseException) -> str:
    """Our own errors are sentences; of others the type belongs to what they say."""
    return str(error) if sort_of(error) else repr(error)


def _cause(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__
