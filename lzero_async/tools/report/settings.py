"""What was run, with which settings, versions and machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from lzero_async.tools.report.curves import differences, flat
from lzero_async.tools.report.formatting import is_number, plural, size
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import Html, details, html, note, section, table


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
