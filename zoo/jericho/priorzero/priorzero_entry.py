"""Train PriorZero (UniZero's world model and search, with a language model's prior at the root) on a text game.

    python priorzero_entry.py                                    the game that comes with the project
    python priorzero_entry.py --env_id zork1.z5                  a game of Jericho's suite
    python priorzero_entry.py --quick_test                       every part once, in one to three minutes
    python priorzero_entry.py --resume runs/priorzero            go on with the run in that folder
    python priorzero_entry.py --set policy_config.num_simulations=50 --set llm_config.llm_weight=0.3

All options with their meaning are in priorzero_config.py. Everything that a run writes is in its folder (--exp_name):
checkpoints, TensorBoard scalars (log/), a log file and the results.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lzero_async.runs.folder_lock import FolderLock
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

CACHE_FILE = "cache.sqlite"
ENDS = {
    "max_train": "max_iter",
    "stop_fn": "max_env_step",
    "eval_target": "target_score",
}  # the loop's names for this program's limits


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; flags that are not given leave the config file's value."""
    from zoo.jericho.priorzero.priorzero_config import PRESETS

    parser = argparse.ArgumentParser(
        prog="priorzero_entry.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    game = parser.add_argument_group("game")
    game.add_argument("--env_id", help="story file: a name to look for, or a path (default: the game that comes along)")
    game.add_argument("--rom_dir", help="folder to look for it in first")
    run = parser.add_argument_group("run")
    run.add_argument(
        "--preset", default="embedded", choices=PRESETS, help="a set of options (default: %(default)s, CPU only)"
    )
    run.add_argument("--quick_test", action="store_true", help="a few short rounds through every part, 1 to 3 minutes")
    run.add_argument("--seed", type=int, help="seed of everything random")
    run.add_argument("--max_iter", type=int, help="trains after which to end (0: no limit)")
    run.add_argument("--max_env_step", type=int, help="environment steps after which to end (0: no limit)")
    run.add_argument("--exp_name", help="folder for everything that the run writes")
    run.add_argument(
        "--resume", nargs="?", const="", metavar="PATH",
        help="go on from a checkpoint or a run's folder (default: that of --exp_name), with the options of that run",
    )  # fmt: skip
    how = parser.add_argument_group("how asynchronous")
    how.add_argument("--off_policy_degree", type=int, help="0 synchronous, 1 and more asynchronous, -1 automatic")
    how.add_argument("--num_collectors", type=int, help="collectors that play at once (at most the degree are busy)")
    how.add_argument("--learner_ranks", type=int, help="processes that share every update's batch (default: 1)")
    how.add_argument("--async_eval", action="store_true", default=None, help="evaluate in the background")
    how.add_argument(
        "--backend", choices=("auto", "inline", "thread", "process", "ray"),
        help="where the roles live (default: auto, processes from degree 1 on; ray: on a Ray cluster)",
    )  # fmt: skip
    how.add_argument("--ray_address", help="Ray cluster to use, as HOST:6379 or auto (default: one of its own, here)")
    how.add_argument(
        "--ray_resources",
        help='what roles need of its machines, as JSON: {"collector": {"CPU": 2}}; kinds: collector, evaluator, reanalyzer, '
        "learner, learner rank (default: a core each, but nothing for the learner, which stays on this machine)",
    )
    watching = parser.add_argument_group("watching")
    watching.add_argument("--plain", action="store_true", default=None, help="lines instead of the live view")
    watching.add_argument(
        "--wandb", choices=("off", "offline", "online"), help="Weights & Biases (offline: no account)"
    )
    watching.add_argument("--metrics_port", type=int, help="serve Prometheus metrics on this port of this machine")
    llm = parser.add_argument_group("language model")
    llm.add_argument("--llm", help="folder or hub name (default: SmolLM2-135M-Instruct from PyPI)")
    llm.add_argument("--llm_engine", choices=("transformers", "vllm"), help="what runs it")
    llm.add_argument("--llm_url", help="address of a running vLLM server; several with commas between them")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.OPTION=VALUE", dest="assignments",
        help="change any option of priorzero_config.py; may be given several times",
    )  # fmt: skip
    return parser.parse_args(arguments)


FLAGS = {
    "env_id": "env_config.env_id",
    "rom_dir": "env_config.rom_dir",
    "seed": "run_config.seed",
    "max_iter": "run_config.max_iter",
    "max_env_step": "run_config.max_env_step",
    "exp_name": "run_config.exp_name",
    "off_policy_degree": "policy_config.off_policy_degree",
    "num_collectors": "policy_config.num_collectors",
    "learner_ranks": "policy_config.learner_ranks",
    "async_eval": "policy_config.enable_async_eval",
    "backend": "policy_config.backend",
    "ray_address": "policy_config.ray_address",
    "ray_resources": "policy_config.ray_resources",
    "plain": "run_config.plain",
    "wandb": "run_config.wandb",
    "metrics_port": "run_config.metrics_port",
    "llm": "llm_config.llm",
    "llm_engine": "llm_config.llm_engine",
    "llm_url": "llm_config.llm_url",
}


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

    changes = {path: getattr(flags, flag) for flag, path in FLAGS.items() if getattr(flags, flag) is not None}
    if flags.llm_url and not flags.llm_engine:
        changes["llm_config.llm_engine"] = "vllm"
    if flags.quick_test and flags.exp_name is None:
        changes["run_config.exp_name"] = "runs/quick_test"
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
        folder = folder_of(saved) if saved is not None and not flags.exp_name else None
        folder = folder or free_folder(options.run_config.exp_name, saved, lock, (CACHE_FILE, "cache-", "wandb-id"))
        with logging_to(folder, "zoo.jericho.priorzero"):
            return _train(options, game, folder, saved, state)


def _train(options: Any, game: Any, folder: Path, saved: Path | None, state: dict[str, Any] | None) -> int:
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


def _report(agent: Any, rows: list[dict[str, Any]], reason: str) -> None:
    """The evaluation table and the places, on screen."""
    from lzero_async.telemetry.terminal.progress import table

    game = agent.game
    if rows:
        names = {"prior": "search with LLM prior", "world_model": "search alone", "llm": "LLM alone"}
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
    print(f"\n{_saved_work(agent.reuse())}")
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
