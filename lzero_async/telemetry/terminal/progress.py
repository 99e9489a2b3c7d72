"""What the user sees while a run goes on: one live line on a terminal, a line now and then in a log file."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

LOG_EVERY = 15.0  # seconds between lines when the output is not a terminal
LIVE_EVERY = 0.2


class Progress:
    """Shows a line; `show` may be called as often as one likes, from any thread. `plain`: whole lines on a terminal too."""

    def __init__(self, stream: TextIO | None = None, *, plain: bool = False, clock: Any = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._live = self._stream.isatty() and not plain
        self._last = -1e9
        self._shown = ""
        self._lock = threading.RLock()

    def watch(self, view: Callable[[], Any]) -> None:
        """The run begins, and `view()` says how it is at any moment. Lines do not need it."""

    def show(self, line: str, *, now: bool = False) -> None:
        """Show the line if it is time to, or `now`."""
        with self._lock:
            self._show(line, now)

    def _show(self, line: str, now: bool) -> None:
        moment = self._clock()
        if not now and moment - self._last < (LIVE_EVERY if self._live else LOG_EVERY):
            return
        self._last = moment
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            text = line if len(line) <= width else line[: width - 1] + "…"
            self._stream.write("\r" + text + " " * max(0, len(self._shown) - len(text)))
            self._shown = text
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self.clear()
            self._stream.write(text + "\n")
            self._stream.flush()

    def clear(self) -> None:
        """Take the live line away."""
        with self._lock:
            if self._live and self._shown:
                self._stream.write("\r" + " " * len(self._shown) + "\r")
                self._stream.flush()
                self._shown = ""


def duration(seconds: float) -> str:
    """Seconds as 4:05 or 1:02:03."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def table(rows: list[list[str]]) -> str:
    """Rows as aligned columns; the first row is the heading, numbers are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
