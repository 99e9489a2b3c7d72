"""The command `lzero-async`: train an application, and look at its runs."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import Final

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import Command, find_application, how_to_install, installed, resolve
from lzero_async.runs.run_dir import BAD_INPUT

TOOLS: Final = {
    "report": Command("write an HTML report of one or more runs", "lzero_async.tools.report.command:main"),
    "timeline": Command("show what each role did when", "lzero_async.tools.timeline.command:main"),
    "advise": Command("recommend a degree and a number of collectors", "lzero_async.tools.advise.command:main"),
    "compare": Command("run synchronously and asynchronously, side by side", "lzero_async.tools.compare.command:main"),
    "play": Command("play episodes with what a run has learned", "lzero_async.tools.play.command:main"),
    "setup": Command("install the packages that an application needs", "lzero_async.tools.setup.command:main"),
}
HELP: Final = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; return its exit code, 2 if there is no such command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not words or words[0] in HELP:
            print(_usage(), file=sys.stdout if words else sys.stderr)
            return 0 if words else BAD_INPUT
        if words[0] == "train":
            return _train(words[1:])
        return int(resolve(_command(words[0]).main)(words[1:]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _train(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(_usage_of_train(), file=sys.stdout if words else sys.stderr)
        return 0 if words else BAD_INPUT
    entry = find_application(words[0])
    try:
        return int(resolve(entry.train)(words[1:]))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{entry.name} needs {error.name}, which is not installed here; install it: {how_to_install(words[0])}."
        ) from error


def _command(name: str) -> Command:
    """The tool, or the application's own command, of this name."""
    if name in TOOLS:
        return TOOLS[name]
    own = _own_commands()
    if name in own:
        return own[name]
    close = difflib.get_close_matches(name, ["train", *TOOLS, *own], n=1)
    hint = f"did you mean {close[0]}?" if close else "lzero-async --help lists them."
    raise ConfigError(f"There is no command {name!r}; {hint}")


def _own_commands() -> dict[str, Command]:
    return {name: command for app in installed() for name, command in find_application(app).commands.items()}


def _usage() -> str:
    commands = {"train": "train an application; lzero-async train lists them"}
    commands |= {name: command.help for name, command in {**TOOLS, **_own_commands()}.items()}
    lines = [f"  {name:12}{meaning}" for name, meaning in commands.items()]
    return "\n".join(
        ["usage: lzero-async COMMAND ...", "", *lines, "", "lzero-async COMMAND --help explains a command."]
    )


def _usage_of_train() -> str:
    lines = [f"  {name:14}{find_application(name).help}" for name in installed()]
    return "\n".join(
        [
            "usage: lzero-async train APPLICATION [options]",
            "",
            *(lines or ["  (no application is installed)"]),
            "",
            "lzero-async train APPLICATION --help explains its options.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
