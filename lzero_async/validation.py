"""Arguments are checked here, once, at the boundary: reject, never clamp."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from lzero_async.errors import ConfigError

AUTO_DEGREE = -1
HIGH_DEGREE = 50
LONGEST = 2_000_000.0  # seconds (23 days): within it no wait of the system overflows
MAX_BACKOFF = 30.0  # seconds


def whole_number(name: str, value: Any, low: int, remedy: str = "") -> int:
    """`value` as an int, or a ConfigError that says the value, the range and the remedy."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least {low}.{_spaced(remedy)}")
    return int(value)


def positive_number(name: str, value: Any, remedy: str = "") -> float:
    """`value` as a finite float above 0, or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise ConfigError(f"{name} is {value!r}; it must be a number above 0.{_spaced(remedy)}")
    return float(value)


def duration(name: str, value: Any, *, zero: bool = False) -> float:
    """Seconds as a float above 0 (or 0, if `zero`) and at most LONGEST, or a ConfigError."""
    number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not number or not (0 < value <= LONGEST or (zero and value == 0)):  # compared as it is: huge ones have no float
        least = "from 0" if zero else "above 0"
        raise ConfigError(f"{name} is {_short(value)}; it must be a number of seconds {least} to {LONGEST:.0f}.")
    return float(value)


def time_limit(name: str, value: Any, *, zero: bool = True) -> float | None:
    """The same, or None for no limit."""
    if value is None:
        return None
    try:
        return duration(name, value, zero=zero)
    except ConfigError as error:
        raise ConfigError(f"{str(error)[:-1]}, or None for no limit.") from None


def backoff(first: float, failures: int) -> float:
    """Seconds to wait after so many failures before this one: `first`, doubling up to MAX_BACKOFF (or `first`, if that is
    more). Any count will do."""
    return min(max(MAX_BACKOFF, first), first * 2.0 ** min(failures, 64))


def real_number(name: str, value: Any) -> float:
    """`value` as a float that is not NaN, or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(float(value)):
        raise ConfigError(f"{name} is {value!r}; it must be a number.")
    return float(value)


def number_between(name: str, value: Any, low: float, high: float) -> float:
    """`value` as a float from `low` to `high`, or a ConfigError."""
    if not low <= real_number(name, value) <= high:
        raise ConfigError(f"{name} is {value!r}; it must be between {low:g} and {high:g}.")
    return float(value)


def one_of(name: str, value: Any, words: Iterable[str]) -> str:
    """`value` if it is one of `words`, or a ConfigError that lists them."""
    words = tuple(words)
    if value not in words:
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(words)}.")
    return str(value)


def auto_degree(buffer_size: int, batch_size: int) -> int:
    """The degree that `-1` stands for: about a tenth of the batches that the replay buffer holds."""
    return max(1, (buffer_size // batch_size) // 10)


def resolve_degree(degree: Any, buffer_size: int, batch_size: int) -> tuple[int, str]:
    """The degree to use, and a line that says how an automatic one was found (empty for a fixed one)."""
    degree = whole_number(
        "off_policy_degree",
        degree,
        AUTO_DEGREE,
        "Use 0 for synchronous training, 1 or more for asynchronous, -1 to derive it from the buffer.",
    )
    if degree != AUTO_DEGREE:
        _warn_about_degree(degree, buffer_size, batch_size)
        return degree, ""
    degree = auto_degree(buffer_size, batch_size)
    _warn_about_degree(degree, buffer_size, batch_size)
    share = degree * batch_size / buffer_size
    return degree, (
        f"off_policy_degree -1 (automatic): {degree}, from buffer_size {buffer_size} and batch_size {batch_size}; "
        f"{share:.1%} of the buffer may wait for training."
    )


def warn_about_collectors(num_collectors: int, degree: int, per_train: int = 1, oversampling: int = 0) -> None:
    """Warn when the degree can never admit all collectors at once."""
    usable = max(1, degree * per_train + oversampling)
    enough = -((oversampling - num_collectors) // per_train)
    if num_collectors > usable:
        warnings.warn(
            f"num_collectors is {num_collectors}, but off_policy_degree {degree} admits at most {usable} collect(s) at "
            f"once, so {num_collectors - usable} collector(s) will always wait. Raise the degree to {enough} or "
            f"use {usable} collector(s).",
            stacklevel=3,
        )


def _warn_about_degree(degree: int, buffer_size: int, batch_size: int) -> None:
    if degree > HIGH_DEGREE:
        warnings.warn(
            f"off_policy_degree {degree} is high (above {HIGH_DEGREE}): batches may be trained {degree} versions after "
            "they were collected. Lower it if training becomes unstable.",
            stacklevel=4,
        )
    if degree * batch_size > buffer_size:
        warnings.warn(
            f"off_policy_degree {degree} times batch_size {batch_size} is {degree * batch_size}, more than buffer_size "
            f"{buffer_size}: waiting data can be evicted before it is trained. Lower the degree or enlarge the buffer.",
            stacklevel=4,
        )


def _short(value: Any) -> str:
    """What was given, in at most a few words: a number may have thousands of digits."""
    try:
        said = repr(value)
    except Exception:  # Python refuses to write the longest numbers
        said = f"a {type(value).__name__}"
    return said if len(said) <= 60 else f"{said[:57]}..."


def _spaced(remedy: str) -> str:
    return f" {remedy}" if remedy else ""


def role_resources(name: str, value: Any) -> dict[str, dict[str, float]]:
    """What roles need of a machine, by the kind of role, as {"collector": {"CPU": 1}}; ConfigError if it is not that."""
    if not isinstance(value, Mapping):
        raise ConfigError(f'{name} is {value!r}; write it as {{"collector": {{"CPU": 1}}}}.')
    found: dict[str, dict[str, float]] = {}
    for kind, needs in value.items():
        if not isinstance(needs, Mapping):
            raise ConfigError(f'{name} has {needs!r} for {kind}; write it as {{"{kind}": {{"CPU": 1}}}}.')
        found[str(kind)] = {
            str(what): number_between(f"{name} for {what} of {kind}", amount, 0, 1e9) for what, amount in needs.items()
        }
    return found
