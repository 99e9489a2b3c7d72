"""A flat table of options: each with its default, its check and its meaning; the command line is made from it."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from lzero_async.errors import ConfigError
from lzero_async.validation import number_between, one_of, role_resources, whole_number

Check = Callable[[str, Any], Any]
TRUTH: Final = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
METAVARS: Final = {bool: "BOOL", int: "N", float: "X"}


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


def device_of(options: Any) -> str:
    """The device that `options.device` stands for; ConfigError if it is not here."""
    return present_device("device", options.device)


class Option(NamedTuple):
    """One option. `only` names the trainers or collectors that use it; empty: all. `kind` is for the command line, where
    the default does not show it: bool, int, float or str."""

    default: Any
    check: Check
    help: str
    only: tuple[str, ...] = ()
    kind: type | None = None

    def belongs_to(self, user: str) -> bool:
        """Whether this trainer or collector uses it."""
        return not self.only or user in self.only

    def read(self, name: str, word: str) -> Any:
        """What a word of the command line means; ConfigError if it is not of the option's kind."""
        kind = self.kind_of_value()
        if kind is bool:
            if word.lower() not in TRUTH:
                raise ConfigError(f"{name} is {word!r}; it must be true or false.")
            return TRUTH[word.lower()]
        if kind is str:
            return word
        try:
            return int(word) if kind is int else float(word)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{name} is {word!r}; it must be {wanted}.") from None

    def kind_of_value(self) -> type:
        """The kind that is given or that the default shows; str where a word is handed to the check as it is."""
        kind = self.kind or type(self.default)
        return kind if kind in METAVARS else str


WATCHING: Final[Mapping[str, Option]] = MappingProxyType({
    "plain": Option(False, flag, "lines instead of the live view, also on a terminal"),
    "trace": Option(True, flag, "write trace.json, which Perfetto, the report and the timeline need"),
    "report": Option(True, flag, "write report.html at the end"),
    "wandb": Option("off", words("off", "offline", "online"), "Weights & Biases: off, offline (no account) or online"),
    "metrics_port": Option(0, port, "serve Prometheus metrics on this port of this machine (0: not)"),
})  # fmt: skip
"""What every application offers to those who watch its runs."""


def ray_options(*kinds: str) -> dict[str, Option]:
    """What every application offers for roles on Ray; `kinds` are the names of its roles, without their numbers."""
    return {
        "ray_address": Option(
            "", text, "of a Ray cluster, as HOST:6379 or auto, for --backend ray (without: one of its own, here)"
        ),
        "ray_resources": Option(
            {}, resources(*kinds),
            f'what a role needs of a machine of that cluster, by kind ({", ".join(kinds)}), as JSON: '
            f'{{"{kinds[0]}": {{"CPU": 1, "GPU": 0.5}}}}; without: a core each, but for what stays on this machine',
        ),
    }  # fmt: skip


class OptionTable:
    """Groups of options by title. `other_flags` are names of the command line that are no options, for hints."""

    def __init__(self, groups: Mapping[str, Mapping[str, Option]], other_flags: Sequence[str] = ()) -> None:
        self.groups = groups
        self.options = {name: option for group in groups.values() for name, option in group.items()}
        self.other_flags = tuple(other_flags)

    def add_to(
        self, parser: argparse.ArgumentParser, aliases: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        """Give the parser a flag for each option, and its aliases (`{"env": ["--task"]}`); what is given stays text."""
        for title, group in self.groups.items():
            section = parser.add_argument_group(title)
            for name, option in group.items():
                kind = option.kind_of_value()
                bare = kind is bool  # --trace alone is true
                section.add_argument(
                    f"--{name}", *aliases.get(name, ()), dest=name, help=_help(option), default=argparse.SUPPRESS,
                    metavar=METAVARS.get(kind, "WORD"), nargs="?" if bare else None, const="true" if bare else None,
                )  # fmt: skip

    def parse(self, parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
        """The flags (of `sys.argv` if None). Names may have hyphens for underscores; an unknown one is a ConfigError."""
        flags, unknown = parser.parse_known_args(_prepared(sys.argv[1:] if arguments is None else arguments))
        if unknown:
            if unknown[0].startswith("--"):
                self.check_known(unknown[0].partition("=")[0].removeprefix("--"), self.other_flags)
            raise ConfigError(f"{unknown[0]!r} cannot be read; write options as {self._example()}.")
        return flags

    def changes(self, flags: argparse.Namespace) -> dict[str, Any]:
        """The options among the flags, each as its kind of value; ConfigError where it is not one."""
        given = {name: word for name, word in vars(flags).items() if name in self.options}
        return {name: self.options[name].read(name, word) for name, word in given.items()}

    def check_known(self, name: str, others: Iterable[str] = ()) -> None:
        """Raise ConfigError, with the nearest name, one of `others` too, if there is no such option."""
        if name not in self.options:
            close = difflib.get_close_matches(name, [*self.options, *others], n=1)
            hint = f"did you mean {close[0]}?" if close else "--help lists them."
            raise ConfigError(f"There is no option {name}; {hint}")

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A checked value for every option, the default where there is none; ConfigError for unknown names too."""
        for name in values:
            self.check_known(name)
        return {name: option.check(name, values.get(name, option.default)) for name, option in self.options.items()}

    def _example(self) -> str:
        numbers = (name for name, option in self.options.items() if type(option.default) is int)
        name = next(numbers, None)
        return "--name value" if name is None else f"--{name} {self.options[name].default}"


def make_parser(description: str, prog: str) -> argparse.ArgumentParser:
    """A parser with the description as it is written; flags must be whole, and those not given are left out of the result.

    Flags that are added to it are written with underscores, as `OptionTable.parse` hands them over.
    """
    return argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [options]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )


class _ProgramParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[0].upper()}{message[1:]}; --help explains every option.")


def program_parser(prog: str, description: str, usage: str | None = None) -> argparse.ArgumentParser:
    """A parser for `lzero-async PROG`, with the description as it is written; flags must be whole, and what it cannot
    read is a ConfigError."""
    return _ProgramParser(
        prog=f"lzero-async {prog}",
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _prepared(given: Iterable[str]) -> list[str]:
    """The words as argparse can read them: underscores in the names of flags, but never in their values."""
    prepared: list[str] = []
    for word in given:
        if NEGATIVE.fullmatch(word) and prepared and prepared[-1].startswith("--") and "=" not in prepared[-1]:
            prepared[-1] += f"={word}"  # argparse takes -1e3 for a flag
            continue
        prepared.append(with_underscores(word))
    return prepared


def with_underscores(word: str) -> str:
    """The word, hyphens in the name of a flag turned into underscores."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return "--" + flag[2:].replace("-", "_") + equals + value


def _help(option: Option) -> str:
    default = option.default
    if default is None or default in ("", {}, [], ()):
        return option.help.replace("%", "%%")
    shown = json.dumps(default) if isinstance(default, bool) else str(default)
    return f"{option.help} (default: {shown})".replace("%", "%%")
