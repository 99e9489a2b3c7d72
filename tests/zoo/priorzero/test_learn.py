"""The learning benchmark takes only a run that came to its own end for ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import learn
from lzero_async.runs.summary import write_summary


def results(folder: Path, rows: list[dict]) -> None:
    folder.mkdir(parents=True)
    write_summary(folder, {"ended_by": "max_seconds", "final_evaluation": rows, "results": {}})


def test_an_interrupted_seed_is_not_an_ended_one(tmp_path: Path) -> None:
    results(tmp_path / "a", [{"mode": "prior", "mean": 1.0}])
    results(tmp_path / "b", [])
    assert learn.ended(tmp_path / "a")
    assert not learn.ended(tmp_path / "b")
    assert not learn.ended(tmp_path / "c")


def test_a_seed_without_a_checkpoint_starts_anew_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **words: started.append(command))
    folder = tmp_path / "seed-0"
    folder.mkdir()
    (folder / "run.log").write_text("killed early")
    learn.start(0, 20.0, folder, [])
    assert not folder.exists()
    assert "--resume" not in started[0]
    assert "run_config.max_seconds=1200" in started[0]
