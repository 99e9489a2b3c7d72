"""One environment that plays episodes step by step: the same code for every collector; they differ in who waits for whom."""

from __future__ import annotations

import resource
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from zoo.episode_ppo.episode import Episode, Recording
from zoo.episode_ppo.factories import FlatEnv
from zoo.episode_ppo.policy import NumpyPolicy

ENV_STREAM, ACTION_STREAM = 1, 2
LOOKED_AT = 32  # steps after which it is decided whether environments wait or compute
WORTH_A_THREAD = 0.0002  # seconds of waiting per step on average
MAX_STEPS = 1_000_000  # of an episode, after which it is cut: an environment without a time limit must not hold a batch for ever


class Slot(NamedTuple):
    """One episode to be played: its number, in the order in which they are started, the round that wants it, and the version
    of the weights."""

    number: int
    round: int
    version: int


class Failure(NamedTuple):
    """An episode that an environment could not play to its end: why in a few words, and the traceback."""

    number: int
    error: str
    trace: str = ""


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

    Everything random in an episode follows from the seed and the episode's number, whoever plays it. `thinking` is held while
    the policy chooses: numpy gives Python's lock away in every layer, and many threads would hand it around; so players of one
    worker share a policy, too. `look` watches the first steps.
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
    ) -> None:
        self._make_env, self._worker, self._seed, self._max_steps = make_env, worker, seed, max_steps
        self._greedy, self._thinking, self._look = greedy, thinking or threading.Lock(), look
        self.env = make_env()
        self._policy: NumpyPolicy | None = None

    def begin(self, slot: Slot, policy: NumpyPolicy) -> None:
        """Start an episode with the policy of the slot's version; players with the same `thinking` may share it."""
        self._policy = policy
        begun = time.monotonic()
        self._rng = np.random.default_rng([self._seed, ACTION_STREAM, slot.number])
        first = np.random.SeedSequence([self._seed, ENV_STREAM, slot.number]).generate_state(1)[0]
        self._recording = Recording(slot.number, slot.version, self._worker)
        self._obs, _ = self.env.reset(int(first) >> 1)
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
        before = None if self._look is None else usage()
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
        self.begin(slot, policy)
        while (episode := self.step()) is None:
            pass
        return episode

    def fail(self, slot: Slot, error: BaseException) -> Failure:
        """The environment raised: it is made anew. Whoever asked decides what becomes of the episode."""
        try:
            self.env.close()
        except Exception:  # it is given up anyway
            pass
        text, trace = repr(error), "".join(traceback.format_exception(error))
        try:
            self.env = self._make_env()
        except Exception as again:  # the next episode fails with what the broken one raises
            text += f", and the environment cannot be made anew: {again!r}"
        return Failure(slot.number, text, trace)

    def close(self) -> None:
        """End the environment."""
        self.env.close()
