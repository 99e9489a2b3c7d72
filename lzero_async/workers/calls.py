"""One call of a role, wherever the role lives: its stop signal, and its exception on the way back to the caller."""

from __future__ import annotations

import logging
import pickle
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from lzero_async.errors import GateTimeout, RemoteError, Stopped, tell_refusal
from lzero_async.types import StopSignal

log = logging.getLogger("lzero_async")


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
            try:
                listener(reason)
            except Exception:  # of somebody's code: the others are told all the same
                log.exception("a listener failed")

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


_LOOK: Final = 0.05  # seconds between two looks at a stop that cannot be listened to


class Patience:
    """How long one call may wait, all its waits together: `timeout` seconds from now (None: for ever), while `stop` is not
    set."""

    def __init__(self, stop: StopSignal | None, timeout: float | None) -> None:
        self.stop, self.timeout = stop, timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self, most: float | None = None) -> float | None:
        """Seconds that are left, at most `most`; None for ever."""
        left = most if self._end is None else max(0.0, self._end - time.monotonic())
        return left if left is None or most is None else min(left, most)

    def wait_for(self, signal: Signal) -> bool:
        """Wait for it; return whether it happened in time. Raises Stopped if the stop is set first."""
        woken = Signal()
        if not self.watch(signal, woken.set, woken):
            return False
        if not signal.is_set():
            assert self.stop is not None
            raise stopped(self.stop)
        return True

    def watch(self, signal: Signal, told: Callable[[str], None], other: Signal | None = None) -> bool:
        """Wait for the signal, or the other one; return whether it happened in time. When the stop is set, `told(reason)` is
        called, in any thread."""
        stop, woken = self.stop, threading.Event()
        look = stop is not None and not hasattr(stop, "listen")
        ends = [one.listen(lambda reason: woken.set()) for one in (signal, other) if one is not None]
        try:
            if not look:
                ends.append(listen(stop, told))
            while True:
                if look and stop is not None and stop.is_set():
                    look = False
                    told(str(getattr(stop, "stop_reason", "")))
                if woken.wait(self.left(_LOOK if look else None)):
                    return True
                if self.left() == 0:
                    return woken.is_set()
        finally:
            for end in ends:
                end()


class _Turn(Signal):
    """A place in a line."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()


class Line:
    """Callers one after the other, in the order in which they came. `nested` lets a thread whose turn it is call again."""

    def __init__(self, who: str, *, nested: bool = False) -> None:
        self._who, self._nested = who, nested
        self._lock = threading.Lock()
        self._turns: deque[_Turn] = deque()

    @contextmanager
    def turn(self, patience: Patience) -> Iterator[None]:
        """Wait for one's turn, and have it. Raises GateTimeout when the time is over first, Stopped when the stop is set."""
        mine = _Turn()
        try:
            with self._lock:
                within = any(one.thread == mine.thread for one in self._turns)
                if not within:
                    self._turns.append(mine)
                first = within or self._turns[0] is mine
            if within and not self._nested:
                raise GateTimeout(
                    f"{self._who} is called within a call of it in the same thread, which would never end."
                )
            if not first and not patience.wait_for(mine):
                raise GateTimeout(
                    f"Waited {patience.timeout:.3g} s in vain for {self._who}: another call of it still runs."
                )
            yield
        finally:  # whatever happened, and also if nothing did
            with self._lock:
                if mine in self._turns:
                    self._turns.remove(mine)
                following = self._turns[0] if self._turns else None
            if following is not None:
                following.set()


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
    tell_refusal(error)
    return error
