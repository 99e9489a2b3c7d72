"""Write the references that come from the code itself: `make docs`, or `python docs/generate.py [FOLDER]`.

docs/config-reference.md has every option of the four programs with its default, what it may be and its meaning; docs/api.md has
the public names of the library; docs/quantities.md the name of every quantity in every output; docs/architecture.md every module.
tests/project/test_docs_generated.py fails when a page is not what this program writes.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # not needed where the project is installed

NOTE = "Written by `make docs`; edit the code and run it again."
CONFIG_FILE = ROOT / "zoo" / "jericho" / "priorzero" / "priorzero_config.py"
TRAINER_FILE = CONFIG_FILE.with_name("trainer.py")


def refusal(check: Callable[[str, Any], Any], value: Any) -> str:
    """What the check says that a value must be, or '' if it takes this one."""
    from lzero_async.errors import ConfigError

    try:
        check("it", value)
    except ConfigError as error:
        said = str(error).rpartition("; ")[2].rstrip(".")
        return re.sub(r"^(it must be|choose one of|write it as) ", "", said)
    return ""


def allowed(check: Callable[[str, Any], Any]) -> str:
    """What an option may be, in the words of its own error messages."""
    words = refusal(check, math.inf)
    if words == "text":
        words = refusal(check, "?") or ("text, not empty" if refusal(check, " ") else "text")
    elif words.startswith("a whole number") and (most := refusal(check, 2**70)):
        words += f", {most}"
    return f"{words}, or none" if not refusal(check, None) else words


def shown(value: Any) -> str:
    """A default as it is written on a command line."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, (tuple, list)):
        return f"`{','.join(map(str, value))}`"
    return f"`{value:_}`" if type(value) is int and value >= 10_000 else f"`{value}`"


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table."""
    heading = list(heading)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (heading, *rows)]
    return [lines[0], "|" + "---|" * len(heading), *lines[1:], ""]


def fixed_options(source: str) -> list[tuple[str, str]]:
    """What a resumed run of PriorZero keeps, from its trainer's source: importing that takes seconds."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FIXED_OPTIONS":
            return list(ast.literal_eval(node.value))
    raise LookupError("the trainer has no FIXED_OPTIONS")


def priorzero() -> list[str]:
    """PriorZero's options, by section."""
    from zoo.jericho.priorzero.options import OPTIONS, meanings
    from zoo.jericho.priorzero.priorzero_config import PRESETS, QUICK_TEST, SECTIONS

    said = meanings(CONFIG_FILE.read_text())
    lines = ["## PriorZero", ""]
    lines += [
        "Edit [priorzero_config.py](../zoo/jericho/priorzero/priorzero_config.py), or give `--option value`, or the full name:",
        "`--set policy_config.batch_size=64`. [Choosing the degree](choosing-the-degree.md) is about `off_policy_degree`.",
        "",
    ]
    for section, values in SECTIONS.items():
        rows = (
            [
                ", ".join(f"`{one}`" for one in (name, *OPTIONS[section][name].also)),
                shown(value),
                allowed(OPTIONS[section][name].check),
                said[section][name],
            ]
            for name, value in values.items()
        )
        lines += [f"### {section}", "", *table(("option", "default", "allowed", "meaning"), rows)]
    kept = ", ".join(f"`{section}.{name}`" for section, name in fixed_options(TRAINER_FILE.read_text()))
    lines += [f"A resumed run keeps {kept}; all others may change.", "", "### What presets change", ""]
    changes = {**{f"--preset {name}": preset for name, preset in PRESETS.items()}, "--quick_test": QUICK_TEST}
    return [
        *lines,
        *table(("preset", "changes"), ([f"`{name}`", _changes(preset)] for name, preset in changes.items())),
    ]


def _changes(preset: Mapping[str, Mapping[str, Any]]) -> str:
    every = (f"{section}.{name}={value}" for section, values in preset.items() for name, value in values.items())
    return ", ".join(f"`{change}`" for change in every) or "nothing: the defaults above"


def flat(title: str, intro: str, groups: Mapping[str, Mapping[str, Any]], fixed: Iterable[str]) -> list[str]:
    """The options of a program that has a flat table of them."""
    lines = [f"## {title}", "", intro, ""]
    for name, group in groups.items():
        rows = (
            [
                ", ".join(f"`--{name}`" for name in (flag, *option.also)),
                shown(json.dumps(option.default) if isinstance(option.default, (bool, dict)) else option.default),
                allowed(option.check),
                option.help + (f" ({' and '.join(option.only)} only)" if option.only else ""),
            ]
            for flag, option in group.items()
        )
        lines += [f"### {title}: {name}", "", *table(("option", "default", "allowed", "meaning"), rows)]
    return [*lines, f"A resumed run keeps {', '.join(f'`{name}`' for name in fixed)}; all others may change.", ""]


