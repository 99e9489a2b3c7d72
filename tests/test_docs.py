"""What the documentation shows is run: every Python block, the targets it names, and the files of its map."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lzero_async import AsyncTrainingCoordinator, run

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), ROOT / "CONTRIBUTING.md"]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            found.append((f"{page.name}-{number}", block))
    return found


@pytest.mark.parametrize("block", [b for _, b in blocks("python")], ids=[n for n, _ in blocks("python")])
def test_python_blocks_run(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "block", "exec"), {"__name__": "block"})
    assert capsys.readouterr().out


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page.name


def test_every_file_of_the_map_and_every_link_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in re.findall(r"^\| `([a-z_/.]+)`", readme.split("## Map")[1], re.MULTILINE):
        assert (ROOT / name).exists(), name
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_module_is_on_the_map() -> None:
    readme = (ROOT / "README.md").read_text()
    folders = (
        ROOT / "lzero_async",
        ROOT / "zoo" / "jericho" / "priorzero",
        ROOT / "zoo" / "mbpo",
        ROOT / "zoo" / "episode_ppo",
    )
    for path in (path for folder in folders for path in folder.glob("*.py")):
        assert path.name in readme or path.name == "__init__.py", path.name


def test_the_reference_names_every_argument() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    for function in (AsyncTrainingCoordinator.__init__, run):
        names = set(inspect.signature(function).parameters) - {
            "self",
            "coordinator",
            "collect_fn",
            "train_fn",
            "eval_fn",
        }
        assert [name for name in names if f"`{name}`" not in reference] == []


def test_the_example_with_processes_runs() -> None:
    example = ROOT / "docs" / "examples" / "processes.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Train iterations: 40" in done.stdout
    assert "best evaluation" in done.stdout
