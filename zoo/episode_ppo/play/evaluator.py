"""The evaluator's role: whole episodes with the most likely actions, several at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lzero_async.errors import ConfigError, LzeroAsyncError, Stopped
from lzero_async.types import StopSignal
from lzero_async.workers.calls import interrupted, stopped
from lzero_async.workers.parcels import Parcel
from lzero_async.workers.step_watch import StepWatch
from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.play.player import BAD_DATA, MAX_STEPS, STEP_TIMEOUT, TRIES, Failure, Player, Slot
from zoo.episode_ppo.play.policy import NumpyPolicy

SEED_OFFSET = 2**31  # the seeds of evaluations are not those of any run's training
REPEAT_OFFSET = 2**31  # versions: no run has so many
MAX_EVAL_STEPS = 100_000  # of an episode
log = logging.getLogger(__name__)


class EvaluatorRole:
    """Up to `num_envs` episodes at once, each in a thread, since environments may wait."""

    def __init__(
        self,
        make_env: Callable[[], FlatEnv],
        num_envs: int,
        seed: int,
        emit: Callable[[Any], None],
        max_steps: int = MAX_STEPS,
        step_timeout: float = STEP_TIMEOUT,
    ) -> None:
        thinking = threading.Lock()
        self._emit = emit
        self._watch = watch = StepWatch(step_timeout, on_overdue=emit)
        self._players = [
            Player(make_env, 0, SEED_OFFSET + seed, max_steps, greedy=True, thinking=thinking, watch=watch)
            for _ in range(num_envs)
        ]
        self._threads = ThreadPoolExecutor(num_envs)

    def ready(self) -> dict[str, int]:
        """Answered once the role is made."""
        return {"num_envs": len(self._players)}

    def evaluate(
        self,
        version: int,
        weights: Parcel,
        episodes: int,
        repeat: int = 0,
        hung: Mapping[int, int] | None = None,
        stop: StopSignal | None = None,
    ) -> dict[str, Any]:
        """Play so many new episodes, others for another `repeat`; returns their statistics. One that fails is played once
        more with another seed, and then left out; `hung` says how often an episode has hung before. An
        episode without an end raises ConfigError, and an evaluation without one that could be played LzeroAsyncError."""
        begun = time.monotonic()
        policy = NumpyPolicy(weights.read())
        first = (version + repeat * REPEAT_OFFSET) * episodes

        def play(place: int) -> list[tuple[float, int] | Failure]:
            found: list[tuple[float, int] | Failure] = []
            for number in range(first + place, first + episodes, len(self._players)):
                for attempt in range((hung or {}).get(number, 0), TRIES):
                    slot = Slot(number, 0, version, attempt)
                    found.append(self._try(self._players[place], slot, policy, stop))
                    if not isinstance(found[-1], Failure):
                        break
            return found

        futures = [self._threads.submit(play, place) for place in range(len(self._players))]
        for future in futures:
            future.exception()
        found = [part for future in futures for part in future.result()]
        played = [part for part in found if not isinstance(part, Failure)]
        failures = [part for part in found if isinstance(part, Failure)]
        for failure in failures[:1]:
            log.warning(
                "%d tries of the evaluation failed; the first: %s\n%s", len(failures), failure.error, failure.trace
            )
        if not played:
            why = failures[-1].error if failures else "their environments hung"
            raise LzeroAsyncError(f"All {episodes} episodes of an evaluation failed, {TRIES} times each: {why}.")
        returns, lengths = [ret for ret, _ in played], [length for _, length in played]
        return {
            "version": version,
            "episodes": len(played),
            "failed": len(failures),
            "bad_data": sum(failure.sort == BAD_DATA for failure in failures),
            "left_out": episodes - len(played),
            "mean_return": float(np.mean(returns)),
            "min_return": float(np.min(returns)),
            "max_return": float(np.max(returns)),
            "mean_length": float(np.mean(lengths)),
            "returns": returns,
            "seconds": time.monotonic() - begun,
        }

    def _try(
        self, player: Player, slot: Slot, policy: NumpyPolicy, stop: StopSignal | None
    ) -> tuple[float, int] | Failure:
        try:
            return self._play(player, slot, policy, stop)
        except (Stopped, ConfigError):  # no other seed helps
            raise
        except Exception as error:
            failure = player.fail(slot, error)
            self._emit(failure)  # at once: if the next try hangs, this evaluation returns nothing
            return failure

    def play(self, seed: int, policy: NumpyPolicy) -> tuple[float, int]:
        """Return and length of one episode, whose environment is reset with this very seed. What fails in it is raised."""
        try:
            return self._play(self._players[0], Slot(0, 0, 0), policy, None, seed)
        finally:
            self._watch.close()  # whoever drops a policy leaves no thread

    def act(self, observation: Any, policy: NumpyPolicy) -> Any:
        """The most likely action, as the environment takes it, for an observation as it gives it."""
        env = self._players[0].env
        return env.translate(policy.greedy(env.flat(observation)))

    def _play(
        self, player: Player, slot: Slot, policy: NumpyPolicy, stop: StopSignal | None, seed: int | None = None
    ) -> tuple[float, int]:
        player.begin(slot, policy, seed)
        for _ in range(MAX_EVAL_STEPS):
            if stop is not None and interrupted(stop):
                raise stopped(stop)  # half an evaluation is none
            if (episode := player.step()) is not None:
                return episode.ret, episode.length
        raise ConfigError(
            f"An episode of the evaluation did not end within {MAX_EVAL_STEPS} steps; cut episodes with a smaller "
            "--max_episode_steps, or give the environment a time limit of its own."
        )

    def close(self) -> None:
        """End the environments."""
        self._threads.shutdown()
        for player in self._players:
            player.close()
        self._watch.close()
