"""A block of lines that stays at the bottom of a terminal while everything else that is printed goes above it."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from typing import Any, Final, TextIO, cast

# The cursor is hidden within one write only, so a program that is killed leaves it visible.
HIDE, SHOW, RESET, ERASE_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[0m", "\x1b[J"
USUAL_SIZE: Final = (80, 24)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-ln-~]"  # whatever begins like a colour and does not end like one
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[^\[\]]"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)


class Screen:
    """The block and what comes above it. `begin` and `end` are for one thread; `paint` and `above` for any.

    While it lasts, what is printed or logged to `sys.stdout` and `sys.stderr` comes above the block, where these are terminals.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._block = ""
        self._size = (0, 0)  # of the terminal when the block was painted
        self._begun = False
        self._replaced: list[tuple[str, TextIO, _Lines]] = []
        self._handlers: list[tuple[logging.StreamHandler[Any], TextIO]] = []

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal, the usual ones where it does not tell."""
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError, AttributeError):
            return USUAL_SIZE
        return columns or USUAL_SIZE[0], rows or USUAL_SIZE[1]

    def begin(self) -> None:
        """Let everything that is printed from now on come above the block."""
        self._begun = True
        for name in ("stdout", "stderr"):
            real = getattr(sys, name)
            if real is not None and real.isatty():
                real.flush()
                lines = _Lines(self, real)
                self._replaced.append((name, real, lines))
                setattr(sys, name, cast(TextIO, lines))
                self._redirect_handlers(real, lines)

    def _redirect_handlers(self, real: TextIO, lines: _Lines) -> None:
        """Handlers that were made before hold the stream itself."""
        loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        handlers = {handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers}
        for handler in handlers:
            # Some look sys.stderr up whenever they write: these have no stream of their own.
            if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is real:
                handler.setStream(lines)
                self._handlers.append((handler, real))

    def paint(self, block: str) -> None:
        """Show a block, whole lines, in place of the one before; nothing once the screen has ended."""
        with self._lock:
            if self._begun:
                self._write("", block)

    def above(self, text: str) -> None:
        """Print whole lines above the block. One that was made for another size of the terminal is left out until the next."""
        with self._lock:
            self._write(text, self._block if self.size() == self._size else "")

    def end(self) -> None:
        """Give the streams back; the block stays where it is. A second call does nothing."""
        with self._lock:  # handlers lock themselves before they write, so they are given back outside
            self._begun, self._block = False, ""
        replaced, self._replaced = self._replaced, []
        handlers, self._handlers = self._handlers, []
        for name, real, lines in replaced:
            if getattr(sys, name) is lines:
                setattr(sys, name, real)
        for handler, real in handlers:
            handler.setStream(real)
        for _, _, lines in replaced:
            lines.close()

    @property
    def has_ended(self) -> bool:
        """Whether what is printed goes straight to the terminal."""
        return not self._begun

    def _write(self, above: str, block: str) -> None:
        size = self.size()
        self._stream.write(f"{HIDE}{_up(self._rows(size[0]))}\r{ERASE_BELOW}{above}{block}{SHOW}")
        self._stream.flush()
        self._block, self._size = block, size

    def _rows(self, columns: int) -> int:
        """Rows that the block takes; a terminal that was made narrower since has wrapped its lines."""
        if columns >= self._size[0]:
            return self._block.count("\n")
        return sum(max(1, -(-len(line) // columns)) for line in _COLOURS.sub("", self._block).splitlines())


class _Lines:
    """Stands in for a stream: whole lines go above the block, begun ones wait for their end, apart for every thread."""

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self._screen, self._stream = screen, stream
        self._lock = threading.RLock()
        self._begun: dict[int, str] = {}

    def write(self, text: str) -> int:
        if self._screen.has_ended:
            return self._stream.write(text)
        thread = threading.get_ident()
        with self._lock:
            *whole, rest = (self._begun.pop(thread, "") + text).split("\n")
            if rest:
                self._begun[thread] = _last_state(rest) + "\r" * rest.endswith("\r")
        if whole:
            self._screen.above("".join(_clean(line) + "\n" for line in whole))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """A line that was begun is not shown before its end."""
        if self._screen.has_ended:
            self._stream.flush()

    def close(self) -> None:
        """Print what was begun and not ended."""
        with self._lock:
            begun, self._begun = list(self._begun.values()), {}
        for text in begun:
            self._stream.write(_clean(text))
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _last_state(line: str) -> str:
    """What a terminal shows of a line that was written over again and again."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def _clean(line: str) -> str:
    """A line without what would move the cursor; colours stay and end with it."""
    text = _CONTROLS.sub("", _last_state(line))
    return text + RESET if "\x1b" in text else text


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows else ""
