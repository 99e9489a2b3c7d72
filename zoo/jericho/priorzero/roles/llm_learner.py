"""The role that trains the language model: it alone owns that model's trained weights and their optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lzero_async.errors import BadData
from lzero_async.lightzero.silence import quiet
from lzero_async.runs.soundness import first_bad
from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.options import check_device, numbered
from zoo.jericho.priorzero.play.batch import LLMWeights
from zoo.jericho.priorzero.play.components import Parts

EVENT_EVERY: Final = 0.2  # seconds between two words to the parent about the updates made


class LLMLearnerRole:
    """The language model's learner behind calls. What a train made is handed over whole, so that a role made anew goes on
    from there."""

    def __init__(self, parts: Parts, device: str, own_process: bool, emit: Callable[[Any], None]) -> None:
        parts.limit_threads()
        with quiet():
            from zoo.jericho.priorzero.tune.learner import LLMLearner
        options = parts.options
        self.learner = LLMLearner(
            options.llm_config.llm,
            options.llm_train_config,
            seed=options.run_config.seed,
            device=numbered(check_device(device)),
            temperature=options.llm_config.prior_temperature,
            reduction=options.llm_config.reduction,
            discount=options.policy_config.discount_factor,
        )
        self._emit, self._said_at = emit, 0.0
        self._cpu_time = time.process_time if own_process else time.thread_time  # others' work is not its own

    def ready(self) -> None:
        """Answered once the role is made."""

    def load(self, state: Parcel | None) -> None:
        """Go on from what a train handed over; None: from the beginning."""
        self.learner.load_state(None if state is None else state.open())

    def train(self, batches: Sequence[Parcel]) -> dict[str, Any]:
        """Train on these batches; the numbers of it, the new weights, and the state to go on from."""
        wall, cpu = time.monotonic(), self._cpu_time()
        values = self.learner.train([batch.read() for batch in batches], self._updated)
        weights = self.learner.weights()
        if found := first_bad(weights):
            raise BadData(f"weights of the language model that are not finite are not handed out: {found}")
        published = LLMWeights(self.learner.version, self.learner.digest(), Parcel(weights, live=True))
        return {
            "values": values, "weights": published, "state": Parcel(self.learner.state()),
            "seconds": time.monotonic() - wall, "cpu_seconds": self._cpu_time() - cpu,
        }  # fmt: skip

    def _updated(self, updates: int) -> None:
        if time.monotonic() - self._said_at >= EVENT_EVERY:
            self._said_at = time.monotonic()
            self._emit(("llm updates", updates))
