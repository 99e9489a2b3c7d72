"""What a viewer of Chrome traces asks of one, so that it shows every span, arrow and counter. Perfetto drops spans of a track
that overlap, and binds an arrow to the span around its moment, or to none."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

Events = list[dict[str, Any]]
TICK = 0.05  # half a tenth of a microsecond, the unit of the times


def violations(events: Iterable[dict[str, Any]]) -> list[str]:
    """The rules that are broken, in words; an arrow that has only a beginning is allowed: its batch is still to be trained."""
    events = list(events)
    tracks: dict[tuple[int, int], Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for spans in tracks.values():
        spans.sort(key=lambda span: (span["ts"], -span["dur"]))
    return [*_names(events, tracks), *_overlaps(tracks), *_arrows(events, tracks), *_counters(events)]


def _names(events: Events, tracks: dict[tuple[int, int], Events]) -> Iterable[str]:
    named = {
        (e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"]
    }
    yield from (f"track {place} has no name" for place in tracks if place not in named)


def _overlaps(tracks: dict[tuple[int, int], Events]) -> Iterable[str]:
    """Spans of one track must lie inside each other or apart."""
    for place, spans in tracks.items():
        open_ends: list[float] = []
        for span in spans:
            if span["dur"] < 0:
                yield f"{span['name']} at {span['ts']} on {place} ends before it begins"
            while open_ends and open_ends[-1] <= span["ts"] + TICK:
                open_ends.pop()
            if open_ends and span["ts"] + span["dur"] > open_ends[-1] + TICK:
                yield f"{span['name']} at {span['ts']} on {place} overlaps the span before it"
            open_ends.append(span["ts"] + span["dur"])


def _arrows(events: Events, tracks: dict[tuple[int, int], Events]) -> Iterable[str]:
    ends = [event for event in events if event["ph"] in ("s", "f")]
    spans = {(e["pid"], e["tid"], e["cat"], e["id"], e["ph"]): _around(e, tracks) for e in ends}
    for (cat, number, end), count in Counter((e["cat"], e["id"], e["ph"]) for e in ends).items():
        if count > 1:
            yield f"arrow {cat} {number} has {count} ends {end}"
    tails = {(e["cat"], e["id"]): e for e in ends if e["ph"] == "s"}
    for event in ends:
        cat, number = event["cat"], event["id"]
        span = spans[event["pid"], event["tid"], cat, number, event["ph"]]
        wanted = {
            ("batch", "s"): "collect",
            ("batch", "f"): "train",
            ("weights", "s"): "publish",
            ("weights", "f"): "collect",
        }
        if span is None or span["name"] != wanted[cat, event["ph"]]:
            yield f"end {event['ph']} of arrow {cat} {number} is at {'no span' if span is None else span['name']}"
        if event["ph"] == "f":
            tail = tails.get((cat, number))
            if tail is None or tail["ts"] > event["ts"]:
                yield f"arrow {cat} {number} ends but does not begin before that"
            elif span is not None:
                yield from _same(cat, _around(tail, tracks), span)


def _around(event: dict[str, Any], tracks: dict[tuple[int, int], Events]) -> dict[str, Any] | None:
    """The last span of the event's track that began before it and goes on; the end of a span does not belong to it."""
    spans, moment = tracks[event["pid"], event["tid"]], event["ts"]
    place = bisect_left(spans, moment + TICK, key=lambda span: span["ts"])
    return next((span for span in reversed(spans[:place]) if moment < span["ts"] + span["dur"] - TICK), None)


def _same(cat: str, tail: dict[str, Any] | None, head: dict[str, Any]) -> Iterable[str]:
    """An arrow joins spans of the same batch, or of the same version."""
    key = "batch" if cat == "batch" else "version"
    several = head["args"].get("batches", [head["args"].get(key)]) if cat == "batch" else [head["args"].get(key)]
    if tail is not None and tail["args"].get(key) not in several:
        yield f"an arrow joins {key} {tail['args'].get(key)} and {head['args'].get(key)}"


def _counters(events: Events) -> Iterable[str]:
    for event in events:
        if event["ph"] == "C" and not (event["args"] and all(type(v) in (int, float) for v in event["args"].values())):
            yield f"counter {event['name']} at {event['ts']} is no number"
