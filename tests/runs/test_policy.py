"""`load_policy`: it finds the application of a run and its weights, and says in one sentence what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lzero_async
from lzero_async import ConfigError, load_policy
from lzero_async.runs import checkpoint
from lzero_async.runs.summary import SUMMARY
from tests.tools import coin
from tests.tools.coin import CoinPolicy, write_run


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    coin.install(monkeypatch)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def test_one_line_gives_an_action(run: Path) -> None:
    assert load_policy(str(run))(0.5) is True
    assert load_policy(run, weights="last")(0.5) is False


def test_without_an_evaluation_the_last_weights_are_the_best(tmp_path: Path) -> None:
    policy = load_policy(write_run(tmp_path / "run", best=None))
    assert isinstance(policy, CoinPolicy)
    assert policy.skill == 0.3


def test_device_and_options_reach_the_application(run: Path) -> None:
    policy = load_policy(run, device=" cpu ", sides=6)
    assert isinstance(policy, CoinPolicy)
    assert (policy.device, policy.options) == ("cpu", {"sides": 6, "name": "", "bias": None})


def test_each_episode_has_the_next_seed_and_depends_on_it_alone(run: Path) -> None:
    policy = load_policy(run)
    rows = policy.play(4, seed=7)
    assert [row.seed for row in rows] == [7, 8, 9, 10]
    assert rows[2:] == policy.play(2, seed=9)
    assert [row.steps for row in rows] == [2, 3, 1, 2]


def test_a_policy_is_closed_at_the_end_of_its_block(run: Path) -> None:
    before = CoinPolicy.closed
    with pytest.raises(KeyError), load_policy(run) as policy:
        assert CoinPolicy.closed == before
        raise KeyError(policy)
    assert CoinPolicy.closed == before + 1


def _old(run: Path) -> None:
    checkpoint.save(run / "ckpt" / "best.safetensors", {"skill": 1}, coin.KIND._replace(version=0))


def _damaged(run: Path) -> None:
    (run / "ckpt" / "best.safetensors").write_bytes(b"nothing")


def _foreign(run: Path) -> None:
    checkpoint.save(run / "ckpt" / "best.safetensors", {"skill": 1}, coin.KIND._replace(format="other"))


def _other_content(run: Path) -> None:
    checkpoint.save(run / "ckpt" / "best.safetensors", {"talent": 1}, coin.KIND)


def _no_checkpoint(run: Path) -> None:
    for path in (run / "ckpt").iterdir():
        path.unlink()


def _no_summary(run: Path) -> None:
    (run / SUMMARY).unlink()


def _old_summary(run: Path) -> None:
    (run / SUMMARY).write_text('{"format": 0, "program": "coin"}')


def _not_installed(run: Path) -> None:
    (run / SUMMARY).write_text((run / SUMMARY).read_text().replace('"coin"', '"chess"'))


def _without_policy(run: Path) -> None:
    (run / SUMMARY).write_text((run / SUMMARY).read_text().replace('"coin"', '"dumb"'))


BROKEN: dict[Any, str] = {
    _old: r"was written in coin's checkpoint format 2\.0, and this version reads 2\.1; use the version that wrote it\.$",
    _damaged: r"is damaged or not one at all .*; use another one\.$",
    _foreign: r"is not a checkpoint of coin;",
    _other_content: r"does not fit this program \(KeyError: 'skill'\); use another one\.$",
    _no_checkpoint: r"has no checkpoint yet .*; give the folder of a run that has one\.$",
    _no_summary: r"holds no run \(summary.json is missing\); give the folder of a run\.$",
    _old_summary: r"has the format 0, and this version reads",
    _not_installed: r"holds a run of 'chess', which is not installed here; install that application\.$",
    _without_policy: r"holds a run of dumb, which cannot play: its ApplicationEntry names no policy\.$",
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_run_that_cannot_be_played_is_refused_in_one_sentence(spoil: Any, run: Path) -> None:
    spoil(run)
    with pytest.raises(ConfigError, match=BROKEN[spoil]) as refused:
        load_policy(run)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weights": "newest"}, r"^weights is 'newest'; choose one of best, last"),
        ({"device": "tpu"}, r"^device is 'tpu'; it must be"),
        ({"side": 6}, r"^side is no option of the policy of coin; did you mean sides\?$"),
        ({"mode": "x"}, r"^mode is no option of the policy of coin; it has sides, name, bias\.$"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], sentence: str, run: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_policy(run, **arguments)


@pytest.mark.parametrize(("episodes", "seed"), [(0, 0), (2, -1), (2, 2**31 - 1), (1.5, 0)])
def test_bad_seeds_and_episodes_are_refused(episodes: Any, seed: int, run: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed|episodes"):
        load_policy(run).play(episodes, seed)


def test_the_library_is_imported_without_it() -> None:
    look = "import sys, lzero_async; print('lzero_async.runs' in sys.modules, lzero_async.load_policy.__module__)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "lzero_async.runs.policy"]
    with pytest.raises(AttributeError, match="'lzero_async' has no attribute 'load_polici'"):
        _ = lzero_async.load_polici
