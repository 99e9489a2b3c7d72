"""The short version of `benchmarks.poisoned`: training goes on among faults, and all of them are counted."""

from __future__ import annotations

from pathlib import Path

from benchmarks.poisoned import APPS, measure


def test_whole_episode_ppo_counts_every_fault_and_goes_on(tmp_path: Path) -> None:
    row = measure(APPS["episode_ppo-sync"], 6.0, tmp_path, probability=0.03)
    assert [failure for failure in row["failures"] if "did not go on" not in failure] == []
    assert row["struck_in_all"] > 0 and row["trained"] > 0


def test_mbpo_counts_every_fault_and_goes_on(tmp_path: Path) -> None:
    row = measure(APPS["mbpo-sync"], 6.0, tmp_path, probability=0.03)
    # How far it comes in so short a time is the machine's affair.
    assert [failure for failure in row["failures"] if "did not go on" not in failure] == []
    assert row["struck_in_all"] > 0 and row["trained"] > 0
