"""`lzero-async play`: the table, its file, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lzero_async.__main__ import main
from lzero_async.runs.policy import PlayedEpisode
from tests.tools import coin
from tests.tools.coin import CoinPolicy, write_run


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    coin.install(monkeypatch)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def play(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What it prints to the screen; the rest is progress."""
    assert main(["play", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_table(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {5: 1.0, 6: -2.5, 7: 12.0}
    monkeypatch.setattr(CoinPolicy, "play_episode", lambda policy, seed: PlayedEpisode(seed, scores[seed], seed))
    assert play(capsys, run, "--episodes", 3, "--seed", 5).splitlines() == [
        "episode  seed  heads  steps",
        "---------------------------",
        "1           5   1.00      5",
        "2           6  -2.50      6",
        "3           7  12.00      7",
        "mean            3.50    6.0",
        "min            -2.50",
        "max            12.00",
    ]


def test_the_same_seed_gives_the_same_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = play(capsys, run)
    assert len(first.splitlines()) == 2 + 10 + 3
    assert play(capsys, run) == first
    assert play(capsys, run, "--seed", 1) != first
    assert play(capsys, run, "--weights", "last") != first


def test_progress_says_what_is_played(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", str(run), "--episodes", "2"]) == 0
    said = capsys.readouterr().err
    assert f"Coins: one: loading {run / 'ckpt' / 'best.safetensors'} ..." in said
    assert "episode 1 of 2 ..." in said


def test_the_table_as_a_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.json"
    play(capsys, run, "--episodes", 2, "--weights", "last", "--sides", 3, "--json", out)
    found = json.loads(out.read_text())
    assert found["weights"] == str(run / "ckpt" / "last.safetensors")
    assert (found["title"], found["score_name"], found["sides"]) == ("Coins: one", "heads", 3)
    assert [(row["seed"], row["steps"]) for row in found["episodes"]] == [(0, 1), (1, 2)]
    scores = [row["score"] for row in found["episodes"]]
    assert (found["mean"], found["min"], found["max"]) == (sum(scores) / 2, min(scores), max(scores))


def test_options_of_the_application_are_flags(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(CoinPolicy, "__init__", lambda policy, skill, device, options: given.append(options))
    monkeypatch.setattr(CoinPolicy, "play_episode", lambda policy, seed: PlayedEpisode(seed, 0.0, 1))
    play(capsys, "--episodes", 1, run, "--sides", "6", "--name", "7", "--bias", "0.5")
    assert given == [{"sides": 6, "name": "7", "bias": 0.5}]
    with pytest.raises(SystemExit) as ended:
        main(["play", str(run), "--help"])
    assert ended.value.code == 0
    assert "--sides" in capsys.readouterr().out


def test_ctrl_c_shows_what_was_played(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def episode(policy: CoinPolicy, seed: int) -> PlayedEpisode:
        if seed == 2:
            raise KeyboardInterrupt
        return PlayedEpisode(seed, 1.0, 1)

    monkeypatch.setattr(CoinPolicy, "play_episode", episode)
    closed = CoinPolicy.closed
    assert main(["play", str(run)]) == 130
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 + 2 + 3
    assert "interrupted after 2 of 10 episodes" in said.err
    assert CoinPolicy.closed == closed + 1


def test_what_lies_in_this_folder_can_be_imported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    play(capsys, "run", "--episodes", 1)
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Say which run to play"),
        (["nowhere"], "nowhere holds no run"),
        (["run", "--weights", "newest"], "--weights"),
        (["run", "--episodes", "0"], "episodes is 0"),
        (["run", "--episodes", "many"], "--episodes"),
        (["run", "--seed", "-1"], "seed is -1"),
        (["run", "--device", "tpu"], "device is 'tpu'"),
        (["run", "--sides", "many"], "--sides"),
        (["run", "--side", "6"], "--side"),
        (["run", "other"], "other"),
        (["run", "--json", "nowhere/table.json"], "nowhere/table.json, which cannot be written"),
        (["run", "--json", "run"], "--json is run, which cannot be written"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    words: list[str], sentence: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["play", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in said.err
    assert said.out == ""
