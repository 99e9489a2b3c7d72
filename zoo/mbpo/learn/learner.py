"""The learner: it owns agent, dynamics and both buffers, and makes the steps that a trainer asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lzero_async.validation import whole_number
from zoo.mbpo.learn.bad_updates import NotFinite
from zoo.mbpo.learn.buffers import TransitionBuffer
from zoo.mbpo.learn.dynamics import DynamicsEnsemble
from zoo.mbpo.learn.mixing import Mixer
from zoo.mbpo.learn.model_rollout import rollout
from zoo.mbpo.learn.sac import LOSSES, SAC
from zoo.mbpo.learn.transitions import Transitions
from zoo.mbpo.options import LearnerOptions


def make_agent(options: LearnerOptions, obs_size: int, action_size: int) -> SAC:
    """The agent that these options describe."""
    return SAC(
        obs_size,
        action_size,
        hidden_size=options.hidden_size,
        hidden_layers=options.hidden_layers,
        learning_rate=options.learning_rate,
        discount=options.discount,
        tau=options.tau,
        device=options.device,
        seed=4 * options.seed,
        on_bad_update=options.on_bad_update,
    )


def make_dynamics(options: LearnerOptions, obs_size: int, action_size: int) -> DynamicsEnsemble:
    """The dynamics that these options describe."""
    return DynamicsEnsemble(
        obs_size,
        action_size,
        ensemble_size=options.ensemble_size,
        num_elites=options.num_elites,
        hidden_size=options.dynamics_hidden_size,
        hidden_layers=options.dynamics_layers,
        learning_rate=options.dynamics_learning_rate,
        device=options.device,
        seed=4 * options.seed + 1,
        on_bad_update=options.on_bad_update,
    )


def make_buffer(options: LearnerOptions, obs_size: int, action_size: int, source: str) -> TransitionBuffer:
    """The buffer of `real` or of `model` data."""
    size = options.real_buffer_size if source == "real" else options.model_buffer_size
    seed = 4 * options.seed + (2 if source == "real" else 3)
    return TransitionBuffer(size, obs_size, action_size, device=options.device, sampling=options.sampling, seed=seed)


class AgentLearner:
    """SAC on a real and a model buffer; the counters say what was done since the very start, resumes included."""

    def __init__(self, options: LearnerOptions, obs_size: int, action_size: int) -> None:
        whole_number("seed", options.seed, 0)
        self.agent = make_agent(options, obs_size, action_size)
        self.real = make_buffer(options, obs_size, action_size, "real")
        self.model = make_buffer(options, obs_size, action_size, "model")
        self.mixer = Mixer(self.real, self.model, options.batch_size, options.real_ratio)

    @property
    def real_data(self) -> int:
        """Real transitions ever taken."""
        return self.real.total_added

    @property
    def model_data(self) -> int:
        """Model transitions ever taken."""
        return self.model.total_added

    @property
    def agent_updates(self) -> int:
        """Gradient steps of the agent."""
        return self.agent.updates

    @property
    def bad_updates(self) -> int:
        """Gradient steps that were left out, because something in them was not finite."""
        return self.agent.bad.count

    def take(self, transitions: Transitions, version: int) -> None:
        """Store real transitions that the policy of `version` made; BadData if a value is not finite."""
        self.real.add(transitions, version)

    def take_model(self, transitions: Transitions, dynamics_version: int) -> None:
        """Store model transitions that the dynamics of that version made."""
        self.model.add(transitions, dynamics_version)

    def train_agent(self, updates: int, version: int = 0, dynamics_version: int = 0) -> dict[str, float]:
        """Make `updates` gradient steps of the agent on mixed batches; the versions are those of policy and dynamics now.

        Returns the means of the losses, and mean and largest age of the sampled rows: of real ones in policy versions, of
        model ones in dynamics versions. Steps with a loss or gradient that is not finite are left out; raises NotFinite if
        there are too many of them, or the weights have become useless.
        """
        totals = torch.zeros(len(LOSSES), device=self.real.device)
        ages = {"real": _Ages(version), "model": _Ages(dynamics_version)}
        made = 0
        for _ in range(updates):
            sample = self.mixer.sample()
            found = self.agent.update(sample)
            if found is None:
                continue
            made += 1
            self.mixer.update_priorities(found["td_errors"])
            totals += torch.stack([found[name] for name in LOSSES])
            ages["real"].see(sample.versions[: self.mixer.real_rows])
            ages["model"].see(sample.versions[self.mixer.real_rows :])
        if unsound := self.agent.unsound():
            raise NotFinite(
                f"The weights of the {unsound} are not finite any more. The last checkpoint before that stands."
            )
        losses = dict(zip(LOSSES, (totals / made).tolist(), strict=True)) if made else {}
        return {**losses, **ages["real"].report("real"), **ages["model"].report("model")}

    def _parts(self) -> dict[str, Any]:
        return {"agent": self.agent, "real": self.real, "model": self.model}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, as tensors and numbers in nested dicts."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; other sizes of networks or rows raise ConfigError."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])


class Learner(AgentLearner):
    """The same with the dynamics and their rollouts: everything that learns, in one place."""

    def __init__(self, options: LearnerOptions, obs_size: int, action_size: int) -> None:
        super().__init__(options, obs_size, action_size)
        self.dynamics = make_dynamics(options, obs_size, action_size)
        self.rollout_length = whole_number("rollout_length", options.rollout_length, 1)
        self._rollout_batch = whole_number("rollout_batch_size", options.rollout_batch_size, 1)
        self._dynamics_batch = whole_number("dynamics_batch_size", options.dynamics_batch_size, 1)
        self.model_clamped = 0  # model rows with a prediction outside the range of the real data
        self.model_dropped = 0  # model rows that were not finite

    @property
    def bad_updates(self) -> int:
        return super().bad_updates + self.dynamics.bad.count

    @property
    def dynamics_updates(self) -> int:
        """Gradient steps of the dynamics."""
        return self.dynamics.updates

    def train_dynamics(self, updates: int) -> dict[str, float]:
        """Make `updates` gradient steps on the real data; needs some."""
        return self.dynamics.fit(self.real, updates, self._dynamics_batch)

    def roll(self, count: int) -> int:
        """Roll `count` real observations out with the agent's policy; returns the transitions that this gave.

        None before the dynamics was fitted once.
        """
        if not self.dynamics.version or not self.real.count:
            return 0
        before = self.model.total_added
        for start in range(0, count, self._rollout_batch):
            starts = self.real.sample_obs(min(self._rollout_batch, count - start))
            found = rollout(self.dynamics, self.agent.act, starts, self.rollout_length)
            self.take_model(found.transitions, self.dynamics.version)
            self.model_clamped += found.clamped
            self.model_dropped += found.dropped
        return self.model.total_added - before

    def train_agent(self, updates: int, version: int = 0, dynamics_version: int | None = None) -> dict[str, float]:
        return super().train_agent(updates, version, self.dynamics.version)

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "dynamics": self.dynamics}

    def state_dict(self) -> dict[str, Any]:
        counters = {"model_clamped": self.model_clamped, "model_dropped": self.model_dropped}
        return {**super().state_dict(), **counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.model_clamped, self.model_dropped = int(state["model_clamped"]), int(state["model_dropped"])


class _Ages:
    """Mean and maximum of the ages of sampled rows, kept on the device until they are asked for."""

    def __init__(self, version: int) -> None:
        self._version, self._rows = version, 0
        self._sum: Tensor | None = None
        self._oldest: Tensor | None = None

    def see(self, versions: Tensor) -> None:
        """Count these rows in."""
        if not len(versions):
            return
        total, oldest = versions.sum(), versions.min()
        self._rows += len(versions)
        self._sum = total if self._sum is None else self._sum + total
        self._oldest = oldest if self._oldest is None else torch.minimum(self._oldest, oldest)

    def report(self, source: str) -> dict[str, float]:
        """`<source>_age_mean` and `<source>_age_max`; empty when there were no rows."""
        if self._sum is None or self._oldest is None:
            return {}
        mean = self._version - int(self._sum) / self._rows
        return {f"{source}_age_mean": mean, f"{source}_age_max": float(self._version - int(self._oldest))}
