"""The pipeline with 1 to 1,000 collectors and 1 to 8 learner ranks, in simulation: `python -m benchmarks.scale` (about a minute).

Reads the costs that `python -m benchmarks.on_ray` measured; writes benchmarks/results/scale.json, docs/scale.png and the table
of docs/scale.md.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _ray_runs, ray_costs
from benchmarks._scale_picture import draw
from benchmarks.harness import main_guard
from benchmarks.scaling import (
    Costs,
    Workload,
    collect_seconds,
    hand_over_seconds,
    most_possible,
    nodes_for,
    train_seconds,
    weights_seconds,
    what_limits,
)
from lzero_async.core.gate import Policy
from lzero_async.errors import ConfigError
from lzero_async.simulate.distributions import Distribution, lognormal
from lzero_async.simulate.pipeline import simulate

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, PICTURE = ROOT / "benchmarks" / "results", ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.png"
COLLECTORS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
RANKS = (1, 2, 4, 8)
NETWORKS = {"loopback": None, "10 Gbit/s": 10.0, "1 Gbit/s": 1.0}
PER_NODE = 16
FULL = 0.9  # of the highest rate: from so many collectors on, more of them gain little
SAME = 0.05  # networks whose rates differ by less than this share one line of the table
SHOWN = (1, 10, 100, 1000)
NUMBERS = "## Numbers"
CURVES = (
    f"Batches per second with {', '.join(f'{number:,}' for number in SHOWN[:-1])} and {SHOWN[-1]:,} collectors; the fewest of "
    f"those simulated that have {100 * FULL:g} % of the curve's highest rate; what limits {SHOWN[-1]:,}. `allow` bounds only how "
    "many batches wait, `wait` also how stale they get; it is simulated with as many ranks as were the fastest. "
    f"Networks whose rates differ by less than {100 * SAME:g} % share a line."
)
UNEVEN = (
    "The share of the possible rate that `wait` leaves to 100 collectors whose collects are uneven (lognormal), with a degree of "
    "so many times the collectors and a learner that takes no time."
)


class Setting(NamedTuple):
    """A curve: the network, the bound (so many batches, or so many for each collector), and how strictly it is kept."""

    network: str
    degree: int
    each: bool
    policy: Policy

    @property
    def bound(self) -> str:
        """The degree in words."""
        return f"{self.degree}{' x collectors' * self.each}, {self.policy}"


FREE = [Setting(network, 2, True, "allow") for network in NETWORKS]
STRICT = [Setting("10 Gbit/s", 2, True, "wait"), Setting("10 Gbit/s", 8, False, "wait")]
# How much of the possible a strict bound leaves: collectors, and for each of them a part of the degree.
MANY, MULTIPLES, SIGMAS = 100, (1, 2, 4, 8, 16), (0.0, 0.3, 0.5, 1.0)

# PriorZero: seeds of `make learn-async` that had the machine for themselves (docs/measured-async.md), the updates of the run
# that compared collect and train (the same page), and what is sampled for an update: batch_size x (num_unroll_steps + 1)
# embeddings of 384 floats, twice, as priorzero_config.py has them.
UNDISTURBED, COMPARED_UPDATES = (0, 3, 4), 220
SAMPLE_MB = 32 * (8 + 1) * 384 * 4 * 2 / 1e6
# Invented, uneven as collects of a slow environment are, with batches as in make bench-ray. `waiting`: a collect of 10 s, a
# train of one update of 40 ms, a million parameters. `light`: so fast a learner that everything else shows.
WAITING = Workload(
    collect=10.0, train=0.04, updates=1, batch_mb=0.5, weights_mb=4.0, gradient_mb=4.0, sample_mb=0.5
)  # fmt: skip
LIGHT = Workload(
    collect=4.0, train=0.002, updates=1, batch_mb=0.5, weights_mb=2.0, gradient_mb=2.0, sample_mb=0.5
)  # fmt: skip
INVENTED_SIGMA = 0.5


def main() -> int:
    """Simulate, print, write, draw."""
    try:
        rows = read_rows(RESULTS / "ray.json")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    costs = costs_of(rows)
    invented = {"waiting": (WAITING, INVENTED_SIGMA), "light": (LIGHT, INVENTED_SIGMA)}
    works = {"PriorZero": priorzero(rows), **invented}
    points = [point for name, (work, sigma) in works.items() for point in curves(name, work, sigma, costs)]
    told = [CURVES, "", *table(points), "", UNEVEN, "", *uneven()]
    print("\n".join(told), flush=True)
    result = {
        "title": "Scale, in simulation",
        "costs": asdict(costs),
        "workloads": {name: {**asdict(work), "sigma": sigma} for name, (work, sigma) in works.items()},
        "check": check(rows, costs),
        "weights_everywhere_seconds": everywhere(works, costs),
        "points": points,
    }
    (RESULTS / "scale.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "points"}, indent=1))
    draw(PICTURE, points, FULL)
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(NUMBERS)] + "\n".join([NUMBERS, "", *told]) + "\n")
    return 0


def read_rows(path: Path) -> dict[str, float]:
    """The medians of what on_ray measured as costs, by name. Raises ConfigError."""
    remedy = "measure it with: python -m benchmarks.on_ray --only costs"
    if not path.is_file():
        raise ConfigError(f"{path} is not there; {remedy}")
    rows = {row["name"]: row["median"] for row in json.loads(path.read_text())["bars"] if row["group"] == "costs"}
    wanted = [ray_costs.OWNER_CPU, ray_costs.PUT, ray_costs.CALL, ray_costs.RATE, *ray_costs.LINK.values()]
    wanted += [*ray_costs.REDUCE.values(), ray_costs.WEIGHTS, ray_costs.GRADIENTS, ray_costs.BATCH, ray_costs.STEPS]
    if missing := [name for name in wanted if name not in rows]:
        raise ConfigError(f"{path} has no {missing[0]!r} among its costs; {remedy}")
    return rows


def costs_of(rows: dict[str, float]) -> Costs:
    """Seconds and MB per second; an all-reduce's latency is that of a small one, its link that of 40 MB without it."""
    latency = rows[ray_costs.REDUCE[2, "1 kB"]] / 1000 / 2
    return Costs(
        owner_cpu=rows[ray_costs.OWNER_CPU] / 1000,
        put_per_mb=rows[ray_costs.PUT] / 1000,
        link=rows[ray_costs.LINK[100]],
        round_trip=rows[ray_costs.CALL] / 1000,
        reduce_latency=latency,
        reduce_link=40 / (rows[ray_costs.REDUCE[2, "40 MB"]] / 1000 - 2 * latency),
    )


