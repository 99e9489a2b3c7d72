"""Which settings are tried, which of them is recommended, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lzero_async.tools.advise.arguments import Request
from lzero_async.tools.advise.model import Row, Setting, percent
from lzero_async.tools.advise.subject import Advised

WITHIN: Final = 0.02  # of the best rate
BUSY: Final = 0.9  # a role, or the cores, that work for more of the time set the pace
LEAST_COLLECTORS: Final = 4


@dataclass(frozen=True)
class Advice:
    """The table, the row that is recommended, the fastest one, and the reason; `sizes`: the row that is recommended for other
    numbers of environments."""

    rows: tuple[Row, ...]
    chosen: Row
    best: Row
    reason: str
    sizes: Mapping[int, Row]


def advise(advised: Advised, request: Request) -> Advice:
    """Simulate every setting and recommend one."""
    rows = [advised.model.predict(setting) for setting in settings(advised, request)]
    chosen, best = recommend(rows)
    sizes = {number: _sized(advised, request, number) for number in request.envs}
    return Advice(tuple(rows), chosen, best, " ".join(_reasons(advised, rows, chosen, best)), sizes)


def _sized(advised: Advised, request: Request, environments: int) -> Row:
    model = advised.model.sized(environments)
    tried = [setting for setting in settings(advised, request) if setting.collectors <= environments]
    return recommend([model.predict(setting) for setting in tried])[0]


def settings(advised: Advised, request: Request) -> list[Setting]:
    """Degrees by collectors. More collectors than the degree admits at once are left out."""
    degrees = set(request.degrees) or {0, *_powers(request.max_degree)}
    own = advised.own
    if own is not None:
        degrees.add(own.degree)
    most = request.collectors or max(LEAST_COLLECTORS, int(2 * advised.model.cores), own.collectors if own else 1)
    numbers = {1} if advised.facts.one_collector else {*_powers(most), most}
    if own is not None and not advised.facts.one_collector:
        numbers.add(own.collectors)
    found = {
        Setting(degree, number)
        for degree in degrees
        for number in numbers
        if degree >= advised.facts.least_degree and (number <= max(1, degree) or advised.free_collectors)
    }
    return sorted(found | ({own} if own is not None else set()))


def _powers(most: int) -> set[int]:
    return {2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most}


def recommend(rows: Sequence[Row], within: float = WITHIN) -> tuple[Row, Row]:
    """The smallest degree whose rate is within a share of the best, with the fewest collectors; and the best row."""
    best = max(rows, key=lambda row: row.rate)
    enough = [row for row in rows if row.rate >= (1 - within) * best.rate]
    return min(enough, key=lambda row: row.setting), best


def _reasons(advised: Advised, rows: Sequence[Row], chosen: Row, best: Row) -> list[str]:
    degree, collectors = chosen.setting
    if max(row.setting.degree for row in rows) == 0:
        return [
            "Only degree 0 was tried, where collecting and training take turns; --degrees 0,1,2 tries to overlap them."
        ]
    said = [bottleneck(chosen, advised.model.cores, advised.players)]
    if chosen is best:
        said.append(f"Nothing else in the table is faster than its {chosen.batches:.3g} batches/s.")
    else:
        said.append(
            f"{degree} is the smallest {advised.facts.degree} within {percent(WITHIN)} of the best, which makes "
            f"{best.batches:.3g} batches/s with {best.setting.degree}{_with(best, advised)}."
        )
    same = [row for row in rows if row.setting.collectors == collectors]
    below = [row for row in same if row.setting.degree < degree]
    above = [row for row in same if row.setting.degree > degree]
    if below:
        last = max(below, key=lambda row: row.setting.degree)
        said.append(f"{last.setting.degree} would lose {percent(1 - last.batches / chosen.batches, 1)}.")
    if above:
        said.append(_more(chosen, min(above, key=lambda row: row.setting.degree)))
    most = max(row.setting.collectors for row in rows)
    if not advised.facts.one_collector and collectors == most and collector_bound(chosen, advised.model.cores):
        said.append(f"More collectors might gain more: --collectors {2 * most} tries them.")
    return said


def _with(row: Row, advised: Advised) -> str:
    return "" if advised.facts.one_collector else f" and {row.setting.collectors} collector(s)"


def _more(chosen: Row, more: Row) -> str:
    gain = more.batches / chosen.batches - 1
    gained = f"would gain {percent(gain, 1)}" if gain >= 0.0005 else "would gain nothing"
    if more.staleness < chosen.staleness + 0.05:
        return f"{more.setting.degree} {gained}, with batches as old as now."
    return (
        f"{more.setting.degree} {gained}, and its batches would be {more.staleness:.1f} instead of {chosen.staleness:.1f} trains "
        "old on average."
    )


def bottleneck(row: Row, cores: float, players: str = "") -> str:
    """What sets the pace, in a sentence."""
    if row.setting.degree == 0:
        return "Collecting and training in turn is as fast as at once here: what they share leaves nothing to overlap."
    if row.cores_used >= BUSY * cores:
        return f"The cores set the pace: {row.cores_used:.1f} of {cores:g} are at work."
    if _learner_busy(row):
        return f"The learner sets the pace: it works {percent(1 - row.learner_idle)} of the time."
    number = row.setting.collectors
    who = players or ("the collector works" if number == 1 else f"the {number} collectors work")
    if collector_bound(row, cores):
        old = f", {percent(row.old_data)} of its trains are on old data" if row.old_data else ""
        return (
            f"Collecting sets the pace: {who} {percent(1 - row.collector_idle)} of the time, and the learner idles for "
            f"{percent(row.learner_idle)}{old}."
        )
    return (
        f"Nobody works all the time: {who} {percent(1 - row.collector_idle)} of it and the learner "
        f"{percent(1 - row.learner_idle)}, since their uneven times make them wait for each other."
    )


def collector_bound(row: Row, cores: float) -> bool:
    """Whether the collectors set the pace, and more of them could help."""
    return 1 - row.collector_idle >= BUSY and row.cores_used < BUSY * cores and not _learner_busy(row)


def _learner_busy(row: Row) -> bool:
    """Whether trains on new data take the learner's whole time."""
    return (1 - row.learner_idle) * (1 - row.old_data) >= BUSY
