"""A run of whole-episode PPO: the roles and where they live, the rounds of episodes, what is shown, recorded and saved.

This process only coordinates; weights and episodes pass through it as parcels that nobody opens on the way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from lzero_async import AsyncTrainingCoordinator, Bound, Parcel, Recovery, Worker, make_backend
from lzero_async.runs import checkpoint
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.checks import present_device
from lzero_async.runs.options import as_dict
from lzero_async.runs.role_set import PLACES
from lzero_async.runs.scored import ScoredApplication
from lzero_async.telemetry.quantities import label, rate_label
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.progress import Progress, duration
from lzero_async.telemetry.view import SECONDS, Count, Progressed, per_second, seconds_remaining
from lzero_async.types import Batch, CollectContext, EvalResult, StopSignal, TrainReport
from zoo.episode_ppo import roles
from zoo.episode_ppo.application import describe
from zoo.episode_ppo.envs.factories import Spaces
from zoo.episode_ppo.learn.saving import check_same_run
from zoo.episode_ppo.options import SYNC, EpisodePPOOptions, rounds_at_once, shares_of
from zoo.episode_ppo.play.patience import PatientEvaluator
from zoo.episode_ppo.play.player import BAD_DATA, TIMEOUT, Failure
from zoo.episode_ppo.play.pool import EpisodePool
from zoo.episode_ppo.play.rounds import Pool, Round
from zoo.episode_ppo.play.step_barrier import BarrierPool

EVAL_ENVS: Final = 20  # at most so many environments play an evaluation at once
COUNTERS: Final = ("episodes", "steps", "updates", "bad_updates")  # trained on, and gradient steps, made and skipped
EVAL_FAILURES: Final = ("failed", "bad_data", "env_timeouts", "left_out")
SAY_EVERY: Final = 1.0  # seconds between two lines about the same round
log = logging.getLogger(__name__)


class Trainer(ScoredApplication):
    """One run: build it, `resume` it or not, `run` it, `close` it. `spaces` are those of the options' environment."""

    program, axis = "episode_ppo", "trained_episodes"
    options: EpisodePPOOptions
    pool: Pool

    def __init__(
        self, options: EpisodePPOOptions, folder: Path, spaces: Spaces, *, progress: Progress | None = None
    ) -> None:
        records = Records(
            folder, wandb=options.wandb, project="episode_ppo", run_name=folder.name, config=as_dict(options)
        )
        backend = make_backend(
            "process" if options.backend == "auto" else options.backend,
            preload=roles.PRELOAD,
            ray_address=options.ray_address,
            ray_resources=options.ray_resources,
        )
        super().__init__(options, folder, backend, records, progress)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.eval_failures = dict.fromkeys(EVAL_FAILURES, 0)  # those of PoolStatistics, in evaluations
        self._eval_counting = threading.Lock()
        self.spaces = spaces
        self._learner_seconds = 0.0
        self._busy_before = 0.0
        self._build_or_close(self._build)

    def _on_event(self, place: int, what: Any) -> None:
        self.pool.told(place, what)

    def _build(self) -> None:
        """Start every role; they are made at the same time, each in its own place. Then wait for them."""
        options, shares = self.options, shares_of(self.options)
        where = PLACES.get(self.backend.kind, "threads of this process")
        self.progress.note(f"starting {len(shares)} workers with {options.num_envs} environments, {where} ...")
        self._records.prepare()  # while the template of the roles makes its imports
        workers = [
            self.role_set.start(
                f"envs {place}",
                partial(roles.make_workers_envs, options, envs, place),
                on_event=partial(self._on_event, place),
            )
            for place, envs in enumerate(shares)
        ]
        self.pool = (BarrierPool if options.collector == SYNC else EpisodePool)(workers, shares, self._arrived)
        envs = min(EVAL_ENVS, options.eval_episodes)
        self.evaluator = None
        if options.eval_every:
            self.evaluator = self._start_evaluator(partial(roles.make_evaluator, options, envs))
        learning = replace(options, device=present_device("device", options.device))
        self.learner = self.role_set.start(
            "learner",
            partial(roles.make_learner, learning, tuple(self.spaces)),
            threads=options.torch_threads,
            pin_to_driver=True,
        )
        for worker in self._roles():
            worker.call("ready")
        self.coordinator = AsyncTrainingCoordinator(
            options.off_policy_degree,
            options.off_policy_degree > 0,
            num_collectors=rounds_at_once(options),
            bound=Bound(staleness_policy=options.staleness_policy),
            recovery=Recovery(
                on_failure="restart", max_restarts=options.max_restarts, restart_backoff=options.restart_backoff
            ),
            get_weights=lambda: self.learner.call("weights"),
        )
        self.progress.note(f"ready after {self.elapsed:.0f} s")
        self._locate()

    def _start_evaluator(self, factory: Callable[..., Any]) -> Worker:
        evaluator = PatientEvaluator(
            self.role_set.start("evaluator", factory, on_event=lambda what: evaluator.told(what)),
            self._eval_failed,
            self._locate,
        )
        return cast(Worker, evaluator)

    def _roles(self) -> list[Worker]:
        return [self.learner, *self.pool.workers, *([] if self.evaluator is None else [self.evaluator])]

    # -- the stages ----------------------------------------------------------------------------------------------------

    def collect(self, context: CollectContext) -> list[Parcel]:
        """One round of episodes."""
        return self.pool.play(context, self.options.episodes_per_update).parcels

    def _arrived(self, wanted: Round, done: int) -> None:
        """So many episodes of a round are back: say so, now and then, and when it is whole."""
        now = time.monotonic()
        seconds = max(now - wanted.begun, 1e-9)
        if done == wanted.count:
            left_out = f", {wanted.left_out} left out because they failed" if wanted.left_out else ""
            done -= wanted.left_out
            self.progress.note(f"Collected {done} episodes in {seconds:.1f}s ({done / seconds:.1f} eps/sec){left_out}")
        elif now - wanted.said >= SAY_EVERY and done >= wanted.count // 10:
            wanted.said = now
            self.progress.note(f"{done}/{wanted.count} episodes ({done / seconds:.1f} eps/sec)")

    def train(self, batch: Batch) -> TrainReport:
        """Have the learner train on a round, and record what came of it."""
        done = self.learner.call("train", batch.data, self._learning_rate_scale())
        self.counters = done.pop("counters")
        self._learner_seconds += done["seconds"]
        version = self.coordinator.version + 1
        self._mark(version)
        try:
            self._record(batch, done, version)
        except OSError as error:  # this train is made and has to be counted first
            self._unwritten = error
        self.progress.note(
            f"Update complete ({done['seconds']:.1f}s): update {version}, {self.counters['episodes']:,} episodes, mean return "
            f"{done['mean_return']:.1f}, {batch.staleness} updates old"
        )
        return TrainReport(sample_age_mean=batch.staleness, sample_age_max=batch.staleness)

    def _learning_rate_scale(self) -> float:
        options = self.options
        if not options.learning_rate_decay or not options.total_episodes:
            return 1.0
        return float(max(0.0, 1.0 - self.counters["episodes"] / options.total_episodes))

    def _record(self, batch: Batch, done: Mapping[str, Any], version: int) -> None:
        values = {f"learner/{name}": value for name, value in done.items()}
        values |= {"learner/staleness": batch.staleness, **{f"data/{name}": n for name, n in self.counters.items()}}
        self._records.scalars(values, self.counters["episodes"])
        self._records.train({"train": version, **values})

    def _evaluate(self, version: int, weights: Any, stop: StopSignal, repeat: int = 0) -> dict[str, Any]:
        row = super()._evaluate(version, weights, stop, repeat)
        with self._eval_counting:
            self.eval_failures["left_out"] += row["left_out"]
        return row

    def _eval_failed(self, failure: Failure) -> None:
        """A try to play an episode of an evaluation failed."""
        with self._eval_counting:
            self.eval_failures["failed"] += 1
            self.eval_failures["bad_data"] += failure.sort == BAD_DATA
            self.eval_failures["env_timeouts"] += failure.sort == TIMEOUT
        if failure.sort == TIMEOUT:
            log.warning("the evaluator is made anew: %s", failure.error)

    def _now(self) -> dict[str, int]:
        now = {f"trained_{name}": self.counters[name] for name in ("episodes", "steps")}
        return {**now, "updates": self.counters["updates"], "played_episodes": self.pool.statistics().complete}

    def _counters(self) -> dict[str, int]:
        return dict(self.counters)

    def _say_evaluation(self, result: EvalResult, at: Mapping[str, int]) -> str:
        return (
            f"evaluation after {at['trained_episodes']:,} episodes (update {result.version}): mean return "
            f"{float(result.value):.1f}, {result.seconds:.1f} s"
        )

    # -- the run -------------------------------------------------------------------------------------------------------

    def _loop(self) -> dict[str, Any]:
        options = self.options
        self._busy_before = self.pool.statistics().busy_seconds
        max_train, max_collect = self._limits()
        return dict(
            collect=self.collect,
            eval_fn=None if self.evaluator is None else self.evaluate,
            eval_every=options.eval_every,
            max_train=max_train,
            max_collect=max_collect,
            max_seconds=options.max_seconds or None,
            eval_target=options.target_score,
            on_eval=self._evaluated,
            on_restart=self._restarted,
            background=self._background(),
        )

    def _limits(self) -> tuple[int | None, int | None]:
        """Trains and collects with which total_episodes are reached; earlier rounds may have been of another size."""
        options, coordinator = self.options, self.coordinator
        if not options.total_episodes:
            return None, None
        # Episodes that were left out count: they were played as well as they could be.
        left = max(0, options.total_episodes - self.counters["episodes"] - self.pool.statistics().left_out)
        waiting = [sum(len(parcel.meta["numbers"]) for parcel in parcels) for parcels in coordinator.waiting_batches]
        rounds = -(-max(0, left - sum(waiting)) // options.episodes_per_update)
        trains = coordinator.train_count + (len(waiting) + rounds if left else 0)
        # Rounds that will be dropped are made up for by others, nobody knows how many.
        return trains, None if options.staleness_policy == "drop" else coordinator.collect_count + rounds

    def _background(self) -> dict[str, Callable[..., object]]:
        if not isinstance(self.pool, EpisodePool):
            return {}
        return {worker.name: partial(self._drive, place) for place, worker in enumerate(self.pool.workers)}

    def _drive(self, place: int, context: Any) -> None:
        assert isinstance(self.pool, EpisodePool)
        restarts = self.pool.workers[place].restarts
        self.pool.drive(place, context)
        if self.pool.workers[place].restarts != restarts:
            self._locate()

    def _restarted(self, collector: int, error: Exception) -> None:
        """A round failed; with the barrier, because a worker died, perhaps."""
        if isinstance(self.pool, BarrierPool):
            self.pool.bring_back()
            self._locate()

    def _troubles(self) -> dict[str, int]:
        pool, evaluations = self.pool.statistics(), self.eval_failures
        return {
            "bad_episodes": pool.failed + evaluations["failed"],
            "env_timeouts": pool.env_timeouts + evaluations["env_timeouts"],
            "bad_updates": self.counters["bad_updates"],
        }

    def _own_scalars(self) -> dict[str, float]:
        return {f"busy/{name}": share for name, share in self.busy().items()}

    # -- numbers -------------------------------------------------------------------------------------------------------

    def busy(self) -> dict[str, float]:
        """Share of the run's time that environments were in an episode, those that can be at once, and that the learner
        learned."""
        wall, pool = max(self.elapsed, 1e-9), self.pool.statistics()
        played = (pool.busy_seconds - self._busy_before) / pool.at_once
        whole = max(self.coordinator.get_statistics()["wall_time"], 1e-9)
        return {
            "environments": min(1.0, played / wall),
            "learner": min(1.0, self._learner_seconds / whole),
        }

    def _pipeline(self) -> PipelineDescription:
        return describe(self.options, self.pool.statistics())

    def results(self) -> dict[str, Any]:
        seconds = max(self.coordinator.get_statistics()["wall_time"], 1e-9)
        return {
            **super().results(),
            "env": self.options.env,
            "collector": self.options.collector,
            "busy": self.busy(),
            "effective_samples_per_second": self.counters["steps"] / seconds,
            "episodes_per_second": self.counters["episodes"] / seconds,
            "environments": self.pool.statistics()._asdict(),
            "evaluation_failures": dict(self.eval_failures),
        }

    def _title(self) -> str:
        return f"Whole-episode PPO: {self.options.env}"

    def _progressed(self) -> Progressed:
        options, pool, elapsed = self.options, self.pool.statistics(), max(self.elapsed, 1e-9)
        counts = (
            Count("episodes_trained", self.counters["episodes"], options.total_episodes or None),
            Count("episodes_played", pool.complete),
            Count("steps_trained", self.counters["steps"]),
            Count("steps_played", pool.steps),
            Count("updates", self.counters["updates"]),
            Count(SECONDS, elapsed, options.max_seconds or None),
        )
        return Progressed(
            counts=counts,
            fills={"queue": self.queue.mean, "buffer": None},
            score="mean return",
            last_score=self.history[-1]["mean_return"] if self.history else None,
            best_score=self.best["return"],
            highest_score=None,
            recent_score=pool.mean_return,
        )

    def line(self) -> str:
        """The live line."""
        options, episodes, elapsed, seen = self.options, self.counters["episodes"], self.elapsed, self.progressed()
        left, pool = seconds_remaining(seen.counts, elapsed), self.pool.statistics()
        parts = [duration(elapsed) + (f", {duration(left)} left" if left is not None else "")]
        parts.append(
            f"{label('episodes_trained')} {episodes:,}"
            + (f"/{options.total_episodes:,}" if options.total_episodes else "")
        )
        if pool.mean_return is not None:
            parts.append(f"return {pool.mean_return:.1f}, length {pool.mean_length:.0f}")
        parts.append(f"best eval {self.best['return']:.1f}" if self.best["return"] is not None else "best eval -")
        rates = per_second(seen.counts, elapsed)
        parts += [f"{rates[key]:.1f} {rate_label(key)}" for key in ("episodes_played", "steps_played") if rates]
        return " | ".join(parts)

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Write the last checkpoint. Call it between trains."""
        state = {
            **self._description(),
            "pool": self.pool.state_dict(),
            "history": list(self.history),
            "learner_seconds": self._learner_seconds,
            "eval_failures": dict(self.eval_failures),
        }
        return self._save_whole(state)

    def resume(self, path: Path, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same environment and sizes, with either collector; `state` is what was loaded from
        `path`, its arrays left out. Rounds that were open then are played anew, with new numbers."""
        check_same_run(path, state, self.options)
        count = self.learner.call("load", str(path))
        with checkpoint.fitting(path):
            batches = [self.learner.call("waiting", place) for place in range(count)]
            self.coordinator.load_state_dict(state["coordinator"], batches=batches)
            self.pool.load_state_dict(state["pool"], batches)
            self.best = {"return": state["best"]["return"], "version": int(state["best"]["version"])}
            self.history = list(state["history"])
            self.counters = {name: int(state["counters"][name]) for name in COUNTERS}
            self._learner_seconds = float(state["learner_seconds"])
            self.eval_failures = {name: int(state["eval_failures"][name]) for name in EVAL_FAILURES}
            self.earlier_seconds = float(state.get("seconds", 0.0))
        version = self.coordinator.version
        self._records.resume(version, self.counters["episodes"])
        self._mark(version)

    def close(self) -> None:
        pool = getattr(self, "pool", None)
        if isinstance(pool, BarrierPool):
            pool.close()
        super().close()
