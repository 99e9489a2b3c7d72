"""Text games as a DI-engine environment: valid actions in slots, a mask, and an observation that is text."""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import gym
import numpy as np
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.utils import ENV_REGISTRY
from numpy.typing import NDArray

from lzero_async.errors import ConfigError
from lzero_async.validation import duration, whole_number
from zoo.jericho.priorzero.games.files import SHIPPED_GAME, Game, find_game
from zoo.jericho.priorzero.games.process import GameHung, GameProcess, GameProcessError, GameSaidNonsense
from zoo.jericho.priorzero.games.session import GameState
from zoo.jericho.priorzero.paths import valid_actions_file

_logger = logging.getLogger(__name__)
_MOVES = (
    "north south east west northeast northwest southeast southwest up down in out enter exit ne nw se sw n s e w u d"
)
_START_ATTEMPTS = 3


@ENV_REGISTRY.register("jericho_priorzero")
class JerichoEnv(BaseEnv):
    """One text game in its own process; see `config` for the keys of `cfg`.

    Observations are dicts: `observation` (text for the world model), `action_mask` (int8, one per slot), `to_play` (-1),
    `timestep`, `valid_actions` (the actions in the slots) and `state` (the GameState). A hang or crash of the game, or a state
    that no game can be in, ends the episode with `info["abnormal"]`, `info["hung"]` and why as `info["failure"]`; the next
    `reset` starts a fresh process.
    """

    config: ClassVar[dict[str, Any]] = {
        # A Game, or None to look for `env_id` (in `rom_dir` and the other places of find_game).
        "game": None,
        "env_id": SHIPPED_GAME,
        "rom_dir": None,
        # Steps after which an episode ends, done or not.
        "max_steps": 100,
        # Slots for actions.
        "max_action_num": 20,
        # 'state': look, inventory and actions, the same text whenever the game is in the same state; 'full': the response first.
        "observation": "state",
        # Seconds a step or a reset may take, the search for valid actions included, and seconds for the start of the process.
        "step_timeout": 20.0,
        "start_timeout": 30.0,
        # File of valid actions by state; None: in the user's cache folder; '': off.
        "valid_action_store": None,
        "valid_action_rows": 200_000,
    }

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        options = {**self.config, **{k: v for k, v in dict(cfg or {}).items() if k in self.config}}
        self._game = _game_of(options)
        self._max_steps = _positive(options, "max_steps")
        self._slots = _positive(options, "max_action_num")
        if options["observation"] not in ("state", "full"):
            raise ConfigError(f"observation is {options['observation']!r}; it must be 'state' or 'full'")
        self._with_response = options["observation"] == "full"
        store = options["valid_action_store"]
        self._process_options: dict[str, Any] = {
            "timeout": duration("step_timeout", options["step_timeout"]),
            "start_timeout": duration("start_timeout", options["start_timeout"]),
            "store_path": str(valid_actions_file() if store is None else store),
            "store_rows": _positive(options, "valid_action_rows"),
        }
        self._process: GameProcess | None = None
        self._seed: int | None = None
        self._dice: random.Random | None = None
        self._state: GameState | None = None
        self._actions: tuple[str, ...] = ()
        self._command = ""
        self._failed: GameProcessError | None = None
        self._steps = 0
        self._return = 0.0
        self._done = True
        self._ended: dict[str, float] = {}
        self._counts = {
            "abnormal_ends": 0,
            "timeouts": 0,
            "slot_overflows": 0,
            "no_valid_action": 0,
            "process_starts": 0,
        }
        self.observation_space = gym.spaces.Dict()
        self.action_space = gym.spaces.Discrete(self._slots)
        self.reward_space = gym.spaces.Box(low=-np.inf, high=np.inf, shape=(1,), dtype=np.float32)

    @property
    def game(self) -> Game:
        """The game that is played."""
        return self._game

    def seed(self, seed: int, dynamic_seed: bool = False) -> None:
        """Seed of the game's random numbers: the same in every episode, or with `dynamic_seed` a new one drawn from it."""
        self._seed = int(seed)
        self._dice = random.Random(self._seed) if dynamic_seed else None

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        """Begin an episode, in a fresh process if the last one is gone; a seed given here holds from now on.

        A game that cannot be started is tried three times; then GameProcessError.
        """
        used = self._seed_of_episode(seed)
        for attempt in range(1, _START_ATTEMPTS):
            self._begin_reset(used)
            try:
                return self.end_reset()
            except GameProcessError as error:
                _logger.warning("the game could not be started (attempt %d of %d): %s", attempt, _START_ATTEMPTS, error)
        self._begin_reset(used)
        return self.end_reset()

    def begin_reset(self, seed: int | None = None) -> None:
        """Begin an episode without waiting for the game, so that several environments start at once; `end_reset` follows."""
        self._begin_reset(self._seed_of_episode(seed))

    def end_reset(self) -> dict[str, Any]:
        """The first observation after `begin_reset`; GameProcessError when the game could not be started, this one time."""
        try:
            if self._failed is not None:
                raise self._failed
            assert self._process is not None
            self._state = self._checked(self._process.end_reset())
        except Exception as error:
            self._counts["timeouts"] += isinstance(error, GameHung)
            self._drop_process()
            raise
        self._steps, self._return, self._done = 0, 0.0, False
        return self._observe()

    def step(self, action: int | str | NDArray[Any]) -> BaseEnvTimestep:
        """Take the action of a slot, or send a text; ValueError for a slot that holds none."""
        self.begin_step(action)
        return self.end_step()

    def begin_step(self, action: int | str | NDArray[Any]) -> None:
        """Take an action without waiting for the game, so that several environments step at once; `end_step` follows."""
        if self._done or self._state is None:
            raise RuntimeError("the episode has ended; call reset first")
        self._command = action if isinstance(action, str) else self._action_of(int(action))
        self._failed = None
        try:
            assert self._process is not None
            self._process.begin_step(self._command)
        except GameProcessError as error:
            self._failed = error

    def end_step(self) -> BaseEnvTimestep:
        """What became of `begin_step`."""
        assert self._state is not None and self._process is not None
        abnormal, failure = False, {}
        try:
            if self._failed is not None:
                raise self._failed
            self._state = self._checked(self._process.end_step())
        except GameProcessError as error:
            _logger.warning("episode ended after %d steps: %s", self._steps, error)
            self._drop_process()
            self._counts["abnormal_ends"] += 1
            self._counts["timeouts"] += isinstance(error, GameHung)
            abnormal, failure = True, {"failure": str(error), "hung": isinstance(error, GameHung)}
            self._state = replace(self._state, reward=0.0, done=True)
        self._steps += 1
        self._return += self._state.reward
        timeout = not self._state.done and self._steps >= self._max_steps
        self._done = self._state.done or timeout
        info: dict[str, Any] = {
            "action": self._command,
            "abnormal": abnormal,
            "timeout": timeout,
            "score": self._state.score,
            **failure,
        }
        if self._done:
            info |= self._result()
        return BaseEnvTimestep(self._observe(), self._state.reward, self._done, info)

    def waitable(self) -> Connection | None:
        """What to wait on, at most to `deadline`, until what was begun can be ended without waiting; None when it can now."""
        return None if self._failed is not None or self._process is None else self._process.waitable()

    @property
    def deadline(self) -> float:
        """Monotonic time at which the watchdog ends a game that has not answered; then nothing has to be waited for."""
        return math.inf if self._process is None else self._process.deadline

    def begin_close(self) -> None:
        """Tell the game's process to end without waiting for it, so that several end at once; `close` follows."""
        if self._process is not None:
            self._process.begin_close()

    def close(self) -> None:
        """End the game's process."""
        self._drop_process()
        self._done = True

    def statistics(self) -> dict[str, float]:
        """Counts since the environment was made, those of its processes included."""
        process, now = self._process, dict(self._ended)
        for name, value in (process.statistics() if process is not None else {}).items():
            now[name] = now.get(name, 0) + value
        return {**self._counts, **now}

    def __repr__(self) -> str:
        return f"JerichoEnv({self._game.label})"

    @staticmethod
    def create_collector_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """One config per collector environment."""
        return _copies(cfg, "collector_env_num", is_collect=True)

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """One config per evaluator environment."""
        return _copies(cfg, "evaluator_env_num", is_collect=False)

    def _result(self) -> dict[str, Any]:
        state = self._state
        assert state is not None
        return {
            "eval_episode_return": self._return,
            "normalised_score": state.score / self._game.max_score,
            "moves": state.moves,
            "won": state.won,
            "died": state.died,
            "label": self._game.label,
            "steps": self._steps,
        }

    def _checked(self, state: GameState) -> GameState:
        """The state, or GameSaidNonsense: from here on nobody looks any more."""
        fault = state.fault() if isinstance(state, GameState) else f"{type(state).__name__} is no state of a game"
        if fault:
            raise GameSaidNonsense(f"{self._game.label} said nonsense after {self._command or 'its start'!r}: {fault}")
        return state

    def _observe(self) -> dict[str, Any]:
        state = self._state
        assert state is not None
        if len(state.valid_actions) > self._slots:
            self._counts["slot_overflows"] += 1
        elif not state.valid_actions and not state.done:
            self._counts["no_valid_action"] += 1
        self._actions = fill_slots(state.valid_actions, self._slots)
        mask = np.zeros(self._slots, dtype=np.int8)
        mask[: len(self._actions)] = 1
        parts = [state.response] if self._with_response else []
        parts += [part for part in (state.look, state.inventory) if part and part not in parts]
        return {
            "observation": "\n".join([*parts, f"Valid actions: {', '.join(self._actions)}"]),
            "action_mask": mask,
            "to_play": -1,
            "timestep": self._steps,
            "valid_actions": self._actions,
            "state": state,
        }

    def _action_of(self, slot: int) -> str:
        if not 0 <= slot < len(self._actions):
            raise ValueError(f"slot {slot} holds no action; there are {len(self._actions)} (see action_mask)")
        return self._actions[slot]

    def _seed_of_episode(self, seed: int | None) -> int | None:
        if seed is not None:
            self.seed(seed)
        return self._dice.randrange(1, 2**31 - 1) if self._dice else self._seed

    def _begin_reset(self, seed: int | None) -> None:
        self._done, self._failed, self._command = True, None, ""
        try:
            if self._process is None or not self._process.alive:
                self._drop_process()
                self._counts["process_starts"] += 1
                self._process = GameProcess(self._game, seed, wait=False, **self._process_options)
            self._process.begin_reset(seed)
        except GameProcessError as error:
            self._failed = error

    def _drop_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for name, value in process.statistics().items():
            self._ended[name] = self._ended.get(name, 0) + value
        process.close()


