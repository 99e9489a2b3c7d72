"""The carrier of all data: one whole episode, and many of them as a few flat arrays. Needs numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError

PER_STEP = ("obs", "action", "log_prob", "reward")


class Episode(NamedTuple):
    """An episode of T steps, all played with the policy of one `version`. `len()` is the tuple's; `length` is T."""

    obs: NDArray[Any]  # [T, O] float32; what each action was chosen on
    action: NDArray[Any]  # [T] int64, or [T, A] float32 as the policy drew it, before any scaling to the environment
    log_prob: NDArray[Any]  # [T] float32; logarithm of the action's probability (density) when it was drawn
    reward: NDArray[Any]  # [T] float32
    last_obs: NDArray[Any]  # [O] float32; after the last step
    terminated: bool  # ended in a terminal state
    truncated: bool  # ended by a time limit, or cut
    version: int  # of the policy, the same from the first step to the last
    number: int  # in the order in which episodes were started; no two have the same
    worker: int
    seconds: float  # spent in it: without waits for other episodes

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.reward)

    @property
    def ret(self) -> float:
        """Sum of the rewards, undiscounted."""
        return float(self.reward.sum(dtype=np.float64))


PER_EPISODE = {  # the other fields, with their types in a packed record
    "last_obs": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "version": np.int64,
    "number": np.int64,
    "worker": np.int64,
    "seconds": np.float64,
}


class Recording:
    """An episode in the making: what is known at its start, and the steps as they are made."""

    def __init__(self, number: int, version: int, worker: int) -> None:
        self.number, self.version, self.worker = number, version, worker
        self._steps: list[tuple[NDArray[Any], Any, float, float]] = []

    def add(self, obs: NDArray[Any], action: Any, log_prob: float, reward: float) -> None:
        """One step: `action` was drawn on `obs` and got `reward`. The arrays are kept, not copied."""
        self._steps.append((obs, action, log_prob, reward))

    @property
    def length(self) -> int:
        """Steps so far."""
        return len(self._steps)

    def finish(self, last_obs: NDArray[Any], terminated: bool, truncated: bool, seconds: float) -> Episode:
        """The episode; without a single step, or with neither end, it raises ConfigError."""
        if not self._steps:
            raise ConfigError(f"episode {self.number} has no steps; an episode needs at least one.")
        obs, action, log_prob, reward = zip(*self._steps, strict=True)
        actions = np.array(action)
        whole = np.issubdtype(actions.dtype, np.integer)
        episode = Episode(
            np.array(obs, dtype=np.float32),
            actions.astype(np.int64 if whole else np.float32, copy=False),
            np.array(log_prob, dtype=np.float32),
            np.array(reward, dtype=np.float32),
            np.array(last_obs, dtype=np.float32),
            bool(terminated),
            bool(truncated),
            self.version,
            self.number,
            self.worker,
            float(seconds),
        )
        check(episode)
        return episode


def check(episode: Episode) -> None:
    """Raise ConfigError unless the fields have the shapes of one ended episode."""
    shapes = {name: np.shape(getattr(episode, name)) for name in (*PER_STEP, "last_obs")}
    steps = shapes["reward"][0] if len(shapes["reward"]) == 1 else 0
    right = (
        steps > 0
        and len(shapes["obs"]) == 2
        and len(shapes["action"]) in (1, 2)
        and shapes["log_prob"] == (steps,)
        and shapes["obs"][0] == shapes["action"][0] == steps
        and shapes["last_obs"] == shapes["obs"][1:]
    )
    if not right:
        raise ConfigError(
            f"episode {episode.number} has the shapes {shapes}; they must be obs [T, O], action [T] or [T, A], log_prob "
            "[T], reward [T] and last_obs [O], with at least one step."
        )
    if not (episode.terminated or episode.truncated):
        raise ConfigError(
            f"episode {episode.number} is neither terminated nor truncated; only ended ones are handed on."
        )


def pack(episodes: Sequence[Episode]) -> dict[str, NDArray[Any]]:
    """The episodes in their order as flat arrays, all copied: the steps one after the other, and `length` [E].

    No episodes give no arrays. Episodes of unequal kinds raise ConfigError.
    """
    if not episodes:
        return {}
    kinds = {(episode.obs.shape[1], episode.action.shape[1:], episode.action.dtype.str) for episode in episodes}
    if len(kinds) > 1:
        raise ConfigError(
            f"episodes of {len(kinds)} kinds cannot be packed together (observation size, shape and type of an action: "
            f"{sorted(map(str, kinds))}); they must come from one environment."
        )
    record = {name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in PER_STEP}
    for name, kind in PER_EPISODE.items():
        record[name] = np.array([getattr(episode, name) for episode in episodes], dtype=kind)
    record["length"] = np.array([episode.length for episode in episodes], dtype=np.int64)
    return record


def unpack(record: Mapping[str, NDArray[Any]]) -> list[Episode]:
    """The inverse of `pack`; the episodes' arrays are views of the record's. Missing or unequal arrays raise ConfigError."""
    if not record:
        return []
    check_record(record)
    stops = np.cumsum(record["length"])[:-1]
    parts = [np.split(record[name], stops) for name in PER_STEP]
    single = [record["last_obs"], *(record[name].tolist() for name in PER_EPISODE if name != "last_obs")]
    return [Episode(*fields) for fields in zip(*parts, *single, strict=True)]


def check_record(record: Mapping[str, NDArray[Any]]) -> None:
    """Raise ConfigError unless the record holds the arrays that `pack` makes, of fitting lengths."""
    wanted = {*PER_STEP, *PER_EPISODE, "length"}
    if set(record) != wanted:
        raise ConfigError(f"packed episodes hold {sorted(record)}; they must hold {sorted(wanted)}.")
    lengths = record["length"]
    steps = int(lengths.sum())
    wrong = [name for name in PER_STEP if len(record[name]) != steps]
    wrong += [name for name in PER_EPISODE if len(record[name]) != len(lengths)]
    if wrong or (lengths < 1).any():
        raise ConfigError(
            f"packed episodes of {len(lengths)} lengths and {steps} steps are damaged: {', '.join(wrong or ['length'])} "
            "does not fit."
        )
