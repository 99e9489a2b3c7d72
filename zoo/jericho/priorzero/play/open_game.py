"""One episode: under way, step by step, and as the arrays that are left of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import BadData
from lzero_async.runs.soundness import check_finite, check_like
from zoo.jericho.priorzero.llm.prior import PriorRequest
from zoo.jericho.priorzero.llm.prompts import Turn
from zoo.jericho.priorzero.play.search import RootInput

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
    taken: NDArray[Any] | None = None  # float32 [T], how likely the action was that was taken
    prompts: NDArray[Any] | None = None  # int64 [T], rows of the collect's table of prompts
    info: dict[str, Any] = field(default_factory=dict)  # score, normalised_score, moves, won, died, abnormal, commands

    def __len__(self) -> int:
        return len(self.actions)


class Choice(NamedTuple):
    """A slot and how likely it was to be chosen; the distribution that it comes from, and what its state is worth."""

    slot: int
    likely: float
    visits: NDArray[Any]
    value: float = 0.0
    predicted: float = 0.0


class PromptRecorder(Protocol):
    """Keeps what a language model was asked for; equal requests are one."""

    def add(self, request: PriorRequest) -> int:
        """The row of this request."""
        ...


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
        recorder: PromptRecorder | None = None,
    ) -> None:
        self._recorder = recorder
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
        self.taken: list[float] = []
        self.prompts: list[int] = []
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
        return OpenGame(
            self.number, seed, rng, int(self.keeps_history), self._tries - 1, self._on_trouble, self._recorder
        )

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

    def choose(self, choice: Choice) -> None:
        self.action = int(choice.slot)
        self.visits.append(choice.visits)
        self.values.append(choice.value)
        self.predicted.append(choice.predicted)
        self.priors.append(self.prior)
        self.taken.append(choice.likely)
        if self._recorder is not None:
            self.prompts.append(self._recorder.add(self.request()))

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
            taken=np.asarray(self.taken, dtype=np.float32),
            prompts=np.asarray(self.prompts, dtype=np.int64) if self._recorder is not None else None,
            info={**self.info, "commands": tuple(self.commands)},
        )


def _check_mask(mask: Any, before: NDArray[Any] | None) -> None:
    """BadData for a mask of another shape than the one before, or without an action."""
    check_like("action_mask", mask, np.shape(mask)[:1] if before is None else before.shape, "iub")
    if not np.any(mask):
        raise BadData("action_mask has no action")


def _in_slots(priors: Sequence[NDArray[Any] | None], slots: int) -> NDArray[Any] | None:
    """The priors of an episode's steps as rows over all slots; None if a step had none."""
    rows = np.full((len(priors), slots), -np.inf, dtype=np.float32)
    for row, prior in zip(rows, priors, strict=True):
        if prior is None:
            return None
        row[: len(prior)] = prior[:slots]
    return rows
