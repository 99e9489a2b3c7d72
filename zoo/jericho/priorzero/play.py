"""Playing episodes: several games step together, so that encoder, language model and search work on batches.

A collect plays whole episodes with one version of the weights, and every random choice comes from a generator that the
caller seeds: nothing of an episode survives the call, so a run can stop and resume between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zoo.jericho.priorzero.prior import LLMPrior, PriorRequest
from zoo.jericho.priorzero.prompts import Turn
from zoo.jericho.priorzero.root_policy import mix_root_policies
from zoo.jericho.priorzero.search import RootInput, TreeSearch
from zoo.jericho.priorzero.text_encoder import TextEncoder
from zoo.jericho.priorzero.tree_seed import seed_tree

MODES = ("prior", "world_model", "llm", "random")


@dataclass
class Episode:
    """One episode as arrays over its T steps; `observations` and `masks` have one row more for the last state."""

    observations: np.ndarray  # float32 [T + 1, features]
    actions: np.ndarray  # int64 [T], slots
    rewards: np.ndarray  # float32 [T], points
    masks: np.ndarray  # int8 [T + 1, slots]
    visits: np.ndarray  # float32 [T, slots], the search's distribution
    root_values: np.ndarray  # float32 [T]
    predicted_values: np.ndarray  # float32 [T]
    ended: bool  # by the game itself (won or died), so that nothing follows
    info: dict[str, Any] = field(default_factory=dict)  # score, normalised_score, moves, won, died, abnormal, commands

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Style:
    """How to play: whose policy, how long to search, how random."""

    mode: str = "prior"
    num_simulations: int = 25
    temperature: float = 1.0  # of the visit counts; 0 takes the most visited
    epsilon: float = 0.0  # share of uniformly random moves
    stuck_steps: int = 0  # steps without reward after which stuck_epsilon is that share (0: never)
    stuck_epsilon: float = 0.0
    noise_weight: float = 0.0  # Dirichlet noise at the root


class Player:
    """A set of environments and what is needed to act in them. Not for several threads at once."""

    def __init__(
        self,
        envs: Sequence[Any],
        encoder: TextEncoder | None,
        search: TreeSearch | None,
        prior: LLMPrior | None,
        *,
        root_policy: str = "llm_plus_wm_logits",
        llm_weight: float = 0.5,
        weighting: str = "fixed",
        observation: str = "state",
        history_length: int = 0,
    ) -> None:
        self.envs, self.encoder, self.search, self.prior = list(envs), encoder, search, prior
        self._mixing = {"llm_weight": llm_weight, "weighting": weighting}
        self._root_policy, self._observation, self._history_length = root_policy, observation, history_length
        self._window = search.max_window if search is not None else 1

    def play(
        self,
        episodes: int,
        rng: np.random.Generator,
        style: Style,
        *,
        on_step: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[Episode]:
        """Play this many episodes and return them in the order of their start; when `should_stop` says so, only those that
        have ended by then.

        `on_step` is told after each round how many steps it took.
        """
        seed_tree(int(rng.integers(2**31)))
        seeds = iter(rng.integers(1, 2**31 - 1, size=episodes).tolist())
        finished: dict[int, Episode] = {}
        numbers = iter(range(episodes))
        games = [game for env in self.envs if (game := self._start(env, numbers, seeds)) is not None]
        while games and not should_stop():
            self._move(games, rng, style)
            if on_step is not None:
                on_step(len(games))
            still: list[_Game] = []
            for game in games:
                if not game.done:
                    still.append(game)
                    continue
                finished[game.number] = game.episode()
                following = self._start(game.env, numbers, seeds)
                still += [following] if following is not None else []
            games = still
        return [finished[number] for number in sorted(finished)]

    def _start(self, env: Any, numbers: Iterator[int], seeds: Iterator[int]) -> _Game | None:
        number = next(numbers, None)
        if number is None:
            return None
        env.seed(next(seeds))
        return _Game(number, env, env.reset(), self._history_length)

    def _move(self, games: list[_Game], rng: np.random.Generator, style: Style) -> None:
        """One step of every game."""
        self._look(games)
        choices = self._decide(games, rng, style)
        for game, (action, _, _, _) in zip(games, choices, strict=True):
            game.env.begin_step(action)
        for game, (action, visits, value, predicted) in zip(games, choices, strict=True):
            game.record(action, visits, value, predicted, game.env.end_step())
        self._look([game for game in games if game.done])

    def _look(self, games: list[_Game]) -> None:
        """Encode the present observation of each game, once."""
        games = [game for game in games if len(game.vectors) == len(game.actions)]
        if not games:
            return
        if self.encoder is None:
            vectors: Sequence[np.ndarray] = [np.zeros(1, np.float32)] * len(games)
        else:
            vectors = self.encoder([observation_parts(game.obs, self._observation) for game in games])
        for game, vector in zip(games, vectors, strict=True):
            game.vectors.append(vector)

    def _decide(
        self, games: list[_Game], rng: np.random.Generator, style: Style
    ) -> list[tuple[int, np.ndarray, float, float]]:
        """Slot, visit distribution, root value and predicted value for each game."""
        masks = [game.masks[-1] for game in games]
        if style.mode == "random":
            uniform = [mask.astype(np.float32) / mask.sum() for mask in masks]
            return [(int(rng.choice(len(row), p=row)), row, 0.0, 0.0) for row in uniform]
        llm = self._ask_prior(games) if self._needs_prior(style.mode) else None
        if style.mode == "llm":
            assert llm is not None
            rows = [_spread(log_probs, len(mask)) for log_probs, mask in zip(llm, masks, strict=True)]
            return [(_choose(row, style, rng, mask), row, 0.0, 0.0) for row, mask in zip(rows, masks, strict=True)]
        assert self.search is not None
        mode = "wm_logits" if llm is None else self._root_policy

        def policy(logits: np.ndarray) -> np.ndarray:
            return mix_root_policies(llm or [None] * len(games), logits, np.stack(masks), mode=mode, **self._mixing)

        outputs = self.search.run(
            [game.root(self._window) for game in games],
            policy,
            num_simulations=style.num_simulations,
            noise_weight=style.noise_weight,
            rng=rng,
        )
        return [
            (_choose(found.visits, style, rng, mask, game.unrewarded), found.visits, found.value, found.predicted_value)
            for found, mask, game in zip(outputs, masks, games, strict=True)
        ]

    def _needs_prior(self, mode: str) -> bool:
        return mode == "llm" or (mode == "prior" and self._root_policy != "wm_logits")

    def _ask_prior(self, games: list[_Game]) -> list[np.ndarray]:
        assert self.prior is not None
        return self.prior(
            [
                PriorRequest(game.obs["state"], tuple(game.obs["valid_actions"]), tuple(game.history), id(game))
                for game in games
            ]
        )

    def close(self) -> None:
        """End the games' processes."""
        for env in self.envs:
            env.close()


