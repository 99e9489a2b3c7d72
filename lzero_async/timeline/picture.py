"""What the roles of a run did, as bars on an axis of matplotlib."""

from __future__ import annotations

from typing import Any, Final

from lzero_async.run_files import Run
from lzero_async.timeline import text

UNFINISHED: Final = "collect failed"  # so the trace calls one that the end of the run cuts off, too
SPANS: Final = {"collect": "#2a9d8f", UNFINISHED: "#a8d5cf", "train": "#e76f51", "replay": "#f4a261", "eval": "#8d6cab"}
LABELS: Final = {UNFINISHED: "collect without result", "eval": "evaluation", "replay": "train on old data"}
OTHER: Final = "#8ab17d"


def rows_of_roles(axis: Any, name: str, run: Run, rows: list[Any], seconds: float) -> None:
    """A row of bars for each of `rows` (of `text.shown_rows`), `seconds` from the middle of the run."""
    start = text.start_of(run, seconds)
    seen: dict[str, str] = {}
    for place, (_, tracks) in enumerate(reversed(rows)):
        for number, track in enumerate(tracks):
            height = 0.8 / len(tracks)
            for span in track:
                left, right = max(span.start, start), min(span.end, start + seconds)
                if right > left:
                    colour = SPANS.get(span.name, OTHER)
                    label = None if span.name in seen else LABELS.get(span.name, span.name)
                    seen[span.name] = colour
                    edge = "white" if right - left > seconds / 100 else colour  # white would hide a narrow one
                    middle = place - 0.4 + (number + 0.5) * height
                    axis.barh(middle, right - left, height, left=left, color=colour, ec=edge, lw=0.5, label=label)
    axis.set_yticks(range(len(rows)), [role for role, _ in reversed(rows)])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlim(start, start + seconds)
    axis.set_title(f"{name}: {seconds:.2f} s from its middle", loc="left", fontsize=10)
    axis.set_xlabel("seconds of the run")
    if seen:
        legend(axis)


def legend(axis: Any) -> None:
    """The legend above an axis without its frame."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=8)
