"""The command line: options of the comparison itself, and those that are passed on to the application."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import ApplicationEntry, find_application, installed
from lzero_async.runs.options import program_parser, with_underscores
from lzero_async.validation import number_between, one_of

DESCRIPTION: Final = """Run an application synchronously and asynchronously on the same work, one after the other, and show both
side by side: rates, utilisation against its targets, what the roles did when, the speed-up beside its limit, and advice for this
and for 64, 128 and 256 environments.

  lzero-async compare --app NAME --seconds 120 --off_policy_degree 2
  lzero-async compare --app NAME --sync_run runs/compare/sync --async_run runs/compare/async    finished runs

Every other option is the application's own and reaches both runs; those that only an asynchronous run has (queues, collectors,
the degree) reach only that one. Hyphens and underscores are the same. docs/compare.md says how to read the output."""
REFUSED: Final = {
    "resume": "both runs begin anew",
    "trace": "the comparison is made from the trace",
}


class Item(NamedTuple):
    """One option of the application: its name (of --set, the option's own), and its words."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """What is to be compared. A run that is given is not run again."""

    app: ApplicationEntry
    way: str
    seconds: float
    out: Path
    sync_run: Path | None
    async_run: Path | None
    json: Path | None
    png: Path | None
    items: tuple[Item, ...]
    subject: tuple[str, ...] = ()  # what stands before the options

    def command(self, *, asynchronous: bool, folder: Path) -> list[str]:
        """The words behind `lzero-async` that make one of the runs, into `folder`."""
        known = self.app.comparison
        skipped = known.sync_only.get(self.way, frozenset()) if asynchronous else known.async_only
        given = [item for item in self.items if item.name not in skipped]
        names = {item.name for item in given}
        extra = dict(known.defaults)
        if self.seconds:
            extra |= known.limits
        if asynchronous:
            extra |= known.async_defaults
        words = [word for name, value in extra.items() if name not in names for word in value]
        words += [word for item in given for word in item.words]
        words += [word.format(seconds=self.seconds) for word in known.seconds] if self.seconds else ()
        words += [word.format(folder=folder) for word in known.folder]
        return ["train", self.app.name, *self.subject, *(known.ways[self.way] if asynchronous else known.sync), *words]


def _parser() -> argparse.ArgumentParser:
    usage = "%(prog)s --app NAME [options] [options of the application]"
    parser = program_parser("compare", DESCRIPTION, usage)
    parser.add_argument("--app", metavar="NAME", help=f"what to run: {', '.join(installed())}")
    parser.add_argument(
        "--asynchronous", metavar="WORD", help="the asynchronous mode, of an application that has several"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="X",
        help="how long each run trains (default: 60; 0: until a limit of the application's own)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("runs/compare"), metavar="FOLDER",
        help="where both runs and the comparison go (default: runs/compare; with a number behind it if that is taken)",
    )  # fmt: skip
    parser.add_argument(
        "--sync_run", type=Path, metavar="FOLDER", help="a finished synchronous run to take instead of a new one"
    )
    parser.add_argument(
        "--async_run", type=Path, metavar="FOLDER", help="a finished asynchronous run to take instead of a new one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="all numbers (default: compare.json in --out)")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the picture (default: compare.png in --out)")
    return parser


def parse(arguments: Sequence[str]) -> Request:
    """The request; ConfigError in one sentence for what cannot be done. --help prints and exits."""
    flags, rest = _parser().parse_known_args([with_underscores(word) for word in arguments])
    if flags.app is None:
        raise ConfigError(f"--app is missing; installed are {', '.join(installed()) or 'none'}.")
    app = find_application(flags.app)
    ways = tuple(app.comparison.ways)
    if flags.asynchronous is not None and len(ways) == 1:
        raise ConfigError(
            f"--asynchronous is {flags.asynchronous!r}, but {app.name} has one asynchronous mode only; leave it out."
        )
    way = ways[0] if flags.asynchronous is None else one_of("--asynchronous", flags.asynchronous, ways)
    subject = app.comparison.subject
    leading = (rest.pop(0),) if subject and rest and not rest[0].startswith("--") else ()
    if subject and not leading and (flags.sync_run is None or flags.async_run is None):
        raise ConfigError(f"{subject} is missing; write it before the options: compare --app {app.name} {subject} ...")
    items = tuple(_items(rest))
    _check(app, items)
    if items and flags.sync_run is not None and flags.async_run is not None:
        raise ConfigError(f"{items[0].words[0]} is an option of a run, but both runs are finished; leave it out.")
    if flags.png is not None and flags.png.suffix != ".png":
        raise ConfigError(f"--png is {str(flags.png)!r}; its name must end with .png.")
    seconds = number_between("--seconds", flags.seconds, 0, 1e9)
    return Request(app, way, seconds, flags.out, flags.sync_run, flags.async_run, flags.json, flags.png, items, leading)


def _items(words: Sequence[str]) -> Iterable[Item]:
    """Group the application's words: a flag and what follows it."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        else:
            raise ConfigError(f"{word!r} cannot be read; write options as --num_envs 64.")
    for group in groups:
        name = group[0][2:].partition("=")[0]
        if name == "set":
            path = group[0].partition("=")[2] or (group[1] if len(group) > 1 else "")
            name = option_name(path.strip())
        yield Item(name, tuple(group))


def option_name(word: str) -> str:
    """The option that a word of a command names: of `--x`, `--x=1`, `section.x=1`, it is x."""
    return word.lstrip("-").partition("=")[0].strip().rpartition(".")[2]


def _check(app: ApplicationEntry, items: Iterable[Item]) -> None:
    known = app.comparison
    refused = {
        **dict.fromkeys(map(option_name, known.folder), "it is set for each run; --out names the folder of both"),
        **dict.fromkeys(map(option_name, known.seconds), "--seconds says how long both runs last"),
        **REFUSED,
        **known.refused,
    }
    for item in items:
        if item.name in refused:
            raise ConfigError(f"--{item.name} cannot be given to a comparison: {refused[item.name]}.")
        if item.name == "off_policy_degree" and item.words[-1].rpartition("=")[2] == "0":
            raise ConfigError(
                "off_policy_degree is 0, which is what the synchronous run has; give the asynchronous one 1 or more."
            )


def shown(words: Sequence[str]) -> str:
    """The words of a command as a user types them."""
    return " ".join(map(shlex.quote, ["lzero-async", *words]))
