"""What the coordinating process knows of the roles: how each is made, what a collector is told, and when one is to give up.
Everything heavy is imported by the role's own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lzero_async.lightzero.silence import quiet

if TYPE_CHECKING:
    from zoo.jericho.priorzero.learn.reanalyze import ReanalyzeRole
    from zoo.jericho.priorzero.play.components import Parts
    from zoo.jericho.priorzero.roles.learner import LearnerRole
    from zoo.jericho.priorzero.roles.llm_learner import LLMLearnerRole
    from zoo.jericho.priorzero.roles.players import CollectorRole, EvaluatorRole
    from zoo.jericho.priorzero.roles.rank import RankRole

Emit = Callable[[Any], None]
PRELOAD = ("zoo.jericho.priorzero.roles.preload",)


@dataclass(frozen=True)
class CollectOrder:
    """What a collector needs to know besides the weights; `number` says which of its streams of random numbers to use."""

    version: int
    number: int
    env_steps: int


def learner(parts: Parts, device: str, emit: Emit) -> LearnerRole:
    """The learner."""
    with quiet():
        from zoo.jericho.priorzero.roles.learner import LearnerRole
    return LearnerRole(parts, device, emit)


def llm_learner(parts: Parts, device: str, own_process: bool, emit: Emit) -> LLMLearnerRole:
    """The language model's learner."""
    with quiet():
        from zoo.jericho.priorzero.roles.llm_learner import LLMLearnerRole
    return LLMLearnerRole(parts, device, own_process, emit)


def rank(parts: Parts, number: int, device: str, emit: Emit) -> RankRole:
    """Another rank of the learner, from 1 on."""
    with quiet():
        from zoo.jericho.priorzero.roles.rank import RankRole
    return RankRole(parts, number, device, emit)


def collector(parts: Parts, worker: int, device: str, asynchronous: bool, emit: Emit) -> CollectorRole:
    """A collector."""
    with quiet():
        from zoo.jericho.priorzero.roles.players import CollectorRole
    return CollectorRole(parts, worker, device, asynchronous, emit)


def evaluator(parts: Parts, device: str, asynchronous: bool, emit: Emit) -> EvaluatorRole:
    """The evaluator."""
    with quiet():
        from zoo.jericho.priorzero.roles.players import EvaluatorRole
    return EvaluatorRole(parts, device, asynchronous, emit)


def reanalyzer(parts: Parts, device: str, own_process: bool, emit: Emit) -> ReanalyzeRole:
    """A role that searches old episodes again."""
    with quiet():
        from zoo.jericho.priorzero.learn.reanalyze import ReanalyzeRole
    return ReanalyzeRole(parts, device, own_process, emit)
