"""Options are typed dataclasses; the command line, its help and its errors are made from them.

A group of options is a frozen dataclass whose docstring is its title; a program's options are a class of several groups:

    @dataclass(frozen=True, kw_only=True)
    class Environment:
        \"\"\"Environment.\"\"\"

        env: Annotated[str, nonempty, "gymnasium id", Also("task")] = "Pendulum-v1"
        num_envs: Annotated[int, whole(1), "environments in all"] = 64

    @dataclass(frozen=True, kw_only=True)
    class Options(Environment, Watching):
        \"\"\"What my program can be told.\"\"\"

Beside the type stand its check, its meaning and, where there are any, other names (`Also`) and who alone uses it (`Only`).
`CommandLine(Options)` reads flags, and `check` gives every value to make an `Options` of.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import Check, flag, optional, port, text, words

TRUTH: Final = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
METAVARS: Final = {bool: "BOOL", int: "N", float: "X"}
WIDTH: Final = 120


class Also(tuple[str, ...]):
    """Other names of an option, which users know from before or from elsewhere."""

    def __new__(cls, *names: str) -> Also:
        return super().__new__(cls, names)


class Only(tuple[str, ...]):
    """Those (trainers, collectors) that alone use an option."""

    def __new__(cls, *users: str) -> Only:
        return super().__new__(cls, users)


class Option(NamedTuple):
    """One field of a dataclass of options. `kind` is bool, int, float, or str for what the check reads itself; `default` is
    dataclasses.MISSING where there is none."""

    name: str
    kind: type
    check: Check
    help: str
    default: Any
    also: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def belongs_to(self, user: str) -> bool:
        """Whether this trainer or collector uses it."""
        return not self.only or user in self.only

    def read(self, word: str) -> Any:
        """What a word of the command line means; ConfigError if it is not of the option's kind."""
        if self.kind is bool:
            if word.lower() not in TRUTH:
                raise ConfigError(f"{self.name} is {word!r}; it must be true or false.")
            return TRUTH[word.lower()]
        if self.kind is str:
            return word
        try:
            return int(word) if self.kind is int else float(word)
        except ValueError:
            wanted = "a whole number" if self.kind is int else "a number"
            raise ConfigError(f"{self.name} is {word!r}; it must be {wanted}.") from None


def groups_of(options: type) -> dict[str, dict[str, Option]]:
    """The options of a dataclass by the titles of its groups: itself and the dataclasses that it is made of."""
    hints = get_type_hints(options, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(options)}
    groups: dict[str, dict[str, Option]] = {}
    for cls in options.__mro__:
        own = [name for name in vars(cls).get("__annotations__", ()) if name in fields]
        taken = {name for group in groups.values() for name in group}
        if new := {name: _option(fields[name], hints[name]) for name in own if name not in taken}:
            groups[title_of(cls)] = new
    return groups


def as_dict(options: Any) -> dict[str, Any]:
    """The options by name, as they are written to options.json; `options` may be a mapping already."""
    return dataclasses.asdict(options) if dataclasses.is_dataclass(options) else dict(options)  # type: ignore[arg-type]


def closest(name: str, names: Iterable[str]) -> str:
    """The name that was most likely meant, or ''."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), "")


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Watching."""

    plain: Annotated[bool, "lines instead of the live view, also on a terminal"] = False
    trace: Annotated[bool, "write trace.json, which Perfetto, the report and the timeline need"] = True
    report: Annotated[bool, "write report.html at the end"] = True
    wandb: Annotated[Literal["off", "offline", "online"], "Weights & Biases: off, offline (no account) or online"] = (
        "off"
    )
    metrics_port: Annotated[int, port, "serve Prometheus metrics on this port of this machine (0: not)"] = 0


Resources = dict[str, dict[str, float]]
RAY_ADDRESS: Final = "of a Ray cluster, as HOST:6379 or auto, for --backend ray (without: one of its own, here)"


def ray_needs(*kinds: str) -> str:
    """What `ray_resources` means to a program with roles of these kinds."""
    example = f'{{"{kinds[0]}": {{"CPU": 1, "GPU": 0.5}}}}'
    return (
        f"what a role needs of a machine of that cluster, by kind ({', '.join(kinds)}), as JSON: {example}; without: a core "
        "each, but for what stays on this machine"
    )