def fill_slots(actions: Sequence[str], slots: int) -> tuple[str, ...]:
    """The actions for that many slots, sorted: all that fit, else moves first and of the rest a choice that depends on the
    actions alone; 'look' if there is none.
    """
    if not actions:
        return ("look",)
    if len(actions) <= slots:
        return tuple(actions)
    moves = [a for a in actions if a.removeprefix("go ") in _MOVES.split()]
    rest = [a for a in actions if a not in set(moves)]
    dice = random.Random("\n".join(actions))
    kept = moves if len(moves) <= slots else dice.sample(moves, slots)
    return tuple(sorted([*kept, *dice.sample(rest, slots - len(kept))]))


def _game_of(options: Mapping[str, Any]) -> Game:
    game = options["game"]
    if isinstance(game, Game):
        return game
    if game is not None:
        raise ConfigError(f"game is {game!r}; give what find_game returns, or leave it out and give env_id")
    return find_game(options["env_id"], options["rom_dir"])


def _positive(options: Mapping[str, Any], name: str) -> int:
    return whole_number(name, options[name], 1)


def _copies(cfg: dict[str, Any], count: str, **more: Any) -> list[dict[str, Any]]:
    shared = copy.deepcopy({k: v for k, v in cfg.items() if k != count})
    return [{**shared, **more} for _ in range(cfg[count])]
