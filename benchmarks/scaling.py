"""What a run on many machines costs, on paper: from measured costs to the durations that `simulate` takes.

Times are in seconds, sizes in MB (10^6 bytes), rates in batches per second. There is one owner: the program, with the buffer
and the first learner rank on its machine. Collectors are on other machines. Links are full duplex.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Final

from lzero_async.errors import ConfigError
from lzero_async.validation import positive_number, real_number, whole_number

COLLECTORS: Final = "collectors"
LEARNER: Final = "learner"
OWNER_CPU: Final = "owner's CPU"
LINK_IN: Final = "owner's link, batches in"
LINK_OUT: Final = "owner's link, weights out"
DEGREE: Final = "degree"
MB_PER_GBIT: Final = 125.0


@dataclass(frozen=True)
class Costs:
    """What was measured of one kind of cluster.

    `owner_cpu`: the owner's CPU seconds for one batch, all its calls included; `put_per_mb`: seconds to put an MB into the
    store of its own machine; `link`: MB per second between two machines, each way; `round_trip`: seconds of a call without
    data; `reduce_latency` and `reduce_link`: seconds of a step of an all-reduce, and MB per second between two ranks.
    """

    owner_cpu: float
    put_per_mb: float
    link: float
    round_trip: float
    reduce_latency: float
    reduce_link: float

    def __post_init__(self) -> None:
        _check(self, positive={"link", "reduce_link"})

    def on_network(self, gbits: float) -> Costs:
        """The same over a network of so many Gbit/s: no link is faster than that, nor than it was measured."""
        most = positive_number("gbits", gbits) * MB_PER_GBIT
        return replace(self, link=min(self.link, most), reduce_link=min(self.reduce_link, most))


@dataclass(frozen=True)
class Workload:
    """What an application does: seconds of a collect and of a train (one rank, nothing to wait for), updates in a train, and
    MB of a batch, of the weights, of the gradients and of what is sampled for one update."""

    collect: float
    train: float
    updates: int
    batch_mb: float
    weights_mb: float
    gradient_mb: float
    sample_mb: float

    def __post_init__(self) -> None:
        whole_number("updates", self.updates, 1)
        _check(self, positive={"collect", "train"})


def nodes_for(collectors: int, per_node: int) -> int:
    """Machines that so many collectors need."""
    return ceil(whole_number("collectors", collectors, 1) / whole_number("per_node", per_node, 1))


def owner_seconds(work: Workload, costs: Costs) -> dict[str, float]:
    """What a batch takes of each resource of the owner: its CPU, `batch_mb / link` inwards, `weights_mb / link` outwards.

    Each machine fetches a version of the weights once. There is a new version per train, and so per collect that starts: each
    collect has one fetch, however many collectors a machine has.
    """
    return {
        OWNER_CPU: costs.owner_cpu,
        LINK_IN: work.batch_mb / costs.link,
        LINK_OUT: work.weights_mb / costs.link,
    }


def hand_over_seconds(work: Workload, costs: Costs) -> float:
    """How long the owner is taken up by a batch: its slowest resource, since the three work at the same time on different
    batches. In a row of servers with constant times all waiting is at the slowest one."""
    return max(owner_seconds(work, costs).values())


def collect_seconds(work: Workload, costs: Costs) -> float:
    """A collect with what it waits for besides the owner's slowest resource: `collect + round_trip + batch_mb * put_per_mb`,
    and the owner's other two resources."""
    others = sum(owner_seconds(work, costs).values()) - hand_over_seconds(work, costs)
    return work.collect + costs.round_trip + work.batch_mb * costs.put_per_mb + others


def all_reduce_seconds(mb: float, costs: Costs, ranks: int) -> float:
    """A ring all-reduce: `2 (r - 1) / r * mb / reduce_link + 2 (r - 1) * reduce_latency`."""
    steps = 2 * (whole_number("ranks", ranks, 1) - 1)
    return steps / ranks * mb / costs.reduce_link + steps * costs.reduce_latency


def train_seconds(work: Workload, costs: Costs, ranks: int = 1) -> float:
    """A train on `ranks` ranks with the publication after it.

    `train / r`; for each update the owner sends the other ranks their part of the sample, `(r - 1) / r * sample_mb /
    reduce_link + (r - 1) * reduce_latency`, and the gradients are reduced; then `weights_mb * put_per_mb`.
    """
    others = whole_number("ranks", ranks, 1) - 1
    scatter = others / ranks * work.sample_mb / costs.reduce_link + others * costs.reduce_latency
    reduce = all_reduce_seconds(work.gradient_mb, costs, ranks)
    return work.train / ranks + work.updates * (scatter + reduce) + work.weights_mb * costs.put_per_mb


def weights_seconds(work: Workload, costs: Costs, nodes: int) -> float:
    """Until new weights are on every machine: `weights_mb * put_per_mb + round_trip + nodes * weights_mb / link`, once to each,
    all of them through the owner's link."""
    copies = whole_number("nodes", nodes, 0) * work.weights_mb / costs.link
    return work.weights_mb * costs.put_per_mb + costs.round_trip + copies


def most_possible(work: Workload, costs: Costs, collectors: int, ranks: int = 1) -> dict[str, float]:
    """Batches per second that each resource allows by itself: the collectors, the learner, and the owner's three."""
    cycle = collect_seconds(work, costs) + hand_over_seconds(work, costs)
    found = {
        COLLECTORS: whole_number("collectors", collectors, 1) / cycle,
        LEARNER: 1 / train_seconds(work, costs, ranks),
    }
    return found | {name: 1 / seconds for name, seconds in owner_seconds(work, costs).items() if seconds}


def what_limits(rate: float, possible: Mapping[str, float], near: float = 0.85) -> str:
    """The resource that allows the least, if `rate` is at least `near` of that; else it is the degree that holds collectors
    back."""
    tightest = min(possible, key=lambda name: possible[name])
    return tightest if rate >= near * possible[tightest] else DEGREE


def _check(given: Costs | Workload, positive: set[str]) -> None:
    """ConfigError unless every number is at least 0, and those of `positive` above it."""
    for one in fields(given):
        value = getattr(given, one.name)
        if one.name in positive:
            positive_number(one.name, value)
        elif not 0 <= real_number(one.name, value) < float("inf"):
            raise ConfigError(f"{one.name} is {value!r}; it must be a number of at least 0.")
