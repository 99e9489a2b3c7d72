"""PriorZero on a text game that goes wrong now and then, and writes down each time that it does (see _poisoned_env).

POISON_FOLDER=... python -m benchmarks._poisoned_game PROBABILITY [arguments of priorzero_entry.py]
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks._poisoned_env import Poison
from zoo.jericho.priorzero.games import process as game_process
from zoo.jericho.priorzero.games import session as game_session
from zoo.jericho.priorzero.games.session import GameSession, GameState
from zoo.jericho.priorzero.games.valid_actions import Description
from zoo.jericho.priorzero.play.components import Parts

PROBABILITY: Final = "POISON_PROBABILITY"
LENGTH: Final = 10  # steps of an episode
ACTIONS: Final = ("east", "inventory", "look", "north", "south", "west")
_CODE: Final = game_process._CODE.replace(
    "from zoo.jericho.priorzero.games.process import child_main",
    "from benchmarks._poisoned_game import poisoned_main as child_main",
)


class PoisonedSession(GameSession):
    """A game with poison in it. It offers the same actions in every state: to search for them takes longer than its limit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._poison = Poison(float(os.environ[PROBABILITY]), LENGTH)

    def _search(self) -> Description:
        return Description(ACTIONS, self._adapter.peek("look"), self._adapter.peek("inventory"), "")

    def reset(self, seed: int | None = None) -> GameState:
        """Begin the game; a crash by state follows from its seed."""
        state = super().reset(seed)
        self._poison.begin(np.array([self._seed or 0]))
        return state

    def step(self, action: str) -> GameState:
        """Send one command, and now and then answer nonsense, or never."""
        try:
            fault = self._poison.strike()
        except RuntimeError as error:
            if "crash_by_state" not in str(error):
                os.kill(os.getpid(), signal.SIGSEGV)  # as the C code would
            raise
        state = super().step(action)
        if fault == "nan":
            return replace(state, reward=float("nan"))
        if fault == "inf":
            return replace(state, reward=float("inf"))
        if fault == "shape":
            return replace(state, valid_actions=(state.valid_actions, state.valid_actions))  # type: ignore[arg-type]
        return state


def poisoned_main(descriptor: int) -> None:
    """The process of such a game."""
    game_session.GameSession = PoisonedSession  # type: ignore[misc]
    game_process.child_main(descriptor)


class PoisonedParts(Parts):
    """What PriorZero's roles are built from, with such games."""

    def new_env(self) -> Any:
        """One more environment of the poisoned game."""
        game_process._CODE = _CODE
        return super().new_env()


def arguments(folder: str, seconds: float) -> list[str]:
    """A small run of PriorZero: no language model, two collectors with two games each, and an evaluator with one."""
    settings = (
        f"env_config.max_steps={LENGTH} env_config.collector_env_num=2 env_config.evaluator_env_num=1 "
        "env_config.step_timeout=1.0 env_config.valid_action_store=off policy_config.n_episode=4 "
        "policy_config.num_collectors=2 policy_config.off_policy_degree=4 policy_config.update_per_collect=2 "
        "policy_config.batch_size=8 policy_config.num_simulations=2 policy_config.embed_dim=16 policy_config.num_layers=1 "
        "policy_config.num_heads=2 policy_config.num_unroll_steps=5 llm_config.root_policy=wm_logits "
        "run_config.eval_modes=['world_model'] run_config.final_eval_modes=[] run_config.eval_every=10 "
        "run_config.eval_episodes=2 run_config.checkpoint_every=10 run_config.max_env_step=0 run_config.report=False "
        f"run_config.max_seconds={seconds}"
    )
    return ["--exp_name", folder, *(word for setting in settings.split() for word in ("--set", setting))]


def main(words: list[str]) -> int:
    """Train with games whose faults have the probability of the first word; the exit code of priorzero_entry.py."""
    from zoo.jericho.priorzero import priorzero_entry, trainer

    trainer.Parts = PoisonedParts  # type: ignore[misc]
    os.environ[PROBABILITY] = words[0]  # for the games' processes
    return priorzero_entry.main(words[1:])


if __name__ == "__main__":
    from benchmarks import _poisoned_game  # its classes travel to other processes under this name

    sys.exit(_poisoned_game.main(sys.argv[1:]))
