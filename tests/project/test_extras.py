"""Every third-party package that an application or the library imports is in the extra that needs it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {  # and the extras whose packages the modules in them may import
    "lzero_async": {"runs"},
    "lzero_async/lightzero": {"lightzero"},
    "lzero_async/workers/ray": {"ray"},
    "lzero_async/telemetry/prometheus.py": {"metrics"},
    "lzero_async/telemetry/prometheus_server.py": {"metrics"},
    "lzero_async/telemetry/sinks.py": {"wandb"},
    "zoo/mbpo": {"mbpo"},
    "zoo/episode_ppo": {"episode_ppo"},
    "zoo/episode_ppo/envs/network_attack.py": {"nasim"},
    "zoo/jericho": {"priorzero"},
}
ELSEWHERE = {  # not on pip's way: what uses them says how they are installed
    "isaaclab": "zoo/mbpo/envs/isaac.py",
    "isaaclab_tasks": "zoo/mbpo/envs/isaac.py",
    "vllm": "zoo/jericho/priorzero/llm/vllm",
    "torch": "lzero_async",  # the library takes tensors where a user's program has torch
}


@pytest.fixture(scope="module")
def extras() -> dict[str, set[str]]:
    """The packages of each extra, with those of the library itself, by normalised name."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **words: found.update(words))
        exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__file__": str(ROOT / "setup.py")})
    always = found.get("install_requires", [])
    needs = {extra: [*lines, *always] for extra, lines in found["extras_require"].items()}
    return {extra: {normal(re.match(r"[\w.-]+", line)[0]) for line in lines} for extra, lines in needs.items()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def third_party(text: str) -> set[str]:
    """The packages that a module imports, by statement or by name; not those that it can do without: what is tried first, or
    only for types."""
    tree = ast.parse(text)
    spared = {id(node) for part in ast.walk(tree) for node in spared_in(part)}
    found = {name.partition(".")[0] for node in ast.walk(tree) if id(node) not in spared for name in imported(node)}
    return found - set(sys.stdlib_module_names) - {"lzero_async", "zoo", ""}


def spared_in(part: ast.AST) -> Iterator[ast.AST]:
    if isinstance(part, ast.Try) and any("ImportError" in ast.unparse(each.type or part) for each in part.handlers):
        for statement in part.body:
            yield from ast.walk(statement)
    if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING":
        for statement in part.body:
            yield from ast.walk(statement)


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module or ""
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (word.value for word in node.args if isinstance(word, ast.Constant))


def allowed(path: str, extras: dict[str, set[str]]) -> set[str]:
    """The packages of the extras of every folder that the module is in."""
    names = {extra for folder, names in FOLDERS.items() if path.startswith(folder) for extra in names}
    return {package for extra in names for package in extras[extra]}


@pytest.mark.parametrize("folder", ["lzero_async", "zoo/mbpo", "zoo/episode_ppo", "zoo/jericho"])
def test_every_import_is_covered_by_an_extra(folder: str, extras: dict[str, set[str]]) -> None:
    owners = metadata.packages_distributions()
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for package in third_party(path.read_text()):
            if name.startswith(ELSEWHERE.get(package, " ")):
                continue
            if not {normal(owner) for owner in owners.get(package, ())} & allowed(name, extras):
                missing.append(f"{name} imports {package}")
    assert missing == []


def test_what_each_application_runs_with_is_in_its_extra(extras: dict[str, set[str]]) -> None:
    for application in ("priorzero", "mbpo", "episode_ppo"):
        assert extras["runs"] | {"torch"} <= extras[application]


def test_the_walk_sees_imports_wherever_they_are() -> None:
    text = """
import os, aaa.b
from ccc import d
def f():
    import eee
    importlib.import_module("ggg.h")
try:
    import iii
except ImportError:
    import kkk
if TYPE_CHECKING:
    import mmm
"""
    assert third_party(text) == {"aaa", "ccc", "eee", "ggg", "kkk"}
