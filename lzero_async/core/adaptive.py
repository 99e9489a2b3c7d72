"""The adaptive degree: a pure AIMD controller. It raises the degree by a fixed step while a higher one would give the
learner data sooner, and halves it when the drift that the learner reports passes its threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from lzero_async.core.gate import Gate
from lzero_async.core.settings import Adaptation
from lzero_async.errors import ConfigError
from lzero_async.validation import positive_number, whole_number

INCREASE: Final = 2


class AdaptiveDegree:
    """Decides the degree after every train. Knows no threads and no clock."""

    def __init__(self, start: int, low: int, high: int, drift_threshold: float | None = None) -> None:
        self.low = whole_number("min_degree", low, 1, "An adaptive degree stays asynchronous.")
        self.high = whole_number("max_degree", high, self.low, "It must not be below min_degree.")
        self.threshold = None if drift_threshold is None else positive_number("drift_threshold", drift_threshold)
        self.check(start)
        self.degree = start
        self._rest = 0

    def check(self, degree: int) -> None:
        """Raise a ConfigError if this degree is outside the range."""
        if not self.low <= degree <= self.high:
            raise ConfigError(
                f"off_policy_degree is {degree}, outside the adaptive range {self.low} to {self.high}; stay inside it or "
                "change min_degree and max_degree."
            )

    def after_train(self, starved: bool, drift: float | None) -> str | None:
        """Take one train into account; return the reason if the degree changed.

        `starved`: the learner had to wait for this batch while the gate held a collector back. After a rise one train
        passes without another change; after a cut as many as the old degree, whose batches were collected under it.
        """
        if drift is not None and math.isnan(drift):
            drift = math.inf
        if self._rest:
            self._rest -= 1
            return None
        if self.threshold is not None and drift is not None and drift > self.threshold:
            if self.degree == self.low:
                return None
            self._rest = self.degree
            self.degree = max(self.low, self.degree // 2)
            return f"drift {drift:.4g} above {self.threshold:.4g}"
        if starved and self.degree < self.high:
            self.degree = min(self.high, self.degree + INCREASE)
            self._rest = 1
            return "the learner waited for data while collectors were held back"
        return None

    def state_dict(self) -> dict[str, Any]:
        """The degree and the trains left to rest."""
        return {"degree": self.degree, "rest": self._rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, inside this controller's range."""
        try:
            degree, rest = whole_number("degree", state["degree"], 0), whole_number("rest", state["rest"], 0)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"The saved adaptive state cannot be read ({error!r}); use another checkpoint."
            ) from error
        self.degree = min(max(degree, self.low), self.high)
        self._rest = rest


def adaptive_degree(gate: Gate, range_of: Adaptation, default_high: int) -> AdaptiveDegree:
    """The controller for this gate, which must be able to keep every degree of the range."""
    start = gate.degree
    low = 1 if range_of.min_degree is None else range_of.min_degree
    high = default_high if range_of.max_degree is None else range_of.max_degree
    controller = AdaptiveDegree(start, low, high, range_of.drift_threshold)
    gate.set_degree(low)
    gate.set_degree(start)
    return controller


def drift_of(result: Any) -> float | None:
    """The drift signal in what a train function returned: a number (numpy's and torch's too), or a report with `drift`."""
    value = getattr(result, "drift", result)
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"train_fn returned {value!r} as drift, which is not one number; return its mean.") from error
