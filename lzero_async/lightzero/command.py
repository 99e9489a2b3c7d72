"""Run a LightZero config asynchronously, without changing a line of it.

  lzero-async lightzero cartpole_unizero --off_policy_degree 2            a config of the installed zoo
  lzero-async lightzero my_config.py --num_collectors 2 --async_eval      a file, run as __main__
  lzero-async lightzero my_package.configs.pong                           a module
  lzero-async lightzero atari_muzero --env PongNoFrameskip-v4             the config's own flags reach it
  lzero-async lightzero cartpole_muzero --set policy.batch_size=64        change a value of the config
  lzero-async lightzero --resume data_muzero/cartpole_muzero              continue a run, replay buffer included
  lzero-async lightzero --list                                            the configs of the installed zoo

Everything a run writes is in its folder, the config's exp_name: LightZero's checkpoints (ckpt/*.pth.tar) and TensorBoard tags
(log/serial), a checkpoint to resume from, the report, the trace and the log.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.lightzero.configs import Call, find_config, run_config
from lzero_async.lightzero.listing import why
from lzero_async.lightzero.options import COMMAND
from lzero_async.runs.options import closest, make_parser, with_underscores
from lzero_async.runs.run_dir import exit_code

PROG: Final = "lzero-async lightzero"
OWN: Final = ("resume", "set", "list", "help")


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our flags, and the words that are the config's own."""
    parser = make_parser(str(__doc__), PROG, "CONFIG [options of the config] [options]")
    parser.add_argument(
        "config", nargs="?", default=None, help="a config's file, module or short name", metavar="CONFIG"
    )
    parser.add_argument(
        "--resume",
        default=None,
        metavar="PATH",
        help="continue from a run's folder or a checkpoint, with its config and options",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="assignments",
        help="change a value of the config; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--list",
        action="store_true",
        default=False,
        help="show the configs of the installed zoo and whether they run here",
    )
    COMMAND.add_to(parser)
    known, rest = [], []
    words = [with_underscores(word) if _is_own(word) else word for word in arguments]
    position = 0
    while position < len(words):  # a flag that is not ours, and what follows it, is the config's
        word, position = words[position], position + 1
        if word.startswith("--") and _is_own(word) is False:
            rest.append(word)
            while position < len(words) and not words[position].startswith("--"):
                rest.append(words[position])
                position += 1
        else:
            known.append(word)
    return COMMAND.parse(parser, known), rest


def _is_own(word: str) -> bool | None:
    """Whether a flag is ours; None for what is no flag."""
    if not word.startswith("--"):
        return None
    name = with_underscores(word).partition("=")[0][2:]
    return COMMAND.has(name) or name in OWN


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code: 0 done, 1 a role died, 2 bad input, 130 interrupted with a checkpoint saved."""
    return exit_code(lambda: train(*parse_arguments(sys.argv[1:] if arguments is None else list(arguments))))


def train(flags: argparse.Namespace, words: list[str]) -> int:
    """What the flags ask for."""
    from lzero_async.lightzero import running

    changes = COMMAND.changes(flags)
    if flags.list:
        from lzero_async.lightzero.listing import show

        return show()
    if flags.resume is not None:
        if flags.config is not None or flags.assignments or words:
            given = flags.config or [*flags.assignments, *words][0]
            raise ConfigError(f"{given!r} is given with --resume, but a resumed run keeps its config; leave it out.")
        return running.resume(flags.resume, changes)[0]
    if flags.config is None and words:
        raise ConfigError(
            f"{words[0]!r} is no option here, so it and what follows are taken for the config's own; put CONFIG before them"
            + _meant(words[0])
        )
    if flags.config is None:
        raise ConfigError("No config is named; give a file, a module or a short name (--list shows them).")
    file = find_config(flags.config)
    _check_words(file, words)
    wishes = running.Wishes(changes, flags.assignments, (str(file.resolve().parent),))
    done: list[tuple[Any, ...]] = []

    def run(call: Call) -> Any:
        limits = call.max_train_iter, call.max_env_step, call.model_path, dict(call.options)
        key = (call.entry, {**running.plain(call.main), "exp_name": ""}, running.plain(call.create), *limits)
        if key in done and "seed" in changes:
            print(
                f"the config calls {call.entry} again with another seed; with --seed that is the same run, so it is left out."
            )
            return None
        done.append(key)
        code, policy = running.start(call, wishes)
        if code:
            raise SystemExit(code)
        return policy

    return _run_config(file, words, run, flags.config)


def _check_words(file: Path, words: list[str]) -> None:
    """ConfigError for a flag that neither we nor, as far as can be seen, the config knows."""
    text = file.read_text(errors="replace")
    reads = any(word in text for word in ("argv", "argparse", "parse_args", "click", "fire", "tyro", "hydra", "absl"))
    for word in words:
        name = word.partition("=")[0]
        if (
            not name.startswith("--")
            or name in text
            or with_underscores(name) in text
            or name.replace("_", "-") in text
        ):
            continue
        if (meant := _meant(name)) or not reads:
            raise ConfigError(
                f"{name!r} is no option here, and {file.name} does not name it" + (meant or "; leave it out.")
            )


def _meant(word: str) -> str:
    close = closest(with_underscores(word.partition("=")[0])[2:], [*COMMAND.options, *OWN])
    return f"; did you mean --{close}?" if close else ""


def _run_config(file: Path, words: list[str], run: Any, name: str) -> int:
    called: list[Call] = []

    def noted(call: Call) -> Any:
        called.append(call)
        return run(call)

    try:
        calls = run_config(file, words, noted)
    except (ImportError, SyntaxError) as error:
        if called:
            raise
        raise ConfigError(f"The config {name} cannot be read: {why(error)}.") from error
    except SystemExit as ended:  # the run's own end, or that of the config's own command line
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if not calls:
        raise ConfigError(
            f"The config {name} ({file}) calls none of LightZero's train functions, so there is nothing to run."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
