"""Applications are found by their entry points, ours like anybody's, and describe themselves to the tools."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
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
    says why an option cannot be given. `limits` take away the application's own limits, since `seconds` ends a run. `subject`
    names the word that the application wants before its options, if it wants one.
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
    subject: str = ""


@dataclass(frozen=True)
class ApplicationEntry:
    """What an application's entry point names. `train` is `module:function`, as a command's `main` is; `commands` are further
    commands of its own, `lzero-async NAME ...`; `lock`, `package:file`, is what `lzero-async setup` installs; `policy`,
    `module:function`, gets a run's folder, the file with its weights, a device and, by name only, options of its own, and
    returns a `lzero_async.runs.policy.Policy`. Keep the module that defines it free of heavy imports."""

    name: str
    help: str
    train: str
    commands: Mapping[str, Command] = field(default_factory=dict)
    lock: str = ""
    policy: str = ""
    comparison: Comparison = field(default_factory=Comparison)


@dataclass(frozen=True)
class Rounds:
    """Rounds of whole episodes that environments play at their own pace: `episodes` in a round, environments that play
    `at_once`, and what they have done so far: `complete` episodes, `steps`, and `busy_seconds` of all of them."""

    episodes: int
    at_once: int
    complete: int
    steps: int
    busy_seconds: float


@dataclass(frozen=True)
class PipelineDescription:
    """What the tools cannot know of an application. The defaults describe a loop with the library's own option names.

    A setting is typed as `flags` with `{degree}`, `{collectors}` and `{queued}` (samples that so many batches are:
    `degree * degree_unit`) filled in, at degree 0 as `flags_in_turn` if there are such. For another number of environments
    `size_flags` follow, which also know `{environments}`, `{each}` (of one collector) and the `amounts`, which grow with them.
    """

    sample: str = "an environment step"  # what is counted as a sample
    collected: float = 0  # samples so far; the library fills these three in from the application's counts
    trained: float = 0
    updates: float = 0
    collectors: int = 1
    environments: int = 1  # of all collectors
    degree: str = "off_policy_degree"  # what the degree is called
    degree_unit: float = 1
    least_degree: int = 0
    flags: str = "--off_policy_degree {degree} --num_collectors {collectors}"
    flags_in_turn: str = ""
    size_flags: str = ""
    amounts: Mapping[str, float] = field(default_factory=dict)
    one_collector: str = ""  # why the number of collectors cannot be chosen
    shared: bool = False  # the collectors have a fixed number of environments between them
    max_train_ahead: int = 0
    eval_every: int | None = None  # trains between evaluations; None: as the run's counts say
    rounds: Rounds | None = None
    train_parts: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # roles that share a train: columns of its seconds
    refused: str = ""  # why such a run says nothing of other settings
    notes: tuple[str, ...] = ()

    def growth(self, collectors: int, environments: int | None) -> float:
        """How many times as much a collect has to do when so many collectors have so many environments between them."""
        if environments is None:
            return 1.0
        return environments / self.environments * (1.0 if self.shared else self.collectors / collectors)

    def typed(self, degree: int, collectors: int, environments: int | None = None) -> str:
        """The flags of a setting."""
        words = [(not degree and self.flags_in_turn) or self.flags]
        words += [self.size_flags] if environments is not None and self.size_flags else []
        growth, whole = self.growth(collectors, environments), environments or self.environments
        values = {name: max(1, round(amount * growth)) for name, amount in self.amounts.items()}
        values |= {"degree": degree, "collectors": collectors, "queued": round(degree * self.degree_unit * growth)}
        try:
            return " ".join(words).format(**values, environments=whole, each=max(1, whole // collectors))
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"The flags {' '.join(words)!r} of the run's summary cannot be filled in ({error!r})."
            ) from None


def pipeline_of(summary: Mapping[str, Any]) -> PipelineDescription:
    """The description in a summary; what it leaves out is as in a plain loop. Where no samples are counted, batches are."""
    block = summary.get("pipeline") or {}
    known = {one.name: block[one.name] for one in fields(PipelineDescription) if block.get(one.name) is not None}
    trains = summary["statistics"]["train_count"]
    known["trained"] = known.get("trained") or summary["counts"].get(summary["axis"]) or trains
    known["collected"] = known.get("collected") or known["trained"]
    if "rounds" in known:
        known["rounds"] = Rounds(**known["rounds"])
    return PipelineDescription(**known)


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


def how_to_install(name: str) -> str:
    """The command that installs what an installed application needs."""
    if find_application(name).lock:
        return f"lzero-async setup {name}"
    package = installed()[name].dist
    if package is None or name not in (package.metadata.get_all("Provides-Extra") or ()):
        return "see its documentation"
    return f"pip install '{package.name}[{name}]'"


def resolve(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
