"""The batch that travels from a collector to the learner, and how it is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.llm.prompt_table import PromptTable
from zoo.jericho.priorzero.play.open_game import Episode

if TYPE_CHECKING:
    from zoo.jericho.priorzero.llm.prior import LLMPrior, PriorRequest


LEAST: Final = -30.0  # log-probability of what the prior does not know


class LLMWeights(NamedTuple):
    """What a language model was trained to: how often, a digest, and a Parcel of what is trained."""

    version: int
    digest: str
    trained: Parcel


class Weights(NamedTuple):
    """One version of everything that plays; no `llm`: the language model as it was at first."""

    world_model: Parcel
    llm: LLMWeights | None = None


class Recorder:
    """What the prior was asked in one collect. Make another one for the next: its weights are others."""

    def __init__(self, prior: LLMPrior) -> None:
        self._prior = prior
        self._rows: dict[bytes, int] = {}
        self._requests: list[PriorRequest] = []

    def add(self, request: PriorRequest) -> int:
        """The row of this request, the same for equal ones."""
        key = self._prior.key_of(request)
        if key not in self._rows:
            self._rows[key] = len(self._requests)
            self._requests.append(request)
        return self._rows[key]

    def clear(self) -> None:
        """Begin another collect."""
        self._rows, self._requests = {}, []

    def table(self) -> PromptTable:
        """All that was asked, with the answers."""
        return PromptTable.build([self._prior.scored(request) for request in self._requests])


@dataclass
class Collected:
    """The episodes of one collect, how many seconds they took, and where they come from: the version of the weights, the
    worker, its stream of random numbers, and its process. `prompts` is what the language model was asked, if it is to learn."""

    episodes: list[Episode]
    seconds: float
    tags: dict[str, Any] = field(default_factory=dict)
    prompts: PromptTable | None = None

    @property
    def steps(self) -> int:
        """Environment steps in it."""
        return sum(map(len, self.episodes))

    def summary(self) -> dict[str, Any]:
        """What everybody may know without opening it."""
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "scores": [float(episode.info.get("score", 0)) for episode in self.episodes],
            "lengths": [len(episode) for episode in self.episodes],
            "prior": prior_quality(self.episodes),
            **self.tags,
        }


def prior_quality(episodes: Sequence[Episode]) -> dict[str, float]:
    """How well the language model's prior agrees with what the search made of it, over the steps that have one: KL(visits ||
    prior), the share of steps in which both like the same action best, and the prior's entropy. {}: no step has a prior."""
    rows = [(one.priors, one.visits) for one in episodes if one.priors is not None and len(one)]
    if not rows:
        return {}
    priors, visits = (np.concatenate(parts).astype(np.float64) for parts in zip(*rows, strict=True))
    possible = np.isfinite(priors)
    log_prior = np.where(possible, priors, 0.0)
    log_visits = np.log(np.maximum(visits, 1e-12))
    gap = np.where(visits > 0, visits * (log_visits - np.where(possible, priors, LEAST)), 0.0)
    return {
        "kl": float(gap.sum(1).mean()),
        "top1": float((priors.argmax(1) == visits.argmax(1)).mean()),
        "entropy": float(-(np.where(possible, np.exp(log_prior), 0.0) * log_prior).sum(1).mean()),
    }


def pack_batch(data: Collected) -> dict[str, Any]:
    """Plain values and arrays for a checkpoint."""
    return {
        "seconds": data.seconds,
        "tags": dict(data.tags),
        "episodes": [_plain(asdict(episode)) for episode in data.episodes],
        "prompts": None if data.prompts is None else data.prompts.plain(),
    }


def _plain(episode: dict[str, Any]) -> dict[str, Any]:
    """Without what only describes: the numbers of an episode are kept, its names and texts too."""
    kept = (bool, int, float, str, tuple)
    episode["info"] = {key: value for key, value in episode["info"].items() if isinstance(value, kept)}
    return episode


def unpack_batch(saved: dict[str, Any]) -> Collected:
    """The batch of such values."""
    names = {field.name for field in fields(Episode)}
    episodes = [
        Episode(**{key: value for key, value in episode.items() if key in names}) for episode in saved["episodes"]
    ]
    prompts = saved.get("prompts")
    table = None if prompts is None else PromptTable.of(prompts)
    return Collected(episodes, float(saved["seconds"]), dict(saved.get("tags", {})), table)
