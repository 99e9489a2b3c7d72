"""Train PPO on whole episodes that environments play at their own pace, without a barrier at every step.

  lzero-async train episode_ppo                                          CartPole, 100 environments
  lzero-async train episode_ppo --env CartPole-v1 --num-envs 100 --total-episodes 100000 --episodes-per-update 100
  lzero-async train episode_ppo --env my_package.envs:make --red-agent B_lineAgent --env-arg max_steps=50
  lzero-async train episode_ppo --env zoo.episode_ppo.envs.network_attack:make --discount 0.95     network attacks (extra: nasim)
  lzero-async train episode_ppo --step-seconds 0.01 --step-sigma 1       waits as a slow, uneven simulator makes them
  lzero-async train episode_ppo --collector sync                         a barrier at every step: the baseline
  lzero-async train episode_ppo --resume runs/episode_ppo                continue the run in that folder

`python zoo/episode_ppo/train.py` is the same command. Hyphens and underscores are the same (--num-envs, --num_envs); true or
false may follow a flag like --plain. docs/step-barriers.md says when to use which collector. Everything a run writes is in
its folder (--exp_name): checkpoints, TensorBoard scalars (log/), a trace, a log file and the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # In place of this file's folder: its modules are not meant by --env module:factory, those of the user's folder are.
    sys.path[:1] = [str(Path(__file__).resolve().parents[2]), str(Path.cwd())]

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import present_device
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.options import make_parser
from lzero_async.runs.program import run_program
from lzero_async.runs.run_dir import (
    exit_code,
    find_run,
    free_folder,
    logging_to,
    say_folder,
    say_places,
)
from zoo.episode_ppo.envs.factories import Spaces, describe, parse_env_args
from zoo.episode_ppo.learn.saving import check_same_run, load_description
from zoo.episode_ppo.options import ASYNC, COMMAND, OPTIONS, EpisodePPOOptions, build_options, rounds_at_once

if TYPE_CHECKING:
    from zoo.episode_ppo.trainer import Trainer

PROG = "lzero-async train episode_ppo"
ENDS = {"max_train": "total_episodes", "max_collect": "total_episodes", "eval_target": "target_score"}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The flags; those that are not given are left out."""
    parser = make_parser(str(__doc__), PROG)
    parser.add_argument(
        "--resume", nargs="?", const="", default=None, metavar="PATH",
        help="continue from a checkpoint or a run's folder (default: that of --exp_name), with the options of that run; "
        "--collector may change",
    )  # fmt: skip
    parser.add_argument(
        "--env_arg", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the environment or factory, as text or JSON; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--red_agent",
        default=None,
        metavar="NAME",
        help="the opponent, for factories that take one: --env_arg red_agent=NAME",
    )
    COMMAND.add_to(parser)
    return COMMAND.parse(parser, arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code: 0 done, 1 a role died, 2 bad input, 130 interrupted with a checkpoint saved."""
    return exit_code(lambda: train(parse_arguments(arguments)))


def train(flags: argparse.Namespace) -> int:
    """Options, folder; then train, evaluate once more, and say where everything is."""
    changes = changes_of(flags)
    with FolderLock() as lock:
        saved, state = find_run(flags.resume, changes, OPTIONS["exp_name"].default, load_description, lock)
        options = build_options(changes, saved=None if state is None else state.get("options", {}))
        # What cannot be used is found before there is a folder.
        if saved is not None and state is not None:
            check_same_run(saved, state, options)
        if options.device != "auto":
            present_device("device", options.device)
        spaces = describe(options.env, options.env_args, options.step_timeout)
        folder = free_folder(options.exp_name, saved, lock, ("wandb-id",))
        with logging_to(folder, "zoo.episode_ppo"):
            say_folder(folder, options.exp_name, saved)
            return _train(options, folder, saved, state, spaces)


def changes_of(flags: argparse.Namespace) -> dict[str, Any]:
    """The options among the flags; each --env_arg becomes a part of env_args, and so does --red_agent."""
    changes = COMMAND.changes(flags)
    given = [*flags.env_arg, *([] if flags.red_agent is None else [f"red_agent={json.dumps(flags.red_agent)}"])]
    if given:
        if "env_args" in changes:
            name = "env_arg" if flags.env_arg else "red_agent"
            raise ConfigError(f"env_args and {name} are both given; give the arguments in one way.")
        changes["env_args"] = parse_env_args(given)
    return changes


def _train(
    options: EpisodePPOOptions, folder: Path, saved: Path | None, state: dict[str, Any] | None, spaces: Spaces
) -> int:
    from zoo.episode_ppo.trainer import Trainer

    at_once = rounds_at_once(options) * options.episodes_per_update
    if at_once < options.num_envs:
        print(
            f"note: only {at_once} episodes are open at once, so {options.num_envs - at_once} of {options.num_envs} environments "
            f"have nothing to do; raise --episodes_per_update{' or --off_policy_degree' * (options.collector == ASYNC)}, or "
            "lower --num_envs."
        )
    trainer = Trainer(options, folder, spaces)

    def resume() -> str:
        assert saved is not None and state is not None
        trainer.resume(saved, state)
        return f"resumed from {saved} at {trainer.counters['episodes']:,} episodes"

    return run_program(trainer, None if saved is None else resume, ENDS, partial(report, trainer))


def report(trainer: Trainer, final: dict[str, Any] | None, reason: str) -> None:
    """The numbers of the run on screen."""
    from lzero_async.telemetry.utilisation import compare, format_targets

    counters, pool = trainer.counters, trainer.pool.statistics()._asdict()
    seconds = max(trainer.coordinator.get_statistics()["wall_time"], 1e-9)
    print(
        f"trained on {counters['episodes']:,} episodes ({counters['steps']:,} steps, {counters['updates']:,} updates), "
        f"{counters['episodes'] / seconds:.1f} eps/sec"
    )
    print(
        f"episodes: {pool['started']:,} started = {pool['complete']:,} in whole rounds + {pool['left_out']:,} left out + "
        f"{pool['abandoned']:,} abandoned; {pool['failed']:,} tries failed ({pool['bad_data']:,} bad data, "
        f"{pool['env_timeouts']:,} time-outs), {pool['replayed']:,} played again after their worker ended"
    )
    if (evaluations := trainer.eval_failures)["failed"]:
        print(f"evaluations: {evaluations['failed']:,} tries failed, {evaluations['left_out']:,} episodes left out")
    if counters["bad_updates"]:
        print(f"skipped gradient steps, because they were not finite: {counters['bad_updates']:,}")
    print("busy: " + ", ".join(f"{name} {share:.0%}" for name, share in trainer.busy().items()))
    print(format_targets(row for row in compare(trainer.utilisation()) if row.name != "buffer"))
    if final is not None:
        print(f"final evaluation: mean return {final['mean_return']:.1f} of {final['episodes']} episodes "
              f"({final['min_return']:.1f} to {final['max_return']:.1f})")  # fmt: skip
    print(f"ended by: {reason}")
    say_places(trainer.folder)


if __name__ == "__main__":
    sys.exit(main())
