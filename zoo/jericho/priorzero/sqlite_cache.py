"""Caches on disk that several processes use at once: what is common to them, and one of plain bytes for the models' answers."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_KEYS_PER_QUERY = 500  # every SQLite takes 999 parameters or more


class CacheFile:
    """A SQLite file that several processes use at once; each opens its own, and all threads of a process may use it.

    It is a cache: a damaged file is moved aside and begun anew, and where it cannot be read or written (locked for
    `busy_seconds`, read-only, disk full) one warning is logged and it does nothing any more. At most `max_rows` rows are
    kept, the oldest go first. `path` empty or None: off. A subclass names its one table, whose first column is `id`.
    """

    what: ClassVar[str]
    """What is kept, for the warnings: a plural."""
    table: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]
    """Name and SQL type of each column after `id`."""
    unique: ClassVar[str]
    """The columns that identify a row."""

    def __init__(self, path: str | os.PathLike[str] | None, max_rows: int, busy_seconds: float = 5.0) -> None:
        self._path = Path(path) if path else None
        self._max_rows = max_rows
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        if self._path is not None:
            self._attempt(self._open_alone)

    @property
    def usable(self) -> bool:
        """Whether rows are kept on disk at the moment."""
        return self._connection is not None

    def close(self) -> None:
        """Close the file; from now on it keeps and finds nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Rows of `columns`, in one transaction; where a row is there already, that one stays."""
        assert self._connection is not None
        names, marks = ", ".join(self.columns), ", ".join("?" * len(self.columns))
        with self._connection:
            self._connection.executemany(f"INSERT OR IGNORE INTO {self.table} ({names}) VALUES ({marks})", rows)
            self._run(f"DELETE FROM {self.table} WHERE id <= (SELECT max(id) FROM {self.table}) - ?", (self._max_rows,))

    def _run(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        assert self._connection is not None
        return self._connection.execute(statement, values)

    def _open_alone(self) -> None:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait where two processes turn a new file into a WAL at once: one would fail as locked.
        with self._alone():
            self._open()

    def _open(self) -> None:
        assert self._path is not None
        self._connection = sqlite3.connect(self._path, timeout=self._busy_seconds, check_same_thread=False)
        self._run("PRAGMA journal_mode=WAL")
        # A power cut may lose the newest rows, never the file; they would be found again.
        self._run("PRAGMA synchronous=NORMAL")
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in self.columns.items())
        with self._connection:
            self._run(
                f"CREATE TABLE IF NOT EXISTS {self.table} "
                f"(id INTEGER PRIMARY KEY AUTOINCREMENT, {columns}, UNIQUE ({self.unique}))"
            )
        self._run(f"SELECT id, {', '.join(self.columns)} FROM {self.table} LIMIT 1").fetchone()

    def _guarded(self, work: Callable[[], _Result]) -> _Result | None:
        """What `work` returns, or None where the file is off or fails."""
        with self._lock:
            return self._attempt(work) if self._connection is not None else None

    def _attempt(self, work: Callable[[], _Result]) -> _Result | None:
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            self.close()
            damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
            if not (damaged and self._begin_anew(error)):
                _logger.warning("%s are not kept on disk any more: %s: %s", self.what, self._path, error)
            return None

    def _begin_anew(self, error: Exception) -> bool:
        """Move the damaged file aside, unless another process has done so meanwhile, and open a new one."""
        assert self._path is not None
        aside = self._path.with_name(f"{self._path.name}.damaged-{os.getpid()}")
        try:
            with self._alone():
                if self._is_damaged():
                    os.replace(self._path, aside)
                    for ending in ("-wal", "-shm"):
                        self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
                    _logger.warning(
                        "the store of %s was damaged (%s); moved to %s, a new one begun", self.what, error, aside
                    )
                self._open()
            return True
        except (sqlite3.Error, OSError):
            self.close()
            return False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process opens the file or moves it aside."""
        assert self._path is not None
        with self._path.with_name(self._path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _is_damaged(self) -> bool:
        try:
            self._open()
            result = self._run("PRAGMA quick_check").fetchone()
            return bool(result != ("ok",))
        except sqlite3.OperationalError:
            return False
        except sqlite3.DatabaseError:
            return True
        finally:
            self.close()


class SharedStore(CacheFile):
    """Values by key, both plain bytes, that the processes of a run share; see `CacheFile` for what may go wrong.

    A key must hold all that its value depends on, and begin with who uses it.
    """

    what = "answers of the models"
    table = "answers"
    columns: ClassVar = {"key": "BLOB", "value": "BLOB"}
    unique = "key"

    def __init__(
        self, path: str | os.PathLike[str] | None, busy_seconds: float = 5.0, *, max_rows: int = 500_000
    ) -> None:
        super().__init__(path, max_rows, busy_seconds)

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are known."""
        return (self._guarded(lambda: self._select(keys)) if keys else None) or {}

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Keep the values; the first one of a key stays."""
        if items:
            self._guarded(lambda: self._add(list(items.items())))

    def _select(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            some = keys[start : start + _KEYS_PER_QUERY]
            found.update(self._run(f"SELECT key, value FROM answers WHERE key IN ({','.join('?' * len(some))})", some))
        return found


def full_name(model: str | os.PathLike[str]) -> str:
    """The name of a model for a key: a folder's absolute path, so that it means the same in every process; else as given."""
    path = Path(model)
    return str(path.resolve()) if str(model) and path.exists() else str(model)
