"""What there is to tell of a run, from whatever files it left: a summary as complete as they allow, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lzero_async.activity import rank
from lzero_async.errors import ConfigError
from lzero_async.report.scalars import Scalars, read_scalars
from lzero_async.report.trace_digest import Digest, digest
from lzero_async.report.words import is_number, plural
from lzero_async.run_folder import RESULTS
from lzero_async.summary import SUMMARY, read_summary

OPTIONS: Final = "options.json"
METRICS: Final = "metrics.jsonl"
TRACE: Final = "trace.json"
_MAPPINGS: Final = ("versions", "machine", "score", "counts", "rates", "statistics", "utilisation")
_LISTS: Final = ("evaluations", "roles", "events")
_SCORES: Final = ("score", "mean_return", "mean_score")  # what results.json calls them
_STEPS: Final = ("steps", "trained_steps", "real_data", "env_steps", "version")
_SECONDS: Final = ("seconds_at", "seconds")


@dataclass(frozen=True)
class Material:
    """One run. `summary` is that of summary.json, completed from results.json and the trace: every mapping and list is there,
    perhaps empty. `missing` are sentences about what is not."""

    name: str
    folder: Path
    summary: dict[str, Any]
    options: dict[str, Any]
    digest: Digest | None
    scalars: Scalars | None
    missing: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary.get("ended_by") is not None

    @property
    def statistics(self) -> dict[str, Any]:
        """The coordinator's statistics."""
        return dict(self.summary["statistics"])

    @property
    def seconds(self) -> float | None:
        """How long it ran, or ran until the last that is known of it."""
        for value in (self.summary.get("seconds"), self.statistics.get("wall_time")):
            if is_number(value):
                return float(value)
        return None if self.digest is None else self.digest.seconds