def arguments(function: Callable[..., Any], skip: Iterable[str]) -> list[str]:
    """A table of what a function takes, with types and defaults."""
    rows = [
        [
            f"`{name}`",
            f"`{parameter.annotation}`",
            "" if parameter.default is parameter.empty else f"`{parameter.default!r}`",
        ]
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in skip
    ]
    return table(("argument", "type", "default"), rows)


def config_reference() -> str:
    """The page docs/config-reference.md."""
    from lzero_async import Adaptation, AsyncTrainingCoordinator, Bound, Recovery
    from lzero_async.lightzero import options as lightzero
    from zoo.episode_ppo import options as ppo
    from zoo.mbpo import options as mbpo

    lines = ["# Configuration reference", "", NOTE]
    lines += [
        "What an option may be is said in the words of its error message. Unknown names are refused, with the nearest one."
    ]
    lines += ["", *priorzero()]
    lines += flat(
        "MBPO", "`zoo/mbpo/train.py`. `--num-envs` and `--num_envs` are the same.", mbpo.COMMAND.groups, mbpo.FIXED
    )
    rows = (
        [f"`--preset {name}`", ", ".join(f"`{key}={value}`" for key, value in values.items())]
        for name, values in mbpo.PRESETS.items()
    )
    lines += ["### MBPO: what presets change", "", *table(("preset", "changes"), rows)]
    intro = "`zoo/episode_ppo/train.py`. `--num-envs` and `--num_envs` are the same."
    lines += flat("Whole-episode PPO", intro, ppo.COMMAND.groups, ppo.FIXED)
    lines += flat("LightZero configs", "`lzero-async lightzero CONFIG`.", lightzero.COMMAND.groups, ("seed",))
    lines += ["## `AsyncTrainingCoordinator(...)`", "", "What each means is in the [reference](reference.md).", ""]
    lines += arguments(AsyncTrainingCoordinator.__init__, {"self"})
    for group in (Bound, Recovery, Adaptation):
        lines += [f"### `{group.__name__}(...)`", "", *arguments(group, set())]
    lines += ["## `coordinator.run(...)`", ""]
    lines += arguments(AsyncTrainingCoordinator.run, {"coordinator"})
    lines += ["## `coordinator.batches(...)`", "", *arguments(AsyncTrainingCoordinator.batches, {"coordinator"})]
    return "\n".join(lines).rstrip() + "\n"


def quantities_page() -> str:
    """The page docs/quantities.md."""
    from lzero_async.telemetry.quantities import QUANTITIES

    lines = ["# Names of quantities", "", NOTE, ""]
    lines += [
        "One name for one quantity: the live view and the report show the name, TensorBoard and Prometheus make theirs of it.",
        "`key` is that of `get_statistics()`, of a count of the application (`Count`) or, for the last few, of what it left out.",
        "Counts of the application also have their growth per second since the run, or its last resume, began: `NAME/s` in the",
        "report, `_per_second` in TensorBoard and Prometheus; where such a count ends the run, Prometheus has its `_limit`.",
        "",
    ]
    rows = []
    for key, one in QUANTITIES.items():
        metric = one.metric + ("_total" if one.kind == "counter" else "")
        rows.append([one.label, f"`{key}`", f"`{one.tag}`", f"`{metric}`", one.meaning])
    lines += table(("name", "key", "TensorBoard", "Prometheus", "meaning"), rows)
    return "\n".join(lines).rstrip() + "\n"


def architecture() -> str:
    """The page docs/architecture.md: what is in each folder, from the modules' own first sentences."""
    from api_reference import first_sentence

    lines = ["# Architecture", "", NOTE, "", *(HERE / "architecture_intro.md").read_text().splitlines()]
    for package in ("lzero_async", "zoo/jericho/priorzero", "zoo/mbpo", "zoo/episode_ppo"):
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
            if not files:
                continue
            doc = first_sentence(ast.parse((folder / "__init__.py").read_text()))
            lines += ["", f"## `{folder.relative_to(ROOT).as_posix()}/`", "", doc, ""]
            rows = [[f"`{path.name}`", first_sentence(ast.parse(path.read_text()))] for path in files]
            lines += table(("module", "what it is"), rows)
    return "\n".join(lines).rstrip() + "\n"


def main(folder: Path) -> None:
    """Write the pages into the folder."""
    from api_reference import api_reference

    pages = {
        "config-reference.md": config_reference(),
        "api.md": api_reference(),
        "quantities.md": quantities_page(),
        "architecture.md": architecture(),
    }
    for name, page in pages.items():
        (folder / name).write_text(page)
        print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
