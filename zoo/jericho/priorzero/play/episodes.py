"""Playing episodes: several games step together, so that encoder, language model and search work on batches.

A collect plays whole episodes with one version of the weights, and every random choice comes from a generator that the
caller seeds: nothing of an episode survives the call, so a run can stop and resume between any two of them. Each episode
draws from its own generator, so that its draws do not depend on the games beside it; `readiness` says when a game goes on.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs.soundness import check_finite, check_like, finite_rows, is_finite
from zoo.jericho.priorzero.llm.prior import LLMPrior, PriorRequest
from zoo.jericho.priorzero.llm.prompts import Turn
from zoo.jericho.priorzero.play.episode_scheduler import AllEnvironmentsFailed, Roster, Rounds, Thinker, Window
from zoo.jericho.priorzero.play.root_policy import mix_root_policies
from zoo.jericho.priorzero.play.search import RootInput, RootOutput, TreeSearch
from zoo.jericho.priorzero.play.text_encoder import TextEncoder
from zoo.jericho.priorzero.play.tree_seed import seed_tree

__all__ = ["MODES", "AllEnvironmentsFailed", "Episode", "OpenGame", "Player", "Style", "observation_parts", "parts_of"]

MODES = ("prior", "world_model", "llm", "random")
TRIES = 2  # of an episode that fails
_logger = logging.getLogger(__name__)


@dataclass
class Episode:
    """One episode as arrays over its T steps; `observations` and `masks` have one row more for the last state."""

    observations: NDArray[Any]  # float32 [T + 1, features]
    actions: NDArray[Any]  # int64 [T], slots
    rewards: NDArray[Any]  # float32 [T], points
    masks: NDArray[Any]  # int8 [T + 1, slots]
    visits: NDArray[Any]  # float32 [T, slots], the search's distribution
    root_values: NDArray[Any]  # float32 [T]
    predicted_values: NDArray[Any]  # float32 [T]
    ended: bool  # by the game itself (won or died), so that nothing follows
    priors: NDArray[Any] | None = (
        None  # float32 [T, slots], the language model's log-probabilities, -inf where it has none
    )
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
    """A set of environments and what is needed to act in them. Not for several threads at once.

    All games take their steps together, exactly repeatably; or, when `asynchronous`, no game waits for a slow one: those that
    are ready act together, at most `max_batch` of them (0: all), the first after at most `max_wait_ms` milliseconds, and
    what the prior does not know is asked for in the background. An environment that fails `max_abnormal` times in a row is
    not used any more.

    `troubles` counts `bad_episodes` (every failure: a game that crashed, hung or said nonsense, a vector or a search that is not
    finite), of these `env_timeouts`, `left_out_episodes` (that failed twice) and `refused_priors` (replaced by even ones);
    `on_trouble` is told each of these names when it happens.
    """

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
        asynchronous: bool = False,
        max_batch: int = 0,
        max_wait_ms: float = 2.0,
        max_abnormal: int = 3,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        if max_batch < 0:
            raise ConfigError(f"max_batch is {max_batch}, but must be 0 (all games) or more")
        if not 0 <= max_wait_ms < math.inf:
            raise ConfigError(f"max_wait_ms is {max_wait_ms}, but must be a finite number of milliseconds, 0 or more")
        if max_abnormal < 1:
            raise ConfigError(f"max_abnormal is {max_abnormal}, but must be 1 or more")
        self.envs, self.encoder, self.search, self.prior = list(envs), encoder, search, prior
        self._mixing = {"llm_weight": llm_weight, "weighting": weighting}
        self._root_policy, self._observation, self._history_length = root_policy, observation, history_length
        self._past = search.max_window if search is not None else 1
        self._roster = Roster(self.envs, max_abnormal)
        self._window = (
            Window(max_batch or len(self.envs), max_wait_ms / 1e3) if asynchronous else Window(len(self.envs))
        )
        self._thinker = Thinker(prior) if asynchronous and prior is not None else None
        self.troubles: Counter[str] = Counter()
        self._on_trouble = on_trouble

    @property
    def isolated(self) -> int:
        """How many environments are not used any more because they failed too often in a row."""
        return len(self.envs) - len(self._roster.usable)

    def play(
        self,
        episodes: int,
        rng: np.random.Generator,
        style: Style,
        *,
        on_step: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        seeds: Sequence[int] | None = None,
    ) -> list[Episode]:
        """Play this many episodes and return them in the order of their start; when `should_stop` says so, only those that
        have ended by then. `seeds` are those of their games, in place of drawn ones.

        `on_step` is told how many steps were just taken. An episode that fails is played once more with another seed, then left
        out. Raises AllEnvironmentsFailed when no environment is left to play, or no episode.
        """
        rounds = Rounds(
            self.new_games(episodes, rng, seeds),
            self._roster,
            lambda hand: self.act(hand, style),
            self._window,
            self._thinker,
            on_step,
            self._count_trouble,
        )
        try:
            ended = rounds.run(should_stop)
        finally:
            if self._thinker is not None:
                self._thinker.forget()
        self._look(ended)
        for game in ended:
            if game.broken is not None:  # at its very end: nothing is left to play it once more
                _logger.warning("episode %d, in %r, is left out: %s", game.number, game.env, game.broken)
                self._count_trouble("bad_episodes")
                self._count_trouble("left_out_episodes")
        whole = [game for game in ended if game.broken is None]
        if episodes and not whole and not should_stop():
            raise AllEnvironmentsFailed(
                f"none of {episodes} episodes could be played, not even at the second try; the last failure: "
                f"{rounds.last_failure or ended[-1].broken}"
            )
        return [game.episode() for game in sorted(whole, key=lambda game: game.number)]

    def new_games(self, episodes: int, rng: np.random.Generator, seeds: Sequence[int] | None = None) -> list[OpenGame]:
        """This many episodes that have not begun; everything random in them follows from `rng` and the seeds."""
        seed_tree(int(rng.integers(2**31)))
        drawn = rng.integers(1, 2**31 - 1, size=episodes).tolist()
        streams = rng.integers(2**63, size=(episodes, 2)).tolist()
        return [
            OpenGame(number, seed, np.random.default_rng(stream), self._history_length, on_trouble=self._count_trouble)
            for number, (seed, stream) in enumerate(zip(drawn if seeds is None else seeds, streams, strict=True))
        ]

    def _count_trouble(self, name: str) -> None:
        self.troubles[name] += 1
        self._on_trouble(name)

    def act(self, games: list[OpenGame], style: Style) -> list[OpenGame]:
        """Choose the next action of each game; those whose prior has to be waited for get none and are not returned, nor are
        those that break."""
        self._look(games)
        games = [game for game in games if game.broken is None]
        if self._needs_prior(style.mode):
            games = self._with_prior(games)
        if games:
            for game, choice in zip(games, self._decide(games, style), strict=True):
                if choice is not None:
                    game.choose(*choice)
        return [game for game in games if game.broken is None]

    def _look(self, games: list[OpenGame]) -> None:
        """Encode the present observation of each game, once."""
        games = [game for game in games if len(game.vectors) == len(game.actions)]
        if not games:
            return
        if self.encoder is None:
            vectors: NDArray[Any] | list[NDArray[Any]] = [np.zeros(1, np.float32)] * len(games)
        else:
            vectors = self.encoder([observation_parts(game.obs, self._observation) for game in games])
        sound = finite_rows(np.asarray(vectors))
        for game, vector, fine in zip(games, vectors, sound, strict=True):
            if fine:
                game.vectors.append(vector)
            else:
                game.broken = BadData(f"the text encoder's vector of {game.obs['state'].look[:60]!r} is not finite")

    def _needs_prior(self, mode: str) -> bool:
        return mode == "llm" or (mode == "prior" and self._root_policy != "wm_logits")

    def _with_prior(self, games: list[OpenGame]) -> list[OpenGame]:
        """The games whose prior is known now: all of them, or what the background is not asked for."""
        assert self.prior is not None
        unknown = [(game, game.request()) for game in games if game.prior is None]
        if self._thinker is None:
            for (game, _), prior in zip(unknown, self.prior([request for _, request in unknown]), strict=True):
                game.take_prior(prior)
            return games
        recall = getattr(self.prior, "recall", lambda _: None)
        for game, request in unknown:
            if (known := recall(request)) is not None:
                game.take_prior(known)
        self._thinker.ask([(game, request) for game, request in unknown if game.prior is None])
        return [game for game in games if game.prior is not None]

    def _decide(self, games: list[OpenGame], style: Style) -> list[tuple[int, NDArray[Any], float, float] | None]:
        """Slot, visit distribution, root value and predicted value for each game; None for one whose search breaks it."""
        masks = [game.masks[-1] for game in games]
        if style.mode == "random":
            uniform = [mask.astype(np.float32) / mask.sum() for mask in masks]
            return [
                (int(game.rng.choice(len(row), p=row)), row, 0.0, 0.0) for game, row in zip(games, uniform, strict=True)
            ]
        if style.mode == "llm":
            rows = [_spread(cast(NDArray[Any], game.prior), len(mask)) for game, mask in zip(games, masks, strict=True)]
            return [
                (_choose(row, style, game.rng, mask), row, 0.0, 0.0)
                for game, row, mask in zip(games, rows, masks, strict=True)
            ]
        assert self.search is not None
        llm = [game.prior for game in games]
        mode = self._root_policy if self._needs_prior(style.mode) else "wm_logits"

        def policy(logits: NDArray[Any]) -> NDArray[Any]:
            return mix_root_policies(llm, logits, np.stack(masks), mode=mode, **self._mixing)

        outputs = self.search.run(
            [game.root(self._past) for game in games],
            policy,
            num_simulations=style.num_simulations,
            noise_weight=style.noise_weight,
            rngs=[game.rng for game in games],
        )
        for game, found, mask in zip(games, outputs, masks, strict=True):
            if fault := _fault(found, mask):
                game.broken = BadData(f"the search {fault}")
        return [
            None
            if game.broken is not None
            else (
                _choose(found.visits, style, game.rng, mask, game.unrewarded),
                found.visits,
                found.value,
                found.predicted_value,
            )
            for found, mask, game in zip(outputs, masks, games, strict=True)
        ]

    def close(self) -> None:
        """End the prior's thread and the games' processes."""
        if self._thinker is not None:
            self._thinker.close()
        for env in self.envs:
            if hasattr(env, "begin_close"):
                env.begin_close()
        for env in self.envs:
            env.close()


class OpenGame:
    """One episode that waits to be played or is under way."""

    env: Any
    obs: dict[str, Any]
    action: int  # the chosen one, until its step is recorded

    def __init__(
        self,
        number: int,
        seed: int,
        rng: np.random.Generator,
        history_length: int,
        tries: int = TRIES,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.number, self.seed, self.rng = number, seed, rng
        self._tries, self._on_trouble = tries, on_trouble
        self.broken: BadData | None = None  # why it cannot go on, although its environment could
        self.since = 0.0  # monotonic time since when it waits to be acted on
        self.prior: NDArray[Any] | None = None  # of the present state, once known
        self.vectors: list[NDArray[Any]] = []
        self.masks: list[NDArray[Any]] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.visits: list[NDArray[Any]] = []
        self.values: list[float] = []
        self.predicted: list[float] = []
        self.priors: list[NDArray[Any] | None] = []
        self.history: list[Turn] = []  # whole: the prompt's window moves over it in chunks
        self.keeps_history = history_length > 0
        self.unrewarded = 0
        self.commands: list[str] = []
        self.done = False
        self.info: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether there is a first observation."""
        return bool(self.masks)

    @property
    def failure(self) -> str | None:
        """What ended the episode abnormally; None when nothing did."""
        return str(self.info.get("failure", "its episode ended abnormally")) if self.info.get("abnormal") else None

    def again(self) -> OpenGame | None:
        """The same episode from its beginning, with another seed; None when this was the last try."""
        if self._tries <= 1:
            return None
        (rng,) = self.rng.spawn(1)  # whatever was drawn before, so that it can be repeated
        seed = int(rng.integers(1, 2**31 - 1))
        return OpenGame(self.number, seed, rng, int(self.keeps_history), self._tries - 1, self._on_trouble)

    def begin(self, obs: dict[str, Any]) -> None:
        """Take the first observation; BadData for one that nobody can act on."""
        _check_mask(obs["action_mask"], None)
        self.obs = obs
        self.masks.append(obs["action_mask"])

    def take_prior(self, prior: Any) -> None:
        """Take the prior of the present state; one that is none is refused, and every action is as likely as any other."""
        count = len(self.obs["valid_actions"])
        values = np.asarray(prior)
        if values.shape == (count,) and values.dtype.kind == "f" and not (np.isnan(values) | (values > 1e-3)).any():
            self.prior = values
            return
        _logger.warning(
            "the prior of %r is refused: %s", self.obs["state"].look[:60], " ".join(repr(prior).split())[:200]
        )
        self._on_trouble("refused_priors")
        self.prior = np.full(count, -math.log(max(1, count)), np.float32)

    def request(self) -> PriorRequest:
        return PriorRequest(self.obs["state"], tuple(self.obs["valid_actions"]), tuple(self.history), id(self))

    def root(self, window: int) -> RootInput:
        size = min(window, len(self.vectors))
        return RootInput(np.stack(self.vectors[-size:]), self.actions[len(self.actions) - size + 1 :], self.masks[-1])

    def choose(self, action: int, visits: NDArray[Any], value: float, predicted: float) -> None:
        self.action = int(action)
        self.visits.append(visits)
        self.values.append(value)
        self.predicted.append(predicted)
        self.priors.append(self.prior)

    def record(self, timestep: Any) -> None:
        """What became of the chosen action; BadData for what no game can mean by it."""
        check_like("reward", timestep.reward, ())
        check_finite("reward", float(timestep.reward))
        self._advance(timestep.obs, float(timestep.reward))
        self.done, self.info = bool(timestep.done), dict(timestep.info)

    def follow(self, obs: Mapping[str, Any]) -> None:
        """The same, of a game that somebody else plays: what it observes says all."""
        self._advance(dict(obs), float(obs["state"].reward))

    def _advance(self, obs: dict[str, Any], reward: float) -> None:
        _check_mask(obs["action_mask"], self.masks[-1])
        command = self.obs["valid_actions"][self.action]
        self.commands.append(command)
        if self.keeps_history:
            self.history.append(Turn(self.obs["state"].response, command, reward))
        self.unrewarded = 0 if reward > 0 else self.unrewarded + 1
        self.actions.append(self.action)
        self.rewards.append(reward)
        self.prior = None
        self.obs = obs
        self.masks.append(obs["action_mask"])

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
            priors=_in_slots(self.priors, len(self.masks[-1])),
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


