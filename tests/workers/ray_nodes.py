"""A Ray cluster of several nodes on this machine, by Ray's own test utilities, and a run that loses one of them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from functools import partial
from typing import Any, NamedTuple, Protocol

from lzero_async import AsyncTrainingCoordinator, Recovery, make_backend
from lzero_async.types import Batch, StopSignal
from tests.workers.roles import CollectorRole, LearnerRole


class RayNodes:
    """A cluster that this program is connected to: a head without cores, where the program is, and `count` nodes with
    `cores` each. Needs Ray."""

    def __init__(self, count: int = 2, *, cores: int = 4, store_bytes: int = 200 << 20) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on every system: listen on loopback only
        import ray
        from ray.cluster_utils import Cluster

        self._ray, self._cores, self._store = ray, cores, store_bytes
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": store_bytes}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}
        for _ in range(count):
            self.add()
        ray.init(address=self._cluster.address, log_to_driver=False, configure_logging=False)

    @property
    def address(self) -> str:
        """Of the cluster, for other programs."""
        return str(self._cluster.address)

    @property
    def nodes(self) -> list[str]:
        """Ray's names of the nodes besides the head."""
        return list(self._nodes)

    def add(self) -> str:
        """One more node; its name."""
        node = self._cluster.add_node(num_cpus=self._cores, object_store_memory=self._store)
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def remove(self, name: str) -> None:
        """Take a node away as a power cut would: its processes are killed, and nobody is told."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        """Disconnect, and end every node."""
        self._ray.shutdown()
        self._cluster.shutdown()


class Removable(Protocol):
    """Nodes of the cluster that this program is connected to."""

    def remove(self, name: str) -> None:
        """Take the node with Ray's name for it away."""


class Loss(NamedTuple):
    """What came of a run that lost a node: batches trained, those trained twice, staleness and its bound, restarts,
    collectors that were on the node, seconds until the first of them was missed and until all were back, and batches per
    second before the loss and after they were back."""

    trained: int
    twice: int
    staleness: int
    degree: int
    restarts: int
    lost: int
    seen_seconds: float
    back_seconds: float
    rate_before: float
    rate_after: float


def lose_a_node(
    nodes: Removable, *, batches: int = 150, collectors: int = 4, degree: int = 8, seconds: float = 0.1, cores: int = 1
) -> Loss:
    """Train on `batches` batches of collects that take `seconds` each and need so many cores; take the node of collector 0
    away after a third of them, while it is busy."""
    backend = make_backend("ray", ray_resources={"collector": {"CPU": cores}})
    try:
        return _Run(nodes, backend, collectors, degree, seconds).run(batches)
    finally:
        backend.close()


class _Run:
    def __init__(self, nodes: Removable, backend: Any, collectors: int, degree: int, seconds: float) -> None:
        self.nodes, self.degree = nodes, degree
        self.learner = backend.start("learner", partial(LearnerRole, size=200_000), pin_to_driver=True)
        self.collectors = [
            backend.start(f"collector {worker}", partial(CollectorRole, worker=worker, seconds=seconds, size=200_000))
            for worker in range(collectors)
        ]
        self.times: list[float] = []
        self.busy = [threading.Event() for _ in range(collectors)]
        self.missed: dict[int, float] = {}
        self.back: dict[int, float] = {}
        self.removed_at = 0.0
        self.stop: StopSignal | None = None

    def run(self, batches: int) -> Loss:
        weights = self.learner.call("weights")
        for worker in self.collectors:
            worker.call("collect", weights)  # everybody has a place
        with AsyncTrainingCoordinator(
            self.degree,
            num_collectors=len(self.collectors),
            recovery=Recovery(on_failure="restart", restart_backoff=0.05),
            get_weights=lambda: self.learner.call("weights"),
        ) as coordinator:
            self.stop = coordinator.stop_signal
            coordinator.run(
                self.collect, partial(self.train, batches // 3), max_train=batches, on_restart=self.restart,
                print_statistics=False,
            )  # fmt: skip
            statistics = coordinator.get_statistics()
        return self._found(statistics)

    def collect(self, context: Any) -> Any:
        self.busy[context.worker].set()
        try:
            found = self.collectors[context.worker].call("collect", context.snapshot.state, stop=context.stop)
        finally:
            self.busy[context.worker].clear()
        if context.worker in self.missed:
            self.back.setdefault(context.worker, time.monotonic())
        return found

    def train(self, when: int, batch: Batch) -> None:
        self.learner.call("train", batch.id, batch.data)
        self.times.append(time.monotonic())
        if len(self.times) == when:
            self.busy[0].wait()
            self.removed_at = time.monotonic()
            self.nodes.remove(self.collectors[0].node)

    def restart(self, worker: int, error: Exception) -> None:
        self.missed.setdefault(worker, time.monotonic())
        self.collectors[worker].restart()
        self.collectors[worker].wait_until_ready(self.stop)

    def _found(self, statistics: dict[str, Any]) -> Loss:
        history = self.learner.call("history")
        played = Counter(tuple(meta[:3]) for _, meta in history)
        numbers = Counter(batch for batch, _ in history)
        back = max(self.back.values(), default=self.times[-1])
        before = [at for at in self.times if at <= self.removed_at]
        after = [at for at in self.times if at > back]
        return Loss(
            trained=len(history),
            twice=sum(count - 1 for count in (*played.values(), *numbers.values())),
            staleness=statistics["staleness_max"],
            degree=self.degree,
            restarts=statistics["restarts"],
            lost=len(self.missed),
            seen_seconds=min(self.missed.values(), default=back) - self.removed_at,
            back_seconds=back - self.removed_at,
            rate_before=_rate(before),
            rate_after=_rate(after),
        )


def _rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
