"""One call of a role, wherever the role lives: its stop signal, and its exception on the way back to the caller."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lzero_async.errors import RemoteError, Stopped
from lzero_async.types import StopSignal


class Signal:
    """Something that happens once, or is said again with another reason; any thread may wait for it or listen to it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[str], None]] = {}
        self.stop_reason = ""

    def set(self, reason: str = "") -> None:
        """It happens; a later reason replaces an earlier one."""
        with self._lock:
            self.stop_reason = reason
            self._event.set()
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener(reason)

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(reason)` at every `set`, at once if it is set already; return what ends this."""
        key = object()
        with self._lock:
            self._listeners[key] = listener
            is_set, reason = self._event.is_set(), self.stop_reason
        if is_set:
            listener(reason)
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        with self._lock:
            self._listeners.pop(key, None)

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it happens, at most this long; return whether it has."""
        return self._event.wait(seconds)


class CallStop(Signal):
    """The stop signal that a role's method gets as `stop`."""


OWN_ENDS: Final = ("max_train", "max_collect", "max_seconds", "stop_fn", "eval_target")


def stopped(stop: StopSignal) -> Stopped:
    """Says that a stage was given up because the run stops, which is no failure."""
    error = Stopped("the run is stopping")
    error.origin = stop
    return error


def interrupted(stop: StopSignal) -> bool:
    """Whether the run stops because of a signal or a failure, not because it has reached its own end."""
    return stop.is_set() and str(getattr(stop, "stop_reason", "")) not in OWN_ENDS


def listen(stop: StopSignal | None, callback: Callable[[str], None]) -> Callable[[], None]:
    """Call `callback(reason)` when `stop` is set, at once if it is; return what ends this. A stop that cannot be listened
    to is looked at once."""
    register: Callable[..., Callable[[], None]] | None = getattr(stop, "listen", None)
    if register is not None:
        return register(callback)
    if stop is not None and stop.is_set():
        callback(str(getattr(stop, "stop_reason", "")))
    return _nothing


def _nothing() -> None:
    return None


class PackedError(NamedTuple):
    """An exception on its way: itself if it can be pickled, its text, its traceback, and whether the call only stopped."""

    data: bytes | None
    text: str
    traceback: str
    stopped: bool


class RemoteTraceback(Exception):
    """The traceback of another process, as the cause of the exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def pack_error(error: BaseException) -> PackedError:
    """Take an exception apart; afterwards it holds no frames any more."""
    text = "".join(traceback.format_exception(error))
    stopped = isinstance(error, Stopped) and isinstance(error.origin, CallStop)
    if isinstance(error, Stopped):
        error.origin = None
    said = f"{type(error).__name__}: {error}"
    error.__cause__ = error.__context__ = error.__traceback__ = None
    data: bytes | None = None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # exceptions of any library: what cannot be pickled goes as text
        data = None
    return PackedError(data, said, text, stopped)


def unpack_error(packed: PackedError, worker: str, stop: Any) -> Exception:
    """The exception to raise in the caller, with the remote traceback as its cause."""
    error: BaseException | None = None
    if packed.data is not None:
        try:
            error = pickle.loads(packed.data)
        except Exception:  # a class that only the worker can import
            error = None
    if not isinstance(error, Exception):
        error = RemoteError(f"{worker} failed with {packed.text}")
    if packed.stopped and isinstance(error, Stopped):
        error.origin = stop
    error.__cause__ = RemoteTraceback(packed.traceback)
    return error
