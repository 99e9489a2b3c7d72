"""The program: load a run's policy, play episodes, show what they came to."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.options import program_parser
from lzero_async.runs.policy import (
    WEIGHTS,
    PlayedEpisode,
    Policy,
    application_of,
    find_weights,
    load_policy,
    own_options,
    seeds,
)
from lzero_async.runs.run_dir import INTERRUPTED, exit_code, write_json
from lzero_async.runs.summary import read_summary
from lzero_async.telemetry.terminal.progress import Progress, table

DESCRIPTION: Final = "Play episodes with what a run has learned, as its evaluations do."
KINDS: Final = {"int": int, "float": float}


def main(arguments: Sequence[str]) -> int:
    """Play as the command line asks; return the exit code: 0 done, 2 bad input, 130 interrupted."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where the run's environment may be, as it was when it trained
    return exit_code(lambda: _play(_parse(arguments)), "--json")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; with a run, the options of its policy belong to it."""
    known = _parser({})
    run = known.parse_known_args([word for word in arguments if word not in ("-h", "--help")])[0].run
    if run is None:
        return known.parse_args(arguments)  # help, or what is missing
    return _parser(own_options(application_of(run))).parse_args(arguments)


def _parser(own: Mapping[str, inspect.Parameter]) -> argparse.ArgumentParser:
    parser = program_parser("play", DESCRIPTION, "lzero-async play RUN [options]")
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="the folder of a run")
    parser.add_argument(
        "--weights", choices=WEIGHTS, default="best",
        help="those that scored best in an evaluation (default; without one, the last ones), or the last ones",
    )  # fmt: skip
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help="episodes to play (default: 10)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the first; each other one has the next (default: 0)"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:N or auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    if own:
        group = parser.add_argument_group("options of this run's application")
        for name, one in own.items():
            kind = KINDS.get(str(one.annotation).partition(" ")[0], str)
            group.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar="VALUE")
    return parser


def _play(options: argparse.Namespace) -> int:
    if options.run is None:
        raise ConfigError("Say which run to play: lzero-async play RUN.")
    if options.json is not None and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        raise ConfigError(f"--json is {options.json}, which cannot be written; give a file in a folder that exists.")
    numbers = seeds(options.episodes, options.seed)
    own = {name: vars(options)[name] for name in own_options(application_of(options.run)) if name in options}
    title, path = read_summary(options.run).get("title"), find_weights(options.run, options.weights)
    progress = Progress()
    progress.note(f"{title}: loading {path} ...")
    with load_policy(options.run, options.weights, options.device, **own) as policy:
        played, interrupted = _played(policy, numbers, progress)
        if played:
            print(_table(played, policy.score_name))
    if options.json is not None:
        settings = {"run": str(options.run), "title": title, "weights": str(path), "device": options.device, **own}
        settings |= {"score_name": policy.score_name, **_summary(played)}
        write_json(options.json, {**settings, "episodes": [one._asdict() for one in played]})
        progress.note(f"written: {options.json}")
    return INTERRUPTED if interrupted else 0


def _played(policy: Policy, numbers: range, progress: Progress) -> tuple[list[PlayedEpisode], bool]:
    """The episodes, and whether they were interrupted before all of them were played."""
    played: list[PlayedEpisode] = []
    try:
        for seed in numbers:
            progress.show(f"episode {len(played) + 1} of {len(numbers)} ...")
            played.append(policy.play_episode(seed))
    except KeyboardInterrupt:
        progress.note(f"interrupted after {len(played)} of {len(numbers)} episodes")
        return played, True
    finally:
        progress.clear()
    return played, False


def _summary(played: Sequence[PlayedEpisode]) -> dict[str, Any]:
    scores = [one.score for one in played]
    if not scores:
        return {"mean": None, "min": None, "max": None}
    return {"mean": sum(scores) / len(scores), "min": min(scores), "max": max(scores)}


def _table(played: Sequence[PlayedEpisode], score_name: str) -> str:
    rows = [["episode", "seed", score_name, "steps"]]
    rows += [[str(number), str(one.seed), f"{one.score:.2f}", str(one.steps)] for number, one in enumerate(played, 1)]
    steps = sum(one.steps for one in played) / len(played)
    for name, value in _summary(played).items():
        rows.append([name, "", f"{value:.2f}", f"{steps:.1f}" if name == "mean" else ""])
    return table(rows)
