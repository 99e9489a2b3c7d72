"""One game in a process of its own, with a watchdog: a hang or crash of the C code ends that process and nothing else."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zoo.jericho.priorzero.games.files import Game

if TYPE_CHECKING:
    from zoo.jericho.priorzero.games.session import GameState

_logger = logging.getLogger(__name__)
_ROOT = Path(__file__).resolve().parents[4]
_CODE = """
import sys
sys.path[:] = filter(None, sys.path)  # the working folder may hold anything
from zoo.jericho.priorzero.games.process import child_main
child_main(int(sys.argv[1]))
"""
_GRACE = 1.0
_START = 1  # number of the request that starts the session, always the first
_FINAL = ("FileNotFoundError", "PermissionError", "IsADirectoryError", "ModuleNotFoundError", "ImportError")


class GameProcessError(RuntimeError):
    """The game's process hung, crashed or is gone; this episode is over, and a new process is needed."""


class GameHung(GameProcessError):
    """The game did not answer in time; its process was ended."""


class GameSaidNonsense(GameProcessError):
    """What the game answered is no state of a game: a value is missing, not finite or of a wrong kind."""


class GameProcess:
    """Plays a game like `GameSession`, in its own process.

    A call that takes longer than `timeout` seconds (`start_timeout` for the first, which starts the interpreter) or finds
    the process dead ends the process and raises GameProcessError; so does every later call. The process ends with
    `close()`, with this object, and with the process that made it. With `wait=False` the constructor leaves the start under
    way, so that several processes start at once; a start that fails is the answer to the next request.
    """

    def __init__(
        self,
        game: Game,
        seed: int | None = None,
        *,
        timeout: float = 20.0,
        start_timeout: float = 30.0,
        store_path: str = "",
        wait: bool = True,
        **session_options: Any,
    ) -> None:
        self._timeout, self._start_timeout = timeout, start_timeout
        self._label = game.label
        self._lock = threading.Lock()
        self._number = 0  # of the last request; an answer that nobody fetched is recognised by its older number
        self._request: tuple[str, tuple[Any, ...]] = ("", ())
        self._answer: Any = None  # to the last request
        self._starting = True
        self.deadline = time.monotonic() + start_timeout
        """Monotonic time at which the watchdog ends a process that has not answered."""
        self._statistics: dict[str, float] = {}
        ours, theirs = Pipe()
        # Not a pipe, which would block the game when full; it lives as long as the process.
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _CODE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                env=_environment(),
                # Not in the terminal's group: Ctrl+C is for the run, which then closes its games.
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection, self._errors = ours, errors
        self._ending: list[float] = []  # since when it is told to end
        self._finalizer = weakref.finalize(self, _end, self._process, ours, errors, self._ending)
        self._begin("start", game, seed, {"store_path": store_path, **session_options})
        if wait:
            self._fetch()

    @property
    def pid(self) -> int:
        """Process id of the game."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process can still be asked."""
        return self._finalizer.alive and self._process.poll() is None

    def reset(self, seed: int | None = None) -> GameState:
        """Begin the game anew; see `GameSession.reset`."""
        state: GameState = self._call("reset", seed)
        return state

    def step(self, action: str) -> GameState:
        """Send one command; see `GameSession.step`."""
        state: GameState = self._call("step", action)
        return state

    def begin_reset(self, seed: int | None = None) -> None:
        """Ask for a new game without waiting; `end_reset` fetches the answer."""
        self._begin("reset", seed)

    def end_reset(self) -> GameState:
        """The answer to `begin_reset`; the watchdog's time runs from there."""
        state: GameState = self._fetch()
        return state

    def begin_step(self, action: str) -> None:
        """Send one command without waiting, so that several games think at once; `end_step` fetches the answer."""
        self._begin("step", action)

    def end_step(self) -> GameState:
        """The answer to `begin_step`; the watchdog's time runs from there."""
        state: GameState = self._fetch()
        return state

    def waitable(self) -> Connection | None:
        """What to wait on until what was begun can be ended without waiting, at most to `deadline`; None when it can now."""
        with self._lock:
            try:
                while self._answer is None and self._connection.poll():
                    self._read()
            except (EOFError, OSError):
                return None  # and the end says what happened
            overdue = time.monotonic() >= self.deadline
            return None if self._answer is not None or overdue else self._connection

    def statistics(self) -> dict[str, float]:
        """Counts of the session as of its last answer (see `GameSession.statistics`); never waits for the game."""
        return dict(self._statistics)

    def begin_close(self) -> None:
        """Tell the process to end without waiting, so that several end at once; `close` follows."""
        if self._finalizer.alive and not self._ending:
            self._ending.append(time.monotonic())
            self._connection.close()

    def close(self) -> None:
        """End the process; harmless when it has ended already."""
        self._finalizer()

    def _call(self, method: str, *arguments: Any) -> Any:
        self._begin(method, *arguments)
        return self._fetch()

    def _begin(self, method: str, *arguments: Any) -> None:
        with self._lock:
            self._check_alive()
            self._number += 1
            self._request, self._answer = (method, arguments), None
            if not self._starting:
                self.deadline = time.monotonic() + self._timeout
            try:
                self._connection.send((self._number, method, arguments))
            except (EOFError, OSError) as error:
                raise self._failure(f"died at {self._shown()}") from error

    def _fetch(self) -> Any:
        with self._lock:
            self._check_alive()
            try:
                while self._answer is None:
                    if not self._connection.poll(max(0.0, self.deadline - time.monotonic())):
                        limit = self._start_timeout if self._starting else self._timeout
                        raise self._failure(f"did not answer within {limit:g} s to {self._shown()}", GameHung)
                    self._read()
            except (EOFError, OSError) as error:
                raise self._failure(f"died at {self._shown()}") from error
            answer, self._answer = self._answer, None
        return self._value(answer)

    def _read(self) -> None:
        """Read one answer; keep it if it is that of the last request, or a failed start, which answers all of them."""
        number, answer, self._statistics = self._connection.recv()
        if number == _START:
            self._starting = False
            self.deadline = time.monotonic() + self._timeout  # of a request that waited for the start
        if number == self._number or (number == _START and answer[0] == "error"):
            self._answer = answer
        elif number == _START:
            self._value(answer)

    def _check_alive(self) -> None:
        if not self._finalizer.alive:
            raise GameProcessError(f"the process of {self._label} has ended")

    def _shown(self) -> str:
        method, arguments = ("start", ()) if self._starting else self._request
        return f"{method} {arguments[0]!r}" if method == "step" else method

    def _value(self, answer: Any) -> Any:
        outcome, value, records = answer
        for level, message in records:
            _logger.log(level, "%s", message)
        if outcome == "error":
            kind, text = value
            if self._number <= _START + 1 and kind in _FINAL:  # nor would the next start find what is missing
                raise _never(self._label, text)
            raise {"ValueError": ValueError, "RuntimeError": RuntimeError}.get(kind, GameProcessError)(text)
        return value

    def _failure(self, what: str, kind: type[GameProcessError] = GameProcessError) -> GameProcessError:
        self._process.kill()
        status = self._process.wait()
        said = _tail(self._errors)
        self.close()
        how = f"; it was ended by {signal.Signals(-status).name}" if status < 0 else f"; it ended with code {status}"
        return kind(f"the process of {self._label} {what}{how}{f': {said}' if said else ''}")


