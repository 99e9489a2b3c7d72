"""PPO on whole episodes: clipped objective against the policies that played them, GAE, separate actor and critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lzero_async.errors import BadData, ConfigError, LzeroAsyncError
from lzero_async.runs.soundness import check_finite
from lzero_async.validation import number_between, one_of, positive_number, whole_number
from zoo.episode_ppo.envs.factories import KINDS, Spaces
from zoo.episode_ppo.learn.advantages import gae
from zoo.episode_ppo.learn.critic import Critic
from zoo.episode_ppo.play.episode import Episode, check_record, pack
from zoo.episode_ppo.play.policy import HALF_LOG_2PI, LOG_STD
from zoo.mbpo.learn.networks import (
    BatchedMLP,
    copies_of,
    copy_into,
    generator_of,
    load_generator_state,
    load_optimizer_state,
    optimizer_state,
)

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0
FIRST_LOG_STD = -0.5
QUIET_START = 0.01  # factor of the actor's last layer: the untrained policy prefers nothing
LARGEST_LOG_RATIO = 20.0  # keeps the ratio finite for an old episode whose action has become far more likely
ON_BAD_UPDATE = ("skip", "stop")
LOSSES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class Rows(NamedTuple):
    """The steps of a batch as tensors of one device, in the order of the episodes."""

    obs: Tensor  # [S, O]
    action: Tensor  # [S] int64 or [S, A] float32
    log_prob: Tensor  # [S]; of the policy that played
    advantage: Tensor  # [S], normalised
    target: Tensor  # [S]; the return in the critic's units

    def take(self, rows: Tensor) -> Rows:
        """The steps at these indices."""
        return Rows(*(field[rows] for field in self))


class PPO:
    """The agent; all tensors live on `device`, all random draws come from a generator of its own.

    `target_kl` ends an update after the first epoch that moved the policy further than this from where the update began. A
    gradient step whose loss or gradient is not finite is never made: `on_bad_update` says whether it is skipped, or BadData
    raised ("stop").
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden_size: int = 64,
        hidden_layers: int = 2,
        learning_rate: float = 1e-3,
        discount: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        entropy_weight: float = 0.01,
        value_weight: float = 0.5,
        epochs: int = 6,
        minibatch_size: int = 256,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        on_bad_update: str = "stop",
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        self.spaces = _checked(spaces)
        hidden = [whole_number("hidden_size", hidden_size, 1)] * whole_number("hidden_layers", hidden_layers, 1)
        self.learning_rate = positive_number("learning_rate", learning_rate)
        self.discount = number_between("discount", discount, 0.0, 1.0)
        self.gae_lambda = number_between("gae_lambda", gae_lambda, 0.0, 1.0)
        self.clip = positive_number("clip", clip)
        self.entropy_weight = number_between("entropy_weight", entropy_weight, 0.0, 1e6)
        self.value_weight = positive_number("value_weight", value_weight)
        self.epochs = whole_number("epochs", epochs, 1)
        self.minibatch_size = whole_number("minibatch_size", minibatch_size, 1)
        self.max_grad_norm = positive_number("max_grad_norm", max_grad_norm)
        self.target_kl = None if target_kl is None else positive_number("target_kl", target_kl)
        self.on_bad_update = one_of("on_bad_update", on_bad_update, ON_BAD_UPDATE)
        self._generator = generator_of(device, seed)
        self._device = self._generator.device
        sizes = [spaces.obs_size, *hidden]
        self.actor = BatchedMLP([*sizes, spaces.action_size], 0, torch.tanh_, self._generator)
        with torch.no_grad():
            for last in self.actor.parameters[-2:]:
                last *= QUIET_START
        # Empty with discrete actions, which saves a second case everywhere else.
        spread = spaces.action_size if spaces.kind == "box" else 0
        self.log_std = torch.full((spread,), FIRST_LOG_STD, device=self._device).requires_grad_()
        self.critic = Critic(sizes, self._generator)
        self._parts = [self.actor.flat, self.log_std, self.critic.network.flat]
        self._optimizer = torch.optim.Adam(self._parts, lr=self.learning_rate, eps=1e-5, fused=True)
        self.why_bad = ""  # why a gradient step was last skipped
        self.updates = 0  # gradient steps
        self.batches = 0  # calls of update

    def update(
        self, episodes: Sequence[Episode] | Mapping[str, NDArray[Any]], learning_rate_scale: float = 1.0
    ) -> dict[str, float]:
        """Train `epochs` times on all steps of the episodes, given as such or packed; `learning_rate_scale` is for decay.

        Returns the means over the gradient steps of LOSSES (`approx_kl` and `clip_fraction` against the policies that
        played), `stale_kl` (from those to the policy at the start: 0 for fresh episodes), `moved_kl` (from there to the end
        of the last epoch), `explained_variance` of the returns by the values at the start, and `updates` and `bad_updates`,
        the gradient steps of this call that were made and skipped. Without one that was made, only these two are returned;
        returns that are not finite are one that was skipped. Raises ConfigError without episodes and LzeroAsyncError for
        episodes with numbers that are not finite.
        """
        record = episodes if isinstance(episodes, Mapping) else pack(episodes)
        self._check_batch(record)
        try:
            rows, explained = self._rows(record)
        except BadData as bad:
            self._skip(bad)
            return {"updates": 0.0, "bad_updates": 1.0}
        with torch.no_grad():
            first = self.log_probs(rows.obs, rows.action)[0]
        report = {"stale_kl": float(_kl(first - rows.log_prob))}
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate * number_between("learning_rate_scale", learning_rate_scale, 0.0, 1.0)
        totals, before, bad_updates = torch.zeros(len(LOSSES), device=self._device), self.updates, 0
        for _ in range(self.epochs):
            for part in self._minibatches(len(rows.obs)):
                try:
                    totals += self._step(rows.take(part))
                except BadData as bad:
                    self._skip(bad)
                    bad_updates += 1
            if self.target_kl is not None and self._moved(rows, first) > self.target_kl:
                break
        steps = self.updates - before
        self.batches += 1
        counts = {"updates": float(steps), "bad_updates": float(bad_updates)}
        if not steps:
            return counts
        report.update(zip(LOSSES, (totals / steps).tolist(), strict=True))
        report["moved_kl"] = self._moved(rows, first)
        return {**report, "explained_variance": explained, **counts}

    def _skip(self, bad: BadData) -> None:
        """A gradient step cannot be made: raise that, or go on without it."""
        if self.on_bad_update == "stop":
            raise bad
        self.why_bad = str(bad)

    def _rows(self, record: Mapping[str, NDArray[Any]]) -> tuple[Rows, float]:
        """The batch as tensors, with advantages and targets; and how much of the returns' variance the values explain."""
        count = len(record["reward"])
        obs = torch.tensor(np.concatenate([record["obs"], record["last_obs"]]), device=self._device)
        values = self.critic.values(obs)
        last = np.where(record["terminated"], 0.0, values[count:])
        advantage = gae(record["reward"], values[:count], last, record["length"], self.discount, self.gae_lambda)
        returns = advantage + values[:count]
        spread = float(returns.var())
        explained = 1.0 - float(advantage.var()) / spread if spread > 0 else 0.0
        self.critic.follow(returns)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        others = (record["action"], record["log_prob"], advantage, self.critic.scale(returns))
        kinds = (torch.float32 if self.spaces.kind == "box" else torch.int64, *[torch.float32] * 3)
        tensors = (
            torch.tensor(array, dtype=kind, device=self._device) for array, kind in zip(others, kinds, strict=True)
        )
        return Rows(obs[:count], *tensors), explained

    def _check_batch(self, record: Mapping[str, NDArray[Any]]) -> None:
        if not record:
            raise ConfigError("there are no episodes to train on; give at least one.")
        check_record(record)
        box = self.spaces.kind == "box"
        found = (record["obs"].shape[1], record["action"].shape[1:], record["action"].dtype.kind)
        if found != (self.spaces.obs_size, (self.spaces.action_size,) if box else (), "f" if box else "i"):
            raise ConfigError(
                f"the episodes have observations of {found[0]} numbers and actions of the shape {found[1]} and type "
                f"{record['action'].dtype}, which do not fit {self.spaces}."
            )
        steps_of = np.repeat(np.arange(len(record["length"])), record["length"])
        for name in ("obs", "action", "log_prob", "reward"):
            _check_finite(name, record[name], steps_of, record)
        # What is behind a terminal state has no value, so it may be anything.
        last = np.where(record["terminated"][:, None], np.float32(0), record["last_obs"])
        _check_finite("last_obs", last, np.arange(len(last)), record)

    def _minibatches(self, count: int) -> tuple[Tensor, ...]:
        """All rows in a new order, in parts of nearly equal size of about `minibatch_size`."""
        order = torch.randperm(count, generator=self._generator, device=self._device)
        return order.tensor_split(max(1, round(count / self.minibatch_size)))

    def _step(self, rows: Rows) -> Tensor:
        """One gradient step; the scalars of LOSSES."""
        log_prob, entropy = self.log_probs(rows.obs, rows.action)
        log_ratio = log_prob - rows.log_prob
        policy_loss = policy_objective(log_ratio, rows.advantage, self.clip)
        value_loss = (self.critic.scaled(rows.obs) - rows.target).square().mean()
        loss = policy_loss - self.entropy_weight * entropy + self.value_weight * value_loss
        check_finite("the loss of a gradient step", loss.detach())
        self._descend(loss)
        self.updates += 1
        with torch.no_grad():
            outside = (torch.expm1(log_ratio).abs() > self.clip).float().mean()
            return torch.stack([policy_loss, value_loss, entropy, _kl(log_ratio), outside]).detach()

    def _descend(self, loss: Tensor) -> None:
        actor, critic = self.actor.parameters, self.critic.network.parameters
        found = torch.autograd.grad(loss, [*actor, self.log_std, *critic], allow_unused=True)
        split = len(actor)
        self.actor.flat.grad = torch.cat([part.flatten() for part in found[:split]])
        self.log_std.grad = found[split]  # None with discrete actions, which the optimizer passes over
        self.critic.network.flat.grad = torch.cat([part.flatten() for part in found[split + 1 :]])
        norm = torch.nn.utils.clip_grad_norm_(self._parts, self.max_grad_norm)
        check_finite("the length of the gradient", norm)
        self._optimizer.step()
        with torch.no_grad():
            self.log_std.clamp_(LOG_STD_LOW, LOG_STD_HIGH)

    @torch.no_grad()
    def _moved(self, rows: Rows, first: Tensor) -> float:
        return float(_kl(self.log_probs(rows.obs, rows.action)[0] - first))

    def log_probs(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] of the actions under the policy now, and its mean entropy."""
        output = self.actor(obs)
        if self.spaces.kind == "box":
            noise = (action - output) * (-self.log_std).exp()
            entropy = (self.log_std + 0.5 + HALF_LOG_2PI).sum()
            return (-0.5 * noise.square() - self.log_std - HALF_LOG_2PI).sum(1), entropy
        logs = torch.log_softmax(output, 1)
        return logs.gather(1, action[:, None]).squeeze(1), -(logs.exp() * logs).sum(1).mean()

    def weights(self) -> dict[str, NDArray[Any]]:
        """A copy of the actor's weights under the names that `NumpyPolicy` reads."""
        return {name: tensor.numpy() for name, tensor in copies_of(self._policy()).items()}

    def _policy(self) -> dict[str, Tensor]:
        named = self.actor.named()
        return {**named, LOG_STD: self.log_std.detach()} if self.spaces.kind == "box" else named

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, as tensors and numbers."""
        return {
            "policy": copies_of(self._policy()),
            "critic": self.critic.state_dict(),
            "optimizer": optimizer_state(self._optimizer),
            "generator": self._generator.get_state(),
            "updates": self.updates,
            "batches": self.batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken; another network size raises ConfigError."""
        copy_into(self._policy(), state["policy"])
        self.critic.load_state_dict(state["critic"])
        load_optimizer_state(self._optimizer, state["optimizer"])
        load_generator_state(self._generator, state["generator"])
        self.updates, self.batches = int(state["updates"]), int(state["batches"])


def policy_objective(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The clipped loss: a step whose ratio has gone further than `clip` in the direction of its advantage pulls no more."""
    ratio = log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage).mean()


def _kl(log_ratio: Tensor) -> Tensor:
    """An estimate of the divergence from samples of the first policy that is never negative."""
    return (torch.expm1(log_ratio) - log_ratio).mean()


def _checked(spaces: Spaces) -> Spaces:
    whole_number("obs_size", spaces.obs_size, 1)
    one_of("kind", spaces.kind, KINDS)
    whole_number("action_size", spaces.action_size, 1)
    return spaces


def _check_finite(name: str, values: NDArray[Any], owners: NDArray[Any], record: Mapping[str, NDArray[Any]]) -> None:
    """LzeroAsyncError, with the episode that it belongs to (`owners`), if a row is not finite."""
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not finite.all():
        index = owners[finite.argmin()]
        raise LzeroAsyncError(
            f"the {name} of episode {record['number'][index]} (worker {record['worker'][index]}) is not finite; "
            "look for the cause in the environment."
        )
