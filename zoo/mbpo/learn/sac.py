"""Soft actor-critic: twin critics as one batched network, a tanh-Gaussian actor, a temperature that tunes itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lzero_async.runs.soundness import is_finite
from lzero_async.validation import positive_number, whole_number
from zoo.mbpo.collect.actor import LOG_STD_HIGH, LOG_STD_LOW
from zoo.mbpo.learn.bad_updates import BadUpdates
from zoo.mbpo.learn.buffers import Sample
from zoo.mbpo.learn.networks import (
    BatchedMLP,
    copies_of,
    copy_into,
    generator_of,
    load_generator_state,
    load_optimizer_state,
    optimizer_state,
)

# First bias of the raw log deviations, for a standard deviation of about 1: the untrained policy acts almost uniformly, so
# that data of many old versions still cover the actions.
WIDE_AT_FIRST = 0.458
LOSSES = ("critic_loss", "actor_loss", "temperature", "entropy", "q_mean")


class SAC:
    """The agent; all tensors live on `device`, all random draws come from a generator of its own."""

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        *,
        hidden_size: int = 128,
        hidden_layers: int = 2,
        learning_rate: float = 1e-3,
        discount: float = 0.99,
        tau: float = 0.005,
        target_entropy: float | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        on_bad_update: str = "skip",
    ) -> None:
        hidden = [whole_number("hidden_size", hidden_size, 1)] * whole_number("hidden_layers", hidden_layers, 1)
        learning_rate = positive_number("learning_rate", learning_rate)
        self.action_size = whole_number("action_size", action_size, 1)
        self.discount = discount
        self.tau = tau
        self.target_entropy = -float(action_size) if target_entropy is None else target_entropy
        self._generator = generator_of(device, seed)
        self.actor = BatchedMLP([obs_size, *hidden, 2 * action_size], 0, torch.relu_, self._generator)
        with torch.no_grad():
            self.actor.parameters[-1][action_size:] = WIDE_AT_FIRST
        sizes = [obs_size + action_size, *hidden, 1]
        self.critic = BatchedMLP(sizes, 2, _normed_relu, self._generator)
        self.target = BatchedMLP(sizes, 2, _normed_relu, self._generator)
        self.target.flat.copy_(self.critic.flat)
        self.log_temperature = torch.zeros(1, device=device)
        self._critic_optimizer = torch.optim.Adam([self.critic.flat], lr=learning_rate, fused=True)
        self._actor_optimizer = torch.optim.Adam([self.actor.flat, self.log_temperature], lr=learning_rate, fused=True)
        self.updates = 0
        self.bad = BadUpdates("agent", on_bad_update)

    def update(self, sample: Sample) -> dict[str, Tensor] | None:
        """One gradient step each of critics, actor and temperature; None if one was left out, because its loss or gradient
        is not finite.

        Returns the scalars of LOSSES and `td_errors` [N] (mean over the critics of the absolute error) as tensors, so that
        a GPU need not wait.
        """
        count = sample.obs.shape[0]
        noise = torch.randn((2, count, self.action_size), generator=self._generator, device=self._generator.device)
        temperature = self.log_temperature.exp()
        critics = self._update_critics(sample, noise[0], temperature)
        actor = None if critics is None else self._update_actor(sample.obs, noise[1], temperature)
        if critics is None or actor is None:
            self.bad.left_out(self.updates + 1)
            return None
        self.bad.made()
        (critic_loss, errors, q_mean), (actor_loss, log_prob) = critics, actor
        self.updates += 1
        losses = (critic_loss, actor_loss, temperature[0], -log_prob, q_mean)
        return {**dict(zip(LOSSES, losses, strict=True)), "td_errors": errors}

    def _update_critics(self, sample: Sample, noise: Tensor, temperature: Tensor) -> tuple[Tensor, ...] | None:
        with torch.no_grad():
            next_action, log_prob = self._draw(sample.next_obs, noise)
            value = self._value(self.target, sample.next_obs, next_action).amin(0) - temperature * log_prob
            goal = sample.reward + self.discount * (1.0 - sample.terminated) * value
        found = self._value(self.critic, sample.obs, sample.action)
        errors = found - goal
        loss = (errors.square() * sample.weight).mean()
        self.critic.set_gradient(loss)
        if not self.critic.can_step(loss):
            return None
        self._critic_optimizer.step()
        self.target.flat.lerp_(self.critic.flat, self.tau)
        return loss.detach(), errors.detach().abs().mean(0), found.detach().mean()

    def _update_actor(self, obs: Tensor, noise: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor] | None:
        action, log_prob = self._draw(obs, noise)
        loss = (temperature * log_prob - self._value(self.critic, obs, action).amin(0)).mean()
        mean_log_prob = log_prob.detach().mean()
        # The temperature's loss is linear in its logarithm, so its gradient needs no backward pass.
        self.log_temperature.grad = -(mean_log_prob + self.target_entropy).view(1)
        self.actor.set_gradient(loss)
        if not self.actor.can_step(loss, self.log_temperature.grad):
            return None
        self._actor_optimizer.step()
        return loss.detach(), mean_log_prob

    def _value(self, network: BatchedMLP, obs: Tensor, action: Tensor) -> Tensor:
        """Both critics' values [2, N]."""
        inputs = torch.cat((obs, action), 1)
        return network(inputs.expand(2, *inputs.shape)).squeeze(2)

    def _draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, A] and the logarithm of their density [N]."""
        mean, log_std = self.distribution(obs)
        action = torch.tanh(mean + log_std.exp() * noise)
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return action, (density - torch.log(1.0 - action.square() + 1e-6)).sum(1)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation [N, A] before the tanh."""
        mean, raw = self.actor(obs).split(self.action_size, 1)
        half = 0.5 * (LOG_STD_HIGH - LOG_STD_LOW)
        return mean, torch.tanh(raw) * half + 0.5 * (LOG_STD_HIGH + LOG_STD_LOW)

    @torch.no_grad()
    def act(self, obs: Tensor, deterministic: bool = False) -> Tensor:
        """Actions [N, A] in [-1, 1], drawn with the agent's generator or, `deterministic`, the mode."""
        mean, log_std = self.distribution(obs)
        if deterministic:
            return torch.tanh(mean)
        noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
        return torch.tanh(mean + log_std.exp() * noise)

    def unsound(self) -> str:
        """Which network is not finite; '' if all are."""
        parts = {"actor": self.actor.flat, "critics": self.critic.flat, "target critics": self.target.flat}
        return next((name for name, flat in parts.items() if not is_finite(flat)), "")

    def actor_weights(self) -> dict[str, Tensor]:
        """The actor's live weights under the names that `NumpyActor` reads; whoever keeps them makes a copy."""
        return self.actor.named()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, as tensors and numbers."""
        return {
            "actor": copies_of(self.actor.named()),
            "critic": copies_of(self.critic.named()),
            "target": copies_of(self.target.named()),
            "temperature": copies_of({"log": self.log_temperature}),
            "critic_optimizer": optimizer_state(self._critic_optimizer),
            "actor_optimizer": optimizer_state(self._actor_optimizer),
            "generator": self._generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; another network size raises ConfigError."""
        self.actor.load(state["actor"])
        self.critic.load(state["critic"])
        self.target.load(state["target"])
        copy_into({"log": self.log_temperature}, state["temperature"])
        load_optimizer_state(self._critic_optimizer, state["critic_optimizer"])
        load_optimizer_state(self._actor_optimizer, state["actor_optimizer"])
        load_generator_state(self._generator, state["generator"])
        self.updates = int(state["updates"])


def _normed_relu(value: Tensor) -> Tensor:
    """The critics' activation: normed layers keep values bounded where there are no data.

    Without that the policy is drawn to such places between two collects, and is lost again when data are few or stale.
    """
    return torch.relu_(torch.layer_norm(value, value.shape[-1:]))
