"""Train MBPO (SAC, an ensemble of dynamics networks and short model rollouts) on vectorised environments.

  lzero-async train mbpo                                                 Pendulum, the batch trainer
  lzero-async train mbpo --trainer continuous --num_collectors 8         everything runs all the time
  lzero-async train mbpo --trainer sync                                  strictly in turn: the baseline
  lzero-async train mbpo --preset envs128                                continuous: 128 environments, 16 collectors
  lzero-async train mbpo --env HalfCheetah-v4 --max_env_steps 200000     MuJoCo (an extra: pip install '.[mujoco]')
  lzero-async train mbpo --resume runs/mbpo                              continue the run in that folder

`python zoo/mbpo/train.py` is the same command. Hyphens and underscores are the same (--num-envs, --num_envs); true or false may
follow a flag like --plain. docs/mbpo.md compares the trainers. Everything a run writes is in its folder (--exp_name):
checkpoints, TensorBoard scalars (log/), a trace, a log file and the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lzero_async.runs.checks import present_device
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.options import make_parser as plain_parser
from lzero_async.runs.program import run_program
from lzero_async.runs.run_dir import (
    exit_code,
    find_run,
    free_folder,
    logging_to,
    say_folder,
    say_places,
)
from zoo.mbpo.envs.sources import EnvSource, GymSource
from zoo.mbpo.options import COMMAND, CONTINUOUS, HARMLESS, OPTIONS, PRESETS, MbpoOptions, build_options
from zoo.mbpo.saving import check_same_run, load_description

if TYPE_CHECKING:
    from zoo.mbpo.trainer import Trainer

PROG = "lzero-async train mbpo"
ENDS = {"stop_fn": "max_env_steps", "max_collect": "max_env_steps", "eval_target": "target_score"}


def make_parser(description: str = str(__doc__), prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, made from the options themselves; flags that are not given are left out of the result."""
    parser = plain_parser(description, prog)
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="",
        metavar="NAME",
        help=f"sizes of the continuous trainer for 64, 128 or 256 environments: {', '.join(PRESETS)}",
    )
    parser.add_argument(
        "--resume", nargs="?", const="", default=None, metavar="PATH",
        help="continue from a checkpoint or a run's folder (default: that of --exp_name), with the options of that run; "
        "--trainer may change",
    )  # fmt: skip
    parser.add_argument(
        "--headless", action="store_true", default=False, help="accepted and without effect: nothing is shown"
    )
    COMMAND.add_to(parser)
    return parser


def parse_arguments(
    arguments: list[str] | None = None, parser: argparse.ArgumentParser | None = None
) -> argparse.Namespace:
    """The flags, hyphens turned into underscores."""
    return COMMAND.parse(parser or make_parser(), arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code: 0 done, 1 a role died, 2 bad input, 130 interrupted with a checkpoint saved."""
    return exit_code(lambda: train(parse_arguments(arguments)))


def train(flags: argparse.Namespace, *, make_source: Callable[[MbpoOptions], EnvSource] | None = None) -> int:
    """Options, folder; then train, evaluate once more, and say where everything is."""
    changes = COMMAND.changes(flags)
    with FolderLock() as lock:
        saved, state = find_run(flags.resume, changes, OPTIONS["exp_name"].default, load_description, lock)
        options = build_options(changes, preset=flags.preset, saved=None if state is None else state.get("options", {}))
        # What cannot be used is found before there is a folder.
        if saved is not None and state is not None:
            check_same_run(saved, state, options)
        if options.device != "auto":
            present_device("device", options.device)
        source = (make_source or GymSource)(options)
        folder = free_folder(options.exp_name, saved, lock, HARMLESS)
        with logging_to(folder, "zoo.mbpo"):
            say_folder(folder, options.exp_name, saved)
            return _train(options, folder, saved, state, source)


def _train(
    options: MbpoOptions, folder: Path, saved: Path | None, state: dict[str, Any] | None, source: EnvSource
) -> int:
    trainer = make_trainer(options, folder, source=source)

    def resume() -> str:
        assert saved is not None and state is not None
        trainer.resume(saved, state)
        return f"resumed from {saved} at {trainer.collectors.steps:,} real steps"

    return run_program(trainer, None if saved is None else resume, ENDS, partial(report, trainer))


def make_trainer(options: MbpoOptions, folder: Path, **arguments: Any) -> Trainer:
    """The trainer that the options name."""
    if options.trainer == CONTINUOUS:
        from zoo.mbpo.async_trainer import AsyncTrainer

        return AsyncTrainer(options, folder, **arguments)
    from zoo.mbpo.async_trainer_v2 import AsyncTrainerV2

    return AsyncTrainerV2(options, folder, **arguments)


def report(trainer: Trainer, final: dict[str, Any] | None, reason: str) -> None:
    """The numbers of the run on screen."""
    from lzero_async.telemetry.utilisation import compare, format_targets

    print(trainer.log_line())
    print("busy: " + ", ".join(f"{name} {share:.0%}" for name, share in trainer.busy().items()))
    ages = trainer.ages
    if "real_age_mean" in ages:
        real = f"real rows {ages['real_age_mean']:.1f} policy versions (max {ages['real_age_max']:.0f})"
        model = ""
        if "model_age_mean" in ages:
            model = f", model rows {ages['model_age_mean']:.1f} dynamics versions (max {ages['model_age_max']:.0f})"
        print(f"age of the last samples: {real}{model}")
    print(format_targets(compare(trainer.utilisation())))
    if hint := _hint(trainer.coordinator.get_statistics(), trainer.options.adaptive_collectors):
        print(hint)
    if final is not None:
        print(f"final evaluation: mean return {final['mean_return']:.1f} of {final['episodes']} episodes "
              f"({final['min_return']:.1f} to {final['max_return']:.1f})")  # fmt: skip
    if left_out := trainer.troubles.line():
        print(left_out)
    print(f"ended by: {reason}")
    say_places(trainer.folder)


def _hint(coordinator: dict[str, Any], adaptive: bool) -> str:
    """What to try when most of the data was thrown away."""
    collected, dropped = coordinator["collect_count"], coordinator["dropped"]
    if dropped < 0.5 * max(1, collected):
        return ""
    return (
        f"{dropped / collected:.0%} of the collected batches were dropped: the environments are faster than the learner. "
        f"--when_full wait{'' if adaptive else ', --adaptive_collectors'} or --trainer batch leave the cores to the learner."
    )


if __name__ == "__main__":
    sys.exit(main())
