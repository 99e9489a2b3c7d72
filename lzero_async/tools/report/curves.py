"""Score curves: runs that differ only in their seed belong together and get a mean and a band."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import is_number

Points = list[tuple[float, float]]
GRID: Final = 100  # points of a mean
SEED: Final = "seed"
INCIDENTAL: Final = frozenset({SEED, "exp_name", "wandb", "plain", "metrics_port", "report", "trace", "resume"})
MOST_NAMED: Final = 3  # settings in a name


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    name: str
    runs: tuple[Material, ...]


def flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def differences(runs: Sequence[Material]) -> dict[str, list[Any]]:
    """Settings that are not the same in all runs, with the value of each; None where a run does not have it."""
    settings = [flat(run.options) for run in runs]
    names = {name: None for one in settings for name in one}
    columns = {name: [one.get(name) for one in settings] for name in names}
    return {name: values for name, values in columns.items() if any(value != values[0] for value in values)}


def groups_of(runs: Sequence[Material]) -> list[Group]:
    """The runs by what they do, in the order of their first ones. Runs without settings stand alone."""
    found: list[tuple[Any, list[Material]]] = []
    for run in runs:
        settings = {
            name: value for name, value in flat(run.options).items() if name.rpartition(".")[2] not in INCIDENTAL
        }
        key = (run.summary.get("program"), settings) if settings else object()
        mine = next((group for other, group in found if other == key), None)
        if mine is None:
            found.append((key, [run]))
        else:
            mine.append(run)
    firsts = [group[0] for _, group in found]
    telling = {
        name: values for name, values in differences(firsts).items() if name.rpartition(".")[2] not in INCIDENTAL
    }
    return [Group(_name(group, telling, place, len(found)), tuple(group)) for place, (_, group) in enumerate(found)]


def _name(group: Sequence[Material], telling: Mapping[str, list[Any]], place: int, groups: int) -> str:
    if len(group) == 1:
        return group[0].name
    seeds = f"{len(group)} seeds"
    if groups == 1:
        return seeds
    if not telling or len(telling) > MOST_NAMED:
        return f"{group[0].name} and its {seeds}"
    named = ", ".join(f"{name.rpartition('.')[2]} {values[place]}" for name, values in telling.items())
    return f"{named} ({seeds})"


def curves_of(run: Material, across: str) -> dict[str, Points]:
    """The scores by the name of the evaluation, over "steps" or "seconds"."""
    found: dict[str, Points] = {}
    for row in run.summary["evaluations"]:
        if is_number(row.get(across)):
            found.setdefault(str(row.get("name") or ""), []).append((float(row[across]), float(row["score"])))
    return {name: sorted(points) for name, points in found.items()}


def range_of(run: Material, name: str, across: str) -> list[tuple[float, float, float]]:
    """Worst and best episode of each evaluation of this name, where known."""
    rows = [row for row in run.summary["evaluations"] if str(row.get("name") or "") == name]
    return sorted(
        (float(row[across]), float(row["low"]), float(row["high"]))
        for row in rows
        if all(is_number(row.get(key)) for key in (across, "low", "high"))
    )


def spread(curves: Sequence[Points]) -> tuple[Points, list[tuple[float, float, float]]]:
    """Mean, and (x, lowest, highest), of several curves on the stretch that all of them have, between their points on
    straight lines; empty where there is no such stretch."""
    if not curves or not all(curves):
        return [], []
    left, right = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if right < left:
        return [], []
    inner = {x for curve in curves for x, _ in curve if left <= x <= right}
    places = sorted(inner | {left, right})
    if len(places) > GRID:
        places = [left + (right - left) * number / (GRID - 1) for number in range(GRID)]
    columns = [[value_at(curve, x) for curve in curves] for x in places]
    mean = [(x, sum(values) / len(values)) for x, values in zip(places, columns, strict=True)]
    return mean, [(x, min(values), max(values)) for x, values in zip(places, columns, strict=True)]


def value_at(curve: Points, x: float) -> float:
    """The curve's value at x, on the straight line between its points; beyond its ends that of the end."""
    after = bisect_right(curve, (x, float("inf")))
    if after == 0:
        return curve[0][1]
    if after == len(curve):
        return curve[-1][1]
    (left, low), (right, high) = curve[after - 1], curve[after]
    return low if right == left else low + (high - low) * (x - left) / (right - left)
