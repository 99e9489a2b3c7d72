"""The generated references are what the code gives now, and say of every option and name what it is."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lzero_async
from lzero_async.runs.checks import Check, between, device, flag, nonempty, optional, seed, text, whole, words
from zoo.episode_ppo.options import COMMAND as PPO
from zoo.jericho.priorzero.options import meanings
from zoo.jericho.priorzero.priorzero_config import SECTIONS
from zoo.mbpo.options import COMMAND as MBPO

DOCS = Path(__file__).resolve().parents[2] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return load("generate")


@pytest.fixture(scope="module")
def api() -> ModuleType:
    return load("api_reference")


def test_the_pages_are_what_the_generator_writes(
    generate: ModuleType, api: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS)  # as when it runs as a program
    assert (DOCS / "config-reference.md").read_text() == generate.config_reference(), "run make docs"
    assert (DOCS / "api.md").read_text() == api.api_reference(), "run make docs"
    assert (DOCS / "quantities.md").read_text() == generate.quantities_page(), "run make docs"
    assert (DOCS / "architecture.md").read_text() == generate.architecture(), "run make docs"


def test_every_option_has_its_row_and_its_meaning() -> None:
    page = (DOCS / "config-reference.md").read_text()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if line.startswith("| `")]
    named = {re.match(r"\| `(?:--)?(\w+)", row[0])[1] for row in rows if len(row) == 4}  # type: ignore[index]
    options = {name for values in SECTIONS.values() for name in values} | set(MBPO.options) | set(PPO.options)
    assert options <= named
    assert all(row[2] and row[3].rstrip("| ") for row in rows if len(row) == 4)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (whole(3), "a whole number of at least 3"),
        (between(0, 2.5), "between 0 and 2.5"),
        (words("a", "b"), "a, b"),
        (flag, "True or False"),
        (seed, "a whole number of at least 0, below 2**31"),
        (device, "'auto', 'cpu', 'cuda' or 'cuda:' and a number"),
        (text, "text"),
        (nonempty, "text, not empty"),
        (optional(whole(1)), "a whole number of at least 1, or none"),
    ],
)
def test_what_is_allowed_is_asked_of_the_check(generate: ModuleType, check: Check, said: str) -> None:
    assert generate.allowed(check) == said


def test_meanings_are_the_comments_above() -> None:
    source = "part = dict(\n    # First line\n    # and second.\n    one=1,\n    # Another.\n    two=2,\n)\n"
    assert meanings(source) == {"part": {"one": "First line and second.", "two": "Another."}}


def test_every_exported_name_is_in_the_api(api: ModuleType) -> None:
    page = (DOCS / "api.md").read_text()
    for name in lzero_async.__all__:
        assert re.search(rf"^- `(class )?{name}\b.*`: [A-Z]", page, re.MULTILINE), name
    for module in api.MODULES:
        importlib.import_module(f"lzero_async.{module}")
        assert f"## `lzero_async.{module}`" in page


def test_the_program_writes_the_pages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "config-reference.md",
        "api.md",
        "quantities.md",
        "architecture.md",
    }
    assert (tmp_path / "api.md").read_text() == (DOCS / "api.md").read_text()
