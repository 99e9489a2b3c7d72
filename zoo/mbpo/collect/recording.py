"""What a collect keeps of the steps it makes: the transitions, and the episodes that ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.mbpo.collect.playing import Playing
from zoo.mbpo.envs.vectorised import Step
from zoo.mbpo.learn.transitions import Transitions


class Record:
    """The transitions of one collect as they are made."""

    def __init__(self, playing: Playing, steps: int, num_envs: int) -> None:
        self._playing, self._num_envs, self._made = playing, num_envs, 0
        self._rows = playing.rows(steps * num_envs)
        self._ended = playing.flags(steps * num_envs)
        self._kept: Any = None
        self._bad: Any = None

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
            self._kept = self._flags(self._kept)
            self._kept[here] = step.kept
        if step.bad is not None:
            self._bad = ~self._flags(None) if self._bad is None else self._bad
            self._bad[here] = step.bad
            self._ended[here] |= step.bad
        self._made = here.stop

    def transitions(self) -> Transitions:
        """All of them, without those that are not kept and those of bad episodes."""
        if self._bad is not None:
            self._leave_out_bad_episodes()
        return self._rows if self._kept is None else self._rows.take(self._kept)

    def _leave_out_bad_episodes(self) -> None:
        """A row goes with its episode, as far as that was played in this collect: the next end of its environment."""
        self._kept = self._flags(self._kept)
        kept, ended, bad = (flags.reshape(-1, self._num_envs) for flags in (self._kept, self._ended, self._bad))
        out = ~self._playing.flags(self._num_envs)
        for step in range(len(kept) - 1, -1, -1):
            out = (out & ~ended[step]) | bad[step]
            kept[step] &= ~out

    def _flags(self, known: Any) -> Any:
        return self._playing.flags(len(self._ended)) if known is None else known

    def rewards_and_ends(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Rewards, ends and, if there are any, bad ends of episodes [T, N] of the steps made so far."""
        found = (self._rows.reward, self._ended, self._bad)
        reward, ended, bad = (
            None if one is None else self._playing.on_cpu(one[: self._made]).reshape(-1, self._num_envs)
            for one in found
        )
        assert reward is not None and ended is not None
        return reward, ended, bad


class Episodes:
    """Return and length of the episode that each environment is in."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=int)

    def add(self, rewards: NDArray[Any], ended: NDArray[Any], bad: NDArray[Any] | None = None) -> dict[str, list[Any]]:
        """Go on by T steps of rewards and ends [T, N]; returns and lengths of the episodes that ended, in their order,
        without the bad ones."""
        returns: list[float] = []
        lengths: list[int] = []
        for step, (reward, ends) in enumerate(zip(rewards, ended, strict=True)):
            self._returns += reward
            self._lengths += 1
            if ends.any():
                told = ends if bad is None else ends & ~bad[step]
                returns.extend(self._returns[told].tolist())
                lengths.extend(self._lengths[told].tolist())
                self._returns[ends], self._lengths[ends] = 0.0, 0
        return {"returns": returns, "lengths": lengths}
