"""The live view on a terminal: what every role does, how far the run is and how well it goes, once a second.

Where the output is not a terminal, or the user wants it so, or rich is not installed, there are lines instead.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO

from lzero_async.clock import RealClock
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.telemetry.terminal.screen import Screen
from lzero_async.threads import ThreadGroup

if TYPE_CHECKING:
    from lzero_async.telemetry.view import View

EVERY: Final = 1.0  # seconds between frames
RECENT: Final = 30.0  # seconds over which recent shares and rates are taken
LAST_FRAME: Final = 2.0  # seconds to wait at the end for a frame that is being made
LOG_ROWS: Final = 6  # rows that the frame leaves to what is printed above it, the cursor's among them
log = logging.getLogger(__name__)


def make_progress(plain: bool, stream: TextIO | None = None) -> Progress:
    """A live view where `stream` (default: stderr) is a terminal that can show one; lines otherwise, or when `plain`."""
    stream = stream or sys.stderr
    if plain or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return Progress(stream, plain=True)
    if not stream.isatty() or importlib.util.find_spec("rich") is None:
        return Progress(stream)
    return LiveProgress(stream)


class LiveProgress(Progress):
    """Between `watch` and `clear` a view of the run stays at the bottom of the terminal; notes and everything else that is
    printed come above it, and lines to `show` are not needed."""

    def __init__(self, stream: TextIO, *, every: float = EVERY) -> None:
        super().__init__(stream)
        self._every = every
        self._screen: Screen | None = None
        self._ended = threading.Event()
        self._threads = ThreadGroup(RealClock(), "live")

    def watch(self, view: Callable[[], View]) -> None:
        """Show the run that `view` looks at until `clear`."""
        self.clear()
        self._ended = threading.Event()
        self._screen = screen = Screen(self._stream)
        try:
            self._painter = painter = _Painter(screen, view, self._stream, self._every)
            screen.begin()
        except Exception as error:
            self._give_up(error)
        else:
            self._threads.start("view", lambda: self._refresh(painter, self._ended))

    def _refresh(self, painter: _Painter, ended: threading.Event) -> None:
        try:
            painter.paint()
            while not ended.wait(self._every):
                painter.paint()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """A view that cannot be shown is no reason to end a run."""
        self._end()
        log.warning("The live view ends (%r); lines are shown instead.", error, exc_info=error)

    def show(self, line: str, *, now: bool = False) -> None:
        if self._screen is None:
            super().show(line, now=now)

    def note(self, text: str) -> None:
        screen = self._screen
        if screen is None:
            super().note(text)
        else:
            screen.above(text + "\n")

    def clear(self) -> None:
        """End the view; its last state stays on the terminal. Without one, take the live line away."""
        if self._screen is None:
            super().clear()
            return
        try:
            self._ended.set()
            self._threads.join(LAST_FRAME)
            if self._screen is not None:  # the refresher may have given up
                self._painter.paint()
        except Exception as error:
            log.warning("The last state of the run could not be shown: %r", error)
        finally:
            self._end()

    def _end(self) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.end()


class _Painter:
    """Makes a frame of a view and puts it on the screen."""

    def __init__(self, screen: Screen, view: Callable[[], View], stream: TextIO, every: float) -> None:
        from rich.console import Console

        from lzero_async.telemetry.terminal.frame import frame

        self._screen, self._view, self._frame = screen, view, frame
        self._earlier: deque[View] = deque(maxlen=max(1, round(RECENT / every)))
        self._console = Console(file=stream, force_terminal=True, force_jupyter=False, legacy_windows=False)
        self._ascii = self._console.options.ascii_only

    def paint(self) -> None:
        """Look at the run once and show it."""
        view = self._view()
        columns, rows = self._screen.size()
        # The last column stays free: terminals differ in what they do there.
        width, height = max(1, columns - 1), max(1, rows * 3 // 4, rows - LOG_ROWS)
        recent = self._earlier[0] if self._earlier else None
        self._earlier.append(view)
        self._screen.paint(self._text(self._frame(view, recent, width, height, ascii_only=self._ascii), columns, rows))

    def _text(self, renderable: Any, columns: int, rows: int) -> str:
        from rich.console import ConsoleDimensions

        self._console.size = ConsoleDimensions(columns, rows)
        with self._console.capture() as captured:
            self._console.print(renderable)
        return captured.get()
