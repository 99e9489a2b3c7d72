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
        self._kept: deque[tuple[float, str, str]] = deque(maxlen=KEPT)  # time, level and text
        # Without another handler, warnings would no longer reach stderr by themselves.
        self._last_resort = logging.lastResort
        self._loggers = [logging.getLogger(name) for name in _apart(loggers)]
        for logger in self._loggers:
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what it says; the record itself holds on to the error and all that this knows."""
        self._kept.append((record.created, record.levelname, _text(record)))
        others = [handler for handler in _handlers_of(record.name) if not isinstance(handler, KeptWarnings)]
        if not others and self._last_resort is not None:
            self._last_resort.handle(record)

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
            f"{time.strftime('%H:%M:%S', time.localtime(created))} {text}"
            for created, _, text in list(self._kept)[-most:]
        )

    def events(self) -> list[dict[str, Any]]:
        """All that are kept, with their seconds since the run began."""
        return [
            {"seconds": created - self._started, "level": level, "text": text}
            for created, level, text in list(self._kept)
        ]


def _apart(names: Sequence[str]) -> list[str]:
    """The names without those that are empty or inside another one."""
    found = dict.fromkeys(name for name in names if name)
    return [name for name in found if not any(name.startswith(f"{other}.") for other in found)]


def _handlers_of(name: str) -> list[logging.Handler]:
    """The handlers that a record of this logger reaches."""
    found: list[logging.Handler] = []
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        found += logger.handlers
        logger = logger.parent if logger.propagate else None
    return found


def _text(record: logging.LogRecord) -> str:
    try:
        return " ".join(record.getMessage().split())[:LONGEST]
    except (TypeError, ValueError):  # its arguments do not fit its text
        return str(record.msg)[:LONGEST]
