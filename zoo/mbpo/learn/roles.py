"""The roles that own the agent: one that learns all (sync and batch trainers), or the agent alone (continuous).

Each owns its networks and buffers alone. Weights leave as parcels; those of the policy are numpy arrays, because collectors
do not import torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs import checkpoint
from lzero_async.workers.parcels import Parcel
from zoo.mbpo.learn.bad_updates import NotFinite
from zoo.mbpo.learn.learner import AgentLearner, Learner
from zoo.mbpo.learn.pace import Owed
from zoo.mbpo.learn.transitions import Transitions
from zoo.mbpo.options import MbpoOptions
from zoo.mbpo.saving import KIND, load_whole, unsound

MIN_FIT_ROWS = 2  # the first row is held out
log = logging.getLogger(__name__)


class _AgentRole:
    """What both roles that own the agent share: weights, checkpoints, and the refusal to save a train that broke off."""

    learner: AgentLearner

    def __init__(self, options: MbpoOptions, emit: Callable[[Any], None]) -> None:
        self._options = options
        self._updates = Owed(options.updates_per_step)
        self._waiting: list[dict[str, Any]] = []  # of a loaded checkpoint
        self._broken = ""
        self._bad_batches = 0

    def ready(self) -> dict[str, int]:
        """Answered once the role is made: the counters so far."""
        return self._counters()

    def weights(self) -> Parcel:
        """The policy's weights as they are now, as numpy arrays."""
        return Parcel(
            {name: value.detach().cpu().numpy() for name, value in self.learner.agent.actor_weights().items()},
            live=True,
        )

    def _can_draw(self) -> bool:
        """Whether there is a batch to draw; updates are owed until then."""
        return bool(self.learner.real.count >= min(self._options.batch_size, self.learner.real.capacity))

    def _train_agent(self, version: int, dynamics_version: int) -> dict[str, Any]:
        learner = self.learner
        if not self._can_draw():
            return {"updates": 0}
        updates = self._updates.take()
        return {"updates": updates, **learner.train_agent(updates, version, dynamics_version)}

    def _counters(self) -> dict[str, int]:
        learner = self.learner
        return {
            "real_data": learner.real_data,
            "model_data": learner.model_data,
            "agent_updates": learner.agent_updates,
            "bad_batches": self._bad_batches,
            "bad_updates": learner.bad_updates,
        }

    def _take(self, parcel: Parcel, made_by: int) -> int:
        """Store a batch of real transitions, or refuse it; how many came in."""
        transitions: Transitions = parcel.open()
        try:
            self.learner.take(transitions, made_by)
        except BadData as error:
            self._bad_batches += 1
            log.warning("a batch of %d transitions is refused: %s", transitions.count, error)
            return 0
        return transitions.count

    def _fill(self) -> dict[str, float]:
        return {"real_buffer": self.learner.real.share_filled, "model_buffer": self.learner.model.share_filled}

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self, path: str, state: Mapping[str, Any], waiting: Sequence[Parcel], other: Parcel | None = None) -> None:
        """Write a checkpoint: `state`, what this role knows, what another role knows, and the batches that wait."""
        if self._broken:
            raise ConfigError(
                f"The learner broke off a train ({self._broken}), so its state is not saved; the checkpoint before stands."
            )
        whole = {
            **state,
            "learner": self.learner.state_dict(),
            "owed": self._owed_state(),
            "waiting": [{"data": parcel.open().to_arrays(), "meta": dict(parcel.meta)} for parcel in waiting],
            "other": None if other is None else other.open(),
        }
        if bad := unsound(whole):
            raise NotFinite(f"The state is not saved, because {bad}; the checkpoint before stands.")
        checkpoint.save(Path(path), whole, KIND)

    def save_weights(self, path: str, state: Mapping[str, Any], weights: Parcel) -> None:
        """Write a checkpoint that holds one version of the policy and nothing to go on from."""
        whole = {**state, "weights": dict(weights.open())}
        if bad := unsound(whole):
            raise NotFinite(f"The best weights are not saved, because {bad}; those before stand.")
        checkpoint.save(Path(path), whole, KIND)

    def load(self, path: str) -> int:
        """Go on from a checkpoint; how many batches wait in it (`waiting` hands them out)."""
        state = load_whole(path)
        with checkpoint.fitting(path):
            self._load(state)
            self._waiting = list(state["waiting"])
        return len(self._waiting)

    def _load(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        for buffer, size in (("real", self._options.real_buffer_size), ("model", self._options.model_buffer_size)):
            getattr(self.learner, buffer).fit_to(size)
        self._updates.left = float(state["owed"]["updates"])

    def _owed_state(self) -> dict[str, Any]:
        return {"updates": self._updates.left}

    def waiting(self, place: int) -> Parcel:
        """The batch that waited at this place of the line."""
        item, self._waiting[place] = self._waiting[place], {}
        return Parcel(Transitions.from_arrays(item["data"]), item["meta"])


class LearnerRole(_AgentRole):
    """Agent, dynamics and rollouts in turn: all that is owed for one batch."""

    learner: Learner

    def __init__(self, options: MbpoOptions, sizes: tuple[int, int], emit: Callable[[Any], None]) -> None:
        super().__init__(options, emit)
        self.learner = Learner(options, *sizes)
        self._fits = Owed(options.dynamics_updates_per_step)
        self._rolls = Owed(options.rollouts_per_step)

    def train(self, made_by: int, version: int, parcel: Parcel) -> dict[str, Any]:
        """Store the batch that the policy `made_by` made, and do all that is owed for it; `version` is the policy's now."""
        start = time.monotonic()
        try:
            taken = self._take(parcel, made_by)
            for owed in (self._updates, self._fits, self._rolls):
                owed.add(taken)
            report: dict[str, Any] = {}
            seconds = {"take": time.monotonic() - start}
            if self.learner.real.count >= MIN_FIT_ROWS and (fits := self._fits.take()):
                report |= self.learner.train_dynamics(fits)
            seconds["dynamics"] = time.monotonic() - start - sum(seconds.values())
            self.learner.roll(self._rolls.take())
            seconds["rollout"] = time.monotonic() - start - sum(seconds.values())
            report |= self._train_agent(version, self.learner.dynamics.version)
            seconds["agent"] = time.monotonic() - start - sum(seconds.values())
        except BaseException as error:
            self._broken = repr(error)
            raise
        report |= {f"{name}_seconds": value for name, value in seconds.items()}
        return {**report, **self._counters(), **self._fill(), "seconds": time.monotonic() - start}

    def _counters(self) -> dict[str, int]:
        learner = self.learner
        return {
            **super()._counters(),
            "dynamics_updates": learner.dynamics_updates,
            "model_clamped": learner.model_clamped,
            "model_dropped": learner.model_dropped,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        learner, owed = dict(state["learner"]), dict(state["owed"])
        if "dynamics" not in learner:  # written by the continuous trainer, whose dynamics is a role of its own
            other = state["other"] or {"dynamics": self.learner.dynamics.state_dict(), "owed": 0.0}
            learner |= {"dynamics": other["dynamics"], "model_clamped": 0, "model_dropped": 0}
            owed |= {"fits": other["owed"], "rolls": 0.0}
        super()._load({**state, "learner": learner})
        self._fits.left, self._rolls.left = float(owed["fits"]), float(owed["rolls"])

    def _owed_state(self) -> dict[str, Any]:
        return {**super()._owed_state(), "fits": self._fits.left, "rolls": self._rolls.left}


class AgentRole(_AgentRole):
    """The agent alone: real batches come from collectors, model data from the rollouts, both by way of the parent."""

    def __init__(self, options: MbpoOptions, sizes: tuple[int, int], emit: Callable[[Any], None]) -> None:
        super().__init__(options, emit)
        self.learner = AgentLearner(options, *sizes)

    def train(
        self,
        made_by: int,
        version: int,
        parcel: Parcel | None,
        steps: int,
        model: Sequence[Parcel],
        dynamics_version: int,
    ) -> dict[str, Any]:
        """Store what came, and make the updates owed for `steps` transitions: those of the batch, or, without one, of the
        last. Without one nothing is owed before there is a batch to draw."""
        start = time.monotonic()
        try:
            if parcel is not None and not self._take(parcel, made_by):
                steps = 0
            for rows in model:
                self.learner.take_model(rows.open(), rows.meta["dynamics_version"])
            if parcel is not None or self._can_draw():
                self._updates.add(steps)
            report = self._train_agent(version, dynamics_version)
        except BaseException as error:
            self._broken = repr(error)
            raise
        return {**report, **self._counters(), **self._fill(), "seconds": time.monotonic() - start}

    def real_rows(self) -> Parcel:
        """All real transitions at hand, for a role that lost its own."""
        return Parcel(self.learner.real.newest(self.learner.real.count), {"real_data": self.learner.real_data})
