"""The pipeline that advice is about: its stages alone on the machine, and what the simulation says of other settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from lzero_async.core.gate import Policy
from lzero_async.runs.applications import PipelineDescription
from lzero_async.simulate.distributions import Distribution, lognormal
from lzero_async.simulate.pipeline import Simulation, simulate
from lzero_async.simulate.rounds import simulate_rounds

TRAINS: Final = 600
LEAST_TRAINS: Final = 60
MOST_COLLECTS: Final = 20_000  # in one simulation; where batches are dropped, many are collected for each train
WARM_UP: Final = 6  # the first sixth of the trains is left out of the throughput
ROUNDS: Final = 60
COLLECT, TRAIN, EVAL = "collect", "train", "eval"


@dataclass(frozen=True)
class Stage:
    """A stage alone on the machine, in seconds: `seconds` of work that spreads, `fixed` ones beside it, and `cpu` seconds that
    all of it computes. `spread`: durations as multiples of their mean, or the sigma of lognormal ones."""

    seconds: float
    cpu: float
    spread: Sequence[float] | float = 0.0
    fixed: float = 0.0

    @property
    def total(self) -> float:
        """Seconds from its begin to its end, on average."""
        return self.seconds + self.fixed

    @property
    def share(self) -> float:
        """The part of its time that it computes; above 1 on several cores."""
        return self.cpu / self.total if self.total > 0 else 0.0

    def times(self, growth: float) -> Stage:
        """The stage with so many times the work."""
        return replace(self, seconds=growth * self.seconds, cpu=growth * self.cpu)

    def distribution(self) -> Distribution:
        """Durations to draw from."""
        fixed, seconds, spread = self.fixed, self.seconds, self.spread
        if isinstance(spread, (int, float)):
            if not spread or not seconds:
                return self.total
            draw = lognormal(seconds, spread)
            assert callable(draw)
            return lambda generator, index: fixed + draw(generator, index)
        return _resampled(fixed, seconds, spread) if len(spread) > 1 else self.total


def _resampled(fixed: float, seconds: float, multiples: Sequence[float]) -> Distribution:
    def draw(generator: random.Random, index: int) -> float:
        return fixed + seconds * generator.choice(multiples)

    return draw


class Setting(NamedTuple):
    """What is tried: the off-policy degree (or the batches that the application's queue holds) and the collectors."""

    degree: int
    collectors: int


@dataclass(frozen=True)
class Row:
    """What the simulation says of a setting. Shares are 0 to 1; None where there is nothing to know."""

    setting: Setting
    batches: float  # trained on, per second
    learner_idle: float
    collector_idle: float
    staleness: float
    worst_staleness: int
    cores_used: float
    waiting: int  # batches, at the worst moment
    dropped: float = 0.0  # share of the batches
    old_data: float = 0.0  # share of the trains
    samples: float | None = None  # per second
    memory: float | None = None  # bytes
    growth: float = 1.0  # times as large as in the run are the batches

    @property
    def rate(self) -> float:
        """Batches per second, as large as those of the run."""
        return self.batches * self.growth


class Model(Protocol):
    """A pipeline whose settings can be tried."""

    @property
    def cores(self) -> float: ...

    def predict(self, setting: Setting) -> Row:
        """Simulate a setting."""

    def sized(self, environments: int) -> Model:
        """The same pipeline with another number of environments."""


@dataclass(frozen=True)
class Sizes:
    """What a batch and a collector take: bytes, and samples of a batch; None where unknown."""

    batch: float | None = None
    collector: float | None = None
    samples: float | None = None

    def put_into(self, row: Row, growth: float = 1.0) -> Row:
        """The row with its samples per second and its memory; batches are `growth` times as large as they were."""
        known = [size for size in (self.batch, self.collector) if size is not None]
        memory = growth * row.waiting * (self.batch or 0.0) + row.setting.collectors * (self.collector or 0.0)
        samples = None if self.samples is None else growth * row.batches * self.samples
        return replace(row, samples=samples, memory=memory if known else None, growth=growth)


@dataclass(frozen=True)
class Pipeline:
    """Collectors and a learner on the gate. `queue`: the setting's degree is the length of a queue that drops its oldest batch;
    `bound` is then the degree, if there is one. `background`: roles that make a pass per train. `facts`: who shares which
    environments; `environments`: how many there are to be, None for as many as there were."""

    collect: Stage
    train: Stage
    cores: float
    evaluation: Stage | None = None
    eval_every: int = 0
    async_eval: bool = False
    policy: Policy = "wait"
    queue: bool = False
    bound: int | None = None
    background: Mapping[str, Stage] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    facts: PipelineDescription = field(default_factory=PipelineDescription)
    environments: int | None = None

    def predict(self, setting: Setting) -> Row:
        """Simulate a setting."""
        run = self.simulate(setting)
        # The last trains have no collects beside them any more.
        first, last = run.trains // WARM_UP, run.trains - setting.degree - setting.collectors
        ends = run.finished_at
        collected = run.trains + run.dropped
        return self.sizes.put_into(
            Row(
                setting,
                (last - first) / (ends[last - 1] - ends[first - 1]),
                max(0.0, run.learner_idle),
                max(0.0, run.collector_idle),
                run.mean_staleness,
                max(run.staleness),
                run.cores_used or 0.0,
                max(run.lag, default=0),
                run.dropped / collected,
                run.replays / (run.trains + run.replays),
            ),
            self.facts.growth(setting.collectors, self.environments),
        )

    def sized(self, environments: int) -> Pipeline:
        """The same pipeline with another number of environments."""
        return replace(self, environments=environments)

    def simulate(self, setting: Setting) -> Simulation:
        """The simulation itself. Where batches are dropped, as many trains as keep it short."""
        degree, collectors = setting
        stages = self.stages(collectors)
        trains = TRAINS
        if self.queue:
            most = MOST_COLLECTS * stages[COLLECT].total / max(1e-9, collectors * stages[TRAIN].total)
            trains = min(trains, max(LEAST_TRAINS, int(most)))
        evaluation = stages.get(EVAL)
        return simulate(
            stages[COLLECT].distribution(),
            stages[TRAIN].distribution(),
            None if evaluation is None else evaluation.distribution(),
            collectors,
            degree if self.bound is None else self.bound,
            trains=trains + degree + collectors,
            eval_every=self.eval_every if evaluation is not None else 0,
            async_eval=self.async_eval,
            policy=self.policy,
            queue_capacity=degree if self.queue else None,
            max_train_ahead=self.facts.max_train_ahead if degree else 0,
            cores=self.cores,
            cpu={role: stage.share for role, stage in stages.items()},
            background={role: stage.distribution() for role, stage in self.background.items()},
        )

    def stages(self, collectors: int) -> dict[str, Stage]:
        """Every stage, with so many collectors. Those that share environments make n times as many steps for a batch if they are
        n times as many, and wait as many times longer; more environments compute more, and do not wait longer."""
        collect, growth = self.collect, self.facts.growth(collectors, self.environments)
        turns = collectors / self.facts.collectors if self.facts.shared else 1.0
        waits = max(0.0, collect.seconds - collect.cpu)
        collect = replace(collect, seconds=collect.seconds + (turns - 1) * waits + (growth - 1) * collect.cpu)
        collect = replace(collect, cpu=growth * collect.cpu)
        found = {COLLECT: collect, TRAIN: self.train.times(growth)}
        found |= {role: stage.times(growth) for role, stage in self.background.items()}
        return found if self.evaluation is None or not self.eval_every else {**found, EVAL: self.evaluation}

    def with_stages(self, stages: Mapping[str, Stage]) -> Pipeline:
        """The same pipeline with these stages in the place of its own."""
        return replace(
            self,
            collect=stages.get(COLLECT, self.collect),
            train=stages.get(TRAIN, self.train),
            evaluation=stages.get(EVAL, self.evaluation),
            background={role: stages.get(role, stage) for role, stage in self.background.items()},
        )


@dataclass(frozen=True)
class RoundsModel:
    """Rounds of whole episodes: `environments` that play at once, `episodes` in a round. The setting's degree is the number of
    rounds that may be open."""

    episode: Stage
    train: Stage
    cores: float
    environments: int
    episodes: int
    other_cpu: float = 0.0  # seconds that evaluations compute for each train
    sizes: Sizes = field(default_factory=Sizes)
    growth: float = 1.0  # times as many environments, and episodes in a round, as there were

    def sized(self, environments: int) -> RoundsModel:
        """The same pipeline with another number of environments."""
        growth = environments / self.environments
        episodes = max(1, round(growth * self.episodes))
        return replace(
            self, environments=environments, episodes=episodes, train=self.train.times(growth), growth=growth
        )

    def predict(self, setting: Setting) -> Row:
        """Simulate a setting; its rate is never above what the cores can compute."""
        run = simulate_rounds(
            self.environments, self.episodes, self.episode.distribution(), self.train.distribution(), setting.degree,
            trains=max(ROUNDS, 10 * setting.degree),
        )  # fmt: skip
        cpu = self.episodes * self.episode.cpu + self.train.cpu + self.other_cpu
        rate = min(run.rate, self.cores / cpu) if cpu > 0 else run.rate
        return self.sizes.put_into(
            Row(
                setting,
                rate,
                max(0.0, 1 - rate * self.train.total),
                max(0.0, 1 - rate * self.episodes * self.episode.total / self.environments),
                run.staleness,
                run.worst,
                rate * cpu,
                setting.degree,
            ),
            self.growth,
        )


def percent(share: float, digits: int = 0, sign: str = "") -> str:
    """A share as text."""
    return f"{100 * share:{sign}.{digits}f} %"
