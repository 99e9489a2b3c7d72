"""What was learned: score curves over steps and over seconds, and the learner's scalars as small multiples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.tools.report.charts import WIDTH, Band, Line, Mark, picture, plot
from lzero_async.tools.report.curves import Group, curves_of, groups_of, range_of, spread
from lzero_async.tools.report.inputs import Material, Series
from lzero_async.tools.report.markup import Html, details, html, is_number, moment, note, number, plural, section

MINI_HEIGHT: Final = 100
ORDINARY: Final = frozenset({"evaluation", ""})  # names that say nothing


def scores(runs: Sequence[Material]) -> Html:
    """The score curves."""
    if not any(run.summary["evaluations"] for run in runs):
        return section("score", "Score", note("There was no evaluation."))
    axis = str(runs[0].summary.get("axis") or "steps")
    charts = [_scores(runs, "steps", axis), _scores(runs, "seconds", "time of the run")]
    return section("score", "Score", html("div", [chart for chart in charts if chart], class_="pair"), _explained(runs))


def _scores(runs: Sequence[Material], across: str, x_name: str) -> Html | None:
    lines: list[Line] = []
    bands: list[Band] = []
    groups = groups_of(runs)
    for place, group in enumerate(groups):
        if len(group.runs) > 1:
            _add_seeds(group, across, place, lines, bands, alone=len(groups) == 1)
        else:
            _add_run(group, across, place, lines, bands, alone=len(groups) == 1)
    if not lines:
        return None
    name = next((str(run.summary["score"]["name"]) for run in runs if run.summary["score"].get("name")), "score")
    highest = {top for run in runs if is_number(top := run.summary["score"].get("highest"))}
    marks = [Mark("highest possible", float(top)) for top in highest] if len(highest) == 1 else []
    over = "time" if across == "seconds" else x_name
    about = f"{name} of evaluations over {over}: " + "; ".join(
        f"{line.name} from {number(line.points[0][1])} to {number(line.points[-1][1])}"
        for line in lines
        if line.look != "thin"
    )
    return plot(f"{name} over {over}", about, lines, bands=bands, marks=marks, x_name=x_name, time=across == "seconds")


def _add_seeds(group: Group, across: str, place: int, lines: list[Line], bands: list[Band], *, alone: bool) -> None:
    """Mean and range of a group, its runs as thin lines. Of several kinds of evaluation the first run's first one counts."""
    curves = [curves_of(run, across) for run in group.runs]
    names = list(dict.fromkeys(name for mine in curves for name in mine))
    for number_, name in enumerate(names if alone else names[:1]):
        mine = [curve[name] for curve in curves if name in curve]
        colour = place + number_
        shown = group.name if name in ORDINARY or not alone else f"{name}, {group.name}"
        for run, points in zip(
            [run for run, curve in zip(group.runs, curves, strict=True) if name in curve], mine, strict=True
        ):
            lines.append(Line(run.name, points, colour, "thin"))
        mean, around = spread(mine)
        if mean:
            lines.append(Line(f"mean of {shown}", mean, colour))
            bands.append(Band("lowest to highest seed", around, colour))


def _add_run(group: Group, across: str, place: int, lines: list[Line], bands: list[Band], *, alone: bool) -> None:
    """The curves of one run, with the range of its episodes when it is alone on the page."""
    run = group.runs[0]
    curves = curves_of(run, across)
    for number_, (name, points) in enumerate(curves.items() if alone else list(curves.items())[:1]):
        shown = run.name if not alone else ("mean of the episodes" if name in ORDINARY else name)
        colour = place + number_
        look = "dashed" if number_ and not alone else ""

        def say(x: float, y: float, shown: str = shown) -> str:
            return f"{shown}: {number(y)} at {moment(x) if across == 'seconds' else number(x)}"

        lines.append(Line(shown, points, colour, look, dots=True, say=say))
        around = range_of(run, name, across)
        if alone and len(curves) == 1 and len(around) > 1:
            bands.append(Band("worst to best episode", around, colour))


