"""Spans of a run as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens.

The file is a JSON array that grows by whole events, so what a crash leaves behind lacks only its closing bracket; the
format makes that optional, and `tools.traces` accepts it.
"""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError

LEARNER: Final = "learner"
EVALUATOR: Final = "evaluator"
_FLUSH_EVENTS: Final = 64
_FLUSH_SECONDS: Final = 1.0
_INSIDE: Final = (
    2e-7  # seconds before a span's end that an arrow leaves it: an arrow belongs to the span around its moment
)
_KEPT_PUBLICATIONS: Final = 1_000


@lru_cache(maxsize=4096)
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
        self.lock = threading.RLock()
        self._tracks: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._last_tid = 0
        self._pending: list[str] = []
        self._counters: dict[str, int] = {}
        self._publications: dict[int, tuple[int, int, float]] = {}  # place and moment by version
        self._flushed_at = 0.0
        self._closed = False
        self._write('[{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"lzero_async"}}')

    def locate(self, track: str, pid: int) -> None:
        """From now on this track's spans are work of the process `pid`."""
        with self.lock:
            if self._pids.get(track) == pid:
                return
            self._pids[track] = pid
            self._tracks.pop(track, None)
            self._pending.append(_metadata("process_name", pid, 0, track))

    def span(self, track: str, name: str, start: float, end: float, /, **args: Any) -> None:
        """Record what `track` did from `start` to `end` (seconds)."""
        with self.lock:
            if not self._closed:
                self._span(track, name, start, end, args)
                self._flush_if_due(end)

    def collect(self, track: str, start: float, end: float, batch: int, version: int) -> None:
        """Record a collect, the arrow from the publication whose weights it played with, and the one to the train that will
        use its batch."""
        with self.lock:
            if self._closed:
                return
            pid, tid = self._span(track, "collect", start, end, {"batch": batch, "version": version})
            if (publication := self._publications.get(version)) is not None:
                self._arrow("s", "weights", batch, *publication)
                self._arrow("f", "weights", batch, pid, tid, start)
            self._arrow("s", "batch", batch, pid, tid, max(start, end - _INSIDE))
            self._flush_if_due(end)

    def train(
        self, start: float, end: float, batch: int, version: int, staleness: int, batches: Sequence[int] = ()
    ) -> None:
        """Record a train and the end of the arrow from its batch's collect; of several `batches`, `batch` is the oldest."""
        with self.lock:
            if self._closed:
                return
            args: dict[str, Any] = {"batch": batch, "version": version, "staleness": staleness}
            if batches:
                args["batches"] = list(batches)
            pid, tid = self._span(LEARNER, "train", start, end, args)
            for number in batches or (batch,):
                self._arrow("f", "batch", number, pid, tid, start)
            self._flush_if_due(end)

    def published(self, start: float, end: float, version: int) -> None:
        """Record a publication of weights; collects that load them get an arrow from it."""
        with self.lock:
            if self._closed:
                return
            pid, tid = self._span(LEARNER, "publish", start, end, {"version": version})
            self._publications[version] = pid, tid, max(start, end - _INSIDE)
            if len(self._publications) > _KEPT_PUBLICATIONS:
                del self._publications[next(iter(self._publications))]
            self._flush_if_due(end)

    def counters(self, at: float, **values: int) -> None:
        """Record the counters that changed; each is a track of its own, its name without underscores."""
        with self.lock:
            if self._closed:
                return
            for name, value in values.items():
                if self._counters.get(name) != value:
                    self._counters[name] = value
                    shown = name.replace("_", " ")
                    self._pending.append(
                        f'{{"name":"{shown}","ph":"C","pid":1,"ts":{at * 1e6:.1f},"args":{{"{_UNITS[name]}":{value}}}}}'
                    )
            self._flush_if_due(at)

    def instant(self, track: str, name: str, at: float) -> None:
        """Record a moment, such as a change of the degree."""
        with self.lock:
            if self._closed:
                return
            tid = self._tracks.get(track) or self._new_track(track)
            event = {"name": name, "ph": "i", "s": "t", "pid": self._pids.get(track, 1), "tid": tid}
            self._pending.append(json.dumps({**event, "ts": round(at * 1e6, 1)}, separators=(",", ":")))

    def close(self) -> None:
        """Write what is left and end the file."""
        with self.lock:
            if not self._closed:
                self._flush(self._flushed_at)
            if not self._closed:
                self._write("\n]\n")
            if not self._closed:
                os.close(self._file)
                self._closed = True

    def _span(self, track: str, name: str, start: float, end: float, args: dict[str, Any]) -> tuple[int, int]:
        extra = ",".join(f'"{key}":{value if type(value) is int else _encoded(value)}' for key, value in args.items())
        tid, pid = self._tracks.get(track) or self._new_track(track), self._pids.get(track, 1)
        first, last = _ticks(start), _ticks(end)  # rounded before the length is taken: spans in a row never overlap
        self._pending.append(
            f'{{"name":{_quoted(name)},"ph":"X","pid":{pid},"tid":{tid},"ts":{first / 10:.1f},"dur":{(last - first) / 10:.1f},'
            f'"args":{{{extra}}}}}'
        )
        return pid, tid

    def _arrow(self, end: str, kind: str, number: int, pid: int, tid: int, at: float) -> None:
        """One end of an arrow, bound to the span around it."""
        binding = ',"bp":"e"' if end == "f" else ""
        self._pending.append(
            f'{{"name":"{kind}","cat":"{kind}","ph":"{end}"{binding},"id":{number},"pid":{pid},"tid":{tid},'
            f'"ts":{_ticks(at) / 10:.1f}}}'
        )

    def _flush_if_due(self, now: float) -> None:
        if len(self._pending) >= _FLUSH_EVENTS or now - self._flushed_at >= _FLUSH_SECONDS:
            self._flush(now)

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


def _ticks(seconds: float) -> int:
    """Tenths of a microsecond. Spans and arrows are rounded in this one way, or an arrow would miss the span it starts with."""
    return round(seconds * 1e7)


@lru_cache(maxsize=4096)
def _quoted(name: str) -> str:
    return json.dumps(name)


def _encoded(value: Any) -> str:
    return to_json(value)


def _metadata(kind: str, pid: int, tid: int, name: str) -> str:
    event = {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    return json.dumps(event, separators=(",", ":"))


# Viewers show a counter as its name and its unit.
_UNITS: Final = {
    "lag": "batches",
    "queue": "batches",
    "queue_capacity": "",
    "open_collects": "",
    "degree": "",
}


# -- JSON that every parser reads: the one way in which the files of a run are written ---------------------------------------


def to_json(value: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """JSON for a value: null for NaN and the infinities, which JSON does not have; numbers and lists for those of numpy and
    torch; text for what else it does not know."""
    try:
        return json.dumps(value, indent=indent, separators=separators, allow_nan=False, default=_plain)
    except ValueError:  # rare: only then is everything looked at
        return json.dumps(_finite(value), indent=indent, separators=separators, allow_nan=False)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, float) else key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return _finite(_plain(value))
