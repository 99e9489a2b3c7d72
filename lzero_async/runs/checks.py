"""What options may be: each check takes a name and a value, and returns the value or raises a ConfigError in one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.validation import number_between, one_of, role_resources, whole_number

Check = Callable[[str, Any], Any]


def whole(low: int) -> Check:
    """A check for whole numbers of at least `low`."""
    return lambda name, value: whole_number(name, value, low)


def between(low: float, high: float) -> Check:
    """A check for numbers from `low` to `high`."""
    return lambda name, value: number_between(name, value, low, high)


def words(*words: str) -> Check:
    """A check for one of `words`."""
    return lambda name, value: one_of(name, value, words)


def optional(check: Check) -> Check:
    """The same check, but None stays None."""
    return lambda name, value: None if value is None else check(name, value)


def text(name: str, value: Any) -> str:
    """`value` if it is text, or a ConfigError."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}; it must be text.")
    return value


def nonempty(name: str, value: Any) -> str:
    """`value` if it is text that is not blank, or a ConfigError."""
    if not text(name, value).strip():
        raise ConfigError(f"{name} is empty; it must not be.")
    return str(value)


def flag(name: str, value: Any) -> bool:
    """`value` if it is a bool, or a ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")
    return value


def seed(name: str, value: Any, bits: int = 31) -> int:
    """`value` as a whole number from 0 to below 2 to the `bits`, or a ConfigError."""
    if whole_number(name, value, 0) >= 2**bits:
        raise ConfigError(f"{name} is {value!r}; it must be below 2**{bits}.")
    return int(value)


def port(name: str, value: Any) -> int:
    """`value` as a port's number or 0, or a ConfigError."""
    if whole_number(name, value, 0) > 65_535:
        raise ConfigError(f"{name} is {value!r}; a port is at most 65535.")
    return int(value)


def device(name: str, value: Any) -> str:
    """The name of a device, without spaces around it, or a ConfigError. Whether it is here is `present_device`'s question."""
    word = text(name, value).strip()
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", word):
        raise ConfigError(f"{name} is {value!r}; it must be 'auto', 'cpu', 'cuda' or 'cuda:' and a number.")
    return word


def arguments(name: str, value: Any) -> dict[str, Any]:
    """Keyword arguments: a mapping, a JSON object as text, or NAME=VALUE pairs with commas between them."""
    if isinstance(value, Mapping):
        return dict(value)
    written = text(name, value).strip()
    if written.startswith("{"):
        try:
            return dict(json.loads(written))
        except ValueError as error:
            raise ConfigError(f"{name} is {value!r}, which is not JSON ({error}); write it as g=9.81,m=1.") from error
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in written.split(","))):
        key, equals, word = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{name} has {part!r}, which is not NAME=VALUE; write it as g=9.81,m=1.")
        try:
            found[key.strip()] = json.loads(word)
        except ValueError:
            found[key.strip()] = word.strip()
    return found


def resources(*kinds: str) -> Check:
    """What roles of these kinds need of a machine: a mapping, or a JSON object as text; ConfigError if it is not that."""

    def check(name: str, value: Any) -> dict[str, dict[str, float]]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ConfigError(f"{name} is {value!r}, which is not JSON ({error}).") from error
        found = role_resources(name, value)
        for kind in found:
            if kind not in kinds:
                raise ConfigError(f"{name} has needs of {kind!r}, but the kinds of roles are {', '.join(kinds)}.")
        return found

    return check


def present_device(name: str, value: str, remedy: str = "use --device cpu") -> str:
    """The device itself, 'auto' being cuda where there is one; ConfigError with the remedy if it is not here."""
    if value == "cpu":
        return value
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if value == "auto":
        return "cuda" if count else "cpu"
    if not count:
        raise ConfigError(f"{name} is {value!r}, but torch finds no GPU here; {remedy}.")
    if int(value.partition(":")[2] or 0) >= count:
        raise ConfigError(f"{name} is {value!r}, but torch finds {count} GPU(s) here, from cuda:0 on; {remedy}.")
    return value
