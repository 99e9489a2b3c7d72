"""The lock of a run's folder: whoever holds it writes there, nobody else does, and the kernel frees it when its process ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Final

LOCK: Final = ".lock"
_NAMING_SECONDS: Final = 1.0  # a holder writes who it is right after it has the lock
_TRIES: Final = 5  # whoever asks for the holder has the lock for an instant
_PAUSE: Final = 0.01  # seconds
_held: set[int] = set()


class FolderLock:
    """Holds at most one folder at a time, until another is taken or the `with` block ends.

    The lock belongs to this process alone: programs that it starts do not inherit it, and neither do its forks.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._handle = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def take(self, folder: Path) -> bool:
        """Hold a folder, which must exist, and let go of the one before; False if somebody holds it already.

        Raises OSError where no lock can be made.
        """
        if self.holds(folder):
            return True
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except BaseException as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self.release()
        _held.add(handle)
        self.folder, self._handle = folder, handle
        return True

    def holds(self, folder: Path) -> bool:
        """Whether this is the folder that is held."""
        return self.folder is not None and folder.is_dir() and folder.samefile(self.folder)

    def release(self) -> None:
        """Let go of what is held. The file stays: whoever removed it could remove the lock of a run that began meanwhile."""
        handle, self._handle, self.folder = self._handle, -1, None
        if handle in _held:  # in a fork it is closed already, and its number may be another file's
            _held.discard(handle)
            os.close(handle)


def holder(folder: Path) -> str | None:
    """The process that holds a folder, as "pid 123"; None if nobody does."""
    end = time.monotonic() + _NAMING_SECONDS
    while True:
        try:
            handle = os.open(folder / LOCK, os.O_RDONLY)
        except OSError:
            return None
        try:
            # Shared: NFS locks exclusively only what may be written to.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            pid, _, host = os.pread(handle, 1_000, 0).decode(errors="replace").strip().partition(" ")
        finally:
            os.close(handle)
        if host and host != socket.gethostname():
            return f"pid {pid} on {host}"
        if pid.isdecimal() and _lives(int(pid)):
            return f"pid {pid}"
        if time.monotonic() > end:
            return "a process that does not say its pid"
        time.sleep(_PAUSE)


def _lock(handle: int) -> None:
    """BlockingIOError if somebody else has the file's lock."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_PAUSE)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's
        return True
    return True


def _let_go_in_fork() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_fork)
