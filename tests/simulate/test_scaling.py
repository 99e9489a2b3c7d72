"""A batch that an owner must take in, in the simulation; and the costs of many machines, on paper, against sums by hand."""

from __future__ import annotations

import heapq
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ray_costs, scale
from benchmarks.scaling import (
    COLLECTORS,
    DEGREE,
    LEARNER,
    LINK_IN,
    LINK_OUT,
    OWNER_CPU,
    Costs,
    Workload,
    all_reduce_seconds,
    collect_seconds,
    hand_over_seconds,
    most_possible,
    nodes_for,
    owner_seconds,
    train_seconds,
    weights_seconds,
    what_limits,
)
from lzero_async.errors import ConfigError
from lzero_async.simulate import pipeline as simulation
from lzero_async.simulate.distributions import lognormal
from lzero_async.simulate.pipeline import simulate

COSTS = Costs(owner_cpu=0.004, put_per_mb=0.001, link=100.0, round_trip=0.002, reduce_latency=0.0005, reduce_link=200.0)
WORK = Workload(
    collect=10.0, train=8.0, updates=100, batch_mb=0.5, weights_mb=20.0, gradient_mb=40.0, sample_mb=1.0
)  # fmt: skip


# -- the owner in the simulation -----------------------------------------------------------------------------------------


def test_a_hand_over_lies_between_a_collect_and_its_train() -> None:
    serial = simulate(2.0, 1.0, off_policy_degree=0, trains=10, hand_over=0.5)
    assert serial.wall == pytest.approx(10 * 3.5)
    overlapped = simulate(2.0, 1.0, off_policy_degree=2, trains=10, hand_over=0.5)
    assert overlapped.wall == pytest.approx(10 * 2.5 + 1.0)
    assert overlapped.seconds["hand_over"] == 0.5
    assert overlapped.owner_busy == pytest.approx(10 * 0.5 / 26)


def test_collectors_that_end_together_are_taken_in_one_after_the_other() -> None:
    run = simulate(4.0, 0.1, num_collectors=3, off_policy_degree=6, trains=3, hand_over=1.0)
    assert run.finished_at == pytest.approx((5.1, 6.1, 7.1))


def test_the_owner_serves_in_the_order_in_which_collects_end() -> None:
    ends = iter([3.0, 1.0, 2.0])
    collect = lambda generator, index: next(ends)  # noqa: E731
    run = simulate(collect, 0.25, num_collectors=3, off_policy_degree=3, trains=3, hand_over=5.0)
    assert run.finished_at == pytest.approx((6.25, 11.25, 16.25))


@pytest.mark.parametrize("collectors", [1, 5, 10, 40])
def test_throughput_is_what_collectors_or_the_owner_allow(collectors: int) -> None:
    run = simulate(9.0, 0.01, num_collectors=collectors, off_policy_degree=2 * collectors, trains=400, hand_over=1.0)
    assert run.throughput_after(100) == pytest.approx(min(1.0, collectors / 10), rel=0.01)


def test_uneven_collects_never_pass_the_owners_rate() -> None:
    for seed in range(5):
        run = simulate(
            lognormal(2.0, 1.0),
            lognormal(0.05, 1.0),
            num_collectors=30,
            off_policy_degree=1000,
            trains=500,
            hand_over=0.2,
            seed=seed,
        )
        assert run.throughput <= 1 / 0.2
        assert run.throughput_after(50, until=450) > 0.95 / 0.2  # the last collects have fewer and fewer beside them


def test_without_a_hand_over_nothing_changes_and_with_one_of_no_time_either() -> None:
    options: dict[str, Any] = {"num_collectors": 3, "off_policy_degree": 4, "trains": 200}
    none = simulate(lognormal(2, 1), lognormal(1, 1), **options)
    instant = simulate(lognormal(2, 1), lognormal(1, 1), hand_over=0.0, **options)
    assert none.finished_at == instant.finished_at
    assert (none.owner_busy, instant.owner_busy) == (0.0, 0.0)
    assert "hand_over" not in none.seconds


def test_a_hand_over_takes_cores_where_they_are_shared() -> None:
    options: dict[str, Any] = {"num_collectors": 2, "off_policy_degree": 4, "trains": 200, "hand_over": 1.0, "cores": 1}
    run = simulate(1.0, 1.0, cpu={"collect": 0.0}, **options)
    assert run.throughput == pytest.approx(1 / 2, rel=0.02)
    asleep = simulate(1.0, 1.0, cpu={"collect": 0.0, "hand_over": 0.0}, **options)
    assert asleep.throughput == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("policy", ["wait", "drop", "allow"])
