"""Applications are found by their entry points: the library knows them by name only, ours like anybody's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from lzero_async.errors import ConfigError

GROUP: Final = "lzero_async.applications"


@dataclass(frozen=True)
class Command:
    """A command of an application. `main` is `module:function`, imported when it is used: it gets the words behind the command
    and returns the exit code."""

    help: str
    main: str


Words = tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """How `compare` starts an application; the defaults are the library's own option names. Options are named without dashes,
    and without the section that --set gives them.

    `ways` are the asynchronous modes, the first one is the default. `defaults` are given to both runs and `async_defaults` to
    the asynchronous one unless the user gives them; `async_only` and `sync_only` (by way) reach only one of the runs. `refused`
    says why an option cannot be given. `limits` take away the application's own limits, since `seconds` ends a run.
    """

    sync: Words = ("--off_policy_degree", "0")
    ways: Mapping[str, Words] = field(default_factory=lambda: {"async": ()})
    defaults: Mapping[str, Words] = field(default_factory=dict)
    async_defaults: Mapping[str, Words] = field(
        default_factory=lambda: {"off_policy_degree": ("--off_policy_degree", "2")}
    )
    async_only: frozenset[str] = frozenset(("off_policy_degree", "num_collectors", "async_eval", "staleness_policy"))
    sync_only: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Words] = field(default_factory=dict)
    folder: Words = ("--exp_name", "{folder}")
    seconds: Words = ("--max_seconds", "{seconds:g}")


@dataclass(frozen=True)
class ApplicationEntry:
    """What an application's entry point names. `train` is `module:function`, as a command's `main` is; `commands` are further
    commands of its own, `lzero-async NAME ...`; `lock`, `package:file`, is what `lzero-async setup` installs. Keep the module
    that defines it free of heavy imports."""

    name: str
    help: str
    train: str
    commands: Mapping[str, Command] = field(default_factory=dict)
    lock: str = ""
    comparison: Comparison = field(default_factory=Comparison)


def installed() -> dict[str, metadata.EntryPoint]:
    """The entry points of all installed applications, by name."""
    return {point.name: point for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)}


def find_application(name: str) -> ApplicationEntry:
    """The application of this name; ConfigError with the nearest name if it is not installed."""
    points = installed()
    if name not in points:
        close = difflib.get_close_matches(name, points, n=1)
        if not points:
            hint = "none is installed; `make` installs those of a checkout."
        else:
            hint = f"did you mean {close[0]}?" if close else f"installed are {', '.join(points)}."
        raise ConfigError(f"There is no application {name!r}; {hint}")
    entry = points[name].load()
    if not isinstance(entry, ApplicationEntry):
        raise ConfigError(
            f"The entry point {name} of {GROUP} is {points[name].value}, which is {type(entry).__name__}; "
            "it must name an ApplicationEntry."
        )
    return entry


def resolve(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
