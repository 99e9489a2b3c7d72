"""What ran and what came of it, in words; and with which settings, versions and machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, Final

from lzero_async.tools.report.curves import differences, flat, groups_of
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import (
    Html,
    details,
    duration,
    html,
    is_number,
    note,
    number,
    plural,
    section,
    size,
    table,
)


def settings(runs: Sequence[Material]) -> Html:
    """Settings (of several runs first what differs), versions, machine and command."""
    parts: list[Any] = []
    if len(runs) > 1:
        parts.append(_different(runs))
    first = flat(runs[0].options)
    if first:
        title = f"{plural(len(first), 'setting')}" + (f" of {runs[0].name}" if len(runs) > 1 else "")
        rows = [[name, html("code", shown(value))] for name, value in first.items()]
        parts.append(details(title, table("settings", ["setting", "value"], rows, numbers=False)))
    else:
        parts.append(note("The settings are not known."))
    parts += [_made_with(run, several=len(runs) > 1) for run in runs]
    return section("settings", "Settings, versions, machine", parts)


def _different(runs: Sequence[Material]) -> Html:
    found = differences(runs)
    found.pop("exp_name", None)
    if not found:
        return note("All runs have the same settings.")
    rows = [[name, *(html("code", shown(value)) for value in values)] for name, values in found.items()]
    return html(
        "div",
        html("h3", "What differs"),
        table("settings that differ", ["setting", *(run.name for run in runs)], rows, numbers=False),
    )


def shown(value: Any) -> str:
    """A setting's value as it would be written."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _made_with(run: Material, *, several: bool) -> Html:
    machine, versions, command = run.summary["machine"], run.summary["versions"], run.summary.get("command")
    lines = []
    if isinstance(command, list) and command:
        lines.append(["command", html("code", "python " + shlex.join(str(word) for word in command))])
    lines.append(["folder", html("code", str(run.folder))])
    if machine:
        parts = [str(machine["system"])] if machine.get("system") else []
        parts += [plural(machine["cores"], "core")] if is_number(machine.get("cores")) else []
        parts += [f"{size(machine['memory_bytes'])} of memory"] if is_number(machine.get("memory_bytes")) else []
        parts.append(
            ", ".join(str(gpu) for gpu in machine["gpus"])
            if isinstance(machine.get("gpus"), list) and machine["gpus"]
            else "no GPU"
        )
        lines.append(["machine", ", ".join(parts)])
    if versions:
        lines.append(["versions", ", ".join(f"{name} {version}" for name, version in versions.items())])
    made = table("how it was made", ["", ""], lines, numbers=False)
    return details(f"How {run.name} was made", made) if several else details("Command, machine and versions", made)


ENDS: Final = {"SIG": "interrupted", "a failure": "failed"}  # states by how `ended_by` begins


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


def header(runs: Sequence[Material]) -> Html:
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
    )


def state_of(run: Material) -> str:
    """One or two words."""
    if not run.finished:
        return "not finished"
    ended_by = str(run.summary["ended_by"])
    return next((state for start, state in ENDS.items() if ended_by.startswith(start)), "finished")


def _tone(run: Material) -> str:
    return {"finished": "good"}.get(state_of(run), "warn")


def sentence(run: Material) -> str:
    """What a run did, how long, and what ended it."""
    statistics, summary = run.statistics, run.summary
    earlier = f" ({duration(run.earlier_seconds)} before its last resume included)" if run.earlier_seconds else ""
    parts = [f"It ran {duration(run.seconds)}{earlier}"]
    if is_number(statistics.get("train_count")):
        parts.append(f"trained on {plural(int(statistics['train_count']), 'batch').replace('batchs', 'batches')}")
    counts = [f"{number(value)} {name}" for name, value in summary["counts"].items() if is_number(value) and value][:2]
    text = " and ".join(parts) + (f" ({', '.join(counts)})" if counts else "")
    if run.finished:
        text += f", and was ended by {summary['ended_by']}."
    else:
        text += ". It has not come to its end: it is still running, it failed, or it was killed. Shown is what it wrote last."
    score = summary["score"]
    if is_number(score.get("best")):
        of = f" of {number(score['highest'])}" if is_number(score.get("highest")) else ""
        text += f" The best {score.get('name') or 'score'} was {number(score['best'])}{of}"
        text += f", the last {number(score['last'])}." if is_number(score.get("last")) else "."
    elif summary["evaluations"]:
        last = {str(row.get("name")): number(row["score"]) for row in summary["evaluations"]}
        text += f" It was evaluated: {', '.join(f'{name} {value}' for name, value in last.items())}."
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
            name = "They " if len(group.runs) == len(runs) else f"{group.name}: "
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