def test_no_finished_collect_is_passed_over(monkeypatch: Any, policy: Any) -> None:
    """Whom the gate need not be asked about again gives the same run as asking about everybody."""
    asked = 0

    def commit_one(self: Any) -> bool:
        nonlocal asked
        for held in sorted(self.held):
            asked += 1
            if self.gate.try_commit(held.ticket.id) is not None:
                self.held.remove(held)
                heapq.heapify(self.held)
                self._committed(held.worker)
                return True
        return False

    options: dict[str, Any] = {"num_collectors": 12, "trains": 400, "policy": policy, "hand_over": 0.02}
    for degree in (3, 12, 30):
        short = simulate(lognormal(4, 1), lognormal(0.5, 1), off_policy_degree=degree, **options)
        with monkeypatch.context() as patched:
            patched.setattr(simulation._Pipeline, "_commit_one", commit_one)
            assert simulate(lognormal(4, 1), lognormal(0.5, 1), off_policy_degree=degree, **options) == short
    assert asked > 3 * 400


# -- costs on paper --------------------------------------------------------------------------------------------------------


def test_what_a_batch_takes_of_the_owner() -> None:
    assert owner_seconds(WORK, COSTS) == pytest.approx({OWNER_CPU: 0.004, LINK_IN: 0.005, LINK_OUT: 0.2})
    assert hand_over_seconds(WORK, COSTS) == pytest.approx(0.2)
    light = replace(WORK, weights_mb=0.1)
    assert hand_over_seconds(light, COSTS) == pytest.approx(0.005)


def test_a_collect_waits_for_its_call_the_store_and_the_faster_parts_of_the_owner() -> None:
    assert collect_seconds(WORK, COSTS) == pytest.approx(10 + 0.002 + 0.0005 + 0.004 + 0.005)


def test_a_ring_all_reduce() -> None:
    assert all_reduce_seconds(40.0, COSTS, 1) == 0.0
    assert all_reduce_seconds(40.0, COSTS, 2) == pytest.approx(40 / 200 + 2 * 0.0005)
    assert all_reduce_seconds(40.0, COSTS, 4) == pytest.approx(1.5 * 40 / 200 + 6 * 0.0005)


def test_a_train_on_several_ranks() -> None:
    publish = 20 * 0.001
    assert train_seconds(WORK, COSTS) == pytest.approx(8 + publish)
    each = (0.5 * 1 / 200 + 0.0005) + (40 / 200 + 2 * 0.0005)
    assert train_seconds(WORK, COSTS, 2) == pytest.approx(4 + 100 * each + publish)
    each = (0.75 * 1 / 200 + 3 * 0.0005) + (1.5 * 40 / 200 + 6 * 0.0005)
    assert train_seconds(WORK, COSTS, 4) == pytest.approx(2 + 100 * each + publish)


def test_new_weights_go_to_every_machine_once() -> None:
    assert nodes_for(1, 16) == nodes_for(16, 16) == 1
    assert nodes_for(17, 16) == 2
    assert weights_seconds(WORK, COSTS, 3) == pytest.approx(0.02 + 0.002 + 3 * 0.2)
    assert weights_seconds(WORK, COSTS, 0) == pytest.approx(0.022)


def test_no_link_is_faster_than_the_network_nor_than_it_was_measured() -> None:
    slow = COSTS.on_network(1)
    assert (slow.link, slow.reduce_link) == (100.0, 125.0)
    assert COSTS.on_network(0.4).link == pytest.approx(50.0)
    assert COSTS.on_network(10) == COSTS


def test_what_each_resource_allows_and_which_one_limits() -> None:
    possible = most_possible(WORK, COSTS, 10)
    assert possible[COLLECTORS] == pytest.approx(10 / (10.0115 + 0.2))
    assert possible[LEARNER] == pytest.approx(1 / 8.02)
    assert (possible[OWNER_CPU], possible[LINK_IN], possible[LINK_OUT]) == pytest.approx((250, 200, 5))
    assert what_limits(0.12, possible) == LEARNER
    assert what_limits(0.05, possible) == DEGREE
    fast = replace(WORK, train=0.01)
    assert what_limits(0.95, most_possible(fast, COSTS, 10)) == COLLECTORS
    assert what_limits(5.0, most_possible(fast, COSTS, 1000)) == LINK_OUT
    assert LINK_IN not in most_possible(replace(WORK, batch_mb=0.0), COSTS, 1)


