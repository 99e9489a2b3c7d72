"""Keeps what LightZero and its dependencies say while they load away from the user's terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No prints, no warnings, no log lines inside, and the root logger's level afterwards as before.

    What was printed is lost, so keep the block small; an exception passes through with its own message.
    """
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        root.handlers[:] = handlers  # some of them add one of their own
