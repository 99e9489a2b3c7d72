"""What the evaluations of a run came to: best, last, and whether the target is reached."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from lzero_async.config import real_number
from lzero_async.errors import ConfigError
from lzero_async.types import EvalResult


class Scores:
    """Results arrive in any thread and are delivered, in order, in the one that calls `deliver`."""

    def __init__(self, target: float | None, on_eval: Callable[[EvalResult], None] | None) -> None:
        self._target = None if target is None else real_number("eval_target", target)
        self.on_eval = on_eval
        self._arrived: deque[EvalResult] = deque()
        self.best: EvalResult | None = None
        self.last: EvalResult | None = None

    def arrived(self, result: EvalResult) -> bool:
        """Note a result; return whether it reached the target."""
        self._arrived.append(result)
        if self._target is None:
            return False
        score = score_of(result.value)
        if score is None:
            raise ConfigError(
                f"eval_fn returned {result.value!r}, but eval_target {self._target:g} needs a number; return a score."
            )
        return score >= self._target

    def deliver(self) -> None:
        """Take what has arrived into account and call `on_eval`. Scores that are not numbers are never best."""
        while self._arrived:
            result = self._arrived.popleft()
            self.last = result
            score = score_of(result.value)
            best = None if self.best is None else score_of(self.best.value)
            if score is not None and not math.isnan(score) and (best is None or score > best):
                self.best = result
            if self.on_eval is not None:
                self.on_eval(result)


def score_of(value: Any) -> float | None:
    """`value` as one number, or None."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
