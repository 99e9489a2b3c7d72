"""The policy of a worker in numpy: the same tanh network as `ppo.PPO`'s actor, without torch, fast for a single row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs.soundness import first_bad

LOG_STD = "log_std"
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class NumpyPolicy:
    """A tanh network with `layer0.weight` [in, out], `layer0.bias` [out], ...; the last layer gives logits or means.

    With `log_std` [A] among the weights, actions are drawn from a diagonal Gaussian, else from a categorical.
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = {name: np.array(value, dtype=np.float32) for name, value in weights.items()}
        if bad := first_bad(self._weights):
            raise BadData(f"the policy's weights cannot be used: {bad}")
        self.kind = "box" if LOG_STD in self._weights else "discrete"
        depth = (len(self._weights) - (self.kind == "box")) // 2
        names = [f"layer{index}" for index in range(depth)]
        wanted = {f"{name}.{part}" for name in names for part in ("weight", "bias")}
        if not depth or set(self._weights) - {LOG_STD} != wanted:
            raise ConfigError(
                f"the policy's weights are {sorted(self._weights)}; they must be layer0.weight, layer0.bias, layer1.weight "
                f"... and, for continuous actions, {LOG_STD}."
            )
        self._layers = [(self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]) for name in names]
        self._rows = [np.empty(bias.size, dtype=np.float32) for _, bias in self._layers]
        self.obs_size = self._layers[0][0].shape[0]
        self.action_size = self._layers[-1][1].size
        if self.kind == "box":
            log_std = self._weights[LOG_STD]
            self._std = np.exp(log_std)
            self._log_scale = -float(log_std.sum(dtype=np.float64)) - log_std.size * HALF_LOG_2PI

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> tuple[Any, Any]:
        """An action drawn with `rng` for obs [O] (an int, or [A] float32), and its log-probability as a float.

        For obs [N, O]: actions [N] int64 or [N, A] float32, and log-probabilities [N] float32.
        """
        output = self._forward(obs)
        if self.kind == "box":
            return self._draw_gaussian(output, rng)
        return self._draw_category(output, rng) if output.ndim == 1 else self._draw_categories(output, rng)

    def greedy(self, obs: NDArray[Any]) -> Any:
        """The most likely action for obs [O], or actions for obs [N, O]; of the same types as those of `act`."""
        output = self._forward(obs)
        if self.kind == "box":
            return output.copy()
        if output.ndim == 1:
            _check_logits(float(output.sum()))
            return int(output.argmax())
        return output.argmax(1)

    def _forward(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Logits or means; those of a single row are valid until the next call."""
        value = np.asarray(obs, dtype=np.float32)
        last = len(self._layers) - 1
        for index, (weight, bias) in enumerate(self._layers):
            value = np.dot(value, weight, self._rows[index] if value.ndim == 1 else None)
            value += bias
            if index < last:
                np.tanh(value, value)
        return value

    def _draw_category(self, logits: NDArray[Any], rng: np.random.Generator) -> tuple[int, float]:
        """By the inverse of the summed probabilities, which needs one random number."""
        logits -= logits.max()
        sums = np.exp(logits).cumsum(dtype=np.float64)
        total = float(sums[-1])
        _check_logits(total)
        # "right": an action of probability 0 is never chosen.
        action = int(sums.searchsorted(rng.random() * total, "right"))
        return action, float(logits[action]) - math.log(total)

    def _draw_categories(self, logits: NDArray[Any], rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        logits -= logits.max(1, keepdims=True)
        sums = np.exp(logits).cumsum(1, dtype=np.float64)
        chosen = rng.random(len(logits)) * sums[:, -1]
        action = (sums <= chosen[:, None]).sum(1)
        log_prob = logits[np.arange(len(logits)), action] - np.log(sums[:, -1])
        return action, log_prob.astype(np.float32)

    def _draw_gaussian(self, mean: NDArray[Any], rng: np.random.Generator) -> tuple[NDArray[Any], Any]:
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        action = noise * self._std
        action += mean
        if mean.ndim == 1:
            return action, self._log_scale - 0.5 * float(noise.dot(noise))
        return action, (self._log_scale - 0.5 * np.square(noise).sum(1)).astype(np.float32)


def _check_logits(total: float) -> None:
    """BadData unless a sum over the logits is finite: a NaN among them would choose an action that means nothing."""
    if not math.isfinite(total):
        raise BadData("the policy's logits are not finite; observations are too large for it")
