"""Spans of a run as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens.

The file is a JSON array that grows by whole events, so what a crash leaves behind lacks only its closing bracket; the
format makes that optional, and `read_trace` accepts it.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from lzero_async.errors import ConfigError

LEARNER = "learner"
EVALUATOR = "evaluator"
_FLUSH_EVENTS = 64
_FLUSH_SECONDS = 1.0


def collector(worker: int) -> str:
    """The track of a collector."""
    return f"collector {worker}"


class TraceWriter:
    """Appends spans to a file; one track per role and worker. Safe to use from many threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigError(
                f"The trace cannot be written to {str(path)!r} ({error.strerror}); choose another path."
            ) from error
        self._lock = threading.Lock()
        self._tracks: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._last_tid = 0
        self._pending: list[str] = []
        self._flushed_at = 0.0
        self._closed = False
        self._write('[{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"lzero_async"}}')

    def locate(self, track: str, pid: int) -> None:
        """From now on this track's spans are work of the process `pid`."""
        with self._lock:
            if self._pids.get(track) == pid:
                return
            self._pids[track] = pid
            self._tracks.pop(track, None)
            self._pending.append(_metadata("process_name", pid, 0, track))

    def span(self, track: str, name: str, start: float, end: float, **args: int) -> None:
        """Record what `track` did from `start` to `end` (seconds)."""
        extra = ",".join(f'"{key}":{value}' for key, value in args.items())
        with self._lock:
            if self._closed:
                return
            tid, pid = self._tracks.get(track) or self._new_track(track), self._pids.get(track, 1)
            self._pending.append(
                f'{{"name":"{name}","ph":"X","pid":{pid},"tid":{tid},"ts":{start * 1e6:.1f},"dur":{(end - start) * 1e6:.1f},'
                f'"args":{{{extra}}}}}'
            )
            if len(self._pending) >= _FLUSH_EVENTS or end - self._flushed_at >= _FLUSH_SECONDS:
                self._flush(end)

    def instant(self, track: str, name: str, at: float) -> None:
        """Record a moment, such as a change of the degree."""
        with self._lock:
            if self._closed:
                return
            tid = self._tracks.get(track) or self._new_track(track)
            event = {"name": name, "ph": "i", "s": "t", "pid": self._pids.get(track, 1), "tid": tid}
            self._pending.append(json.dumps({**event, "ts": round(at * 1e6, 1)}, separators=(",", ":")))

    def close(self) -> None:
        """Write what is left and end the file."""
        with self._lock:
            if not self._closed:
                self._flush(self._flushed_at)
            if not self._closed:
                self._write("\n]\n")
            if not self._closed:
                os.close(self._file)
                self._closed = True

    def _new_track(self, track: str) -> int:
        self._last_tid += 1
        tid = self._tracks[track] = self._last_tid
        self._pending.append(_metadata("thread_name", self._pids.get(track, 1), tid, track))
        return tid

    def _flush(self, now: float) -> None:
        self._flushed_at = now
        if self._pending:
            text = "".join(f",\n{event}" for event in self._pending)
            self._pending.clear()
            self._write(text)

    def _write(self, text: str) -> None:
        data = text.encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._closed = True
            os.close(self._file)
            warnings.warn(
                f"The trace {self.path} ends here ({error.strerror}); training goes on without it.", stacklevel=4
            )


def _metadata(kind: str, pid: int, tid: int, name: str) -> str:
    event = {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    return json.dumps(event, separators=(",", ":"))


def read_trace(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The events of a trace file, also of one that a crash cut off in the middle of an event."""
    lines = Path(path).read_text().splitlines()
    events = []
    for number, line in enumerate(lines):
        text = line.removeprefix("[").rstrip(",")
        if text in ("", "]"):
            continue
        try:
            events.append(json.loads(text))
        except json.JSONDecodeError as error:
            if number < len(lines) - 1:
                raise ConfigError(f"{path} is not a trace of ours: line {number + 1} is not an event.") from error
    return events
