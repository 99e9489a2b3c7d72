"""What held a run back, in one sentence with the number behind it. A pure function over the run's summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lzero_async.tools.report.markup import is_number, number, percent, plural

BUSY: Final = 0.85  # share of the time from which on a role is the one that others wait for
MUCH: Final = 0.15  # share of the time that is worth a word
CORES_BUSY: Final = 0.9
OWN: Final = 0.6  # below this share of the busy cores others use them
LITTLE: Final = 0.2  # a run that used less of the cores does not lack them
LEAST_TRAINS: Final = 3


class Bottleneck(NamedTuple):
    """`kind` is one word for programs: unknown, turns, failures, evaluation, others, cores, learner, collectors, degree, none."""

    kind: str
    sentence: str


class _Shares(NamedTuple):
    """Shares of a role's time; for collectors the mean."""

    active: float
    waiting: float
    idle: float


def find_bottleneck(summary: Mapping[str, Any]) -> Bottleneck:
    """What to change first to make a run like this one faster; `summary` is that of summary.json."""
    statistics = summary.get("statistics") or {}
    roles = summary.get("roles") or []
    learner, collectors = _learner(roles, statistics), _shares(roles, "collector")
    if learner is None or collectors is None or (statistics.get("train_count") or 0) < LEAST_TRAINS:
        return Bottleneck("unknown", "The run is too short, or left too little, to say what held it back.")
    for look in (_turns, _failures, _evaluation, _drops, _cores, _one_side, _degree, _others):
        found = look(summary, statistics, collectors, learner)
        if found is not None:
            caution = "" if found.kind == "others" else _caution(summary, statistics)
            return Bottleneck(found.kind, found.sentence + caution)
    return Bottleneck(
        "none",
        f"Nothing stands out: collectors were active {percent(collectors.active)} and the learner "
        f"{percent(learner.active)} of the time.{_caution(summary, statistics)}",
    )


def _shares(roles: Sequence[Mapping[str, Any]], name: str) -> _Shares | None:
    """The mean shares of the roles that are called so, numbered or not."""
    mine = [role for role in roles if str(role.get("role", "")).split(" ")[0] == name and is_number(role.get("active"))]
    sums = [sum(float(role.get(state) or 0.0) for role in mine) for state in _Shares._fields]
    whole = sum(sums)
    return _Shares(*(value / whole for value in sums)) if whole > 0 else None


def _learner(roles: Sequence[Mapping[str, Any]], statistics: Mapping[str, Any]) -> _Shares | None:
    """The learner's shares, in which `waiting` is for batches only: what it waits for an evaluation in its turn is idle."""
    learner, evaluator = _shares(roles, "learner"), _shares(roles, "evaluator")
    if learner is None or evaluator is None or statistics.get("async_eval") is not False:
        return learner
    evaluated = min(learner.waiting, evaluator.active)
    return _Shares(learner.active, learner.waiting - evaluated, learner.idle + evaluated)


