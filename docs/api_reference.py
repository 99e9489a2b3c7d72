"""The page docs/api.md, from the source files alone: nothing is imported. `make docs` writes it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Written by `make docs`; edit the code and run it again."
# What users import besides the package itself, in the order of the page.
MODULES = (
    "validation", "core.activity", "core.trace", "telemetry.quantities", "telemetry.view", "telemetry.sinks", "telemetry.scalars",
    "telemetry.prometheus_server", "telemetry.utilisation", "telemetry.terminal.progress", "telemetry.terminal.live",
    "runs.checks", "runs.options", "runs.application", "runs.checkpoint", "runs.run_dir", "runs.summary", "runs.applications",
    "runs.scored", "runs.program", "runs.role_set", "runs.policy",
    "simulate.pipeline", "simulate.distributions", "tools.traces", "tools.report.command", "tools.timeline.text",
    "tools.timeline.picture", "testing",
)  # fmt: skip
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def source(module: str) -> Path:
    """The file of a module of the library."""
    path = ROOT.joinpath("lzero_async", *module.split(".")) if module else ROOT / "lzero_async"
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def first_sentence(node: ast.AST) -> str:
    """The first sentence of a docstring."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())  # type: ignore[arg-type]
    return re.split(r"(?<=\.) (?=[A-Z`])", text, maxsplit=1)[0]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    """The arguments with types and defaults, and what comes back; without `self` for a method."""
    arguments = ast.unparse(node.args)
    if method and not any(ast.unparse(mark) == "staticmethod" for mark in node.decorator_list):
        arguments = re.sub(r"^(self|cls|coordinator: \w+)(, )?(/, )?", "", arguments)
    back = (
        f" -> {ast.unparse(node.returns)}" if node.returns is not None and ast.unparse(node.returns) != "None" else ""
    )
    return f"({arguments}){back}"


def fields(node: ast.ClassDef) -> str:
    """What a class is made with: the arguments of its constructor, or its fields."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return signature(item, method=True)
    marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
    if "dataclass" in marks or "NamedTuple" in {ast.unparse(base) for base in node.bases}:
        return "(" + ", ".join(ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign)) + ")"
    bases = [ast.unparse(base) for base in node.bases]
    return f"({', '.join(bases)})" if bases else ""


def entry(node: Definition) -> list[str]:
    """The lines of one public name; a class with its public methods and properties."""
    if not isinstance(node, ast.ClassDef):
        return [f"- `{node.name}{signature(node)}`: {first_sentence(node)}"]
    lines = [f"- `class {node.name}{fields(node)}`: {first_sentence(node)}"]
    for item in (*_inherited(node), *node.body):
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and not item.name.startswith("_"):
            marks = [ast.unparse(mark) for mark in item.decorator_list]
            shape = "" if "property" in marks else signature(item, method=True)
            if not any(mark.endswith(".setter") for mark in marks):
                said = first_sentence(item)
                lines.append(f"  - `.{item.name}{shape}`" + (f": {said}" if said else ""))
        elif isinstance(item, ast.Assign) and (method := _taken_over(item)) is not None:
            lines.append(
                f"  - `.{ast.unparse(item.targets[0])}{signature(method, method=True)}`: {first_sentence(method)}"
            )
    return lines


def _inherited(node: ast.ClassDef) -> list[ast.stmt]:
    """What a class has from bases in modules of `core` that no page shows."""
    found: list[ast.stmt] = []
    for base in map(ast.unparse, node.bases):
        for path in sorted((ROOT / "lzero_async" / "core").rglob("*.py")):
            for one in ast.parse(path.read_text()).body:
                if isinstance(one, ast.ClassDef) and one.name == base:
                    found += [*_inherited(one), *one.body]
    return found


def _taken_over(node: ast.Assign) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that a class takes over as a method: `run = loop.run`, of a module of `core`."""
    module, _, name = ast.unparse(node.value).partition(".")
    places = [place for place in ("core", "core.keeping", "core.running") if source(f"{place}.{module}").exists()]
    found = public_names(f"{places[0]}.{module}").get(name) if name and places else None
    return None if isinstance(found, ast.ClassDef) else found


def public_names(module: str) -> dict[str, Definition]:
    """The public classes and functions of a module: those of `__all__`, or those defined in it; by name, in their order."""
    tree = ast.parse(source(module).read_text())
    here = {
        node.name: node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    }
    exported = next((_words(node) for node in tree.body if isinstance(node, ast.Assign) and _is_all(node)), None)
    if exported is None:
        return here
    for node in ast.walk(tree):  # also what is imported only when it is used
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lzero_async."):
            there = public_names((node.module or "").removeprefix("lzero_async."))
            here |= {alias.name: there[alias.name] for alias in node.names if alias.name in there}
    return {name: here[name] for name in exported if name in here}


def _is_all(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def _words(node: ast.Assign) -> list[str]:
    return list(ast.literal_eval(node.value))


def section(module: str) -> list[str]:
    """One module of the page."""
    doc = first_sentence(ast.parse(source(module).read_text()))
    name = f"lzero_async.{module}" if module else "lzero_async"
    lines = [line for node in public_names(module).values() for line in entry(node)]
    return [f"## `{name}`", "", doc, "", *lines, ""]


def api_reference() -> str:
    """The whole page."""
    intro = (
        "Signature and first sentence of everything public. The arguments of the coordinator and of `run` are explained in the\n"
        "[reference](reference.md)."
    )
    lines = ["# API", "", NOTE, intro, ""]
    for module in ("", *MODULES):
        lines += section(module)
    return "\n".join(lines).rstrip() + "\n"
