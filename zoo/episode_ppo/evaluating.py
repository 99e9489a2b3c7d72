"""The evaluator's role: whole episodes with the most likely actions, several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lzero_async.calls import interrupted, stopped
from lzero_async.errors import ConfigError
from lzero_async.parcels import Parcel
from lzero_async.types import StopSignal
from zoo.episode_ppo.factories import FlatEnv
from zoo.episode_ppo.playing import MAX_STEPS, Player, Slot
from zoo.episode_ppo.policy import NumpyPolicy

SEED_OFFSET = 2**31  # the seeds of evaluations are not those of any run's training
MAX_EVAL_STEPS = 100_000  # of an episode


class EvaluatorRole:
    """Up to `num_envs` episodes at once, each in a thread, since environments may wait."""

    def __init__(
        self,
        make_env: Callable[[], FlatEnv],
        num_envs: int,
        seed: int,
        emit: Callable[[Any], None],
        max_steps: int = MAX_STEPS,
    ) -> None:
        thinking = threading.Lock()
        self._players = [
            Player(make_env, 0, SEED_OFFSET + seed, max_steps, greedy=True, thinking=thinking) for _ in range(num_envs)
        ]
        self._threads = ThreadPoolExecutor(num_envs)

    def ready(self) -> dict[str, int]:
        """Answered once the role is made."""
        return {"num_envs": len(self._players)}

    def evaluate(self, version: int, weights: Parcel, episodes: int, stop: StopSignal | None = None) -> dict[str, Any]:
        """Play so many new episodes; returns their statistics. An episode without an end raises ConfigError."""
        begun = time.monotonic()
        policy = NumpyPolicy(weights.read())
        shares = [range(place, episodes, len(self._players)) for place in range(len(self._players))]
        first = version * episodes

        def play(place: int) -> list[tuple[float, int]]:
            slots = (Slot(first + number, 0, version) for number in shares[place])
            return [self._play(self._players[place], slot, policy, stop) for slot in slots]

        futures = [self._threads.submit(play, place) for place in range(len(self._players))]
        for future in futures:
            future.exception()
        played = [found for future in futures for found in future.result()]
        returns, lengths = [ret for ret, _ in played], [length for _, length in played]
        return {
            "version": version,
            "episodes": episodes,
            "mean_return": float(np.mean(returns)),
            "min_return": float(np.min(returns)),
            "max_return": float(np.max(returns)),
            "mean_length": float(np.mean(lengths)),
            "returns": returns,
            "seconds": time.monotonic() - begun,
        }

    def _play(self, player: Player, slot: Slot, policy: NumpyPolicy, stop: StopSignal | None) -> tuple[float, int]:
        player.begin(slot, policy)
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