def test_the_simulation_with_these_durations_gets_what_paper_allows() -> None:
    work = replace(WORK, train=0.02)
    for collectors in (5, 200):
        run = simulate(
            collect_seconds(work, COSTS),
            train_seconds(work, COSTS),
            num_collectors=collectors,
            off_policy_degree=2 * collectors,
            trains=5 * collectors,
            hand_over=hand_over_seconds(work, COSTS),
        )
        most = min(most_possible(work, COSTS, collectors).values())
        assert run.throughput_after(collectors) == pytest.approx(most, rel=0.02)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: replace(COSTS, link=0), "link is 0; it must be a number above 0"),
        (lambda: replace(COSTS, owner_cpu=-1), "owner_cpu is -1; it must be a number of at least 0"),
        (lambda: replace(COSTS, round_trip=float("nan")), "round_trip is nan"),
        (lambda: replace(WORK, updates=0), "updates is 0; it must be a whole number of at least 1"),
        (lambda: replace(WORK, weights_mb=float("inf")), "weights_mb is inf"),
        (lambda: COSTS.on_network(0), "gbits is 0"),
        (lambda: train_seconds(WORK, COSTS, 0), "ranks is 0"),
        (lambda: nodes_for(0, 16), "collectors is 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


# -- the benchmark ---------------------------------------------------------------------------------------------------------


def measured(path: Path, **changes: float) -> Path:
    """A file as on_ray writes it; every cost is 2, unless it is changed by the name that ray_costs gives it."""
    names = [ray_costs.OWNER_CPU, ray_costs.PUT, ray_costs.CALL, ray_costs.RATE, *ray_costs.LINK.values()]
    names += [*ray_costs.REDUCE.values(), ray_costs.WEIGHTS, ray_costs.GRADIENTS, ray_costs.BATCH, ray_costs.STEPS]
    rows = [{"group": "costs", "name": name, "median": changes.get(name, 2.0)} for name in names]
    path.write_text(json.dumps({"bars": [*rows, {"group": "speed", "name": "another", "median": 1.0}]}))
    return path


def test_the_benchmark_reads_what_was_measured(tmp_path: Path) -> None:
    changes = {
        ray_costs.OWNER_CPU: 9.0,
        ray_costs.LINK[100]: 800.0,
        ray_costs.REDUCE[2, "1 kB"]: 1.0,
        ray_costs.REDUCE[2, "40 MB"]: 101.0,
    }
    rows = scale.read_rows(measured(tmp_path / "ray.json", **changes))
    assert "another" not in rows
    found = asdict(scale.costs_of(rows))
    assert found == pytest.approx(
        {
            "owner_cpu": 0.009,
            "put_per_mb": 0.002,
            "link": 800.0,
            "round_trip": 0.002,
            "reduce_latency": 0.0005,
            "reduce_link": 400.0,
        }
    )


def test_the_benchmark_says_what_to_measure_first(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ray\.json is not there; measure it with: python -m benchmarks\.on_ray --only costs"
    ):
        scale.read_rows(tmp_path / "ray.json")
    path = measured(tmp_path / "ray.json")
    path.write_text(path.read_text().replace(ray_costs.PUT, "something else"))
    with pytest.raises(ConfigError, match="has no '100 MB into the store, ms per MB' among its costs; measure it"):
        scale.read_rows(path)


def test_priorzeros_times_add_up_to_what_was_measured(tmp_path: Path) -> None:
    """Collect and train are those of learn_async.json together, and 220 updates are to a collect as priorzero_async.json says."""
    runs = [json.loads((scale.RESULTS / "learn_async.json").read_text())["curves"]["0"][seed] for seed in (0, 3, 4)]
    bars = json.loads((scale.RESULTS / "priorzero_async.json").read_text())["bars"]
    ratio = next(bar["median"] for bar in bars if bar["name"].startswith("with the LLM prior: collect / train"))
    work, sigma = scale.priorzero(scale.read_rows(measured(tmp_path / "ray.json")))
    batches = sum(len(steps) for steps, _, _ in runs)
    assert work.collect + work.train == pytest.approx(sum(seconds[-1] for _, seconds, _ in runs) / batches)
    assert work.collect / (220 * work.train / work.updates) == pytest.approx(ratio)
    assert work.batch_mb == pytest.approx(sum(steps[-1] for steps, _, _ in runs) / batches)  # one MB per step
    assert work.updates == round(work.batch_mb / 2)
    assert 0.05 < sigma < 1


def test_a_line_of_the_table_says_where_more_collectors_gain_little() -> None:
    rates = {1: 0.5, 10: 4.6, 100: 5.0, 1000: 5.0}
    line = {"workload": "w", "bound": "8, wait", "ranks": 2, "limit": "learner"}
    points = [
        {**line, "network": network, "collectors": number, "rate": rate * share}
        for network, share in (("loopback", 1.0), ("fast", 0.96), ("slow", 0.5))
        for number, rate in rates.items()
    ]
    assert scale.table(points)[2:] == [
        "| w | loopback, fast | 8, wait | 2 | 0.5 | 4.6 | 5 | 5 | 10 | learner |",
        "| w | slow | 8, wait | 2 | 0.25 | 2.3 | 2.5 | 2.5 | 10 | learner |",
    ]
