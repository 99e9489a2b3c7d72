"""The roles beside the agent of the continuous trainer: one learns the dynamics, one makes rollouts with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from lzero_async.errors import BadData
from lzero_async.runs import checkpoint
from lzero_async.workers.parcels import Parcel
from zoo.mbpo.collect.tensor_playing import TensorActor
from zoo.mbpo.learn.buffers import TransitionBuffer
from zoo.mbpo.learn.learner import make_buffer, make_dynamics
from zoo.mbpo.learn.model_rollout import rollout
from zoo.mbpo.learn.networks import generator_of
from zoo.mbpo.learn.pace import Owed
from zoo.mbpo.learn.roles import MIN_FIT_ROWS
from zoo.mbpo.learn.transitions import concatenate
from zoo.mbpo.options import MbpoOptions
from zoo.mbpo.saving import load_whole

MAX_FIT_UPDATES = 500  # of one pass of the dynamics role, or what one batch owes; one that is behind forgets the rest
ROLL_SEED = 7_919


class DynamicsRole:
    """The dynamics and the real data they learn from."""

    def __init__(self, options: MbpoOptions, sizes: tuple[int, int], emit: Callable[[Any], None]) -> None:
        self._options = options
        self._dynamics = make_dynamics(options, *sizes)
        self._real = make_buffer(options, *sizes, "real")
        self._owed = Owed(options.dynamics_updates_per_step)

    def ready(self) -> dict[str, int]:
        """Answered once the role is made: the counters so far."""
        return {
            "dynamics_updates": self._dynamics.updates,
            "dynamics_version": self._dynamics.version,
            "dynamics_bad_updates": self._dynamics.bad.count,
        }

    def fit(self, steps: Sequence[int], batches: Sequence[Parcel]) -> dict[str, Any]:
        """Store the batches and make the updates owed for the `steps` transitions of each train since the last pass; the
        report has the `weights` after that."""
        start = time.monotonic()
        _add_sound(self._real, batches)
        self._owed.add(sum(steps))
        report: dict[str, Any] = {}
        if self._real.count >= MIN_FIT_ROWS:
            updates = self._owed.take(_most(MAX_FIT_UPDATES, self._owed, steps))
            if updates:
                report = self._dynamics.fit(self._real, updates, self._options.dynamics_batch_size)
        return {
            **report,
            **self.ready(),
            "dynamics_updates_forgotten": self._owed.forgotten,
            "weights": Parcel(self._dynamics.weights(), live=True) if report else None,
            "seconds": time.monotonic() - start,
        }

    def restore(self, weights: Parcel | None, version: int, updates: int, rows: Parcel) -> None:
        """Go on as well as can be after a failure: with the last weights that were given out, and the agent's real data.
        The optimizer starts afresh."""
        if weights is not None:
            self._dynamics.load_weights(weights.open())
        self._dynamics.version, self._dynamics.updates = version, updates
        _refill(self._real, rows)

    def state(self) -> Parcel:
        """What a checkpoint keeps of it besides the real data."""
        return Parcel({"dynamics": self._dynamics.state_dict(), "owed": self._owed.left})

    def load(self, path: str) -> dict[str, Any]:
        """Go on from a checkpoint; its report has the `weights`, None if there are none yet."""
        state = load_whole(path)
        with checkpoint.fitting(path):
            self._real.load_state_dict(state["learner"]["real"])
            self._real.fit_to(self._options.real_buffer_size)
            other = state["other"]
            if other is None and "dynamics" in state["learner"]:  # written by a trainer with one role for all
                other = {"dynamics": state["learner"]["dynamics"], "owed": state["owed"]["fits"]}
            if other is not None:
                self._dynamics.load_state_dict(other["dynamics"])
                self._owed.left = float(other["owed"])
        return {
            **self.ready(),
            "weights": Parcel(self._dynamics.weights(), live=True) if self._dynamics.version else None,
        }


class RolloutRole:
    """Copies of policy and dynamics, and the real observations to start from."""

    def __init__(self, options: MbpoOptions, sizes: tuple[int, int], emit: Callable[[Any], None]) -> None:
        self._options = options
        self._dynamics = make_dynamics(options, *sizes)
        self._real = make_buffer(options, *sizes, "real")
        self._owed = Owed(options.rollouts_per_step)
        self._actor: TensorActor | None = None
        self._generator = generator_of(torch.device(options.device), options.seed + ROLL_SEED)
        self._versions = (-1, -1)
        self.clamped = self.dropped = 0

    def ready(self) -> dict[str, int]:
        """Answered once the role is made."""
        return {}

    def roll(
        self,
        steps: Sequence[int],
        batches: Sequence[Parcel],
        policy: tuple[int, Parcel],
        dynamics: tuple[int, Parcel | None],
    ) -> Parcel | None:
        """Store the batches, and make the rollouts owed for the `steps` transitions of each train since the last pass, with
        these versions of policy and dynamics.

        None while there is no dynamics yet. One that is behind makes what one train owes, or rollout_batch_size if that is
        more, and forgets the rest.
        """
        start = time.monotonic()
        _add_sound(self._real, batches)
        self._owed.add(sum(steps))
        if dynamics[1] is None or not self._real.count:
            return None
        size = self._options.rollout_batch_size
        count = self._owed.take(_most(size, self._owed, steps))
        if not count:
            return None
        self._load(policy, dynamics)
        parts = []
        for made in range(0, count, size):
            starts = self._real.sample_obs(min(size, count - made))
            found = rollout(self._dynamics, self._act, starts, self._options.rollout_length)
            parts.append(found.transitions)
            self.clamped += found.clamped
            self.dropped += found.dropped
        transitions = concatenate(parts)
        meta = {
            "steps": transitions.count,
            "policy_version": policy[0],
            "dynamics_version": dynamics[0],
            "model_clamped": self.clamped,
            "model_dropped": self.dropped,
            "rollouts_forgotten": self._owed.forgotten,
            "seconds": time.monotonic() - start,
        }
        return Parcel(transitions, meta)

    def load(self, path: str) -> None:
        """Start from a checkpoint's real data."""
        state = load_whole(path)
        with checkpoint.fitting(path):
            self._real.load_state_dict(state["learner"]["real"])
            self._real.fit_to(self._options.real_buffer_size)

    def restore(self, rows: Parcel) -> None:
        """Start from the agent's real data after a failure."""
        _refill(self._real, rows)

    def _load(self, policy: tuple[int, Parcel], dynamics: tuple[int, Parcel | None]) -> None:
        """Take the weights whose version is new."""
        if policy[0] != self._versions[0]:
            weights = policy[1].read()
            if self._actor is None:
                self._actor = TensorActor(weights, torch.device(self._options.device))
            else:
                self._actor.load(weights)
        if dynamics[0] != self._versions[1]:
            assert dynamics[1] is not None
            self._dynamics.load_weights(dynamics[1].read())
        self._versions = (policy[0], dynamics[0])

    def _act(self, obs: torch.Tensor) -> torch.Tensor:
        assert self._actor is not None
        return self._actor.act(obs, self._generator)


def _add_sound(buffer: TransitionBuffer, batches: Sequence[Parcel]) -> None:
    """Store the batches that the agent has not refused."""
    for batch in batches:
        with suppress(BadData):
            buffer.add(batch.open(), batch.meta["version"])


def _most(usual: int, owed: Owed, steps: Sequence[int]) -> int:
    """Units of work of one pass: the usual number, or all that one train owes."""
    return max(usual, int(owed.per_step * max(steps, default=0)) + 1)


def _refill(buffer: TransitionBuffer, rows: Parcel) -> None:
    """Give an empty buffer the agent's real data, each transition with the serial number that it has there, by which the
    dynamics know what they hold out."""
    transitions = rows.open()
    if transitions.count:
        buffer.add(transitions, 0)
        buffer.total_added = rows.meta["real_data"]
