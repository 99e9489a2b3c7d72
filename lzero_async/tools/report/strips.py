"""The timeline: the whole run as shares of each role's time, and single spans from its middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.core.activity import rank
from lzero_async.tools.report.charts import WIDTH, below, keys, picture, times
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import Html, details, duration, html, note, number, section
from lzero_async.tools.report.trace_digest import BINS, CUT, Digest, Track, Window
from lzero_async.tools.timeline.kinds import CUT_OFF, KINDS, WAIT

TALL: Final = 100
MOST_COLLECTORS: Final = 8
LABELS: Final = {CUT if kind == CUT_OFF else kind: look.label for kind, look in KINDS.items()}
ORDER: Final = (*(kind for kind in LABELS if kind != WAIT), WAIT)  # from the bottom: work first, waits on top


def timeline(runs: Sequence[Material]) -> Html:
    """What the roles did; of several runs each is opened by the reader."""
    parts: list[Html] = []
    for run in runs:
        if run.digest is None:
            parts.append(note(f"{run.name}: " if len(runs) > 1 else "", "There is no trace."))
        elif len(runs) == 1:
            parts.append(_of(run.digest))
        else:
            parts.append(details(run.name, _of(run.digest), open_=run is runs[0]))
    return section("timeline", "Timeline", parts)


def _of(seen: Digest) -> Html:
    kinds = {kind for track in seen.tracks.values() for kind in track.bins}
    names = [(LABELS[kind], f"key box k-{kind}") for kind in ORDER if kind in kinds]
    whole = html(
        "figure",
        html("figcaption", f"the whole run, in steps of {duration(seen.width)}", keys(names)),
        html("div", [_overview(name, tracks, seen) for name, tracks in _rows(seen.tracks)],
             below(times(0.0, seen.seconds), 0.0, seen.seconds), class_="strips"),
    )  # fmt: skip
    explained = note(
        "Each row is filled as far as the role was busy in that step; what stays blank is idle. The trace itself, with every "
        "batch, opens in Perfetto (ui.perfetto.dev): trace.json in the run's folder."
    )
    return html("div", whole, _window(seen), explained)


def _rows(tracks: dict[str, Track]) -> list[tuple[str, list[Track]]]:
    """Names and the tracks behind each: one each, but collectors beyond the first few share a row."""
    found: list[tuple[str, list[Track]]] = []
    collectors = sorted((role for role in tracks if role.startswith("collector ")), key=rank)
    folded = collectors[MOST_COLLECTORS:] if len(collectors) > MOST_COLLECTORS + 1 else []
    for role in sorted(tracks, key=rank):
        if role not in folded:
            found.append((role, [tracks[role]]))
        elif role == folded[0]:
            found.append((f"{len(folded)} more", [tracks[other] for other in folded]))
    return found


def _overview(name: str, tracks: Sequence[Track], seen: Digest) -> list[Html]:
    room = seen.width * len(tracks)
    base = [0.0] * BINS
    shapes = []
    for kind in ORDER:
        bins = [sum(track.bins[kind][place] for track in tracks if kind in track.bins) / room for place in range(BINS)]
        if not any(bins):
            continue
        top = [min(1.0, low + share) for low, share in zip(base, bins, strict=True)]
        shapes.append(html("path", html("title", LABELS[kind]), d=_steps(base, top), class_=f"fill k-{kind}"))
        base = top
    active = sum(track.active for track in tracks) / (seen.seconds * len(tracks))
    about = f"active {100 * active:.0f} % of the time"
    return [
        html("span", name, class_="name"),
        html("div", picture(name, about, shapes, TALL), class_="strip"),
    ]


def _steps(low: Sequence[float], high: Sequence[float]) -> str:
    """The outline of bars between two heights; bars without height are left out."""
    wide = WIDTH / BINS
    parts = []
    for place, (bottom, top) in enumerate(zip(low, high, strict=True)):
        if top - bottom > 0.004:
            tall = (top - bottom) * TALL
            parts.append(f"M{place * wide:.1f} {TALL - top * TALL:.0f}h{wide + 0.2:.1f}v{tall:.0f}h-{wide + 0.2:.1f}z")
    return "".join(parts)


def _window(seen: Digest) -> Html | None:
    if not seen.window or seen.window_seconds <= 0:
        return None
    start, seconds = seen.window_start, seen.window_seconds
    by_role: dict[str, list[Window]] = {}
    for span in seen.window:
        by_role.setdefault(span.role, []).append(span)
    roles = sorted(by_role, key=rank)
    shown = [role for role in roles if not role.startswith("collector ")]
    collectors = [role for role in roles if role.startswith("collector ")]
    rows = [_strip(role, by_role[role], start, seconds) for role in [*collectors[:MOST_COLLECTORS], *shown]]
    hidden = len(collectors) - MOST_COLLECTORS
    return html(
        "figure",
        html("figcaption", f"{duration(seconds)} from the middle, span by span"),
        html("div", rows, below(times(start, start + seconds), start, start + seconds), class_="strips"),
        note(f"{hidden} more collectors are not shown here.") if hidden > 0 else None,
    )  # fmt: skip


def _fine(seconds: float) -> str:
    return f"{number(round(seconds, 3))} s"


def _strip(role: str, spans: Sequence[Window], start: float, seconds: float) -> list[Html]:
    scale = WIDTH / seconds
    shapes = []
    for span in spans:
        left = max(0.0, (span.start - start) * scale)
        right = min(float(WIDTH), (span.end - start) * scale)
        if right > left:
            shapes.append(
                html(
                    "rect",
                    html("title", _said(span)),
                    x=f"{left:.1f}",
                    y=0,
                    width=f"{max(0.6, right - left - (1.0 if right - left > 6 else 0.0)):.1f}",
                    height=TALL,
                    class_=f"fill k-{span.kind}",
                )
            )
    return [
        html("span", role, class_="name"),
        html("div", picture(role, f"{len(shapes)} spans", shapes, TALL), class_="strip low"),
    ]


def _said(span: Window) -> str:
    facts = [f"{name} {span.facts[name]}" for name in ("batch", "version", "staleness") if name in span.facts]
    took = f"{duration(span.end - span.start)} from {_fine(span.start)} on"
    return ", ".join([f"{span.name}: {took}", *facts])
