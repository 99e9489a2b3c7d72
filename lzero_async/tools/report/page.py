"""The whole page, from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.tools.report import headline, key_metrics, learning, staleness, strips, working
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import Html, html, section
from lzero_async.tools.report.stylesheet import STYLE

# The browser is told to load nothing and to run nothing, whatever the files of a run put into the page.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def make_page(runs: Sequence[Material]) -> str:
    """One HTML document about these runs; it needs no other file, no network and no script."""
    one = runs[0] if len(runs) == 1 else None
    head = html(
        "head",
        html("meta", charset="utf-8"),
        html("meta", http_equiv="Content-Security-Policy", content=POLICY),
        html("meta", name="viewport", content="width=device-width, initial-scale=1"),
        html("meta", name="color-scheme", content="light dark"),
        html("title", headline.title_of(runs)),
        html("style", Html(STYLE)),
    )
    main = html(
        "main",
        key_metrics.tiles(one) if one is not None else key_metrics.comparison(runs),
        learning.scores(runs),
        working.throughput(runs),
        working.where_time_went(runs),
        staleness.staleness_and_lag(runs),
        strips.timeline(runs),
        key_metrics.trouble(runs),
        learning.scalars(runs),
        headline.settings(runs),
        _missing(runs),
    )
    body = html("body", headline.header(runs), main, html("footer", html("p", "Made by lzero_async report.")))
    return f"<!doctype html>\n{html('html', head, body, lang='en')}\n"


def _missing(runs: Sequence[Material]) -> Html | None:
    lines = [f"{run.name}: {text}" if len(runs) > 1 else text for run in runs for text in run.missing]
    if not lines:
        return None
    return section("missing", "What is missing here", html("ul", [html("li", line) for line in lines]))