def priorzero(rows: dict[str, float]) -> tuple[Workload, float]:
    """The shipped preset as it was measured, and the spread of its times.

    learn_async.json has the steps and seconds of collect and train together, at degree 0; priorzero_async.json how many times
    as long as 220 updates a collect takes; an update takes as long in both.
    """
    learned = json.loads((RESULTS / "learn_async.json").read_text())
    measured = json.loads((RESULTS / "priorzero_async.json").read_text())["bars"]
    runs = [learned["curves"]["0"][seed] for seed in UNDISTURBED]
    pairs = [later - sooner for run in runs for sooner, later in pairwise([0.0, *run[1]])]
    steps = sum(run[0][-1] for run in runs) / len(pairs)
    per_step = learned["degrees"]["0"]["updates"][0] / learned["degrees"]["0"]["env_steps"][0]
    name = "with the LLM prior: collect / train, seconds at degree 0"
    ratio = next(row["median"] for row in measured if row["name"] == name)
    updates = round(per_step * steps)
    train = statistics.mean(pairs) * updates / (updates + ratio * COMPARED_UPDATES)
    work = Workload(
        collect=statistics.mean(pairs) - train,
        train=train,
        updates=updates,
        batch_mb=rows[ray_costs.BATCH] / rows[ray_costs.STEPS] * steps,
        weights_mb=rows[ray_costs.WEIGHTS],
        gradient_mb=rows[ray_costs.GRADIENTS],
        sample_mb=SAMPLE_MB,
    )
    return work, statistics.stdev(math.log(pair) for pair in pairs)


def curves(name: str, work: Workload, sigma: float, costs: Costs) -> list[dict[str, Any]]:
    """Every point of a workload: the free bound with all ranks, then the strict ones with as many as were the fastest."""

    def curve(setting: Setting, ranks: int) -> list[dict[str, Any]]:
        here = {"workload": name, "network": setting.network, "bound": setting.bound, "ranks": ranks}
        return [{**here, **point(work, sigma, costs, setting, ranks, collectors)} for collectors in COLLECTORS]

    found = [point for setting in FREE for ranks in RANKS for point in curve(setting, ranks)]
    network = STRICT[0].network
    fastest = max((point for point in found if point["network"] == network), key=lambda point: point["rate"])["ranks"]
    return found + [point for setting in STRICT for point in curve(setting, fastest)]


def point(
    work: Workload, sigma: float, measured: Costs, setting: Setting, ranks: int, collectors: int
) -> dict[str, Any]:
    """The rate, and what limits it."""
    gbits = NETWORKS[setting.network]
    costs = measured if gbits is None else measured.on_network(gbits)
    degree = setting.degree * (collectors if setting.each else 1)
    rate = rate_of(work, sigma, costs, collectors, ranks, degree, setting.policy)
    possible = most_possible(work, costs, collectors, ranks)
    return {"collectors": collectors, "rate": rate, "limit": what_limits(rate, possible), "possible": possible}


