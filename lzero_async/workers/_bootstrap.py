"""What a process of its own needs to make a role and serve its calls, wherever that process is and whoever started it."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.workers.calls import CallStop

_importing: list[Any] = []  # the program, while it is imported here to find the factory of a role in it


def standard_library(path: Iterable[str]) -> list[str]:
    """The entries of a path that hold Python's own modules."""
    own, packed = sysconfig.get_path("stdlib"), "python{}{}.zip".format(*sys.version_info)
    return [entry for entry in path if entry == own or os.path.basename(entry) in (packed, "lib-dynload")]


def standard_first(path: Sequence[str]) -> list[str]:
    """A path as it is, but with Python's own modules first: no file of a user takes the place of one of them."""
    first = standard_library(path)
    return first + [entry for entry in path if entry not in first]


def specification(name: str, factory: Callable[..., Any]) -> dict[str, Any]:
    """What a new process needs to make the role; pickled once, so that a bad factory is refused here."""
    if _importing:
        raise ConfigError(
            f"{name} is started while the program is imported by one of its own workers; put whatever starts workers under "
            "'if __name__ == \"__main__\":' in the program's file."
        )
    try:
        data = pickle.dumps(factory)
    except Exception as error:  # whatever its parts raise
        raise ConfigError(
            f"The factory of {name} cannot be sent to another process ({error}); use a function or class of a module, "
            "with functools.partial for its arguments."
        ) from error
    main = None
    if b"__main__" in data or b"__mp_main__" in data:  # the latter is its name in a worker
        from multiprocessing import spawn

        found = spawn.get_preparation_data(name)
        main = {key: value for key, value in found.items() if key.startswith("init_main")}
    levels = {key: logging.getLogger(key).getEffectiveLevel() for key in ("lzero_async", "zoo")}
    return {
        "factory": data,
        "main": main,
        "folder": os.getcwd(),
        "sys_path": standard_first([os.getcwd() if entry == "" else entry for entry in sys.path]),
        "log_levels": levels,
    }


def build_role(spec: dict[str, Any], emit: Callable[[Any], None]) -> Any:
    """Make the role in its process. Raises what its factory raises."""
    if spec["main"] is not None:
        from multiprocessing import spawn

        _importing.append(spec["main"])
        try:
            spawn.prepare(spec["main"])
        finally:
            _importing.clear()
    factory = pickle.loads(spec["factory"])
    role = factory(emit)
    if role is None:
        raise TypeError(f"the factory {factory!r} returned None; it must return the role")
    return role


class Stops:
    """The stop signals of a role's calls, by number. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops: dict[int, CallStop] = {}

    def of(self, number: int) -> CallStop:
        """The stop signal of a call; it may have been set before the call began."""
        with self._lock:
            return self._stops.setdefault(number, CallStop())

    def finished(self, number: int) -> None:
        """Forget the stops up to this call."""
        with self._lock:
            for old in [key for key in self._stops if key <= number]:
                del self._stops[old]


def send_logs(tell: Callable[[tuple[str, int, str]], None], levels: dict[str, int]) -> None:
    """What is logged here goes to `tell` as (logger, level, text), for the owner's handlers; `levels` has the loggers."""
    handler = _TellingHandler(tell)
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False


class _TellingHandler(logging.Handler):
    def __init__(self, tell: Callable[[tuple[str, int, str]], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
            self._tell((record.name, record.levelno, text))
        except Exception:  # a message that does not fit its arguments must not fail the role
            self.handleError(record)
