"""What of a language model is trained, LoRA by peft or all of it: how such weights are made, loaded and told apart.

The learner trains them and the engines load them in place: both have the same model with the same layers, so that a score is the
same number on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lzero_async.errors import ConfigError

ADAPTER = "trained"
Method = Literal["lora", "full"]


@dataclass(frozen=True)
class Trainable:
    """How a model is made trainable; `rank` and `alpha` are LoRA's, and `seed` that of its first weights."""

    method: Method = "lora"
    rank: int = 16
    alpha: int = 32
    seed: int = 0


def make_trainable(model: Any, how: Trainable) -> Any:
    """The same model, in which only what is trained wants gradients. LoRA begins as if it were not there."""
    if how.method == "full":
        return model.requires_grad_(True)
    from peft import LoraConfig, inject_adapter_in_model

    model.requires_grad_(False)
    config = LoraConfig(r=how.rank, lora_alpha=how.alpha, lora_dropout=0.0, target_modules="all-linear")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        inject_adapter_in_model(config, _without_head(model), adapter_name=ADAPTER)
    for value in trained_weights(model).values():
        value.data = value.data.float()  # small steps would be lost in bfloat16
    return model


def _without_head(model: Any) -> Any:
    """The layers of a causal language model; what maps to the vocabulary stays as it is."""
    return getattr(model, model.base_model_prefix)


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights that are trained, by name, as they are now: LoRA's where there are such, else all."""
    every = dict(model.named_parameters())
    return {name: value for name, value in every.items() if f".{ADAPTER}." in name} or every


def load_trained(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Take these weights in place. Raises ConfigError, and changes nothing, if they are another model's."""
    own = trained_weights(model)
    for name in sorted({*own, *weights}):
        shapes = [tuple(some[name].shape) if name in some else None for some in (own, weights)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"the language model's trained weights do not fit: {name} is {shapes[1]} instead of {shapes[0]}; use the model "
                "and the llm_train_config that they were trained with"
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(weights[name])


def switch_adapter(model: Any, on: bool) -> None:
    """With or without LoRA's part."""
    for layer in lora_layers(model).values():
        layer.enable_adapters(on)


def lora_layers(model: Any) -> dict[str, Any]:
    """The layers with a LoRA part, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def trained_digest(base: str, weights: Mapping[str, Any]) -> str:
    """A digest of the weights that a model with the digest `base` has been trained to: of every name and bit."""
    import xxhash

    total = xxhash.xxh3_128(base.encode())
    for name, value in sorted(weights.items()):
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        total.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
