"""The policy of a collector in numpy: the same tanh-Gaussian network as `sac.SAC`, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0
KEPT_SIZES = 8  # batch sizes whose scratch arrays are kept


class NumpyActor:
    """A ReLU network with `layer0.weight` [in, out], `layer0.bias` [out], ...; the last layer gives mean and log std."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = {name: np.array(value, dtype=np.float32) for name, value in weights.items()}
        depth = len(self._weights) // 2
        names = [f"layer{index}" for index in range(depth)]
        if not depth or set(self._weights) != {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}:
            raise ConfigError(
                f"the actor's weights are {sorted(self._weights)}; they must be layer0.weight, layer0.bias, layer1.weight ..."
            )
        self._layers = [(self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]) for name in names]
        self.action_size = self._layers[-1][0].shape[1] // 2
        self._scratch: dict[int, list[NDArray[Any]]] = {}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Copy new weights of the same names and shapes into place."""
        if set(weights) != set(self._weights):
            raise ConfigError(f"the actor got weights {sorted(weights)}; it needs {sorted(self._weights)}.")
        for name, value in weights.items():
            own = self._weights[name]
            array = np.asarray(value)
            if array.shape != own.shape:
                raise ConfigError(f"the actor's {name} has the shape {array.shape}; it must be {own.shape}.")
            own[...] = array

    def act(self, obs: NDArray[Any], rng: np.random.Generator, deterministic: bool = False) -> NDArray[Any]:
        """Actions [N, A] in [-1, 1] for observations [N, O], drawn with `rng` or, `deterministic`, the mode."""
        mean, log_std = self.distribution(obs)
        if deterministic:
            mode: NDArray[Any] = np.tanh(mean)
            return mode
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        noise *= np.exp(log_std)
        noise += mean
        np.tanh(noise, out=noise)
        return noise

    def distribution(self, obs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Mean and log standard deviation [N, A] before the tanh; the mean is valid until the next call."""
        value = np.asarray(obs, dtype=np.float32)
        scratch = self._arrays(len(value))
        for (weight, bias), out in zip(self._layers, scratch, strict=True):
            np.matmul(value, weight, out=out)
            out += bias
            value = out if out is scratch[-1] else np.maximum(out, 0.0, out=out)
        log_std = np.tanh(value[:, self.action_size :])
        log_std *= 0.5 * (LOG_STD_HIGH - LOG_STD_LOW)
        log_std += 0.5 * (LOG_STD_HIGH + LOG_STD_LOW)
        return value[:, : self.action_size], log_std

    def _arrays(self, rows: int) -> list[NDArray[Any]]:
        if rows not in self._scratch:
            if len(self._scratch) >= KEPT_SIZES:
                self._scratch.clear()
            self._scratch[rows] = [np.empty((rows, bias.size), dtype=np.float32) for _, bias in self._layers]
        return self._scratch[rows]
