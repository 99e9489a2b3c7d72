"""A discrete-event simulation of the pipeline, on the real gate and the real adaptive controller."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lzero_async.adaptive import AdaptiveDegree
from lzero_async.config import whole_number
from lzero_async.distributions import Distribution, sample
from lzero_async.errors import ConfigError
from lzero_async.gate import Gate, Policy, Ticket


@dataclass(frozen=True)
class Simulation:
    """What a simulated run came to. Times are in the unit of the durations; shares are of the wall time."""

    wall: float
    trains: int
    throughput: float
    learner_idle: float
    collector_idle: float
    overlap_efficiency: float
    mean_lag: float
    mean_staleness: float
    lag: Mapping[int, int]
    staleness: Mapping[int, int]
    dropped: int
    degrees: tuple[int, ...] = field(repr=False)
    finished_at: tuple[float, ...] = field(repr=False)

    def throughput_after(self, train: int) -> float:
        """Trains per unit of time after the first `train` ones."""
        return (self.trains - train) / (self.finished_at[-1] - self.finished_at[train - 1])


def simulate(
    collect: Distribution,
    train: Distribution,
    eval: Distribution | None = None,
    num_collectors: int = 1,
    off_policy_degree: int = 1,
    *,
    trains: int = 1000,
    eval_every: int = 0,
    async_eval: bool = False,
    policy: Policy = "wait",
    publish_every: int = 1,
    queue_capacity: int | None = None,
    adaptive: AdaptiveDegree | None = None,
    seed: int = 0,
) -> Simulation:
    """Run the pipeline for `trains` trains in virtual time. Each worker draws its durations from its own stream.

    `queue_capacity`: batches that a queue holds before it drops its oldest; collectors then never wait.
    """
    whole_number("trains", trains, 1)
    if (eval is None) != (whole_number("eval_every", eval_every, 0) == 0):
        raise ConfigError(f"eval is {eval!r} and eval_every is {eval_every}; give both, or none.")
    return _Pipeline(
        collect,
        train,
        eval,
        num_collectors,
        off_policy_degree,
        trains,
        eval_every,
        async_eval,
        policy,
        publish_every,
        queue_capacity,
        adaptive,
        seed,
    ).run()


class _Pipeline:
    def __init__(
        self,
        collect: Distribution,
        train: Distribution,
        eval: Distribution | None,
        num_collectors: int,
        degree: int,
        trains: int,
        eval_every: int,
        async_eval: bool,
        policy: Policy,
        publish_every: int,
        queue_capacity: int | None,
        adaptive: AdaptiveDegree | None,
        seed: int,
    ) -> None:
        self.gate = Gate(
            adaptive.degree if adaptive else degree,
            num_collectors=num_collectors,
            policy=policy,
            publish_every=publish_every,
            capacity=queue_capacity,
        )
        self.durations = {"collect": collect, "train": train, "eval": 0.0 if eval is None else eval}
        self.trains, self.eval_every, self.async_eval = trains, eval_every if eval is not None else 0, async_eval
        self.adaptive, self.seed = adaptive, seed
        self.streams: dict[tuple[str, int], tuple[random.Random, Counter[str]]] = {}
        self.now = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.order = 0
        self.idle_workers = list(range(num_collectors))
        self.held: list[tuple[int, Ticket]] = []
        self.busy = {"collect": 0.0, "train": 0.0, "eval": 0.0}
        self.lag: Counter[int] = Counter()
        self.staleness: Counter[int] = Counter()
        self.degrees: list[int] = []
        self.finished_at: list[float] = []
        self.learner_waits = self.starved = False
        self.eval_owed = 0

    def run(self) -> Simulation:
        self._settle()
        while len(self.finished_at) < self.trains:
            self.now, _, kind, payload = heapq.heappop(self.events)
            getattr(self, f"_{kind}_done")(payload)
            self._settle()
        wall, gate, n = self.now, self.gate, self.gate.num_collectors
        usable = min(n, max(1, gate.degree))
        return Simulation(
            wall=wall,
            trains=self.trains,
            throughput=self.trains / wall,
            learner_idle=1 - (self.busy["train"] + (0 if self.async_eval else self.busy["eval"])) / wall,
            collector_idle=1 - self.busy["collect"] / (n * wall),
            overlap_efficiency=max(self.busy["collect"] / usable, self.busy["train"]) / wall,
            mean_lag=_mean(self.lag),
            mean_staleness=_mean(self.staleness),
            lag=dict(self.lag),
            staleness=dict(self.staleness),
            dropped=gate.dropped,
            degrees=tuple(self.degrees),
            finished_at=tuple(self.finished_at),
        )

    def _settle(self) -> None:
        """What the coordinator's shell does after a change: commits, then the learner, then new collects."""
        gate = self.gate
        moved = True
        while moved:
            moved = False
            for held in list(self.held):
                if gate.try_commit(held[1].id) is not None:
                    self.held.remove(held)
                    self._committed(held[0])
                    moved = True
                    break
            if self.eval_owed and not self.async_eval and gate.eval_rule() is None:
                self.eval_owed -= 1
                gate.start_eval()
                self._start("eval", 0, None)
            if gate.train_rule() is None and not self.eval_owed:
                ticket = gate.start_train()
                self.staleness[gate.version - ticket.version] += 1
                self.starved, self.learner_waits = self.learner_waits and self.starved, False
                self._start("train", 0, None)
            while self._wanted() and self.idle_workers and (admitted := gate.try_collect()) is not None:
                worker = self.idle_workers.pop(0)
                self._start("collect", worker, (worker, admitted))
        if gate.running is None and not gate.waiting and not self.learner_waits:
            self.learner_waits = True
            self.starved = bool(self.held or self.idle_workers)

    def _wanted(self) -> bool:
        gate = self.gate
        if gate.capacity is not None:  # what is open or waits may be dropped yet
            return True
        return gate.trained + len(gate.waiting) + len(gate.tickets) < self.trains

    def _start(self, role: str, worker: int, payload: Any) -> None:
        if (role, worker) not in self.streams:
            self.streams[role, worker] = random.Random(f"{self.seed}/{role}/{worker}"), Counter()
        stream, calls = self.streams[role, worker]
        seconds = sample(self.durations[role], stream, calls[role])
        calls[role] += 1
        self.busy[role] += seconds
        self.order += 1
        heapq.heappush(self.events, (self.now + seconds, self.order, role, payload))

    def _collect_done(self, payload: tuple[int, Ticket]) -> None:
        self.held.append(payload)

    def _committed(self, worker: int) -> None:
        self.lag[len(self.gate.waiting)] += 1
        self.idle_workers.append(worker)

    def _train_done(self, payload: None) -> None:
        gate = self.gate
        gate.finish_train()
        if gate.publish_due:
            gate.publish()
        self.finished_at.append(self.now)
        if self.adaptive is not None and self.adaptive.after_train(self.starved, None) is not None:
            gate.set_degree(self.adaptive.degree)
        self.starved = False
        self.degrees.append(gate.degree)
        if self.eval_every and gate.trained % self.eval_every == 0 and not self.async_eval:
            self.eval_owed += 1

    def _eval_done(self, payload: None) -> None:
        self.gate.finish_eval()


def _mean(counts: Mapping[int, int]) -> float:
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else 0.0
