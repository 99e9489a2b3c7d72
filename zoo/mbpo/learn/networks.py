"""What SAC and the dynamics share: equal networks computed as one batched product, and exact states as plain tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lzero_async.errors import ConfigError


class BatchedMLP:
    """`copies` networks of equal size whose weights lie in one flat tensor (`flat`); 0 copies is one plain network.

    Weights are [copies, in, out] and biases [copies, 1, out]; without copies [in, out] and [out].
    """

    def __init__(
        self,
        sizes: Sequence[int],
        copies: int,
        activation: Callable[[Tensor], Tensor],
        generator: torch.Generator,
    ) -> None:
        pairs = list(pairwise(sizes))
        lead = (copies,) if copies else ()
        shapes = [((*lead, low, high), (*lead, *((1,) if copies else ()), high)) for low, high in pairs]
        total = sum(math.prod(shape) for both in shapes for shape in both)
        self.flat = torch.empty(total, device=generator.device)
        self.parameters: list[Tensor] = []
        self.names: list[str] = []
        self._activation = activation
        start = 0
        for index, (both, (fan_in, _)) in enumerate(zip(shapes, pairs, strict=True)):
            for kind, shape in zip(("weight", "bias"), both, strict=True):
                part = self.flat[start : start + math.prod(shape)].view(shape)
                part.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
                self.parameters.append(part.requires_grad_())
                self.names.append(f"layer{index}.{kind}")
                start += math.prod(shape)

    def __call__(self, inputs: Tensor, parameters: Sequence[Tensor] | None = None) -> Tensor:
        """Outputs [copies, N, out] for inputs [copies, N, in]; [N, in] serves a plain network."""
        parameters = self.parameters if parameters is None else parameters
        product = torch.addmm if parameters[0].dim() == 2 else torch.baddbmm
        value = inputs
        for index in range(0, len(parameters), 2):
            value = product(parameters[index + 1], value, parameters[index])
            if index + 2 < len(parameters):
                value = self._activation(value)
        return value

    def set_gradient(self, loss: Tensor) -> None:
        """Put the loss's gradient into `flat.grad`, so that an optimizer of `flat` has one tensor to step."""
        gradients = torch.autograd.grad(loss, self.parameters)
        self.flat.grad = torch.cat([gradient.flatten() for gradient in gradients])

    def can_step(self, *others: Tensor) -> bool:
        """Whether the gradient and its square, which Adam keeps, and these other values are finite."""
        gradient = self.flat.grad
        assert gradient is not None
        return bool(sum((other.sum() for other in others), gradient.dot(gradient)).isfinite())

    def named(self) -> dict[str, Tensor]:
        """The live weights by name, detached; whoever keeps them makes a copy."""
        return {name: part.detach() for name, part in zip(self.names, self.parameters, strict=True)}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Copy weights of the same names into place; other names or shapes raise ConfigError."""
        copy_into(self.named(), weights)


def tensor_of(value: Any) -> Tensor:
    """The value as a tensor, to be copied from; of an array that cannot be written to a copy, because torch warns of those."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    return torch.as_tensor(value)


def copy_into(own: Mapping[str, Tensor], given: Mapping[str, Any]) -> None:
    """Copy each given array into the tensor of its name; a missing name or another shape raises ConfigError."""
    if set(given) != set(own):
        raise ConfigError(f"the weights are named {sorted(given)}; they must be {sorted(own)}.")
    for name, tensor in own.items():
        value = tensor_of(given[name])
        if value.shape != tensor.shape:
            raise ConfigError(f"{name} has the shape {tuple(value.shape)}; it must be {tuple(tensor.shape)}.")
        tensor.copy_(value)


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of each tensor on the CPU, as a checkpoint holds it."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments and step counts by `<parameter number>.<name>`; empty before the first step."""
    entries = optimizer.state_dict()["state"]
    return copies_of({f"{index}.{name}": value for index, entry in entries.items() for name, value in entry.items()})


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put back what `optimizer_state` returned."""
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        index, name = key.split(".", 1)
        entries.setdefault(int(index), {})[name] = torch.as_tensor(value).clone()
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def generator_of(device: str | torch.device, seed: int) -> torch.Generator:
    """A generator on `device`, seeded."""
    return torch.Generator(device=device).manual_seed(seed)


def load_generator_state(generator: torch.Generator, state: Any) -> None:
    """Put back what `generator.get_state()` returned."""
    generator.set_state(torch.as_tensor(state, dtype=torch.uint8).cpu())
