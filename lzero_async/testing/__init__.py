"""Test tools as part of the product: a virtual clock, a sequencer, fakes, the walk of the gate; and, in
`conformance`, what every backend promises."""

from lzero_async.testing.clock import VirtualClock
from lzero_async.testing.fakes import FakeCollector, FakeEvaluator, FakeLearner, Interrupted, ScriptedRole
from lzero_async.testing.sequencer import Sequencer
from lzero_async.testing.walk import Budget, WalkFailure, WalkResult, walk

__all__ = [
    "Budget",
    "FakeCollector",
    "FakeEvaluator",
    "FakeLearner",
    "Interrupted",
    "ScriptedRole",
    "Sequencer",
    "VirtualClock",
    "WalkFailure",
    "WalkResult",
    "walk",
]
