"""How much work is owed for the data that came: a rate per transition, whose fractions carry over."""

from __future__ import annotations

from lzero_async.validation import number_between


class Owed:
    """Units of work (updates, rollouts) owed for transitions; nothing is lost to rounding."""

    def __init__(self, per_step: float) -> None:
        self.per_step = number_between("per_step", per_step, 0.0, 1e9)
        self.left = 0.0  # owed and not yet given out
        self.forgotten = 0  # units that were owed and will never be done

    def add(self, steps: int) -> None:
        """These transitions came."""
        self.left += self.per_step * steps

    def take(self, most: int | None = None) -> int:
        """The whole units owed now. Of more than `most` the rest is forgotten: whoever cannot keep up does not try to."""
        units = int(self.left + 1e-9)
        self.left = max(0.0, self.left - units)
        if most is not None and units > most:
            self.forgotten += units - most
            return most
        return units
