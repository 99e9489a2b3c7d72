"""What Ray costs and what it survives: `python -m benchmarks.on_ray` (about 14 minutes; needs the extra ray, and root for
hosts of its own).

Writes benchmarks/results/ray.json and the table of docs/ray.md.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks._ray_runs import COLLECTORS, SECONDS, SIZE, waiting_run
from benchmarks.harness import Bar, main_guard, run_bars
from benchmarks.ray_costs import costs
from lzero_async import Worker, make_backend
from lzero_async.testing import ScriptedRole
from tests.workers.hosts import Hosts
from tests.workers.ray_hosts import pull_a_cable
from tests.workers.ray_nodes import Loss, RayNodes, lose_a_node

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, LOSSES, BATCHES = 5, 10, 150


def speed() -> list[Bar]:
    """Both backends, in turn, several times."""
    found: dict[str, list[float]] = {"process": [], "ray": []}
    for _ in range(ROUNDS):
        for kind, rates in found.items():
            rates.append(waiting_run(kind).rate)
    ratios = iter([mine / theirs for mine, theirs in zip(found["ray"], found["process"], strict=True)])
    most = COLLECTORS / SECONDS
    name = f"{COLLECTORS} collectors that wait {SECONDS:g} s, {SIZE / 1e6:g} MB a batch"
    return [
        Bar(f"{name}: batches/s on Ray / on processes", 0.9, True, lambda: next(ratios), ROUNDS),
        *(
            Bar(f"{name}: batches/s on {kind} / the most possible", None, True, partial(next, iter(rates)), ROUNDS)
            for kind, rates in ((kind, [rate / most for rate in rates]) for kind, rates in found.items())
        ),
    ]


def calls() -> list[Bar]:
    """What a call and a parcel cost, on either backend."""
    values: dict[str, list[float]] = {}
    for kind in ("process", "ray"):
        backend = make_backend(kind)
        try:
            worker = backend.start("scripted", ScriptedRole)
            worker.call("do", "from lzero_async.testing.fakes import Block")
            values[f"a call on {kind}, ms"] = _milliseconds(worker, "result = 1", 200)
            for size in (1_000_000, 20_000_000):
                name = f"a parcel of {size // 1_000_000} MB from {kind}, ms"
                values[name] = _milliseconds(worker, f"result = Parcel(Block(bytearray({size})))", 20)
        finally:
            backend.close()
    return [Bar(name, None, False, partial(next, iter(found)), len(found)) for name, found in values.items()]


def _milliseconds(worker: Worker, source: str, count: int) -> list[float]:
    """A call that runs this source: medians of five series."""
    series = []
    for _ in range(5):
        times = []
        for _ in range(max(1, count // 5)):
            start = time.perf_counter()
            worker.call("do", source)
            times.append(1000 * (time.perf_counter() - start))
        series.append(statistics.median(times))
    return series


def loss() -> list[Bar]:
    """A node is taken away while its collectors are busy, several times: its processes are killed."""
    found: list[Loss] = []
    nodes = RayNodes(2)
    try:
        for _ in range(LOSSES):
            found.append(_shown(lose_a_node(nodes, batches=BATCHES)))
            nodes.add()
    finally:
        nodes.close()
    return _what_it_cost("a node lost while busy", found)


def cable() -> list[Bar]:
    """The same when nobody is told: the cable of a host with a network of its own is pulled."""
    if not Hosts.possible():
        print("  the cable is left as it was: hosts need root, ip and unshare", file=sys.stderr)
        return []
    found = []
    for _ in range(LOSSES):
        with tempfile.TemporaryDirectory() as folder:
            found.append(_shown(pull_a_cable(Path(folder), BATCHES)))
    return _what_it_cost("a cable pulled", found)


def _shown(loss: Loss) -> Loss:
    print(f"  {loss}", file=sys.stderr, flush=True)
    return loss


def _what_it_cost(what: str, found: list[Loss]) -> list[Bar]:
    """What is counted must hold each time."""
    columns = {
        "batches counted twice": (0, False, True, [one.twice for one in found]),
        "batches trained / wanted": (1, True, True, [one.trained / BATCHES for one in found]),
        "highest staleness / its bound": (1, False, True, [one.staleness / one.degree for one in found]),
        "batches/s after / before": (0.8, True, False, [one.rate_after / one.rate_before for one in found]),
        "seconds until it is seen": (10, False, True, [one.seen_seconds for one in found]),
        "seconds until all collectors are back": (None, False, False, [one.back_seconds for one in found]),
    }
    return [
        Bar(f"{what}: {name}", limit, at_least, partial(next, iter(values)), LOSSES, always)
        for name, (limit, at_least, always, values) in columns.items()
    ]


def main() -> int:
    """Measure, print, write."""
    groups = {"speed": speed, "calls": calls, "costs": costs, "loss": loss, "cable": cable}
    page = ROOT / "docs" / "ray.md"
    return run_bars("Ray", groups, ROOT / "benchmarks" / "results" / "ray.json", page)


if __name__ == "__main__":
    main_guard(main)
