"""Run the application as a user would: a program of its own, whose words and errors are seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run_program(words: Sequence[str]) -> int:
    """Run `python` with these words to its end and return its exit code.

    What it prints goes to stderr. The first Ctrl+C or SIGTERM is handed on, so that it ends in order, and so is every further
    one.
    """
    # A session of its own: Ctrl+C in a terminal reaches this process only, and the child once instead of twice.
    with (
        subprocess.Popen([sys.executable, *words], stdout=sys.stderr, start_new_session=True) as child,
        _handing_on(child),
    ):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _handing_on(child: subprocess.Popen[Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hand_on(number: int, frame: Any) -> None:
        try:
            os.kill(child.pid, number)
        except ProcessLookupError:  # it has just ended by itself
            pass

    before = {number: signal.signal(number, hand_on) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
