"""Whether data may be trained: finite, and of the right shape. Cheap where all is well: one pass over the values.

Everything takes numbers, numpy arrays and torch tensors; torch itself is never imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lzero_async.errors import BadData

NOT_FINITE, SHAPE, TYPE = "not finite", "shape", "type"


def is_finite(values: Any) -> bool:
    """Whether no value is NaN or infinite; whole numbers and truth values are always finite."""
    if isinstance(values, float):
        return math.isfinite(values)
    if hasattr(values, "isfinite"):  # a tensor, on whatever device
        return bool(values.isfinite().all())
    array = np.asarray(values)
    return array.dtype.kind in "iub" or (array.dtype.kind in "fc" and bool(np.isfinite(array).all()))


def finite_rows(values: Any) -> Any:
    """Which rows of [N, ...] are finite, as truth values [N] of the same kind: an array, or a tensor on its device."""
    finite = values.isfinite() if hasattr(values, "isfinite") else np.isfinite(values)
    return finite.reshape(len(finite), -1).all(1)


def check_finite(what: str, values: Any, where: str = "") -> None:
    """Raise BadData unless all values are finite: "reward of environment 3 at step 17 is nan"."""
    if not is_finite(values):
        raise _bad(NOT_FINITE, f"{_of(what, where)} {_is(values)}")


def check_like(what: str, values: Any, shape: Sequence[int], kinds: str = "fiu", where: str = "") -> None:
    """Raise BadData unless `values` has this shape and a type of one of these kinds (numpy's letters: f, i, u, b)."""
    found = values if hasattr(values, "dtype") else _array(what, values, where)
    if tuple(found.shape) != tuple(shape):
        raise _bad(SHAPE, f"{_of(what, where)} has the shape {list(found.shape)}; it must be {list(shape)}")
    if _kind(found.dtype) not in kinds:
        raise _bad(TYPE, f"{_of(what, where)} is of {found.dtype}; it must be numbers")


def first_bad(state: Any, name: str = "") -> str:
    """What is not finite in a nest of mappings and sequences, as "agent.actor.weight is nan at [3]"; '' if all is well."""
    if isinstance(state, Mapping):
        parts: Any = state.items()
    elif isinstance(state, (list, tuple)) and not all(isinstance(part, (int, float)) for part in state):
        parts = enumerate(state)
    else:
        checked = isinstance(state, (float, np.floating, list, tuple)) or hasattr(state, "dtype")
        return f"{name or 'it'} {_is(state)}" if checked and not is_finite(state) else ""
    found = (first_bad(part, f"{name}.{key}" if name else str(key)) for key, part in parts)
    return next((text for text in found if text), "")


def _array(what: str, values: Any, where: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise _bad(SHAPE, f"{_of(what, where)} is no array: {error}") from error


def _kind(dtype: Any) -> str:
    """Numpy's letter, also of a tensor's type."""
    kind = getattr(dtype, "kind", None)
    if kind is not None:
        return str(kind)
    return "f" if dtype.is_floating_point else "b" if str(dtype).endswith("bool") else "i"


def _is(values: Any) -> str:
    """'is nan' for one value, 'is nan at [2] (and 3 more of 8 values are not finite)' for many."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.dtype.kind not in "fc":
        return f"is of {array.dtype}"
    places = np.argwhere(~np.isfinite(array))
    value = array[tuple(places[0])]
    if array.ndim == 0:
        return f"is {value}"
    more = f" (and {len(places) - 1} more of {array.size} values are not finite)" if len(places) > 1 else ""
    return f"is {value} at {places[0].tolist()}{more}"


def _of(what: str, where: str) -> str:
    return f"{what} of {where}" if where else what


def _bad(kind: str, text: str) -> BadData:
    error = BadData(text)
    error.kind = kind
    return error
