"""A discrete-event simulation of the pipeline, on the real gate and the real adaptive controller."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lzero_async.core.adaptive import AdaptiveDegree
from lzero_async.core.gate import Gate, Policy, Ticket
from lzero_async.errors import ConfigError
from lzero_async.simulate.cores import Alone, Shared, make_stages
from lzero_async.simulate.distributions import Distribution, sample
from lzero_async.validation import one_of, whole_number

OVERLAPS: Final = ("latest", "skip")
BACKGROUND: Final = "background"  # what an evaluation beside the learner is started with
HAND_OVER: Final = "hand_over"


@dataclass(frozen=True)
class Simulation:
    """What a simulated run came to. Times are in the unit of the durations; shares are of the wall time.

    `seconds` are the mean durations of the stages that ended, by role; `cores_used` the cores at work on average, None where
    none are shared; `evals` the evaluations that ended, and `evals_skipped` those that never began; `owner_busy` the share in
    which the owner took batches in.
    """

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
    seconds: Mapping[str, float] = field(default_factory=dict)
    cores_used: float | None = None
    evals: int = 0
    evals_skipped: int = 0
    replays: int = 0
    owner_busy: float = 0.0

    def throughput_after(self, train: int, until: int | None = None) -> float:
        """Trains per unit of time after the first `train` ones, up to train number `until` (None: the last one)."""
        last = self.trains if until is None else until
        return (last - train) / (self.finished_at[last - 1] - self.finished_at[train - 1])


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
    cores: float | None = None,
    cpu: Mapping[str, float] | None = None,
    eval_overlap: str = "latest",
    max_train_ahead: int = 0,
    background: Mapping[str, Distribution] | None = None,
    hand_over: Distribution | None = None,
) -> Simulation:
    """Run the pipeline for `trains` trains in virtual time. Each worker draws its durations from its own stream.

    `queue_capacity`: batches that a queue holds before it drops its oldest; collectors then never wait. `cores`: all stages
    share so many, durations are those of a stage alone on the machine, and `cpu` is the share of it that each role computes
    ({"collect": 0.3}; 1 where it is not named; above 1 on several cores); None: stages do not disturb each other.
    `eval_overlap`: whether a background evaluation that comes while one runs is begun after it (latest) or never (skip).
    `max_train_ahead`: trains on old data in a row while no batch waits. `background`: roles that make one pass per train.
    `hand_over`: how long the one owner needs to take a batch in, one after the other in the order in which collects end; the
    collector waits until its batch is committed. None: no time.
    """
    whole_number("trains", trains, 1)
    one_of("eval_overlap", eval_overlap, OVERLAPS)
    if (eval is None) != (whole_number("eval_every", eval_every, 0) == 0):
        raise ConfigError(f"eval is {eval!r} and eval_every is {eval_every}; give both, or none.")
    gate = Gate(
        adaptive.degree if adaptive else off_policy_degree,
        num_collectors=num_collectors,
        policy=policy,
        publish_every=publish_every,
        max_train_ahead=max_train_ahead,
        capacity=queue_capacity,
    )
    durations = {"collect": collect, "train": train, "eval": 0.0 if eval is None else eval, **(background or {})}
    if hand_over is not None:
        durations[HAND_OVER] = hand_over
    stages = make_stages(cores, cpu, list(durations))
    run = _Pipeline(gate, durations, stages, trains, adaptive, seed)
    run.background = tuple(background or ())
    run.eval_every, run.async_eval, run.eval_overlap = eval_every, async_eval, eval_overlap
    return run.run()


class _Held(NamedTuple):
    """A finished collect that waits for its commit; they come in this order."""

    deadline: int
    finished: int
    worker: int
    ticket: Ticket


class _Pipeline:
    eval_every, async_eval, eval_overlap = 0, False, "latest"
    background: tuple[str, ...] = ()

    def __init__(
        self,
        gate: Gate,
        durations: Mapping[str, Distribution],
        stages: Alone | Shared,
        trains: int,
        adaptive: AdaptiveDegree | None,
        seed: int,
    ) -> None:
        self.gate, self.durations, self.stages = gate, durations, stages
        self.trains, self.adaptive, self.seed = trains, adaptive, seed
        self.streams: dict[tuple[str, int], tuple[random.Random, Counter[str]]] = {}
        self.idle_workers = list(range(gate.num_collectors))
        self.held: list[_Held] = []  # a heap
        self.finished = 0  # collects
        self.handing_over: deque[tuple[int, Ticket]] = deque()  # the first is with the owner, the others wait for it
        self.lag: Counter[int] = Counter()
        self.staleness: Counter[int] = Counter()
        self.degrees: list[int] = []
        self.finished_at: list[float] = []
        self.ended: Counter[str] = Counter()  # stages, and their seconds below
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.learner_waits = self.starved = False
        self.eval_owed = self.evals_skipped = 0
        self.evaluating = self.eval_queued = False  # beside the learner
        self.passes: Counter[str] = Counter()  # that background roles owe, the running one included

    def run(self) -> Simulation:
        self._settle()
        while len(self.finished_at) < self.trains:
            role, payload, seconds = self.stages.next()
            self.ended[role] += 1
            self.seconds[role] += seconds
            if role in self.background:
                self._pass_done(role)
            else:
                getattr(self, f"_{role}_done")(payload)
                self._settle()
        return self._result()

    def _result(self) -> Simulation:
        wall, gate, n, busy = self.stages.now, self.gate, self.gate.num_collectors, self.stages.busy
        learner = busy["train"] + (0 if self.async_eval else busy["eval"])
        usable = min(n, max(1, gate.degree))
        used = self.stages.cpu_seconds
        return Simulation(
            wall=wall,
            trains=self.trains,
            throughput=self.trains / wall,
            learner_idle=1 - learner / wall,
            collector_idle=1 - busy["collect"] / (n * wall),
            overlap_efficiency=max(busy["collect"] / usable, busy["train"]) / wall,
            mean_lag=_mean(self.lag),
            mean_staleness=_mean(self.staleness),
            lag=dict(self.lag),
            staleness=dict(self.staleness),
            dropped=gate.dropped,
            degrees=tuple(self.degrees),
            finished_at=tuple(self.finished_at),
            seconds={role: self.seconds[role] / number for role, number in self.ended.items()},
            cores_used=None if used is None else used / wall,
            evals=self.ended["eval"],
            evals_skipped=self.evals_skipped,
            replays=gate.replayed,
            owner_busy=busy[HAND_OVER] / wall,
        )

    def _settle(self) -> None:
        """What the coordinator's shell does after a change: commits, then the learner, then new collects."""
        gate = self.gate
        moved = True
        while moved:
            moved = self._commit_one()
            if self.eval_owed and not self.async_eval and gate.eval_rule() is None:
                self.eval_owed -= 1
                gate.start_eval()
                self._start("eval", 0, None)
            if gate.train_rule() is None and not self.eval_owed:
                ticket = gate.start_train()
                self.staleness[gate.version - ticket.version] += 1
                self.starved, self.learner_waits = self.learner_waits and self.starved, False
                self._start("train", 0, None)
                self._owe_passes()
            elif not self.eval_owed and gate.replay_rule() is None:
                gate.start_replay()
                self._start("train", 0, None)
                self._owe_passes()
            while self._wanted() and self.idle_workers and (admitted := gate.try_collect()) is not None:
                worker = self.idle_workers.pop(0)
                self._start("collect", worker, (worker, admitted))
        if gate.running is None and not gate.waiting and not self.learner_waits:
            self.learner_waits = True
            self.starved = bool(self.held or self.idle_workers)

    def _commit_one(self) -> bool:
        """Commit the finished collect of the first deadline if it may be: where it may not, none may."""
        if not self.held or self.gate.try_commit(self.held[0].ticket.id) is None:
            return False
        self._committed(heapq.heappop(self.held).worker)
        return True

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
        self.stages.start(role, seconds, payload)

    def _owe_passes(self) -> None:
        for role in self.background:
            self.passes[role] += 1
            if self.passes[role] == 1:
                self._start(role, 0, None)

    def _pass_done(self, role: str) -> None:
        self.passes[role] -= 1
        if self.passes[role]:
            self._start(role, 0, None)

    def _collect_done(self, payload: tuple[int, Ticket]) -> None:
        if HAND_OVER not in self.durations:
            self._hold(*payload)
            return
        self.handing_over.append(payload)
        if len(self.handing_over) == 1:
            self._start(HAND_OVER, 0, payload)

    def _hand_over_done(self, payload: tuple[int, Ticket]) -> None:
        self._hold(*payload)
        self.handing_over.popleft()
        if self.handing_over:
            self._start(HAND_OVER, 0, self.handing_over[0])

    def _hold(self, worker: int, ticket: Ticket) -> None:
        self.finished += 1
        heapq.heappush(self.held, _Held(ticket.deadline, self.finished, worker, ticket))

    def _committed(self, worker: int) -> None:
        self.lag[len(self.gate.waiting)] += 1
        self.idle_workers.append(worker)

    def _train_done(self, payload: None) -> None:
        gate, replay = self.gate, self.gate.running == "replay"
        gate.finish_train()
        if gate.publish_due:
            gate.publish()
        if replay:
            return
        self.finished_at.append(self.stages.now)
        if self.adaptive is not None and self.adaptive.after_train(self.starved, None) is not None:
            gate.set_degree(self.adaptive.degree)
        self.starved = False
        self.degrees.append(gate.degree)
        if self.eval_every and gate.trains % self.eval_every == 0:
            if self.async_eval:
                self._evaluate_beside()
            else:
                self.eval_owed += 1

    def _evaluate_beside(self) -> None:
        """A background evaluation is due: begin it, or let it wait for the one that runs, or leave it out."""
        if not self.evaluating:
            self.evaluating = True
            self._start("eval", 0, BACKGROUND)
            return
        self.evals_skipped += self.eval_overlap == "skip" or self.eval_queued
        self.eval_queued = self.eval_overlap == "latest"

    def _eval_done(self, payload: str | None) -> None:
        if payload is None:
            self.gate.finish_eval()
        elif self.eval_queued:
            self.eval_queued = False
            self._start("eval", 0, BACKGROUND)
        else:
            self.evaluating = False


def _mean(counts: Mapping[int, int]) -> float:
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else 0.0