def _turns(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    if statistics.get("mode") != "SYNCHRONOUS":
        return None
    collect, train = _value(statistics, "collect_total_time"), _value(statistics, "train_total_time")
    evaluation, wall = _value(statistics, "eval_total_time"), _value(statistics, "wall_time")
    longest = max(collect, train)
    if longest <= 0 or wall <= 0:
        return None
    shares = f"collecting took {percent(collect / wall)} of the time, training {percent(train / wall)}"
    if evaluation > MUCH * wall:
        shares += f", evaluating {percent(evaluation / wall)}"
    gain = (collect + train) / longest
    if gain < 1 + MUCH:
        one, what = ("Collecting", "faster or more collectors") if collect > train else ("Training", "a faster learner")
        return Bottleneck(
            "turns", f"{one} is the bottleneck: the roles take turns (degree 0), and {shares}; {what} would help, "
            f"overlapping them would gain at most {percent(gain - 1)}."
        )  # fmt: skip
    return Bottleneck(
        "turns", f"Taking turns is the bottleneck: at degree 0 {shares}; with off_policy_degree 1 or more both run at the "
        f"same time, at most {gain:.2f} times as fast if there are cores for both."
    )  # fmt: skip


def _failures(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    rows = [row for row in summary["roles"] if str(row.get("role", "")).startswith("collector")]
    restarts, failed = sum(_value(row, "restarts") for row in rows), _value(statistics, "failed")
    if collectors.idle < MUCH or not (restarts or failed):
        return None
    counted = [plural(count, word) for count, word in ((failed, "failed collect"), (restarts, "restart")) if count]
    return Bottleneck(
        "failures",
        f"Failures are the bottleneck: collectors were idle {percent(collectors.idle)} of the time, after "
        f"{' and '.join(counted)}; see the table of failures for why.",
    )


def _evaluation(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    """An evaluation in the learner's turn, unless collectors are what the learner would wait for anyway."""
    evaluator = _shares(summary["roles"], "evaluator")
    if evaluator is None or statistics.get("async_eval") is True or _wait_for_collectors(collectors, learner):
        return None
    if evaluator.active < MUCH or learner.idle < 0.7 * evaluator.active:
        return None
    return Bottleneck(
        "evaluation",
        f"Evaluation is the bottleneck: it took {percent(evaluator.active)} of the time in the learner's turn, while the "
        f"learner trained {percent(learner.active)}; evaluate in the background, less often, or fewer episodes.",
    )


def _drops(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    dropped, collected = _value(statistics, "dropped"), _value(statistics, "collect_count")
    if collected <= 0 or dropped < MUCH * collected or learner.active <= learner.waiting:
        return None
    return Bottleneck(
        "learner",
        f"The learner is the bottleneck: {percent(dropped / collected)} of the collected batches were dropped before they "
        f"could be trained, while it was active {percent(learner.active)} of the time; a faster learner or fewer updates "
        "per batch help, and fewer collectors lose nothing.",
    )


def _cores(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    cores, busy, own = _use_of_cores(summary, statistics)
    if cores is None or busy < CORES_BUSY or (own is not None and own < OWN * busy):
        return None
    return Bottleneck(
        "cores",
        f"The cores are the bottleneck: {percent(busy)} of {number(cores)} were busy (collectors active "
        f"{percent(collectors.active)}, the learner {percent(learner.active)} of the time); more cores or less work per "
        "batch help, more collectors do not.",
    )


def _others(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    cores, busy, own = _use_of_cores(summary, statistics)
    if cores is None or own is None or busy < CORES_BUSY or not LITTLE <= own < OWN * busy:
        return None
    return Bottleneck(
        "others",
        f"Other programs are the bottleneck: {percent(busy)} of {number(cores)} cores were busy, and this run used "
        f"{number(round(own * cores, 1))} of them; run it alone to know more.",
    )


def _use_of_cores(
    summary: Mapping[str, Any], statistics: Mapping[str, Any]
) -> tuple[float | None, float, float | None]:
    """Cores, the share of them that was busy, and the share that this run used; None where unknown."""
    use = summary.get("utilisation") or {}
    cores, busy, own = (summary.get("machine") or {}).get("cores"), use.get("cpu"), use.get("cpu_seconds")
    wall = _value(summary, "seconds") or _value(statistics, "wall_time")  # the CPU seconds are those since a resume
    if not is_number(cores) or not is_number(busy) or cores <= 0:
        return None, 0.0, None
    return cores, busy, own / (wall * cores) if is_number(own) and wall > 0 else None


def _caution(summary: Mapping[str, Any], statistics: Mapping[str, Any]) -> str:
    """What to add when other programs kept the cores busy."""
    cores, busy, own = _use_of_cores(summary, statistics)
    if cores is None or own is None or busy < CORES_BUSY or own >= OWN * busy:
        return ""
    return f" Other programs kept {number(round((busy - own) * cores, 1))} of {number(cores)} cores busy meanwhile."


def _one_side(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    if learner.active >= BUSY and collectors.waiting >= MUCH:
        return Bottleneck(
            "learner",
            f"The learner is the bottleneck: it was active {percent(learner.active)} of the time while collectors waited "
            f"{percent(collectors.waiting)} for it; a faster learner or fewer updates per collect help, more collectors do "
            "not.",
        )
    if _wait_for_collectors(collectors, learner):
        return Bottleneck(
            "collectors",
            f"Collecting is the bottleneck: collectors were active {percent(collectors.active)} of the time while the "
            f"learner waited {percent(learner.waiting)} for batches; more collectors or environments help, a faster "
            "learner does not.",
        )
    return None


def _wait_for_collectors(collectors: _Shares, learner: _Shares) -> bool:
    return collectors.active >= BUSY and learner.waiting >= MUCH


def _degree(
    summary: Mapping[str, Any], statistics: Mapping[str, Any], collectors: _Shares, learner: _Shares
) -> Bottleneck | None:
    if collectors.waiting < MUCH or learner.waiting < MUCH:
        return None
    return Bottleneck(
        "degree",
        f"The degree is the bottleneck: at off_policy_degree {number(statistics.get('off_policy_degree'))} both sides wait "
        f"for each other, collectors {percent(collectors.waiting)} and the learner {percent(learner.waiting)} of the time; "
        "a higher degree evens out collects of unequal length.",
    )


def _value(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    return float(value) if is_number(value) else 0.0
