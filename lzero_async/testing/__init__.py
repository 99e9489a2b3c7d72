"""Test tools as part of the product: a virtual clock, a sequencer, fakes, a simulator, the walk of the gate; and, in
`conformance`, what every backend promises."""

from lzero_async.testing.clock import VirtualClock
from lzero_async.testing.distributions import Distribution, lognormal, sample, switch
from lzero_async.testing.fakes import (
    CollectorRole,
    EvaluatorRole,
    FakeCollector,
    FakeEvaluator,
    FakeLearner,
    Interrupted,
    LearnerRole,
    ScriptedRole,
)
from lzero_async.testing.sequencer import Sequencer
from lzero_async.testing.simulate import Simulation, simulate
from lzero_async.testing.walk import Budget, WalkFailure, WalkResult, walk

__all__ = [
    "Budget",
    "CollectorRole",
    "Distribution",
    "EvaluatorRole",
    "FakeCollector",
    "FakeEvaluator",
    "FakeLearner",
    "Interrupted",
    "LearnerRole",
    "ScriptedRole",
    "Sequencer",
    "Simulation",
    "VirtualClock",
    "WalkFailure",
    "WalkResult",
    "lognormal",
    "sample",
    "simulate",
    "switch",
    "walk",
]
