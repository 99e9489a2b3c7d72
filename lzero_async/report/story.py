"""The top of the page: what ran, what came of it, the key numbers, and several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lzero_async.report.curves import groups_of
from lzero_async.report.markup import Html, html, note, section, table
from lzero_async.report.material import Material
from lzero_async.report.words import TIMES, duration, is_number, number, percent, plural, ratio, size

ROLES: Final = (("collectors active", "collector", "active"), ("collectors waiting", "collector", "waiting"),
                ("learner active", "learner", "active"), ("learner waiting", "learner", "waiting"))  # fmt: skip


def title_of(runs: Sequence[Material]) -> str:
    """What the page is about."""
    titles = list(
        dict.fromkeys(str(run.summary.get("title") or run.summary.get("program") or run.name) for run in runs)
    )
    if len(runs) == 1:
        return titles[0]
    several = f"{len(runs)} runs"
    if len(groups_of(runs)) == 1:
        several = f"{len(runs)} seeds"
    return f"{titles[0]}, {several}" if len(titles) == 1 else f"{several}: {', '.join(titles)}"


def header(runs: Sequence[Material], finding: str) -> Html:
    """Title, state and verdict."""
    one = runs[0] if len(runs) == 1 else None
    state = None
    if one is not None:
        state = html("span", state_of(one), class_=f"badge {_tone(one)}")
    began = sorted(str(run.summary["began"]) for run in runs if run.summary.get("began"))
    where = f"{one.name} · " if one is not None else ""
    subtitle = f"{where}began {began[0].replace('T', ' ')[:16]} UTC" if began else where.rstrip(" ·")
    sentences = [sentence(one)] if one is not None else several_sentences(runs)
    return html(
        "header",
        html("h1", title_of(runs), state),
        html("p", subtitle, class_="soft") if subtitle else None,
        html("p", " ".join(sentences), class_="verdict"),
        html("p", finding, class_="finding") if finding else None,
    )


def state_of(run: Material) -> str:
    """One or two words."""
    if not run.finished:
        return "not finished"
    return "interrupted" if str(run.summary["ended_by"]).startswith("SIG") else "finished"


def _tone(run: Material) -> str:
    return {"finished": "good"}.get(state_of(run), "warn")


def sentence(run: Material) -> str:
    """What a run did, how long, and what ended it."""
    statistics, summary = run.statistics, run.summary
    parts = [f"It ran {duration(run.seconds)}"]
    if is_number(statistics.get("train_count")):
        parts.append(f"trained on {plural(int(statistics['train_count']), 'batch').replace('batchs', 'batches')}")
    counts = [f"{number(value)} {name}" for name, value in summary["counts"].items() if is_number(value) and value][:2]
    text = " and ".join(parts) + (f" ({', '.join(counts)})" if counts else "")
    if run.finished:
        text += f", and was ended by {summary['ended_by']}."
    elif summary["statistics"].get("mode"):
        text += (
            ". It has not ended: it is still running, or it was killed. What is shown is what its last checkpoint knew."
        )
    else:
        text += ". It left no summary: it was killed before its first checkpoint, or it is older than this report."
    score = summary["score"]
    if is_number(score.get("best")):
        of = f" of {number(score['highest'])}" if is_number(score.get("highest")) else ""
        text += f" The best {score.get('name') or 'score'} was {number(score['best'])}{of}"
        text += f", the last {number(score['last'])}." if is_number(score.get("last")) else "."
    else:
        text += " It was not evaluated."
    return text


def several_sentences(runs: Sequence[Material]) -> list[str]:
    """What several runs came to, group by group."""
    found = []
    for group in groups_of(runs):
        if len(group.runs) == 1:
            found.append(f"{group.name}: {_came_to(group.runs)}.")
        else:
            name = "" if len(group.runs) == len(runs) else f"{group.name}: "
            found.append(f"{name}{_came_to(group.runs)}.")
    unfinished = [run.name for run in runs if not run.finished]
    if unfinished:
        found.append(f"Not finished: {', '.join(unfinished)}.")
    return found


def _came_to(runs: Sequence[Material]) -> str:
    best = [float(run.summary["score"]["best"]) for run in runs if is_number(run.summary["score"].get("best"))]
    name = runs[0].summary["score"].get("name") or "score"
    times = [run.seconds for run in runs if run.seconds is not None]
    ran = f"ran {duration(sum(times) / len(times))}" + (" on average" if len(runs) > 1 else "") if times else "ran"
    if not best:
        return f"{ran}, without an evaluation"
    spread = f" on average, {number(min(best))} to {number(max(best))}" if len(best) > 1 else ""
    return f"{ran}; the best {name} was {number(sum(best) / len(best))}{spread}"


def tiles(run: Material) -> Html:
    """The key numbers of one run."""
    statistics, summary = run.statistics, run.summary
    score, use = summary["score"], summary["utilisation"]
    bound = statistics.get("off_policy_degree")
    entries: list[tuple[str, str, str]] = []
    if is_number(score.get("best")):
        of = f"of {number(score['highest'])} possible" if is_number(score.get("highest")) else ""
        last = f"last {number(score['last'])}" if is_number(score.get("last")) else ""
        entries.append(
            (f"best {score.get('name') or 'score'}", number(score["best"]), ", ".join(filter(None, (of, last))))
        )
    entries.append(
        ("time", duration(run.seconds), f"ended by {summary['ended_by']}" if run.finished else "not finished")
    )
    for name, value in list(summary["counts"].items())[:2]:
        rate = summary["rates"].get(f"{name}/s")
        entries.append((name, number(value), f"{number(rate)} per second" if is_number(rate) else ""))
    entries.append(("batches trained", number(statistics.get("train_count")),
                    f"{number(statistics.get('collect_count'))} collected"))  # fmt: skip
    if is_number(statistics.get("overlap_efficiency")):
        entries.append(
            ("overlap efficiency", percent(statistics["overlap_efficiency"]), "busiest side of the wall time")
        )
    if is_number(statistics.get("staleness_mean")):
        limit = f"at most {number(statistics.get('staleness_max'))}" + (
            f", degree {number(bound)}" if is_number(bound) else ""
        )
        entries.append(("mean staleness", number(statistics["staleness_mean"]), limit))
    if is_number(use.get("cpu")):
        cores = summary["machine"].get("cores")
        entries.append(("CPU in use", percent(use["cpu"]), f"of {plural(cores, 'core')}" if is_number(cores) else ""))
    problems = sum(int(statistics.get(name) or 0) for name in ("failed", "restarts"))
    entries.append(("failures", number(problems) if problems else "none",
                    f"{number(statistics.get('dropped') or 0)} batches dropped"))  # fmt: skip
    cells = [html("div", html("dt", name), html("dd", value, html("small", more) if more else None))
             for name, value, more in entries]  # fmt: skip
    return html("dl", cells, class_="tiles", id="numbers", aria_label="key numbers")


def share_of(run: Material, role: str, state: str) -> float | None:
    """The share of their time that roles of this name were in this state, all of them together."""
    mine = [row for row in run.summary["roles"]
            if str(row.get("role", "")).split(" ")[0] == role and is_number(row.get("active"))]  # fmt: skip
    whole = sum(float(row.get(name) or 0.0) for row in mine for name in ("active", "waiting", "idle"))
    return sum(float(row.get(state) or 0.0) for row in mine) / whole if whole > 0 else None


def comparison(runs: Sequence[Material]) -> Html:
    """A table with a column for each run, and ratios against the first."""
    rows = []
    for name, text, values in _measures(runs):
        if all(value is None for value in values):
            continue
        cells = [
            [text(value), html("small", times) if place and (times := ratio(value, values[0])) else None]
            for place, value in enumerate(values)
        ]
        rows.append([name, *cells])
    return section(
        "comparison", "Side by side",
        table("the runs side by side", ["", *(run.name for run in runs)], rows),
        note(f"{TIMES} is the ratio to {runs[0].name}."),
    )  # fmt: skip


def _measures(runs: Sequence[Material]) -> list[tuple[str, Callable[[Any], str], list[Any]]]:
    """Name, format and the value of each run; None where a run does not know."""

    def of(*path: str) -> list[Any]:
        return [_at(run.summary, path) for run in runs]

    counts = dict.fromkeys(name for run in runs for name in run.summary["counts"])
    rates = dict.fromkeys(name for run in runs for name in run.summary["rates"])
    score = next((str(run.summary["score"]["name"]) for run in runs if run.summary["score"].get("name")), "score")
    return [
        ("ended by", lambda value: "not finished" if value is None else str(value), of("ended_by")),
        (f"best {score}", number, of("score", "best")),
        (f"last {score}", number, of("score", "last")),
        ("time", duration, [run.seconds for run in runs]),
        *((name, number, of("counts", name)) for name in counts),
        *((name, number, of("rates", name)) for name in rates),
        ("batches trained", number, of("statistics", "train_count")),
        *((name, percent, [share_of(run, role, state) for run in runs]) for name, role, state in ROLES),
        ("overlap efficiency", percent, of("statistics", "overlap_efficiency")),
        ("mean staleness", number, of("statistics", "staleness_mean")),
        ("highest staleness", number, of("statistics", "staleness_max")),
        ("mean lag", number, of("statistics", "mean_lag")),
        ("CPU in use", percent, of("utilisation", "cpu")),
        ("CPU time of the run", duration, of("utilisation", "cpu_seconds")),
        ("a batch", size, of("batch_bytes")),
        ("failed", number, of("statistics", "failed")),
        ("dropped", number, of("statistics", "dropped")),
        ("restarts", number, of("statistics", "restarts")),
    ]


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values
