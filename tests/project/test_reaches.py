"""Gate, gatekeeper and lock are private to `lzero_async.core`: everybody else uses the coordinator's own methods."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSIDE = ("lzero_async/core", "tests/core")
KEEPERS = {"_keeper", "keeper", "_gatekeeper", "gatekeeper", "_shell", "shell"}


def sources() -> list[Path]:
    found = [
        path for name in ("lzero_async", "zoo", "benchmarks", "docs", "tests") for path in (ROOT / name).rglob("*.py")
    ]
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith(INSIDE)]


def reaches(text: str) -> list[str]:
    """What a program takes from inside of a coordinator, whatever it calls it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            whose = ast.unparse(node.value).split(".")[-1]
            if node.attr in KEEPERS or (node.attr in ("gate", "lock", "_lock") and "coordinator" in whose):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "attrgetter", "operator.attrgetter"):
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            if any(KEEPERS & set(str(word).split(".")) for word in words):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".gatekeeper"):
            found.append(ast.unparse(node))
    return found


def test_nobody_outside_of_core_reaches_into_a_coordinator() -> None:
    files = sources()
    assert len(files) > 200
    found = {path.relative_to(ROOT).as_posix(): reached for path in files if (reached := reaches(path.read_text()))}
    assert found == {}


def test_nor_do_the_documents() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = [path.name for path in pages if re.search(r"coordinator\.(_?shell|_?keeper|gate|lock)\b", path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "coordinator.shell.gate.version",
        "self.coordinator._keeper",
        "getattr(coordinator, '_keeper').data",
        "trainer.coordinator.gate",
        "operator.attrgetter('_keeper.gate')",
        "from lzero_async.core.keeping.gatekeeper import Gatekeeper",
    ],
)
def test_such_a_reach_is_found(text: str) -> None:
    assert reaches(text)