@functools.cache
def rate_of(
    work: Workload, sigma: float, costs: Costs, collectors: int, ranks: int, degree: int, policy: Policy
) -> float:
    """Batches per second between the beginning, until the bound has been met everywhere, and the end, when fewer and fewer
    collects are open."""
    warm = max(20, collectors) + degree
    last = warm + max(1500, 6 * collectors)
    run = simulate(
        spread(collect_seconds(work, costs), sigma),
        train_seconds(work, costs, ranks),
        num_collectors=collectors,
        off_policy_degree=degree,
        policy=policy,
        trains=last + collectors,
        hand_over=hand_over_seconds(work, costs),
    )
    return run.throughput_after(warm, last)


def spread(mean: float, sigma: float) -> Distribution:
    """Lognormal durations, or always the same."""
    return lognormal(mean, sigma) if sigma else mean


def check(rows: dict[str, float], costs: Costs) -> dict[str, float]:
    """The simulation of the run that the costs were measured in, beside its measured rate."""
    size = _ray_runs.SIZE / 1e6
    call = rows[ray_costs.CALL] / 1000
    work = Workload(
        collect=_ray_runs.SECONDS, train=call, updates=1, batch_mb=size, weights_mb=size, gradient_mb=0.0, sample_mb=0.0
    )  # fmt: skip
    told = rate_of(work, 0.0, costs, _ray_runs.COLLECTORS, 1, _ray_runs.DEGREE, "wait")
    return {"simulated": told, "measured": rows[ray_costs.RATE], "simulated / measured": told / rows[ray_costs.RATE]}


def everywhere(works: dict[str, tuple[Workload, float]], costs: Costs) -> dict[str, dict[str, float]]:
    """Seconds until new weights are on all machines of 1,000 collectors, by workload and network."""
    nodes = nodes_for(1000, PER_NODE)
    return {
        name: {
            network: weights_seconds(work, costs if gbits is None else costs.on_network(gbits), nodes)
            for network, gbits in NETWORKS.items()
        }
        for name, (work, _) in works.items()
    }


def table(points: list[dict[str, Any]]) -> list[str]:
    """A line for each curve."""
    numbers = " | ".join(f"{number:,}" for number in SHOWN)
    lines = [f"| workload | network | degree, policy | ranks | {numbers} | 90 % from | limit at {SHOWN[-1]:,} |"]
    lines.append("|" + "---|" * (6 + len(SHOWN)))
    for key, curve in merged(points).items():
        highest = max(point["rate"] for point in curve.values())
        full = next(number for number, point in curve.items() if point["rate"] >= FULL * highest)
        rates = " | ".join(f"{curve[number]['rate']:.3g}" for number in SHOWN)
        lines.append(f"| {' | '.join(key)} | {rates} | {full:,} | {curve[SHOWN[-1]]['limit']} |")
    return lines


def merged(points: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[int, dict[str, Any]]]:
    """The curves by what the table says of them; networks that make next to no difference are one, with the first one's rates."""
    curves: dict[tuple[str, str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    for point in points:
        networks = curves.setdefault((point["workload"], point["bound"], str(point["ranks"])), {})
        networks.setdefault(point["network"], {})[point["collectors"]] = point
    found = {}
    for (workload, bound, ranks), networks in curves.items():
        while networks:
            first = next(iter(networks.values()))
            same = [name for name, curve in networks.items() if all(_alike(first[n], curve[n]) for n in first)]
            found[workload, ", ".join(same), bound, ranks] = first
            networks = {name: curve for name, curve in networks.items() if name not in same}
    return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return math.isclose(one["rate"], other["rate"], rel_tol=SAME)


def uneven() -> list[str]:
    """The share of the possible that a strict bound leaves, by the spread of the collects and the degree."""
    lines = ["| spread of a collect (sigma) | " + " | ".join(f"{multiple} x" for multiple in MULTIPLES) + " |"]
    lines.append("|" + "---|" * (1 + len(MULTIPLES)))
    for sigma in SIGMAS:
        shares = []
        for multiple in MULTIPLES:
            degree = multiple * MANY
            last = MANY + degree + max(3000, 2 * degree)
            run = simulate(
                spread(1.0, sigma), 1e-6, num_collectors=MANY, off_policy_degree=degree, trains=last + MANY
            )  # fmt: skip
            shares.append(run.throughput_after(MANY + degree, last) / MANY)
        lines.append(f"| {sigma:g} | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
    return lines


if __name__ == "__main__":
    main_guard(main)
