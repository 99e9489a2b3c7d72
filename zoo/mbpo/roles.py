"""How the roles that learn are made; torch is imported only where one lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_role(role: str, options: Any, sizes: tuple[int, int], emit: Callable[[Any], None]) -> Any:
    """A role of `learning.py` by the name of its class; `sizes` are those of observation and action."""
    from zoo.mbpo import learning

    return getattr(learning, role)(options, sizes, emit)
