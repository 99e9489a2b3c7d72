"""A terminal for tests: a pty whose output is read all the time, and what a screen would show of it."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
from types import TracebackType

TOKENS = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal:
    """`stream` is the program's side, `fd` its descriptor; `output()` is all that was written once that side is closed."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._own, self.fd = os.openpty()
        self.resize(columns, rows)
        self.stream = os.fdopen(os.dup(self.fd), "w", encoding="utf-8")
        self._read = bytearray()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        while True:
            try:
                piece = os.read(self._own, 65536)
            except OSError:  # how Linux says that the other side is closed
                return
            if not piece:
                return
            self._read += piece

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close_fd(self) -> None:
        """Leave the program's side to a child that has it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if not self.stream.closed:
            self.stream.close()

    def output(self) -> str:
        self.close_fd()
        self._reader.join(30)
        assert not self._reader.is_alive()
        return self._read.decode()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close_fd()
        self._reader.join(30)
        os.close(self._own)


class Shown:
    """What a screen without an end shows of some output: `lines`, and whether the `cursor` is visible."""

    def __init__(self, output: str) -> None:
        self.cursor, self._row, self._column = True, 0, 0
        self._lines: list[str] = [""]
        position = 0
        while position < len(output):
            token = TOKENS.match(output, position)
            assert token, f"what is {output[position : position + 20]!r}?"
            position = token.end()
            self._take(token)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._lines]

    def _take(self, token: re.Match[str]) -> None:
        numbers, letter, move, text = token.groups()
        if text:
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
            self._column += len(text)
        elif move == "\r":
            self._column = 0
        elif move == "\n":
            self._row += 1
            self._lines += [""] * (self._row + 1 - len(self._lines))
        elif letter == "A":
            self._row = max(0, self._row - int(numbers))
        elif letter == "J":
            self._lines[self._row] = self._lines[self._row][: self._column]
            del self._lines[self._row + 1 :]
        elif numbers == "?25":
            self.cursor = letter == "h"
        else:
            assert letter == "m", f"what is {token[0]!r}?"
