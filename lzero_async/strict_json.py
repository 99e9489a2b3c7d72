"""JSON that every parser reads: the one way in which the files of a run are written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """JSON for a value: null for NaN and the infinities, which JSON does not have; numbers and lists for those of numpy and
    torch; text for what else it does not know."""
    try:
        return json.dumps(value, indent=indent, separators=separators, allow_nan=False, default=_plain)
    except ValueError:  # rare: only then is everything looked at
        return json.dumps(_finite(value), indent=indent, separators=separators, allow_nan=False)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, float) else key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return _finite(_plain(value))
