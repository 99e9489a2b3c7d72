"""Load a causal language model with `transformers`, checked, with one clear sentence for everything that can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from lzero_async.errors import ConfigError


@contextmanager
def clear_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises inside into one sentence."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{what}: {reason.rstrip('.')}; {remedy}") from error


def load_model(folder: str, dtype: torch.dtype) -> Any:
    """The model of a folder, complete and finite; a damaged one raises."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    model, info = loaded
    if info["missing_keys"]:
        raise ConfigError(
            f"the model {folder!r} lacks {len(info['missing_keys'])} weights, {min(info['missing_keys'])} for one"
        )
    if not all(bool(torch.isfinite(value).all()) for value in model.state_dict().values() if value.is_floating_point()):
        raise ConfigError(f"the model {folder!r} has weights that are not finite")
    return model.eval()


def context_limit(config: Any) -> int:
    """Tokens the model can attend to all at once: the tree mask knows no sliding window."""
    config = config.get_text_config()
    limit = int(getattr(config, "max_position_embeddings", 0) or 2_048)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return min(limit, window) if window else limit


def stop_tokens(tokenizer: Any, model: Any) -> set[int]:
    """Tokens that end the assistant's turn, by the model's and the tokenizer's settings."""
    named = getattr(model.generation_config, "eos_token_id", None)
    tokens = {*named} if isinstance(named, (list, tuple)) else {named}
    return {token for token in (*tokens, tokenizer.eos_token_id) if token is not None}