class _Game:
    """One episode under way."""

    def __init__(self, number: int, env: Any, obs: dict[str, Any], history_length: int) -> None:
        self.number, self.env, self.obs = number, env, obs
        self.vectors: list[np.ndarray] = []
        self.masks: list[np.ndarray] = [obs["action_mask"]]
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.visits: list[np.ndarray] = []
        self.values: list[float] = []
        self.predicted: list[float] = []
        self.history: list[Turn] = []  # whole: the prompt's window moves over it in chunks
        self.keeps_history = history_length > 0
        self.unrewarded = 0
        self.commands: list[str] = []
        self.done = False
        self.info: dict[str, Any] = {}

    def root(self, window: int) -> RootInput:
        size = min(window, len(self.vectors))
        return RootInput(np.stack(self.vectors[-size:]), self.actions[len(self.actions) - size + 1 :], self.masks[-1])

    def record(self, action: int, visits: np.ndarray, value: float, predicted: float, timestep: Any) -> None:
        command = self.obs["valid_actions"][action]
        self.commands.append(command)
        if self.keeps_history:
            self.history.append(Turn(self.obs["state"].response, command, float(timestep.reward)))
        self.unrewarded = 0 if timestep.reward > 0 else self.unrewarded + 1
        self.actions.append(int(action))
        self.rewards.append(float(timestep.reward))
        self.visits.append(visits)
        self.values.append(value)
        self.predicted.append(predicted)
        self.obs, self.done, self.info = timestep.obs, bool(timestep.done), dict(timestep.info)
        self.masks.append(self.obs["action_mask"])

    def episode(self) -> Episode:
        return Episode(
            observations=np.stack(self.vectors).astype(np.float32),
            actions=np.asarray(self.actions, dtype=np.int64),
            rewards=np.asarray(self.rewards, dtype=np.float32),
            masks=np.stack(self.masks).astype(np.int8),
            visits=np.stack(self.visits).astype(np.float32),
            root_values=np.asarray(self.values, dtype=np.float32),
            predicted_values=np.asarray(self.predicted, dtype=np.float32),
            ended=bool(self.info.get("won") or self.info.get("died")),
            info={**self.info, "commands": tuple(self.commands)},
        )


def observation_parts(obs: dict[str, Any], kind: str) -> tuple[str, ...]:
    """What the encoder reads: room, belongings and possible actions, and for `full` what the game said as well."""
    state = obs["state"]
    parts = (state.look, state.inventory, ", ".join(obs["valid_actions"]))
    return (*parts, state.response) if kind == "full" else parts


def parts_of(kind: str) -> int:
    """How many parts an observation of this kind has."""
    return 4 if kind == "full" else 3


def _spread(log_probs: np.ndarray, slots: int) -> np.ndarray:
    row = np.zeros(slots, dtype=np.float32)
    row[: len(log_probs)] = np.exp(log_probs)
    return row / row.sum()


def _choose(visits: np.ndarray, style: Style, rng: np.random.Generator, mask: np.ndarray, unrewarded: int = 0) -> int:
    """A slot: by the visit counts at the style's temperature, or now and then any valid one.

    Where rewards are known they come often; a long time without one means that the known part of the game is behind.
    """
    stuck = style.stuck_steps > 0 and unrewarded >= style.stuck_steps
    epsilon = max(style.epsilon, style.stuck_epsilon) if stuck else style.epsilon
    if epsilon > 0 and rng.random() < epsilon:
        return int(rng.choice(np.flatnonzero(mask)))
    if style.temperature <= 0:
        return int(visits.argmax())
    weights = (visits / visits.max()).astype(np.float64) ** (1 / style.temperature)
    return int(rng.choice(len(visits), p=weights / weights.sum()))
