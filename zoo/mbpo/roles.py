"""How the roles that learn are made; torch is imported only where one lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lzero_async.errors import ConfigError
from zoo.mbpo.options import MbpoOptions

PRELOAD = (
    "gymnasium",
    "torch._dynamo",  # by the first optimizer that is made
    "zoo.mbpo.collect.roles",
    "zoo.mbpo.learn.model_roles",
)


def make_role(role: str, options: MbpoOptions, sizes: tuple[int, int], emit: Callable[[Any], None]) -> Any:
    """A role that learns by the name of its class; `sizes` are those of observation and action.

    Raises ConfigError when there is not enough memory for its buffers.
    """
    import torch

    from zoo.mbpo.learn import model_roles, roles

    if options.torch_threads:
        torch.set_num_threads(options.torch_threads)
    try:
        return getattr(roles if hasattr(roles, role) else model_roles, role)(options, sizes, emit)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise ConfigError(
            f"There is not enough memory for a real_buffer_size of {options.real_buffer_size} and a model_buffer_size of "
            f"{options.model_buffer_size}; make them smaller."
        ) from error