def child_main(descriptor: int) -> None:
    """The game's process: serves one `GameSession` until the pipe closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    records = _Records()
    logging.getLogger().addHandler(records)
    session: Any = None
    while True:
        try:
            number, method, arguments = connection.recv()
        except (EOFError, OSError):
            break
        try:
            if method == "start":
                from zoo.jericho.priorzero.games.session import GameSession

                game, seed, options = arguments
                session, value = GameSession(game, seed, **options), None
            else:
                value = getattr(session, method)(*arguments)
            answer = ("ok", value, records.take())
        except Exception as error:
            text = str(error) if type(error) in (ValueError, RuntimeError) else traceback.format_exc()
            answer = ("error", (type(error).__name__, text), records.take())
        try:
            connection.send((number, answer, {} if session is None else session.statistics()))
        except OSError:
            break
    if session is not None:
        session.close()


class _Records(logging.Handler):
    """Keeps what is logged in the game's process until it goes to the parent with the next answer."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """What was logged since the last time."""
        kept, self._kept = self._kept, []
        return kept


def _end_with_parent(parent: int) -> None:
    # The pipe's end tells an idle process that its parent is gone; one that hangs in C is not listening.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _environment() -> dict[str, str]:
    kept = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(_ROOT), *([kept] if kept else [])])
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _never(label: str, text: str) -> Exception:
    from lzero_async.errors import ConfigError  # not in the game's process

    last = text.strip().splitlines()[-1].rstrip(".")
    return ConfigError(f"{label} cannot be started ({last}); put its story file back, or give another --env_id.")


def _end(process: subprocess.Popen[bytes], connection: Connection, errors: Any, ending: list[float]) -> None:
    connection.close()
    try:
        process.wait(max(0.0, (ending[0] if ending else time.monotonic()) + _GRACE - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    errors.close()


def _tail(errors: IO[bytes], most: int = 400) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - most))
    return errors.read().decode(errors="replace").strip()