def read_all(folders: Sequence[Path]) -> list[Material]:
    """The runs in these folders, each by a name of its own; ConfigError for one that holds nothing of a run."""
    return [read_material(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]


def names_of(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many folders above them as it takes to tell them apart."""
    whole = [folder.resolve().parts for folder in folders]
    depth = 1
    while len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]


def read_material(folder: Path, name: str | None = None) -> Material:
    """Read what a run left; ConfigError if there is nothing."""
    if not any((folder / file).is_file() for file in (SUMMARY, RESULTS, METRICS, TRACE)):
        raise ConfigError(
            f"{folder} holds no run (none of {SUMMARY}, {RESULTS}, {METRICS}, {TRACE} is there); give the folder of a run."
        )
    missing: list[str] = []
    summary = _summary(folder, missing)
    options = _json(folder / OPTIONS, missing, "the settings are not known")
    traced = _trace(folder, missing)
    scalars = read_scalars(folder / METRICS)
    if scalars is None:
        missing.append(f"{METRICS} is not there: no scalars of the learner.")
    elif scalars.broken:
        missing.append(f"{plural(scalars.broken, 'line')} of {METRICS} cannot be read and left out.")
    if traced is not None:
        _complete_from_trace(summary, traced)
    return Material(name or folder.resolve().name, folder, summary, options, traced, scalars, tuple(missing))


def _summary(folder: Path, missing: list[str]) -> dict[str, Any]:
    """The summary, or what results.json tells of one; every mapping and list of it is there."""
    found: dict[str, Any] = {}
    if (folder / SUMMARY).is_file():
        try:
            found = read_summary(folder)
        except ConfigError as error:
            missing.append(f"{SUMMARY} is left out: {error}")
    if not found and (folder / RESULTS).is_file():
        missing.append(f"{SUMMARY} is not there: what {RESULTS} and {TRACE} tell is shown, and no events.")
        found = _from_results(_json(folder / RESULTS, missing, "there are no results"))
    elif not found:
        missing.append(f"Neither {SUMMARY} nor {RESULTS} is there: only the trace and the scalars tell of this run.")
    for name in _MAPPINGS:
        found[name] = dict(found[name]) if isinstance(found.get(name), Mapping) else {}
    for name in _LISTS:
        value = found.get(name)
        found[name] = [dict(row) for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    found["statistics"] = {name: value for name, value in found["statistics"].items() if _is_statistic(name, value)}
    found["roles"] = [
        {name: value for name, value in row.items() if name == "role" or is_number(value)} for row in found["roles"]
    ]
    found["evaluations"] = [row for row in found["evaluations"] if is_number(row.get("score"))]
    return found


def _is_statistic(name: str, value: Any) -> bool:
    kinds: dict[str, type] = {"mode": str, "staleness_counts": Mapping}
    return isinstance(value, kinds[name]) if name in kinds else value is None or is_number(value)


def _json(path: Path, missing: list[str], problem: str) -> dict[str, Any]:
    if not path.is_file():
        missing.append(f"{path.name} is not there: {problem}.")
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8", errors="replace")))
    except (ValueError, TypeError) as error:
        missing.append(f"{path.name} cannot be read ({error}): {problem}.")
        return {}


def _from_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run that wrote none, as far as its results tell."""
    statistics = results.get("coordinator") or results.get("statistics") or {}
    best = results.get("best") or results.get("best_evaluation") or {}
    rows = [_evaluation(row) for row in results.get("evaluations") or [] if isinstance(row, Mapping)]
    scores = [row["score"] for row in rows if is_number(row["score"])]
    counts = results.get("counters") or {key: results[key] for key in ("env_steps", "updates") if key in results}
    return {
        "title": str(results.get("game") or results.get("env") or "") or None,
        "ended_by": results.get("ended_by"),
        "score": {"name": "score", "highest": results.get("max_score"), "best": _first(best, ("return", "score")),
                  "last": scores[-1] if scores else None},
        "axis": "steps",
        "evaluations": rows,
        "counts": counts,
        "statistics": statistics,
        "utilisation": results.get("utilisation"),
    }  # fmt: skip


def _evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    scores = row.get("scores")
    lowest = (
        (min(scores), max(scores))
        if isinstance(scores, list) and scores
        else (row.get("min_return"), row.get("max_return"))
    )
    return {
        "name": str(row.get("mode") or "evaluation"),
        "version": row.get("version"),
        "steps": _first(row, _STEPS),
        "seconds": _first(row, _SECONDS) if "seconds_at" in row else None,
        "score": _first(row, _SCORES),
        "low": lowest[0],
        "high": lowest[1],
    }


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if is_number(row.get(name))), None)


def _trace(folder: Path, missing: list[str]) -> Digest | None:
    path = folder / TRACE
    if not path.is_file():
        missing.append(f"{TRACE} is not there (the run's option trace is off): no throughput over time, no timeline.")
        return None
    try:
        found = digest(path)
    except ConfigError as error:
        missing.append(f"{TRACE} is left out: {error}")
        return None
    if found is None:
        missing.append(f"{TRACE} holds no span: no throughput over time, no timeline.")
    elif (folder / "trace-1.json").is_file():
        missing.append("The run was resumed: throughput over time, lag and timeline are those since then; "
                       "trace-1.json and those after it hold what was before.")  # fmt: skip
    return found


def _complete_from_trace(summary: dict[str, Any], traced: Digest) -> None:
    """Roles and staleness, where the summary does not tell."""
    if not summary["roles"]:
        summary["roles"] = [
            {
                "role": role,
                "active": track.active,
                "waiting": track.waiting,
                "idle": max(0.0, traced.seconds - track.active - track.waiting),
            }
            for role, track in sorted(traced.tracks.items(), key=lambda item: rank(item[0]))
        ]
    statistics = summary["statistics"]
    if not statistics.get("staleness_counts") and traced.staleness:
        statistics["staleness_counts"] = {str(key): count for key, count in sorted(traced.staleness.items())}
    statistics.setdefault("train_count", sum(traced.trains))
    statistics.setdefault("collect_count", sum(traced.collects))