def _check_mask(mask: Any, before: NDArray[Any] | None) -> None:
    """BadData for a mask of another shape than the one before, or without an action."""
    check_like("action_mask", mask, np.shape(mask)[:1] if before is None else before.shape, "iub")
    if not np.any(mask):
        raise BadData("action_mask has no action")


def _fault(found: RootOutput, mask: NDArray[Any]) -> str:
    """What is wrong with a search's result; '' if all is well."""
    if not (is_finite(found.visits) and is_finite(found.value) and is_finite(found.predicted_value)):
        return f"found a value of {found.value:g} (predicted: {found.predicted_value:g}) and visits {found.visits}"
    if found.visits.shape != mask.shape or not 0.99 < found.visits[mask > 0].sum() < 1.01:
        return f"visited {found.visits}, not the {int(np.sum(mask > 0))} actions that there are"
    return ""


def _in_slots(priors: Sequence[NDArray[Any] | None], slots: int) -> NDArray[Any] | None:
    """The priors of an episode's steps as rows over all slots; None if a step had none."""
    rows = np.full((len(priors), slots), -np.inf, dtype=np.float32)
    for row, prior in zip(rows, priors, strict=True):
        if prior is None:
            return None
        row[: len(prior)] = prior[:slots]
    return rows


def _spread(log_probs: NDArray[Any], slots: int) -> NDArray[Any]:
    row = np.zeros(slots, dtype=np.float32)
    row[: len(log_probs)] = np.exp(log_probs)
    distribution: NDArray[Any] = row / row.sum()
    return distribution


def _choose(
    visits: NDArray[Any], style: Style, rng: np.random.Generator, mask: NDArray[Any], unrewarded: int = 0
) -> int:
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
