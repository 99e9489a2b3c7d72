"""Updates whose loss or gradient is not finite: they are left out and counted, or end the run."""

from __future__ import annotations

import logging
from typing import Final

from lzero_async.errors import BadData, ConfigError

MOST_IN_A_ROW: Final = 20
log = logging.getLogger(__name__)


class NotFinite(BadData, ConfigError):
    """What learns has become, or would become, useless; a restart would not help."""

    kind = "not finite"


class BadUpdates:
    """Counts the updates of one learner that were left out. `on_bad` is "skip" or "stop"."""

    def __init__(self, who: str, on_bad: str) -> None:
        self._who, self._on_bad = who, on_bad
        self.count = 0
        self._in_a_row = 0

    def made(self) -> None:
        """An update was made."""
        self._in_a_row = 0

    def left_out(self, update: int) -> None:
        """An update was left out: say so now and then. Raises NotFinite by `on_bad`, or if there were too many in a row."""
        self.count += 1
        self._in_a_row += 1
        what = f"loss or gradient of update {update} of the {self._who} is not finite"
        if self._on_bad == "stop":
            raise NotFinite(f"The {what}, and on_bad_update is 'stop'. The last checkpoint before it stands.")
        if self._in_a_row == MOST_IN_A_ROW:
            raise NotFinite(
                f"The {what}, like those of the {MOST_IN_A_ROW - 1} tries before it; lower the learning rate or scale the "
                "rewards. The last checkpoint before them stands."
            )
        if self.count & (self.count - 1) == 0:
            log.warning("the %s, so it is left out (left out so far: %d)", what, self.count)
