"""The dynamics: an ensemble of probabilistic networks, trained on real data as they come, the best of them used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from lzero_async.errors import ConfigError
from lzero_async.runs.soundness import is_finite
from lzero_async.validation import positive_number, whole_number
from zoo.mbpo.learn.bad_updates import BadUpdates, NotFinite
from zoo.mbpo.learn.buffers import Sample, TransitionBuffer
from zoo.mbpo.learn.networks import (
    BatchedMLP,
    copies_of,
    copy_into,
    generator_of,
    load_generator_state,
    load_optimizer_state,
    optimizer_state,
)
from zoo.mbpo.learn.transitions import Transitions

LOG_VAR_LOW, LOG_VAR_HIGH = -10.0, 1.0  # in units of the normalised targets
HOLDOUT_ROWS = 512  # at most so many held-out rows are evaluated
NEW_STATISTICS_AT = 1.25  # growth of the data after which the normaliser is computed again
WIDE_AT_FIRST = 2.0  # first bias of the log variances, near their upper bound: the means are learned before the noise
NO_TERMINATION = -4.0  # first bias of the termination logit: without data, nothing terminates
HASH = 2654435761  # an odd number near 2**32 / golden ratio spreads consecutive serials evenly


class DynamicsEnsemble:
    """`ensemble_size` networks that predict change of observation, reward and termination from observation and action.

    A network gives mean and bounded log variance of each target, and a termination logit; a row terminates above 0.
    `version` counts the fits.
    """

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        *,
        ensemble_size: int = 7,
        num_elites: int = 5,
        hidden_size: int = 200,
        hidden_layers: int = 3,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        device: str | torch.device = "cpu",
        seed: int = 0,
        on_bad_update: str = "skip",
    ) -> None:
        self.bad = BadUpdates("dynamics", on_bad_update)
        self.ensemble_size = whole_number("ensemble_size", ensemble_size, 1)
        self.num_elites = whole_number("num_elites", num_elites, 1)
        if num_elites > ensemble_size:
            raise ConfigError(f"num_elites is {num_elites}; it must be at most ensemble_size, {ensemble_size}.")
        self.obs_size = whole_number("obs_size", obs_size, 1)
        hidden = [whole_number("hidden_size", hidden_size, 1)] * whole_number("hidden_layers", hidden_layers, 1)
        self.device = torch.device(device)
        self._generator = generator_of(self.device, seed)
        targets = obs_size + 1
        self._network = BatchedMLP(
            [obs_size + action_size, *hidden, 2 * targets + 1], self.ensemble_size, F.silu, self._generator
        )
        with torch.no_grad():
            last_bias = self._network.parameters[-1]
            last_bias[..., targets:-1] = WIDE_AT_FIRST
            last_bias[..., -1] = NO_TERMINATION
        self._optimizer = torch.optim.Adam(
            [self._network.flat],
            lr=positive_number("dynamics_learning_rate", learning_rate),
            weight_decay=weight_decay,
            fused=True,
        )
        self._statistics = {
            "input_mean": torch.zeros(obs_size + action_size, device=self.device),
            "input_std": torch.ones(obs_size + action_size, device=self.device),
            "target_mean": torch.zeros(targets, device=self.device),
            "target_std": torch.ones(targets, device=self.device),
            "low": torch.full((targets,), -torch.inf, device=self.device),
            "high": torch.full((targets,), torch.inf, device=self.device),
            "elites": torch.arange(self.num_elites, device=self.device),
        }
        self.version = 0
        self.updates = 0
        self._seen: tuple[Any, ...] = ()  # what the buffer was like when its rows were split last
        self._normalised_at = 0  # transitions at the last computation of the normaliser
        self._train_rows = self._holdout_rows = torch.empty(0, dtype=torch.int64)

    @property
    def elites(self) -> Tensor:
        """The members that `predict` uses, best first."""
        return self._statistics["elites"]

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest next observation and, last, reward [O + 1] of the real data seen."""
        return self._statistics["low"], self._statistics["high"]

    def fit(
        self, buffer: TransitionBuffer, updates: int, batch_size: int = 256, holdout_share: float = 0.1
    ) -> dict[str, float]:
        """Make `updates` gradient steps, each on a fresh bootstrap batch per member, then choose the elites.

        A transition is held out, for good, by a hash of its serial number in the buffer; held-out ones are never trained on.
        """
        self._look_at(buffer, holdout_share)
        loss = torch.zeros((), device=self.device)
        made = 0
        for _ in range(updates):
            picks = torch.randint(
                len(self._train_rows), (self.ensemble_size * batch_size,), generator=self._generator, device=self.device
            )
            found = self._update(buffer.gather(self._train_rows[picks]))
            if found is None:
                self.bad.left_out(self.updates + made + 1)
                continue
            self.bad.made()
            loss += found
            made += 1
        self.updates += made
        self.version += 1
        if not is_finite(self._network.flat):
            raise NotFinite(
                "The weights of the dynamics are not finite any more. The last checkpoint before that stands."
            )
        return {"dynamics_loss": float(loss) / max(made, 1), **self._choose_elites(buffer)}

    @torch.no_grad()
    def predict(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A draw of next_obs [N, O], reward [N] and terminated [N] (0 or 1) for each row, from a random elite each.

        The rows are dealt to the elites in equal numbers, so that each row costs one network.
        """
        rows, elites = len(obs), self.num_elites
        each = -(-rows // elites)
        order = torch.randperm(rows, generator=self._generator, device=self.device)
        dealt = order[torch.arange(each * elites, device=self.device) % rows]
        inputs = self._normalised(torch.cat((obs, action), 1)[dealt]).view(elites, each, -1)
        mean, log_var, logit = self._split(self._network(inputs, [p[self.elites] for p in self._network.parameters]))
        noise = torch.randn(mean.shape, generator=self._generator, device=self.device)
        drawn = (mean + noise * (0.5 * log_var).exp()).flatten(0, 1)
        back = torch.empty_like(order)
        back[order] = torch.arange(rows, device=self.device)  # where each row's first answer is
        target = drawn[back] * self._statistics["target_std"] + self._statistics["target_mean"]
        terminated = (logit.flatten()[back] > 0).float()
        return obs + target[:, : self.obs_size], target[:, self.obs_size], terminated

    def weights(self) -> dict[str, Tensor]:
        """All that `predict` needs, normaliser and elites included: live tensors; whoever keeps them makes a copy."""
        return {**self._network.named(), **self._statistics}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy what `weights` of an equal ensemble returned; other names or shapes raise ConfigError."""
        copy_into(self.weights(), weights)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next fit depends on besides the buffer, as tensors and numbers."""
        return {
            "weights": copies_of(self.weights()),
            "optimizer": optimizer_state(self._optimizer),
            "generator": self._generator.get_state(),
            "version": self.version,
            "updates": self.updates,
            "normalised_at": self._normalised_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; another network size raises ConfigError."""
        self.load_weights(state["weights"])
        load_optimizer_state(self._optimizer, state["optimizer"])
        load_generator_state(self._generator, state["generator"])
        self.version, self.updates = int(state["version"]), int(state["updates"])
        self._normalised_at = int(state["normalised_at"])
        self._seen = ()

    def _look_at(self, buffer: TransitionBuffer, holdout_share: float) -> None:
        """Split the buffer's rows and take their range, if it has changed; renew the normaliser if it has grown."""
        seen = (id(buffer), buffer.total_added, buffer.capacity, holdout_share)
        if seen == self._seen:
            return
        held = held_out(buffer.serials(), holdout_share)
        self._train_rows, self._holdout_rows = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
        if not len(self._train_rows):
            raise ConfigError(f"the buffer has {buffer.count} transitions, none of them to train on; add more.")
        inputs, targets, reached = self._fields(buffer.take(self._train_rows))
        low, high = reached.aminmax(dim=0)
        first = self._normalised_at == 0
        known = self._statistics
        known["low"].copy_(low if first else torch.minimum(known["low"], low))
        known["high"].copy_(high if first else torch.maximum(known["high"], high))
        if buffer.total_added >= NEW_STATISTICS_AT * self._normalised_at:
            for name, data in (("input", inputs), ("target", targets)):
                known[f"{name}_mean"].copy_(data.mean(0))
                # A column that never changes is only centred.
                std = data.std(0, correction=0)
                known[f"{name}_std"].copy_(torch.where(std > 1e-6, std, 1.0))
            self._normalised_at = buffer.total_added
        self._seen = seen

    def _update(self, sample: Sample) -> Tensor | None:
        """One gradient step; None if it was left out, because loss or gradient is not finite."""
        mean, log_var, logit, targets = self._answers(sample)
        likelihood = ((targets - mean).square() * (-log_var).exp() + log_var).mean((1, 2)).sum()
        terminated = sample.terminated.view(self.ensemble_size, -1)
        loss = likelihood + F.binary_cross_entropy_with_logits(logit, terminated) * self.ensemble_size
        self._network.set_gradient(loss)
        if not self._network.can_step(loss):
            return None
        self._optimizer.step()
        return loss.detach() / self.ensemble_size

    @torch.no_grad()
    def _choose_elites(self, buffer: TransitionBuffer) -> dict[str, float]:
        """The members with the least squared error on held-out rows, spread evenly over them; none yet, no choice."""
        held = self._holdout_rows
        if not len(held):
            return {"holdout_rows": 0.0}
        rows = held[:: -(-len(held) // HOLDOUT_ROWS)]
        sample = buffer.take(rows.repeat(self.ensemble_size))
        mean, _, logit, targets = self._answers(sample)
        terminated = cast(Tensor, sample.terminated).view(self.ensemble_size, -1)
        errors = (mean - targets).square().mean((1, 2))
        scores = errors + F.binary_cross_entropy_with_logits(logit, terminated, reduction="none").mean(1)
        self.elites.copy_(scores.argsort(stable=True)[: self.num_elites])
        return {"holdout_error": float(errors[self.elites].mean()), "holdout_rows": float(len(rows))}

    def _answers(self, sample: Sample | Transitions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean, log variance, logit and normalised targets [members, rows, ...] of a sample with as many rows per member."""
        inputs, targets, _ = self._fields(sample)
        targets = (targets - self._statistics["target_mean"]) / self._statistics["target_std"]
        found = self._network(self._normalised(inputs).view(self.ensemble_size, -1, inputs.shape[1]))
        return *self._split(found), targets.view(self.ensemble_size, -1, targets.shape[1])

    def _fields(self, data: Sample | Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets (change and reward) and what was reached (next observation and reward)."""
        obs, action, reward, next_obs = (cast(Tensor, field) for field in data[:4])
        reward = reward[:, None]
        inputs = torch.cat((obs, action), 1)
        return inputs, torch.cat((next_obs - obs, reward), 1), torch.cat((next_obs, reward), 1)

    def _normalised(self, inputs: Tensor) -> Tensor:
        return (inputs - self._statistics["input_mean"]) / self._statistics["input_std"]

    def _split(self, found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        targets = self.obs_size + 1
        log_var = LOG_VAR_LOW + (LOG_VAR_HIGH - LOG_VAR_LOW) * torch.sigmoid(found[..., targets : 2 * targets])
        return found[..., :targets], log_var, found[..., 2 * targets]


def held_out(serials: Tensor, share: float) -> Tensor:
    """Which serial numbers are held out: about `share` of them, always the same ones."""
    return (serials * HASH) % 2**32 < share * 2**32
