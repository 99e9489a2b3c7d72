"""The last warnings and errors of a run's loggers, for whoever looks at the run."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

KEPT: Final = 200
LONGEST: Final = 500  # characters of one


class KeptWarnings(logging.Handler):
    """Listens to some loggers from now on, until `stop`."""

    def __init__(self, loggers: Sequence[str]) -> None:
        super().__init__(logging.WARNING)
        self._started = time.time()
        self._records: deque[logging.LogRecord] = deque(maxlen=KEPT)
        self._loggers = [logging.getLogger(name) for name in loggers]
        for logger in self._loggers:
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._records.append(record)

    def begin(self) -> None:
        """The run begins: its seconds are counted from here."""
        self._started = time.time()

    def stop(self) -> None:
        """Listen no more; what was kept stays."""
        for logger in self._loggers:
            logger.removeHandler(self)

    def lines(self, most: int) -> tuple[str, ...]:
        """The last ones with their time of day, oldest first."""
        return tuple(
            f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {_text(record)}"
            for record in list(self._records)[-most:]
        )

    def events(self) -> list[dict[str, Any]]:
        """All that are kept, with their seconds since the run began."""
        return [
            {"seconds": record.created - self._started, "level": record.levelname, "text": _text(record)}
            for record in list(self._records)
        ]


def _text(record: logging.LogRecord) -> str:
    try:
        return " ".join(record.getMessage().split())[:LONGEST]
    except (TypeError, ValueError):  # its arguments do not fit its text
        return str(record.msg)[:LONGEST]
