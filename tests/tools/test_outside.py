"""An application that is no part of this repository, docs/examples/outside: the commands know it as soon as it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from lzero_async.runs.applications import GROUP, installed
from tests.sentences import assert_one_sentence

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ROOT / "docs" / "examples" / "outside"


class Place:
    """A folder to work in, and an environment in which the application is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        project = tomllib.loads((OUTSIDE / "pyproject.toml").read_text())["project"]
        metadata = folder / "site" / f"{project['name']}-{project['version']}.dist-info"
        metadata.mkdir(parents=True)
        named = [f"{name} = {value}" for name, value in project["entry-points"][GROUP].items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *named, ""]))
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        path = os.pathsep.join(map(str, (ROOT, folder / "site", OUTSIDE)))
        self.environment = {**os.environ, "PYTHONPATH": path}

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lzero_async", *line.split()], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip

    def said(self, line: str) -> str:
        done = self.run(line)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("outside"))
    assert "ended by: max_seconds" in place.said(
        "train bandit --max_seconds 4 --off_policy_degree 2 --num_collectors 2"
    )
    return place


def test_its_run_is_summarised(place: Place) -> None:
    found = json.loads((place.folder / "runs" / "bandit" / "summary.json").read_text())
    assert (found["program"], found["title"], found["pipeline"]["sample"]) == (
        "bandit", "A bandit with 10 arms", "a pull",
    )  # fmt: skip
    trained = 50 * found["statistics"]["train_count"]
    assert (found["pipeline"]["trained"], found["counts"]["steps trained"]) == (trained, trained)
    assert (found["pipeline"]["collectors"], found["pipeline"]["eval_every"]) == (2, 10)
    assert found["score"]["best"] > 40  # the best arm pays 0.9, and an episode has 50 pulls


def test_it_is_listed_reported_and_drawn(place: Place) -> None:
    assert "learn which of ten arms pays best" in place.said("train --help")
    assert "report.html" in place.said("report runs/bandit")
    assert "A bandit with 10 arms" in (place.folder / "runs" / "bandit" / "report.html").read_text()
    assert "collector 1" in place.said("timeline runs/bandit")


def test_it_is_advised_on_in_its_own_flags(place: Place) -> None:
    found = json.loads(place.said("advise runs/bandit --json"))
    chosen = found["recommended"]
    assert chosen["flags"] == f"--off_policy_degree {chosen['degree']} --num_collectors {chosen['collectors']}"
    assert found["own"] == {"degree": 2, "collectors": 2}
    assert found["stages"]["collect"]["seconds"] >= 0.02  # 50 pulls of half a millisecond, waited for
    done = place.run("advise runs/bandit --envs 64")
    assert done.returncode == 2
    assert_one_sentence(done.stderr, ["--envs is given", "A bandit with 10 arms cannot be chosen"])


def test_it_is_played(place: Place) -> None:
    table = place.said("play runs/bandit --episodes 3")
    assert place.said("play runs/bandit --episodes 3") == table
    assert [line.split()[::3] for line in table.splitlines()[2:5]] == [["1", "50"], ["2", "50"], ["3", "50"]]
    assert float(table.splitlines()[5].split()[1]) > 40  # the mean: it has found the best arm
    assert place.said("play runs/bandit --episodes 3 --weights last").splitlines()[0] == table.splitlines()[0]
    line = "import lzero_async; print(lzero_async.load_policy('runs/bandit')(None))"
    done = subprocess.run(
        [sys.executable, "-c", line], cwd=place.folder, env=place.environment, capture_output=True, text=True,
        check=True, timeout=200,
    )  # fmt: skip
    assert done.stdout == "9\n"


def test_it_is_compared(place: Place) -> None:
    shown = place.said("compare --app bandit --seconds 2 --pull_seconds 0.001")
    assert "bandit: synchronous and asynchronous (a sample is a pull)" in shown
    found = json.loads((place.folder / "runs" / "compare" / "compare.json").read_text())
    assert found["different"] == {}
    assert found["commands"] == {
        "sync": "lzero-async train bandit --off_policy_degree 0 --pull_seconds 0.001 --max_seconds 2 --exp_name "
        "runs/compare/sync",
        "async": "lzero-async train bandit --off_policy_degree 2 --pull_seconds 0.001 --max_seconds 2 --exp_name "
        "runs/compare/async",
    }
    assert found["sync"]["trained"] > 0 and found["async"]["trained"] > 0


def test_the_library_names_no_application() -> None:
    """Ours are known by their entry points like any other, so no line of the library may hold their names."""
    ours = [name for name, point in installed().items() if point.value.startswith("zoo.")]
    assert len(ours) >= 3
    for path in (ROOT / "lzero_async").rglob("*.py"):
        said = path.read_text()
        assert [name for name in ours if name in said] == [], path
