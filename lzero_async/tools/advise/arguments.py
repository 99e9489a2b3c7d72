"""The command line of advise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import Check, between, text, whole
from lzero_async.runs.options import CommandLine, make_parser
from lzero_async.validation import number_between, positive_number, whole_number

PROG: Final = "lzero-async advise"
DESCRIPTION: Final = f"""Which off_policy_degree and how many collectors: simulate the pipeline for a table of them and recommend.

  {PROG} runs/train                 the times, the CPU shares and the sizes of this run
  {PROG} runs/train --cores 8       the same on another machine
  {PROG} runs/train --envs 64,128   and what to choose for other numbers of environments
  {PROG} --collect 2.35 --train 1.82 --eval 8.67 --collectors 4 --cores 8      times by hand

Hyphens and underscores are the same. docs/advise.md says what is assumed."""
SPREAD: Final = 0.25
EVAL_EVERY: Final = 10
MOST: Final = 1024  # collectors, degrees and cores of one stage: more take minutes to simulate and tell nothing new
_SHARE: Final = between(0, MOST)
_SIGMA: Final = between(0, 5)
_TIME: Final = between(1e-6, 1e9)
_MEGABYTES: Final = between(0, 1e9)


def _numbers(low: int, most: int) -> Check:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in text(name, value).split(",") if word.strip()]
        if not all(word.isdecimal() and low <= int(word) <= most for word in words):
            raise ConfigError(
                f"{name} is {value!r}; write whole numbers from {low} up to {most} with commas between them, as 1,2,4."
            )
        return tuple(sorted({int(word) for word in words}))

    return check


def _number(low: int) -> Check:
    def check(name: str, value: Any) -> int:
        return int(number_between(name, whole_number(name, value, low), low, MOST))

    return check


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """Times by hand, of a stage alone on the machine."""

    collect: Annotated[float | None, _TIME, "seconds of one collect by one collector"] = None
    train: Annotated[float | None, _TIME, "seconds of one train"] = None
    eval: Annotated[float | None, _TIME, "seconds of one evaluation (default: there are none)"] = None
    collect_cpu: Annotated[float, _SHARE, "share of these seconds that it computes; above 1 on several cores"] = 1.0
    train_cpu: Annotated[float, _SHARE, "the same of a train"] = 1.0
    eval_cpu: Annotated[float, _SHARE, "the same of an evaluation"] = 1.0
    collect_spread: Annotated[float, _SIGMA, "how uneven they are: sigma of a lognormal distribution"] = SPREAD
    train_spread: Annotated[float, _SIGMA, "the same of a train"] = SPREAD
    eval_spread: Annotated[float, _SIGMA, "the same of an evaluation"] = SPREAD
    batch_mb: Annotated[float | None, _MEGABYTES, "MB of one batch, for the memory"] = None
    collector_mb: Annotated[float | None, _MEGABYTES, "MB of one collector, for the memory"] = None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What is tried."""

    collectors: Annotated[int | None, _number(1), "the most collectors (default: 2 per core, at least 4)"] = None
    degrees: Annotated[
        tuple[int, ...], _numbers(0, MOST), "degrees, as 0,1,2,4 (default: 0, 1 and powers of two up to --max_degree)"
    ] = ()
    envs: Annotated[
        tuple[int, ...], _numbers(1, 1_000_000), "other numbers of environments, as 64,128,256 (default: none)"
    ] = ()
    max_degree: Annotated[int, _number(0), "the highest degree"] = 16
    cores: Annotated[float | None, positive_number, "cores (default: of the run's machine, or of this one)"] = None
    eval_every: Annotated[
        int | None, whole(1), f"trains between evaluations (default: as in the run, or {EVAL_EVERY})"
    ] = None
    async_eval: Annotated[bool | None, "evaluate in the background (default: as in the run, or no)"] = None
    json: Annotated[bool, "print JSON instead of the table"] = False


@dataclass(frozen=True, kw_only=True)
class Asked(ByHand, Tried):
    """All options of advise."""


@dataclass(frozen=True, kw_only=True)
class Request(Asked):
    """What is asked: a run's folder, or None and times by hand."""

    run: Path | None

    @property
    def values(self) -> dict[str, Any]:
        """The options by name."""
        return vars(self)


COMMAND: Final = CommandLine(Asked)
HAND: Final = tuple(one.name for one in fields(ByHand))


def parse(arguments: Sequence[str]) -> Request:
    """The request; ConfigError in one sentence for what cannot be done. --help prints and exits."""
    parser = make_parser(DESCRIPTION, PROG, "[RUN] [options]")
    parser.add_argument("run", nargs="?", type=Path, default=None, help="folder of a run", metavar="RUN")
    COMMAND.add_to(parser)
    flags = COMMAND.parse(parser, list(arguments))
    given = COMMAND.changes(flags)
    request = Request(run=flags.run, **COMMAND.check(given))
    if request.run is None:
        _check_times(request)
    elif by_hand := [name for name in given if name in HAND]:
        raise ConfigError(f"--{by_hand[0]} is given by hand, but {request.run} has its own; leave one of them out.")
    return request


def _check_times(request: Request) -> None:
    for name in ("collect", "train"):
        if getattr(request, name) is None:
            raise ConfigError(
                f"There is nothing to advise on: --{name} is missing; give the folder of a run, or --collect and --train."
            )
    for name in ("eval_every", "async_eval"):
        if getattr(request, name) and request.eval is None:
            raise ConfigError(f"--{name} is given, but there are no evaluations; give the seconds of one with --eval.")
