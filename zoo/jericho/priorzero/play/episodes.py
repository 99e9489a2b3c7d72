"""Playing episodes: several games step together, so that encoder, language model and search work on batches.

A collect plays whole episodes with one version of the weights, and every random choice comes from a generator that the
caller seeds: nothing of an episode survives the call, so a run can stop and resume between any two of them. Each episode
draws from its own generator, so that its draws do not depend on the games beside it; `readiness` says when a game goes on.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import BadData, ConfigError
from lzero_async.lightzero.dice import seed_dice
from lzero_async.runs.soundness import finite_rows, is_finite
from zoo.jericho.priorzero.llm.prior import LLMPrior
from zoo.jericho.priorzero.play.episode_scheduler import AllEnvironmentsFailed, Roster, Rounds, Thinker, Window
from zoo.jericho.priorzero.play.open_game import Choice, Episode, OpenGame, PromptRecorder
from zoo.jericho.priorzero.play.root_policy import mix_root_policies
from zoo.jericho.priorzero.play.search import RootOutput, TreeSearch
from zoo.jericho.priorzero.play.text_encoder import TextEncoder

MODES = ("prior", "world_model", "llm", "random")
_logger = logging.getLogger(__name__)


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
    `on_trouble` is told each of these names when it happens. `recorder` keeps what the prior was asked.
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
        recorder: PromptRecorder | None = None,
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
        self._recorder = recorder

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
        seed_dice(int(rng.integers(2**31)))
        drawn = rng.integers(1, 2**31 - 1, size=episodes).tolist()
        streams = rng.integers(2**63, size=(episodes, 2)).tolist()
        return [
            OpenGame(
                number, seed, np.random.default_rng(stream), self._history_length,
                on_trouble=self._count_trouble, recorder=self._recorder,
            )
            for number, (seed, stream) in enumerate(zip(drawn if seeds is None else seeds, streams, strict=True))
        ]  # fmt: skip

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
                    game.choose(choice)
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

    def _decide(self, games: list[OpenGame], style: Style) -> list[Choice | None]:
        """What each game does next; None for one whose search breaks it."""
        masks = [game.masks[-1] for game in games]
        if style.mode == "random":
            uniform = [mask.astype(np.float32) / mask.sum() for mask in masks]
            return [
                Choice(int(game.rng.choice(len(row), p=row)), float(row.max()), row)
                for game, row in zip(games, uniform, strict=True)
            ]
        if style.mode == "llm":
            rows = [_spread(cast(NDArray[Any], game.prior), len(mask)) for game, mask in zip(games, masks, strict=True)]
            return [
                Choice(*_choose(row, style, game.rng, mask), row)
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
            else Choice(
                *_choose(found.visits, style, game.rng, mask, game.unrewarded),
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


def observation_parts(obs: dict[str, Any], kind: str) -> tuple[str, ...]:
    """What the encoder reads: room, belongings and possible actions, and for `full` what the game said as well."""
    state = obs["state"]
    parts = (state.look, state.inventory, ", ".join(obs["valid_actions"]))
    return (*parts, state.response) if kind == "full" else parts


def parts_of(kind: str) -> int:
    """How many parts an observation of this kind has."""
    return 4 if kind == "full" else 3


def _fault(found: RootOutput, mask: NDArray[Any]) -> str:
    """What is wrong with a search's result; '' if all is well."""
    if not (is_finite(found.visits) and is_finite(found.value) and is_finite(found.predicted_value)):
        return f"found a value of {found.value:g} (predicted: {found.predicted_value:g}) and visits {found.visits}"
    if found.visits.shape != mask.shape or not 0.99 < found.visits[mask > 0].sum() < 1.01:
        return f"visited {found.visits}, not the {int(np.sum(mask > 0))} actions that there are"
    return ""


def _spread(log_probs: NDArray[Any], slots: int) -> NDArray[Any]:
    row = np.zeros(slots, dtype=np.float32)
    row[: len(log_probs)] = np.exp(log_probs)
    distribution: NDArray[Any] = row / row.sum()
    return distribution


def _choose(
    visits: NDArray[Any], style: Style, rng: np.random.Generator, mask: NDArray[Any], unrewarded: int = 0
) -> tuple[int, float]:
    """A slot, by the visit counts at the style's temperature, or now and then any valid one; and how likely it was.

    Where rewards are known they come often; a long time without one means that the known part of the game is behind.
    """
    stuck = style.stuck_steps > 0 and unrewarded >= style.stuck_steps
    epsilon = max(style.epsilon, style.stuck_epsilon) if stuck else style.epsilon
    if style.temperature <= 0:
        likely = np.zeros(len(visits))
        likely[visits.argmax()] = 1.0
    else:
        likely = (visits / visits.max()).astype(np.float64) ** (1 / style.temperature)
        likely /= likely.sum()
    valid = np.flatnonzero(mask)
    if epsilon > 0 and rng.random() < epsilon:
        slot = int(rng.choice(valid))
    else:
        slot = int(visits.argmax()) if style.temperature <= 0 else int(rng.choice(len(visits), p=likely))
    return slot, float((1 - epsilon) * likely[slot] + epsilon / len(valid))
