"""A Ray cluster over hosts with a network of their own: the commands that docs/ray.md has for several machines, and a cable that
is pulled. Needs root, `ip` and `unshare`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from lzero_async.testing.hosts import Hosts
from lzero_async.testing.ray_hosts import RayHosts, pull_a_cable
from tests.docs_blocks import SHORT_PRIORZERO

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def _hosts_are_possible() -> None:
    if not Hosts.possible():
        pytest.skip("hosts need root, ip and unshare")


def test_a_host_whose_cable_is_pulled_is_missed_within_seconds(tmp_path: Path) -> None:
    loss = pull_a_cable(tmp_path)
    assert loss.trained == 90 and loss.twice == 0
    assert loss.staleness <= loss.degree
    assert 1 <= loss.lost == loss.restarts
    assert loss.seen_seconds < 30  # Ray itself would need a minute; measured are six seconds


@pytest.mark.chaos
def test_the_real_agent_plays_on_two_hosts(tmp_path: Path) -> None:
    cluster = RayHosts(2, tmp_path, cores=2, head_cores=2)
    folder = tmp_path / "run"
    try:
        words = [
            *SHORT_PRIORZERO.split(),
            "--off_policy_degree",
            "8",
            "--num_collectors",
            "3",
            "--exp_name",
            str(folder),
        ]
        entry = "zoo/jericho/priorzero/priorzero_entry.py"
        cluster.run(1, "python", entry, *words, "--backend", "ray", "--ray_address", "auto", seconds=300.0)
    finally:
        cluster.close()
    results = json.loads((folder / "results.json").read_text())
    assert results["ended_by"] == "max_iter"
    assert (folder / "cache-host2.sqlite").exists()  # a collector there kept what it computed