def _explained(runs: Sequence[Material]) -> Html | None:
    if len(runs) == 1:
        return None
    groups = groups_of(runs)
    if all(len(group.runs) == 1 for group in groups):
        return note("One line per run. Runs that differ in the seed only would be drawn as one, with their spread.")
    return note(
        "Runs that differ in the seed only are drawn as one: the thick line is their mean and the band reaches from the lowest "
        "to the highest, where all of them have data; thin lines are the single runs."
    )


def scalars(runs: Sequence[Material]) -> Html:
    """Every number of metrics.jsonl over the trains, closed until the reader wants them."""
    known = [run for run in runs if run.scalars is not None and run.scalars.series]
    if not known:
        return section("scalars", "Learner", note("No scalars of the learner are there."))
    names = list(dict.fromkeys(name for run in known for name in (run.scalars.series if run.scalars else ())))
    moving = [name for name in names if _changes(name, known)]
    still = [f"{name} {number(_series(name, known)[0].last)}" for name in names if name not in moving]
    rows = sum(run.scalars.rows for run in known if run.scalars is not None)
    left_out = {name for run in known if run.scalars is not None for name in run.scalars.left_out}
    return section(
        "scalars", "Learner",
        details(
            f"{plural(len(names), 'scalar')} over {plural(rows, 'train')}",
            html("div", [_mini(name, runs) for name in moving], class_="minis"),
            note("Over the trains: the line is the mean of a stretch of them, the band reaches from lowest to highest in it."),
            note(f"The same all the time: {', '.join(still)}.") if still else None,
        ),
        note(f"{plural(len(left_out), 'more scalar')} of metrics.jsonl left out.") if left_out else None,
    )  # fmt: skip


def _series(name: str, runs: Sequence[Material]) -> list[Series]:
    return [run.scalars.series[name] for run in runs if run.scalars is not None and name in run.scalars.series]


def _changes(name: str, runs: Sequence[Material]) -> bool:
    found = _series(name, runs)
    return any(series.changes or series.last != found[0].last for series in found)


def _mini(name: str, runs: Sequence[Material]) -> Html:
    found: list[tuple[int, Series]] = []
    for place, run in enumerate(runs):
        if run.scalars is not None and name in run.scalars.series:
            found.append((place, run.scalars.series[name]))
    points = [stretch for _, series in found for stretch in series.stretches]
    low, high = min(point[2] for point in points), max(point[3] for point in points)
    first, last = min(point[0] for point in points), max(point[0] for point in points)
    wide, tall = WIDTH / ((last - first) or 1.0), 0.9 * MINI_HEIGHT / ((high - low) or 1.0)

    def at(x: float, y: float) -> str:
        return f"{(x - first) * wide:.0f} {MINI_HEIGHT * 0.95 - (y - low) * tall:.1f}"

    inner = []
    for place, series in found:
        if len(found) == 1:
            edge = [at(x, top) for x, _, _, top in series.stretches]
            edge += [at(x, bottom) for x, _, bottom, _ in reversed(series.stretches)]
            inner.append(html("path", d=f"M{'L'.join(edge)}Z", class_=f"band c{place % 8}"))
        line = (
            "M"
            + "L".join(at(x, mean) for x, mean, *_ in series.stretches)
            + ("h0" if len(series.stretches) == 1 else "")
        )
        inner.append(html("path", html("title", runs[place].name), d=line, class_=f"line c{place % 8}"))
    values = ", ".join(number(series.last) for _, series in found[:1])
    about = f"from {number(low)} to {number(high)}, last {values}"
    return html(
        "div",
        html("b", name),
        html("div", picture(name, about, inner, MINI_HEIGHT), class_="pic"),
        html("div", html("span", f"{number(low)} to {number(high)}"), html("span", f"last {values}"), class_="range"),
        class_="mini",
    )
