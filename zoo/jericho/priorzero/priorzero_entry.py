"""Train PriorZero (UniZero's world model and search, with a language model's prior at the root) on a text game.

  lzero-async train priorzero                                      the game that comes with the project, synchronously
  lzero-async train priorzero --off_policy_degree 2 --async_eval   collect, train and evaluate at the same time
  lzero-async train priorzero --env_id zork1.z5                    a game of Jericho's suite
  lzero-async train priorzero --quick_test                         every part once, in one to three minutes
  lzero-async train priorzero --resume runs/priorzero              continue the run in that folder
  lzero-async train priorzero --num_simulations 50 --set llm_config.llm_weight=0.3

`python zoo/jericho/priorzero/priorzero_entry.py` is the same command. The options below are those of priorzero_config.py, where
they may be edited; --set section.option=value names one in full. Hyphens and underscores are the same, and true or false may
follow a flag like --plain. Everything a run writes is in its folder (--exp_name): checkpoints, TensorBoard scalars (log/), a log
file and the results.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.options import make_parser
from lzero_async.runs.program import run_program
from lzero_async.runs.run_dir import (
    exit_code,
    find_checkpoint,
    folder_of,
    free_folder,
    logging_to,
    say_folder,
    say_places,
)

if TYPE_CHECKING:
    from zoo.jericho.priorzero.games.files import Game
    from zoo.jericho.priorzero.sections import PriorZeroOptions
    from zoo.jericho.priorzero.trainer import PriorZero

PROG = "lzero-async train priorzero"
CACHE_FILE = "cache.sqlite"
ENDS = {
    "max_train": "max_iter",
    "stop_fn": "max_env_steps",
    "eval_target": "target_score",
}  # the loop's names for this program's limits


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; flags that are not given leave the config file's value."""
    from zoo.jericho.priorzero.options import command_line
    from zoo.jericho.priorzero.priorzero_config import PRESETS

    parser = make_parser(str(__doc__), PROG)
    parser.add_argument(
        "--preset", default="embedded", choices=PRESETS, metavar="NAME",
        help=f"a set of options: {', '.join(PRESETS)} (default: %(default)s, CPU only)",
    )  # fmt: skip
    parser.add_argument(
        "--quick_test", action="store_true", default=False, help="a few short rounds through every part, 1 to 3 minutes"
    )
    parser.add_argument(
        "--resume", nargs="?", const="", default=None, metavar="PATH",
        help="continue from a checkpoint or a run's folder (default: that of --exp_name), with the options of that run",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.OPTION=VALUE", dest="assignments",
        help="change an option by its full name; may be given several times",
    )  # fmt: skip
    command_line().add_to(parser)
    return command_line().parse(parser, arguments)


def changes_of(flags: argparse.Namespace) -> dict[str, Any]:
    """The options among the flags, by section.option. An address of a vLLM server means that engine, and a quick test has its
    own folder."""
    from zoo.jericho.priorzero.options import by_section, command_line

    changes = by_section(command_line().changes(flags))
    if changes.get("llm_config.llm_url"):
        changes.setdefault("llm_config.llm_engine", "vllm")
    if flags.quick_test:
        changes.setdefault("run_config.exp_name", "runs/quick_test")
    return changes


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code: 0 done, 1 a role died, 2 bad input, 130 interrupted with a checkpoint saved."""
    return exit_code(lambda: train(parse_arguments(arguments)))


def train(flags: argparse.Namespace) -> int:
    """Options, game, folder; then train, evaluate once more, and say where everything is."""
    from lzero_async.runs import checkpoint
    from zoo.jericho.priorzero.games.files import find_game
    from zoo.jericho.priorzero.learn.saving import CHECKPOINT
    from zoo.jericho.priorzero.options import build_options
    from zoo.jericho.priorzero.priorzero_config import run_config

    changes = changes_of(flags)
    with FolderLock() as lock:
        saved = find_checkpoint(flags.resume, changes.get("run_config.exp_name", run_config["exp_name"]), lock)
        state = checkpoint.load(saved, CHECKPOINT, arrays=False) if saved is not None else None
        options = build_options(
            flags.preset,
            quick_test=flags.quick_test,
            saved=None if state is None else state.get("options", {}),
            changes=changes,
            assignments=flags.assignments,
        )
        env = options.env_config
        game = find_game(env.env_id, env.rom_dir or None, allow_substitute=flags.quick_test)
        folder = folder_of(saved) if saved is not None and "exp_name" not in flags else None
        folder = folder or free_folder(options.run_config.exp_name, saved, lock, (CACHE_FILE, "cache-", "wandb-id"))
        with logging_to(folder, "zoo.jericho.priorzero"):
            return _train(options, game, folder, saved, state)


def _train(
    options: PriorZeroOptions, game: Game, folder: Path, saved: Path | None, state: dict[str, Any] | None
) -> int:
    if game.substitute_for:
        warning = (
            f"NOTE: {game.substitute_for} was not found. This quick test plays {game.label} instead; its scores say "
            f"nothing about {game.substitute_for}."
        )
        print(f"{'!' * 80}\n{warning}\n{'!' * 80}", flush=True)
        logging.getLogger("zoo.jericho.priorzero").info(warning)
    from zoo.jericho.priorzero.trainer import PriorZero

    say_folder(folder, options.run_config.exp_name, saved)
    agent = PriorZero(options, game, folder)

    def resume() -> str:
        assert saved is not None and state is not None
        agent.resume(saved, state)
        return f"resumed from {saved} at {agent.env_steps:,} environment steps"

    return run_program(
        agent, None if saved is None else resume, ENDS,
        lambda rows, reason: _report(agent, rows or [], reason),
    )  # fmt: skip


def _report(agent: PriorZero, rows: list[dict[str, Any]], reason: str) -> None:
    """The evaluation table and the places, on screen."""
    from lzero_async.telemetry.terminal.progress import table

    game = agent.game
    if rows:
        names = {
            "prior": "search with LLM prior", "world_model": "search alone", "llm": "LLM alone",
            "prior_frozen": "search with the prior as it was", "llm_frozen": "LLM alone, as it was",
        }  # fmt: skip
        cells = [["evaluation", "episodes", "mean", "best", f"of {game.max_score}", "length", "won", "died"]]
        cells += [
            [names[row["mode"]], str(row["episodes"]), f"{row['mean']:.1f}", f"{row['best']:.0f}",
             f"{row['normalised']:.0%}", f"{row['length']:.0f}", str(row["won"]), str(row["died"])]
            for row in rows
        ]  # fmt: skip
        print(
            f"\n{game.label}, the last weights"
            + (f" (instead of {game.substitute_for})" if game.substitute_for else "")
        )
        print(table(cells))
    print(f"\n{_saved_work(agent.reuse.totals())}")
    troubles = {name: count for name, count in agent.troubles.items() if count}
    if troubles:
        print("left out: " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in troubles.items()))
    print(f"ended by: {reason}")
    say_places(agent.folder)


def _saved_work(reuse: dict[str, Any]) -> str:
    """One line about the caches."""
    asked = reuse.get("game_valid_action_hits", 0) + reuse.get("game_valid_action_misses", 0)
    shares = {"text vectors": reuse.get("encoder_hit_rate"), "priors": reuse.get("prior_hit_rate")}
    shares["valid actions"] = reuse.get("game_valid_action_hits", 0) / asked if asked else None
    return "known already: " + ", ".join(
        f"{share:.1%} of {name}" for name, share in shares.items() if share is not None
    )


if __name__ == "__main__":
    sys.exit(main())