class CommandLine:
    """The options of a dataclass, or groups of options by title. `other_flags` are flags that are no options, for hints."""

    def __init__(self, options: type | Mapping[str, Mapping[str, Option]], other_flags: Sequence[str] = ()) -> None:
        self.groups = options if isinstance(options, Mapping) else groups_of(options)
        self.options = {name: option for group in self.groups.values() for name, option in group.items()}
        self.other_names = {other: name for name, option in self.options.items() for other in option.also}
        self.other_flags = tuple(other_flags)

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Give the parser a flag for each option and for its other names; what is given stays text."""
        for title, group in self.groups.items():
            section = parser.add_argument_group(title)
            for name, option in group.items():
                bare = option.kind is bool  # --trace alone is true
                for spelling in (name, *option.also):
                    section.add_argument(
                        f"--{spelling}", dest=name, default=argparse.SUPPRESS,
                        help=_help(option) if spelling == name else argparse.SUPPRESS,
                        metavar=METAVARS.get(option.kind, "WORD"), nargs="?" if bare else None,
                        const="true" if bare else None,
                    )  # fmt: skip

    def parse(self, parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The flags (of `sys.argv` if None). Names may have hyphens for underscores; an unknown one is a ConfigError."""
        flags, unknown = parser.parse_known_args(_prepared(sys.argv[1:] if arguments is None else arguments))
        if unknown:
            if unknown[0].startswith("--"):
                self.known(unknown[0].partition("=")[0].removeprefix("--"), self.other_flags)
            raise ConfigError(f"{unknown[0]!r} cannot be read; write options as {self._example()}.")
        return flags

    def changes(self, flags: argparse.Namespace) -> dict[str, Any]:
        """The options among the flags, each as its kind of value; ConfigError where it is not one."""
        given = {name: word for name, word in vars(flags).items() if name in self.options}
        return {name: self.options[name].read(word) for name, word in given.items()}

    def has(self, name: str) -> bool:
        """Whether this is an option's name, or one of its other names."""
        return name in self.options or name in self.other_names

    def known(self, name: str, others: Iterable[str] = ()) -> str:
        """The option that a name means; ConfigError, with the nearest name, one of `others` too, if there is none."""
        if name in self.options:
            return name
        if name in self.other_names:
            return self.other_names[name]
        close = closest(name, [*self.options, *self.other_names, *others])
        hint = f"did you mean {close}?" if close else "--help lists them."
        raise ConfigError(f"There is no option {name}; {hint}")

    def named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values by the options' own names; ConfigError for unknown names and for an option that is given twice."""
        found: dict[str, Any] = {}
        for spelling, value in values.items():
            name = self.known(spelling)
            if name in found:
                raise ConfigError(f"{spelling} and {name} are the same option; give one of them.")
            found[name] = value
        return found

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A checked value for every option, the default where there is none; ConfigError for unknown names too."""
        given = self.named(values)
        checked: dict[str, Any] = {}
        for name, option in self.options.items():
            value = given.get(name, option.default)
            if value is dataclasses.MISSING:
                raise ConfigError(f"{name} is missing; it has no default.")
            checked[name] = option.check(name, value)
        return checked

    def _example(self) -> str:
        numbers = (name for name, option in self.options.items() if type(option.default) is int)
        name = next(numbers, None)
        return "--name value" if name is None else f"--{name} {self.options[name].default}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[0].upper()}{message[1:]}; --help explains every option.")


def make_parser(description: str, prog: str, usage: str = "[options]") -> argparse.ArgumentParser:
    """A parser with the description as it is written. Flags must be whole, those not given are left out of the result, and what
    cannot be read is a ConfigError. Flags that are added to it are written with underscores, as `CommandLine.parse` hands
    them over."""
    return _Parser(
        prog=prog,
        usage=f"{prog} {usage}",
        description=description,
        formatter_class=_formatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )


def program_parser(prog: str, description: str, usage: str | None = None) -> argparse.ArgumentParser:
    """A parser for `lzero-async PROG`, with the description as it is written; flags must be whole, and what it cannot
    read is a ConfigError."""
    return _Parser(
        prog=f"lzero-async {prog}",
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def with_underscores(word: str) -> str:
    """The word, hyphens in the name of a flag turned into underscores."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return "--" + flag[2:].replace("-", "_") + equals + value


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    """What a field's type and what stands beside it say; TypeError where a number has no check."""
    kind, *beside = (hint.__origin__, *hint.__metadata__) if get_origin(hint) is Annotated else (hint,)
    may_be_none = get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)
    if may_be_none:
        kind = next(part for part in get_args(kind) if part is not type(None))
    checks: list[Check] = [part for part in beside if callable(part)]
    if get_origin(kind) is Literal:
        checks.append(words(*get_args(kind)))
    elif kind in (bool, str):
        checks.append({bool: flag, str: text}[kind])
    if not checks:
        raise TypeError(f"{field.name} is a {kind} without a check; name one in its annotation.")
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return Option(
        name=field.name,
        kind=kind if kind in METAVARS else str,
        check=optional(checks[0]) if may_be_none else checks[0],
        help=next((part for part in beside if isinstance(part, str)), ""),
        default=default,
        also=next((tuple(part) for part in beside if isinstance(part, Also)), ()),
        only=next((tuple(part) for part in beside if isinstance(part, Only)), ()),
    )


def title_of(cls: type) -> str:
    """What heads a group in --help: the first line of its docstring."""
    title = (cls.__doc__ or cls.__name__).splitlines()[0].rstrip(".")
    return title[:1].lower() + title[1:]


def _prepared(given: Iterable[str]) -> list[str]:
    """The words as argparse can read them: underscores in the names of flags, but never in their values."""
    prepared: list[str] = []
    for word in given:
        if NEGATIVE.fullmatch(word) and prepared and prepared[-1].startswith("--") and "=" not in prepared[-1]:
            prepared[-1] += f"={word}"  # argparse takes -1e3 for a flag
            continue
        prepared.append(with_underscores(word))
    return prepared


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=WIDTH)


def _help(option: Option) -> str:
    default, shown = option.default, ""
    if default is not dataclasses.MISSING and default is not None and default not in ("", {}, [], ()):
        shown = json.dumps(default) if isinstance(default, (bool, dict)) else str(default)
        if isinstance(default, (tuple, list)):
            shown = ",".join(map(str, default))
    only = f"{' and '.join(option.only)} only" if option.only else ""
    notes = "; ".join(filter(None, (only, f"default: {shown}" if shown else "")))
    return f"{option.help} ({notes})".replace("%", "%%") if notes else option.help.replace("%", "%%")
