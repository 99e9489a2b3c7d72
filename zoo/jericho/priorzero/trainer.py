"""PriorZero put together: the roles and where they live, what is recorded, and what is saved of a run.

This process only coordinates. The learner, the collectors and the evaluator are workers of a backend; weights and batches
pass through here as parcels that nobody opens on the way.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lzero_async import Adaptation, AsyncTrainingCoordinator, Bound, Parcel, Recovery, Worker, make_backend
from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.application import Application
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.options import as_dict
from lzero_async.runs.role_set import PLACES
from lzero_async.telemetry.quantities import QUANTITIES, label, rate_label
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.progress import Progress, duration
from lzero_async.telemetry.view import SECONDS, Count, Progressed, per_second, seconds_remaining
from lzero_async.types import BackgroundContext, Batch, CollectContext, EvalContext, EvalResult, StopSignal, TrainReport
from lzero_async.workers.calls import CallStop
from zoo.jericho.priorzero.application import describe
from zoo.jericho.priorzero.games.files import Game
from zoo.jericho.priorzero.options import backend_of, steps_per_collect
from zoo.jericho.priorzero.play.batch import Weights
from zoo.jericho.priorzero.roles import factories as roles
from zoo.jericho.priorzero.roles.learner_group import LearnerGroup
from zoo.jericho.priorzero.roles.reanalysis import Reanalysis
from zoo.jericho.priorzero.roles.reuse import Reuse
from zoo.jericho.priorzero.roles.team import start_team
from zoo.jericho.priorzero.roles.tuning import Schedule, Tuning
from zoo.jericho.priorzero.sections import PriorZeroOptions

KEPT_VERSIONS = 1_000
TROUBLES = ("bad_episodes", "env_timeouts", "left_out_episodes", "refused_priors", "bad_updates")
PRIOR = {"top1": "prior top-1", "kl": "prior KL", "entropy": "prior entropy"}  # as they are shown
TUNED = {"version": "LLM trains", "staleness": "LLM staleness", "top1_held_out": "LLM top-1, held out"}
log = logging.getLogger(__name__)

# A resumed run keeps these; all other options may change.
FIXED_OPTIONS = (
    ("env_config", "max_action_num"), ("env_config", "observation"), ("policy_config", "embed_dim"),
    ("policy_config", "num_layers"), ("policy_config", "num_heads"), ("policy_config", "num_unroll_steps"),
    ("policy_config", "game_segment_length"), ("policy_config", "td_steps"), ("encoder_config", "encoder_model"),
    ("encoder_config", "max_tokens"),
)  # fmt: skip
# One whose language model learns keeps these, too.
TRAINED_OPTIONS = (
    ("llm_train_config", "llm_every"), ("llm_train_config", "llm_method"), ("llm_train_config", "lora_rank"),
    ("llm_train_config", "lora_alpha"), ("llm_config", "llm"), ("llm_config", "reduction"), ("llm_config", "prior_temperature"),
)  # fmt: skip


class PriorZero(Application):
    """One run: build it, `resume` it or not, `run` it, `close` it."""

    program = "priorzero"
    options: PriorZeroOptions

    def __init__(self, options: PriorZeroOptions, game: Game, folder: Path, progress: Progress | None = None) -> None:
        policy = options.policy_config
        backend = make_backend(
            backend_of(options),
            hang_timeout=policy.hang_timeout,
            preload=roles.PRELOAD,
            ray_address=policy.ray_address,
            ray_resources=policy.ray_resources,
        )
        records = Records(
            folder,
            wandb=options.run_config.wandb,
            project="priorzero",
            run_name=folder.name,
            config=json.loads(json.dumps(as_dict(options))),
        )
        super().__init__(options, folder, backend, records, progress)
        self.game = game
        self.progress.note(f"game: {game.label} ({game.path.name}, {game.max_score} points)")
        self.env_steps = 0
        self.updates = 0
        self.collected_steps = 0
        self._steps_of: dict[int, int] = {}  # environment steps that the last versions of the weights were trained on
        self._streams = [0] * policy.num_collectors  # collects that each worker has begun
        self.troubles: Counter[str] = Counter(dict.fromkeys(TROUBLES, 0))  # what was left out, by name, of all roles
        self._counting = threading.Lock()  # roles tell their troubles in threads of their own
        self.best: dict[str, Any] = {"score": None, "version": -1}
        self.history: list[dict[str, Any]] = []  # one row per evaluation
        self._recent: list[float] = []
        self._losses: dict[str, float] = {}
        self._prior: dict[str, float] = {}  # how well the language model's prior agreed with the last batch's search
        self._tuned: dict[str, float] = {}  # what the language model's last train said
        self._rates = {"collect": 0.0, "train": 0.0}
        self._stored = 0  # transitions in the replay buffer
        self.reuse = Reuse()
        self._steps_before = 0
        self.reanalysis = Reanalysis(policy.reanalyze_batches) if policy.reanalyze_workers else None
        self._build_or_close(self._build)

    def _build(self) -> None:
        policy = self.options.policy_config
        self._records.prepare()  # while the template of the roles makes its imports
        self._start_roles()
        if place := PLACES.get(self.backend.kind):
            names = ", ".join(worker.name for worker in self._roles())
            self.progress.note(f"starting {names}, {place} ...")
        self.coordinator = AsyncTrainingCoordinator(
            policy.off_policy_degree,
            policy.async_eval,
            buffer_size=policy.replay_buffer_size,
            batch_size=steps_per_collect(self.options),
            num_collectors=policy.num_collectors,
            bound=Bound(staleness_policy=policy.staleness_policy),
            adaptation=Adaptation(max_degree=policy.max_degree) if policy.adaptive_degree else None,
            recovery=Recovery(
                on_failure="restart", max_restarts=policy.max_restarts, restart_backoff=policy.restart_backoff
            ),
            get_weights=self._weights,
        )
        self._wait_for_roles()

    def _start_roles(self) -> None:
        policy = self.options.policy_config
        team = start_team(self.options, self.game, self.folder, partial(self.role_set.start, on_event=self._on_event))
        self.learner, self.ranks, self.evaluator = team.learner, team.ranks, team.evaluator
        self.collectors, self.reanalyzers, self.llm_learner = team.collectors, team.reanalyzers, team.llm_learner
        recovery: dict[str, Any] = dict(
            max_restarts=policy.max_restarts, restart_backoff=policy.restart_backoff,
            given_up=lambda: self._closing, on_restart=self._role_restarted,
        )  # fmt: skip
        self._group = LearnerGroup(self.learner, self.ranks, **recovery)
        how = self.options.llm_train_config
        self.tuning: Tuning | None = None
        if self.llm_learner is not None:
            self.tuning = Tuning(
                self.llm_learner, Schedule(how.llm_every, how.llm_warmup), share=how.llm_share,
                alternate=how.llm_schedule == "alternate", beside=self.backend.kind != "inline", **recovery,
                working=lambda *what, **about: self.coordinator.working(*what, **about),
            )  # fmt: skip

    def _weights(self) -> Weights:
        """All that is published under one version."""
        world_model = self.learner.call("weights")
        return Weights(world_model) if self.tuning is None else self.tuning.weights(world_model)

    def _wait_for_roles(self) -> None:
        """Until every role is built; what one of them cannot do is said before anything starts."""
        for worker in self._roles():
            report = worker.call("ready")
            if isinstance(report, dict):
                self.reuse.add(worker, report)
        if self.backend.kind in PLACES:
            self.progress.note(f"ready after {self.elapsed:.0f} s")
        self._locate()

    def _roles(self) -> list[Worker]:
        """Every role of this run; without evaluations there is no evaluator."""
        evaluators = [] if self.evaluator is None else [self.evaluator]
        llm = [] if self.llm_learner is None else [self.llm_learner]
        return [self.learner, *llm, *self.ranks, *self.collectors, *evaluators, *self.reanalyzers]

    # -- the three stages ----------------------------------------------------------------------------------------------

    def collect(self, context: CollectContext) -> Parcel:
        """Have a collector play n_episode episodes with the weights of the context."""
        assert context.snapshot is not None
        # In turn, a collect that was broken off is played again as it would have been; else numbers never repeat.
        number = self.coordinator.collect_count if self.coordinator.is_synchronous else self._streams[context.worker]
        self._streams[context.worker] = number + 1
        order = roles.CollectOrder(context.snapshot.version, number, self.env_steps)
        worker = self.collectors[context.worker]
        batch: Parcel = worker.call("collect", order, context.snapshot.state, stop=context.stop)
        self.reuse.add(worker, batch.meta["statistics"])
        return batch

    def train(self, batch: Batch) -> TrainReport:
        """Have the learner store the batch and make the updates owed for it."""
        meta = batch.data.meta
        fresh = [] if self.reanalysis is None else self.reanalysis.take()
        newest = self.coordinator.train_count
        done, tuned = self._train_both(batch, newest, fresh)
        self.env_steps += meta["steps"]
        self.updates = done["total_updates"]
        train = self.coordinator.train_count + 1
        self._prior = meta.get("prior") or self._prior
        self._tuned |= tuned
        self._steps_of[train] = self.env_steps
        self._steps_of.pop(train - 1 - KEPT_VERSIONS, None)
        self._recent = (self._recent + meta["scores"])[-20:]
        self._losses = done["losses"] or self._losses
        self._stored = done["buffer"]
        with self._counting:
            self.troubles.update(bad_updates=done["bad_updates"], bad_episodes=done["refused_episodes"])
        self._rates = {
            "collect": meta["steps"] / max(meta["seconds"], 1e-9),
            "train": done["updates"] / max(done["seconds"], 1e-9),
        }
        values = {f"learner/{name}": value for name, value in done["losses"].items()}
        values |= {"learner/updates": self.updates, "collector/env_steps": self.env_steps}
        values |= {"learner/staleness": batch.staleness, "learner/updates_per_second": self._rates["train"]}
        values |= {"learner/buffer": done["buffer"]}
        values |= {f"age/{name}": age for name, age in done["ages"].items()}
        values |= {f"prior/{name}": value for name, value in self._prior.items()}
        values |= {f"llm/{name}": value for name, value in tuned.items()}
        if self.reanalysis is not None:
            self.reanalysis.add(batch.id, batch.version, batch.data)
            values |= {"reanalyze/batches": self.reanalysis.batches, "reanalyze/segments": done["replaced"]}
        if meta["scores"]:
            values |= {
                "collector/score_mean": float(np.mean(meta["scores"])),
                "collector/score_max": float(np.max(meta["scores"])),
                "collector/steps_per_second": self._rates["collect"],
                "collector/length": float(np.mean(meta["lengths"])),
            }
        source = {f"batch/{name}": meta[name] for name in ("version", "worker", "stream", "source") if name in meta}
        try:
            self._records.scalars(values, self.env_steps)
            self._records.train({"train": train, **values, "batch/id": batch.id, **source})
        except OSError as error:  # this train is made and has to be counted first
            self._unwritten = error
        report: TrainReport = done["report"]
        return report

    def _train_both(self, batch: Batch, newest: int, fresh: list[Parcel]) -> tuple[dict[str, Any], dict[str, float]]:
        """What the world model's learner and, if it is its turn, the language model's say of this train."""

        def world_model() -> dict[str, Any]:
            return self._group.train(batch.id, batch.version, batch.data, newest, fresh, stop=batch.stop)

        if self.tuning is None:
            return world_model(), {}
        try:
            return self.tuning.train(newest + 1, batch, world_model, self._seconds_now())
        except Exception:
            if self.learner.alive:
                self.learner.call("take_back", batch.id)
            raise

    def evaluate(self, context: EvalContext) -> float:
        """Have the evaluator play with the weights of the context in every mode of eval_modes; the score is the first
        one's mean."""
        assert context.snapshot is not None
        modes = tuple(self.options.run_config.eval_modes)
        modes = modes[:1] if context.repeat else modes  # only the score is to be confirmed
        rows = self._evaluate(modes, context.version, context.snapshot.state, context.stop, context.repeat)
        return float(rows[0]["mean"])

    def _evaluate(
        self, modes: tuple[str, ...], version: int, weights: Any, stop: StopSignal, repeat: int = 0
    ) -> list[dict[str, Any]]:
        """Rows of the evaluation table; an evaluator that fails is made anew and asked again."""
        policy = self.options.policy_config
        rows: list[dict[str, Any]]
        rows, statistics = self._ask_evaluator(
            modes, version, weights, repeat, stop=stop, max_restarts=policy.max_restarts,
            restart_backoff=policy.restart_backoff,
        )  # fmt: skip
        assert self.evaluator is not None
        self.reuse.add(self.evaluator, statistics)
        for row in rows:
            row |= {
                "env_steps": self._steps_of.get(version, self.env_steps),
                "seconds": self._seconds_now(),
            }
            self._keep_evaluation(row)
        return rows

    def _keep_evaluation(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        log.info("evaluated %s at version %d: %s", row["mode"], row["version"], row["scores"])
        names = ("mean", "best", "normalised", "length")
        self._records.scalars({f"evaluator/{row['mode']}/{name}": row[name] for name in names}, row["env_steps"])

    def _reanalyze(self, place: int, context: BackgroundContext) -> None:
        assert self.reanalysis is not None
        worker = self.reanalyzers[place]
        if not worker.alive:
            worker.restart()
            worker.wait_until_ready(context.stop)
            self._locate()
        self.reanalysis.work(worker, self.coordinator, self.options.policy_config.reanalyze_share, context.stop)

    def _background(self) -> dict[str, Callable[[BackgroundContext], object]]:
        return {worker.name: partial(self._reanalyze, place) for place, worker in enumerate(self.reanalyzers)}

    def _restarted(self, worker: int, error: Exception) -> None:
        """A collect failed: whatever state its role is in, the next one starts from a new one, and only once that is there:
        whoever waited for it with a ticket would hold the others up."""
        self.collectors[worker].restart()
        self.collectors[worker].wait_until_ready(self.coordinator.stop_signal)
        self._locate()

    # -- the run -------------------------------------------------------------------------------------------------------

    def _loop(self) -> dict[str, Any]:
        run = self.options.run_config
        return dict(
            collect=self.collect,
            eval_fn=self.evaluate if run.eval_every and run.eval_modes else None,
            eval_every=run.eval_every if run.eval_modes else 0,
            max_train=run.max_iter or None,
            max_seconds=run.max_seconds or None,
            eval_target=run.target_score or None,
            stop_fn=lambda: bool(run.max_env_steps) and self.env_steps >= run.max_env_steps,
            on_eval=self._evaluated,
            on_restart=self._restarted,
            on_retire=lambda worker: self.collectors[worker].kill(),
            background=self._background(),
        )

    def final_evaluation(self) -> list[dict[str, Any]]:
        """Evaluate the last weights once more, in every mode of final_eval_modes."""
        rows = []
        weights = self._weights()
        for mode in self.options.run_config.final_eval_modes:
            self.progress.note(f"final evaluation: {mode} ...")
            rows += self._evaluate((mode,), self.coordinator.train_count, weights, CallStop())
        return rows

    def _evaluated(self, result: EvalResult) -> None:
        score = float(result.value)
        steps, highest = self._steps_of.get(result.version, 0), self.game.max_score
        self.progress.note(
            f"evaluation at {steps:,} steps (version {result.version}): score {score:.1f} of {highest}, {result.seconds:.0f} s"
        )
        if self.best["score"] is None or score > self.best["score"]:
            self.best = {"score": score, "version": result.version}
            assert result.snapshot is not None
            best = self.folder / "ckpt" / "best.safetensors"
            self.learner.call("save_weights", str(best), self._description(), result.snapshot.state)

    def _trained(self) -> None:
        if self.reanalysis is not None and (newest := self.coordinator.weights.latest()) is not None:
            self.reanalysis.published(newest.version)
        every = self.options.run_config.checkpoint_every
        if every and self.coordinator.train_count % every == 0:
            self.save()
        self.progress.show(self.line(), now=True)

    def _own_scalars(self) -> dict[str, float]:
        values = {f"reuse/{name}": value for name, value in self.reuse.totals().items()}
        own = {name: count for name, count in self._troubles().items() if name not in QUANTITIES}
        return values | {f"trouble/{name}": count for name, count in own.items()}

    def _troubles(self) -> dict[str, int]:
        with self._counting:
            return dict(self.troubles)

    def _on_event(self, event: Any) -> None:
        """A role says how far it is, or what went wrong."""
        kind, number = event
        if kind == "trouble":
            with self._counting:
                self.troubles[number] += 1
            return
        if kind == "steps":
            self.collected_steps += number
        self.progress.show(self.line())

    @property
    def steps_played(self) -> int:
        """Steps of all collects, those before a resume included."""
        return max(self.env_steps, self._steps_before + self.collected_steps)

    def _watching(self) -> Any:
        return self.options.run_config

    def _title(self) -> str:
        return f"PriorZero: {self.game.label}"

    def _progressed(self) -> Progressed:
        run = self.options.run_config
        counts = (
            Count("steps_trained", self.env_steps, run.max_env_steps or None),
            Count("steps_played", self.steps_played),
            Count("train_count", self.coordinator.train_count, run.max_iter or None),
            Count("updates", self.updates),
            Count(SECONDS, self.elapsed, run.max_seconds or None),
        )
        # The first row is of the mode that the run is evaluated in; at the end others follow.
        scores = [row["mean"] for row in self.history if row["mode"] == self.history[0]["mode"]]
        return Progressed(
            counts=counts,
            fills={
                "queue": self.queue.mean, "buffer": self._stored / self.options.policy_config.replay_buffer_size
            },
            score="score",
            last_score=scores[-1] if scores else None,
            best_score=max(scores, default=None),
            highest_score=self.game.max_score,
            recent_score=float(np.mean(self._recent)) if self._recent else None,
            measures=self._measures(),
        )  # fmt: skip

    def _measures(self) -> dict[str, float]:
        """How good the language model's prior is."""
        found = {shown: self._prior[name] for name, shown in PRIOR.items() if name in self._prior}
        hits = self.reuse.totals().get("prior_hit_rate")
        if hits is not None:
            found["priors known already"] = hits
        return found | {shown: self._tuned[name] for name, shown in TUNED.items() if name in self._tuned}

    def _evaluations(self) -> list[dict[str, Any]]:
        return [
            {
                **row, "name": row["mode"], "steps": row["env_steps"], "score": row["mean"],
                "low": min(row["scores"]), "high": max(row["scores"]),
            }
            for row in self.history
        ]  # fmt: skip

    def _pipeline(self) -> PipelineDescription:
        return describe(self.options)

    def results(self) -> dict[str, Any]:
        game = self.game
        return {
            "game": game.label, "story_file_md5": game.md5, "substitute_for": game.substitute_for, "max_score": game.max_score,
            "env_steps": self.env_steps, "collected_steps": self.steps_played, "updates": self.updates, "best": dict(self.best),
            "reuse": self.reuse.totals(), "troubles": self._troubles(),
            "llm": None if self.tuning is None else self.tuning.told(),
        }  # fmt: skip

    def line(self) -> str:
        """The live line."""
        run, seen = self.options.run_config, self.progressed()
        elapsed, left = self.elapsed, seconds_remaining(seen.counts, self.elapsed)
        parts = [duration(elapsed) + (f", {duration(left)} left" if left is not None else "")]
        parts.append(f"{label('steps_played')} {self.steps_played:,}")
        steps = f"/{run.max_env_steps:,}" if run.max_env_steps else ""
        parts.append(f"{label('steps_trained')} {self.env_steps:,}{steps}")
        parts.append(
            f"{label('train_count')} {self.coordinator.train_count}" + (f"/{run.max_iter}" if run.max_iter else "")
        )
        parts.append(f"score {seen.recent_score:.1f}" if seen.recent_score is not None else "score -")
        parts.append(f"best eval {self.best['score']:.1f}" if self.best["score"] is not None else "best eval -")
        parts.append(f"lag {self.coordinator.collect_train_lag}")
        if self._losses:
            rates = per_second(seen.counts, elapsed)
            parts += [f"{rates[key]:.1f} {rate_label(key)}" for key in ("steps_played", "updates") if rates]
            parts.append(f"loss {self._losses['weighted_total_loss']:.2f}")
        return " | ".join(parts)

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def _description(self) -> dict[str, Any]:
        return {
            "options": json.loads(json.dumps(as_dict(self.options))),
            "game": {"md5": self.game.md5, "label": self.game.label, "substitute_for": self.game.substitute_for},
            "env_steps": self.env_steps,
            "best": dict(self.best),
        }

    def save(self) -> Path:
        """Write the last checkpoint: everything that a resumed run needs to go on exactly. Call it between trains."""
        state: dict[str, Any] = {
            **self._description(),
            "streams": list(self._streams),
            "history": list(self.history),
            "recent": self._recent,
            "steps_played": self.steps_played,
        }
        return self._save_whole(state, *([] if self.tuning is None else [self.tuning.saved()]))

    def resume(self, path: Path, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of a run on the same game with the same sizes; `state` is what was loaded from `path`,
        its arrays left out."""
        self._check_same_run(state, path)
        count = self.learner.call("load", str(path))
        with checkpoint.fitting(path):
            saved = self.learner.call("llm")
            if self.tuning is not None and saved is not None:
                self.tuning.load(saved)  # before weights are published
            batches = None if count < 0 else [self.learner.call("waiting", place) for place in range(count)]
            self.coordinator.load_state_dict(state["coordinator"], batches=batches)
            self.env_steps = int(state["env_steps"])
            self._steps_before = int(state.get("steps_played", self.env_steps))
            self.earlier_seconds = float(state.get("seconds", 0.0))
            self.best = {"score": state["best"]["score"], "version": int(state["best"]["version"])}
            self.history, self._recent = list(state["history"]), list(state["recent"])
            for worker, number in enumerate(state["streams"][: len(self._streams)]):
                self._streams[worker] = int(number)
        self.updates = self.learner.call("ready")
        self._records.resume(self.coordinator.train_count, self.env_steps)
        self._steps_of[self.coordinator.train_count] = self.env_steps

    def _check_same_run(self, state: dict[str, Any], path: Path) -> None:
        game = state.get("game", {})
        if game.get("md5") != self.game.md5:
            raise ConfigError(
                f"{path} is of the game {game.get('label')!r}, and this run is of {self.game.label!r}; "
                "pass the --env_id of that run."
            )
        saved = state.get("options", {})
        trained = saved.get("llm_train_config", {}).get("llm_train", "off") != "off"
        if trained and self.tuning is None:
            raise ConfigError(
                f"{path} is of a run whose language model learns, and without --llm_train what it has learned would be lost; "
                "give --llm_train as that run had it."
            )
        names = (*FIXED_OPTIONS, *(TRAINED_OPTIONS if trained else ()))
        fixed = _fixed(as_dict(self.options), names)
        checkpoint.check_same_run(path, {**state, "options": _fixed(saved, names)}, fixed, fixed)


def _fixed(options: Mapping[str, Any], names: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What a resumed run keeps, by its full name."""
    return {f"{section}.{key}": options.get(section, {}).get(key) for section, key in names}
