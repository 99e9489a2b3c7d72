"""What a collect keeps of the steps it makes: the transitions, and the episodes that ended."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.mbpo.envs import Step
from zoo.mbpo.playing import Playing
from zoo.mbpo.transitions import Transitions


class Record:
    """The transitions of one collect as they are made."""

    def __init__(self, playing: Playing, steps: int, num_envs: int) -> None:
        self._playing, self._num_envs, self._made = playing, num_envs, 0
        self._rows = playing.rows(steps * num_envs)
        self._ended = playing.flags(steps * num_envs)
        self._kept: Any = None

    def add(self, obs: Any, action: Any, step: Step) -> None:
        """One step of all environments."""
        here = slice(self._made, self._made + self._num_envs)
        self._rows.obs[here] = obs
        self._rows.action[here] = action
        self._rows.reward[here] = step.reward
        self._rows.next_obs[here] = step.next_obs
        self._rows.terminated[here] = step.terminated
        self._ended[here] = step.terminated | step.truncated
        if step.kept is not None:
            if self._kept is None:
                self._kept = self._playing.flags(len(self._ended))
            self._kept[here] = step.kept
        self._made = here.stop

    def transitions(self) -> Transitions:
        """All of them, without those that are not kept."""
        return self._rows if self._kept is None else self._rows.take(self._kept)

    def rewards_and_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and ends of episodes [T, N] of the steps made so far."""
        shape = (-1, self._num_envs)
        reward, ended = self._rows.reward[: self._made], self._ended[: self._made]
        return self._playing.on_cpu(reward).reshape(shape), self._playing.on_cpu(ended).reshape(shape)


class Episodes:
    """Return and length of the episode that each environment is in."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=int)

    def add(self, rewards: np.ndarray, ended: np.ndarray) -> dict[str, list[Any]]:
        """Go on by T steps of rewards and ends [T, N]; returns and lengths of the episodes that ended, in their order."""
        returns: list[float] = []
        lengths: list[int] = []
        for reward, ends in zip(rewards, ended, strict=True):
            self._returns += reward
            self._lengths += 1
            if ends.any():
                returns.extend(self._returns[ends].tolist())
                lengths.extend(self._lengths[ends].tolist())
                self._returns[ends], self._lengths[ends] = 0.0, 0
        return {"returns": returns, "lengths": lengths}
