"""PriorZero put together: what collects, what trains, what evaluates, and what is saved of it."""

from __future__ import annotations

import copy
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from easydict import EasyDict

from lzero_async import AsyncTrainingCoordinator
from lzero_async.errors import ConfigError, Stopped
from lzero_async.types import Batch, CollectContext, EvalContext, EvalResult, RunResult, StopSignal, TrainReport
from zoo.jericho.priorzero import checkpoint
from zoo.jericho.priorzero.batch import Collected, pack_batch, unpack_batch
from zoo.jericho.priorzero.engines import Engine, make_engine
from zoo.jericho.priorzero.game_files import Game
from zoo.jericho.priorzero.jericho_env import JerichoEnv
from zoo.jericho.priorzero.learner import Learner
from zoo.jericho.priorzero.options import check_device, steps_per_collect, unizero_config
from zoo.jericho.priorzero.play import Player, Style, parts_of
from zoo.jericho.priorzero.prior import LLMPrior
from zoo.jericho.priorzero.progress import Progress, duration
from zoo.jericho.priorzero.quiet import quiet
from zoo.jericho.priorzero.records import Records
from zoo.jericho.priorzero.search import TreeSearch
from zoo.jericho.priorzero.text_encoder import TextEncoder

COLLECT_STREAM, EVAL_STREAM = 1, 2
KEPT_VERSIONS = 1_000
log = logging.getLogger(__name__)

# A resumed run keeps these; all other options may change.
FIXED_OPTIONS = (
    ("env_config", "max_action_num"), ("env_config", "observation"), ("policy_config", "embed_dim"),
    ("policy_config", "num_layers"), ("policy_config", "num_heads"), ("policy_config", "num_unroll_steps"),
    ("policy_config", "game_segment_length"), ("policy_config", "td_steps"), ("encoder_config", "encoder_model"),
    ("encoder_config", "max_tokens"),
)  # fmt: skip


class _Role:
    """A player with its own environments and its own copy of the model, on whatever weights it is given."""

    def __init__(self, trainer: PriorZero, envs: int) -> None:
        options = trainer.options
        self.model = copy.deepcopy(trainer.learner.model)
        self.version = -1
        search = TreeSearch(self.model, trainer.learner.cfg, options.policy_config.root_window)
        llm = options.llm_config
        self.player = Player(
            [trainer.new_env() for _ in range(envs)],
            trainer.encoder,
            search,
            trainer.prior,
            root_policy=llm.root_policy,
            llm_weight=llm.llm_weight,
            weighting=llm.weighting,
            observation=options.env_config.observation,
            history_length=llm.history_length,
        )

    def load(self, version: int, weights: Any) -> None:
        if version != self.version:
            self.model.load_state_dict(weights)
            self.version = version


class PriorZero:
    """One run: build it, `resume` it or not, `run` it, `close` it."""

    def __init__(self, options: EasyDict, game: Game, folder: Path, progress: Progress | None = None) -> None:
        self.options, self.game, self.folder = options, game, folder
        self.progress = progress or Progress()
        policy, run, llm = options.policy_config, options.run_config, options.llm_config
        if policy.torch_threads:
            torch.set_num_threads(policy.torch_threads)
        _seed_everything(run.seed)
        self.engine: Engine | None = None
        self.prior: LLMPrior | None = None
        self._roles: list[_Role] = []
        check_device(policy.device)
        self.progress.note(f"game: {game.label} ({game.path.name}, {game.max_score} points)")
        self.encoder = TextEncoder(
            options.encoder_config.encoder_model,
            max_tokens=options.encoder_config.max_tokens,
            cache_size=options.encoder_config.cache_size,
        )
        if llm.root_policy != "wm_logits":
            self.engine = make_engine(llm.llm_engine, llm.llm, llm.llm_url, **_engine_options(llm))
            self.prior = LLMPrior(
                self.engine,
                history_length=llm.history_length,
                temperature=llm.prior_temperature,
                reduction=llm.reduction,
                use_cot=llm.use_cot,
                cache_size=llm.prior_cache_size,
            )
        with quiet():
            cfg = unizero_config(options, self.encoder.width * parts_of(options.env_config.observation))
        self.learner = Learner(cfg, policy.absorbing_steps)
        self.env_steps = 0
        self.collected_steps = 0
        self._steps_of: dict[int, int] = {}  # environment steps that the last versions of the weights were trained on
        self.best: dict[str, Any] = {"score": None, "version": -1}
        self.history: list[dict[str, Any]] = []  # one row per evaluation
        self._recent: list[float] = []
        self._losses: dict[str, float] = {}
        self._rates = {"collect": 0.0, "train": 0.0}
        self._started = time.monotonic()
        self._steps_before = self._trains_before = 0
        self.coordinator = AsyncTrainingCoordinator(
            policy.off_policy_degree,
            policy.enable_async_eval,
            buffer_size=policy.replay_buffer_size,
            batch_size=steps_per_collect(options),
            on_failure="restart",
            get_weights=self.learner.weights,
            trace=folder / "trace.json" if run.trace else None,
        )
        self._collector = self._new_role(options.env_config.collector_env_num)
        self._evaluator = self._new_role(options.env_config.evaluator_env_num)
        self._records = Records(folder)

    def new_env(self) -> JerichoEnv:
        """One more environment of this run's game."""
        env = self.options.env_config
        store = {"": None, "off": ""}.get(env.valid_action_store, env.valid_action_store)
        return JerichoEnv(
            {
                "game": self.game,
                "max_steps": env.max_steps,
                "max_action_num": env.max_action_num,
                "observation": env.observation,
                "step_timeout": env.step_timeout,
                "valid_action_store": store,
            }
        )

    def _new_role(self, envs: int) -> _Role:
        role = _Role(self, envs)
        self._roles.append(role)
        return role

    # -- the three stages ----------------------------------------------------------------------------------------------

    def collect(self, context: CollectContext) -> Collected:
        """Play n_episode episodes with the weights of the context."""
        assert context.snapshot is not None
        policy, run = self.options.policy_config, self.options.run_config
        self._collector.load(context.version, context.snapshot.state)
        share = min(1.0, self.env_steps / policy.temperature_decay_steps)
        style = Style(
            mode="prior" if self.prior is not None else "world_model",
            num_simulations=policy.num_simulations,
            temperature=policy.temperature_start + share * (policy.temperature_end - policy.temperature_start),
            epsilon=policy.epsilon,
            stuck_steps=policy.stuck_steps,
            stuck_epsilon=policy.stuck_epsilon,
            noise_weight=policy.root_noise_weight,
        )
        # In turn, a collect that was broken off is played again as it would have been; else numbers may not repeat.
        number = self.coordinator.collect_count if self.coordinator.is_synchronous else context.ticket
        start = time.monotonic()
        episodes = self._collector.player.play(
            policy.n_episode,
            np.random.default_rng([run.seed, COLLECT_STREAM, number]),
            style,
            on_step=self._stepped,
            should_stop=context.stop.is_set,
        )
        if context.stop.is_set():
            raise _stopped(context.stop)  # half a collect is none
        return Collected(episodes, time.monotonic() - start)

    def train(self, batch: Batch) -> TrainReport:
        """Store the batch and make the updates owed for it."""
        collected: Collected = batch.data
        start = time.monotonic()
        result = self.learner.train(collected.episodes, batch.version, lambda: self.progress.show(self.line()))
        seconds = time.monotonic() - start
        self.env_steps += collected.steps
        self._steps_of[self.coordinator.train_count + 1] = self.env_steps
        self._steps_of.pop(self.coordinator.train_count - KEPT_VERSIONS, None)
        scores = [float(episode.info.get("score", 0)) for episode in collected.episodes]
        self._recent = (self._recent + scores)[-20:]
        self._losses = result.losses or self._losses
        self._rates = {
            "collect": collected.steps / max(collected.seconds, 1e-9),
            "train": result.updates / max(seconds, 1e-9),
        }
        values = {f"learner/{name}": value for name, value in result.losses.items()}
        values |= {"learner/updates": self.learner.updates, "collector/env_steps": self.env_steps}
        values |= {"learner/staleness": batch.staleness, "learner/updates_per_second": self._rates["train"]}
        if scores:
            values |= {"collector/score_mean": float(np.mean(scores)), "collector/score_max": float(np.max(scores))}
            lengths = [len(episode) for episode in collected.episodes]
            values |= {
                "collector/steps_per_second": self._rates["collect"],
                "collector/length": float(np.mean(lengths)),
            }
        self._records.scalars(values, self.env_steps)
        self._records.train({"train": self.coordinator.train_count + 1, **values})
        return result.report

    def evaluate(self, context: EvalContext) -> float:
        """Play with the weights of the context in every mode of eval_modes; the score is the first one's mean."""
        assert context.snapshot is not None
        self._evaluator.load(context.version, context.snapshot.state)
        rows = []
        for mode in self.options.run_config.eval_modes:
            rows.append(self.play_mode(mode, context.version, lambda: _interrupted(context.stop)))
            if _interrupted(context.stop):  # half an evaluation is none; one that is due at a run's own end is finished
                raise _stopped(context.stop)
        for row in rows:
            self._keep_evaluation(row)
        return float(rows[0]["mean"])

    def play_mode(self, mode: str, version: int, should_stop: Any = lambda: False) -> dict[str, Any]:
        """Evaluate one mode with the evaluator's present weights, which are of `version`: a row of the evaluation table."""
        policy, run = self.options.policy_config, self.options.run_config
        style = Style(mode=mode, num_simulations=policy.num_simulations, temperature=run.eval_temperature)
        rng = np.random.default_rng([run.seed, EVAL_STREAM, version])
        played = self._evaluator.player.play(run.eval_episodes, rng, style, should_stop=should_stop)
        scores = [float(episode.info.get("score", 0)) for episode in played] or [0.0]
        return {
            "mode": mode,
            "version": version,
            "env_steps": self._steps_of.get(version, self.env_steps),
            "seconds": time.monotonic() - self._started,
            "episodes": len(played),
            "scores": scores,
            "mean": float(np.mean(scores)),
            "best": float(np.max(scores)),
            "normalised": float(np.mean(scores)) / max(self.game.max_score, 1),
            "length": float(np.mean([len(episode) for episode in played])) if played else 0.0,
            "won": sum(bool(episode.info.get("won")) for episode in played),
            "died": sum(bool(episode.info.get("died")) for episode in played),
            "commands": list(played[int(np.argmax(scores))].info["commands"]) if played else [],
        }

    def _keep_evaluation(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        log.info("evaluated %s at version %d: %s", row["mode"], row["version"], row["scores"])
        names = ("mean", "best", "normalised", "length")
        self._records.scalars({f"evaluator/{row['mode']}/{name}": row[name] for name in names}, row["env_steps"])

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Train until a limit of run_config is reached; save the last and the best checkpoint on the way."""
        run = self.options.run_config
        self._started, self._steps_before = time.monotonic(), self.env_steps
        try:
            return self.coordinator.run(
                self.collect,
                self.train,
                self.evaluate if run.eval_every and run.eval_modes else None,
                eval_every=run.eval_every if run.eval_modes else 0,
                max_train=run.max_iter or None,
                max_seconds=run.max_seconds or None,
                stop_fn=lambda: bool(run.max_env_step) and self.env_steps >= run.max_env_step,
                on_eval=self._evaluated,
                after_train=self._trained,
                print_statistics=False,
            )
        finally:
            self.progress.clear()

    def final_evaluation(self) -> list[dict[str, Any]]:
        """Evaluate the last weights once more, in every mode of final_eval_modes."""
        rows = []
        self._evaluator.load(-2, self.learner.weights())
        for mode in self.options.run_config.final_eval_modes:
            self.progress.note(f"final evaluation: {mode} ...")
            rows.append(self.play_mode(mode, self.coordinator.train_count))
            self._keep_evaluation(rows[-1])
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
            checkpoint.save(
                self.folder / "ckpt" / "best.safetensors",
                {"weights": dict(result.snapshot.state), **self._description()},
            )

    def _trained(self) -> None:
        every = self.options.run_config.checkpoint_every
        statistics = self.coordinator.get_statistics()
        names = ("collect_train_lag", "collect_wait_time", "train_wait_time", "overlap_efficiency", "staleness_mean")
        names += ("sample_age_mean", "sample_age_max", "dropped", "failed", "abandoned", "restarts")
        values = {f"coordinator/{name}": statistics[name] for name in names if statistics.get(name) is not None}
        values |= {f"reuse/{name}": value for name, value in self.reuse().items() if isinstance(value, (int, float))}
        self._records.scalars(values, self.env_steps)
        if every and self.coordinator.train_count % every == 0:
            self.save()
        self.progress.show(self.line(), now=True)

    def _stepped(self, steps: int) -> None:
        self.collected_steps += steps
        self.progress.show(self.line())

    def line(self) -> str:
        """The live line."""
        run = self.options.run_config
        steps = max(self.env_steps, self._steps_before + self.collected_steps)
        left = self._time_left(steps)
        parts = [duration(time.monotonic() - self._started) + (f", {duration(left)} left" if left is not None else "")]
        parts.append(f"env steps {steps:,}" + (f"/{run.max_env_step:,}" if run.max_env_step else ""))
        parts.append(f"train {self.coordinator.train_count}" + (f"/{run.max_iter}" if run.max_iter else ""))
        parts.append(f"score {np.mean(self._recent):.1f}" if self._recent else "score -")
        parts.append(f"best eval {self.best['score']:.1f}" if self.best["score"] is not None else "best eval -")
        parts.append(f"lag {self.coordinator.collect_train_lag}")
        if self._losses:
            parts.append(f"{self._rates['collect']:.0f} steps/s, {self._rates['train']:.1f} updates/s")
            parts.append(f"loss {self._losses['weighted_total_loss']:.2f}")
        return " | ".join(parts)

    def _time_left(self, steps: int) -> float | None:
        run = self.options.run_config
        gone = time.monotonic() - self._started
        done = []
        if run.max_env_step and steps > self._steps_before:
            done.append((steps - self._steps_before) / max(1, run.max_env_step - self._steps_before))
        if run.max_iter and (trains := self.coordinator.train_count - self._trains_before):
            done.append(trains / max(1, run.max_iter - self._trains_before))
        if run.max_seconds:
            done.append(gone / run.max_seconds)
        return gone * (1 / max(done) - 1) if done and max(done) > 0 else None

    def reuse(self) -> dict[str, Any]:
        """How much work was saved: hits of the encoder's, the prior's and the valid actions' caches."""
        values: dict[str, Any] = dict(self.encoder.statistics())
        if self.prior is not None:
            values |= {f"prior_{key}": value for key, value in self.prior.statistics().items()}
        games = [env.statistics() for role in self._roles for env in role.player.envs]
        for key in sorted({key for statistics in games for key in statistics}):
            numbers = [statistics[key] for statistics in games if isinstance(statistics.get(key), (int, float))]
            if numbers:
                values[f"game_{key}"] = sum(numbers)
        return values

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def _description(self) -> dict[str, Any]:
        return {
            "options": json.loads(json.dumps(self.options)),
            "game": {"md5": self.game.md5, "label": self.game.label, "substitute_for": self.game.substitute_for},
            "env_steps": self.env_steps,
            "best": dict(self.best),
        }

    def save(self) -> Path:
        """Write the last checkpoint: everything that a resumed run needs to go on exactly. Call it between trains."""
        coordinator = self.coordinator.state_dict(with_batches=True)  # once: a collector may commit at any moment
        waiting = coordinator.pop("batches")
        state: dict[str, Any] = {
            **self._description(),
            "learner": self.learner.state_dict(),
            "coordinator": coordinator,
            "waiting": [pack_batch(data) for data in waiting],
            "history": self.history,
            "recent": self._recent,
            "random": checkpoint.random_state(),
        }
        if self.options.run_config.checkpoint_buffer:
            state["buffer"] = self.learner.buffer_state()
        path = self.folder / "ckpt" / "last.safetensors"
        checkpoint.save(path, state)
        self._records.flush()
        return path

    def resume(self, path: Path, state: dict[str, Any]) -> None:
        """Go on from a checkpoint (`state` is what was loaded from `path`) of a run on the same game with the same sizes."""
        if "learner" not in state:
            raise ConfigError(
                f"{path} holds only the best weights, which cannot be resumed; give --resume the file last.safetensors."
            )
        self._check_same_run(state, path)
        try:
            self.learner.load_state_dict(state["learner"])
            if "buffer" in state:
                self.learner.load_buffer_state(state["buffer"])
            batches = [unpack_batch(data) for data in state["waiting"]] if "buffer" in state else None
            self.coordinator.load_state_dict(state["coordinator"], batches=batches)
            self.env_steps = int(state["env_steps"])
            self.best = {"score": state["best"]["score"], "version": int(state["best"]["version"])}
            self.history, self._recent = list(state["history"]), list(state["recent"])
            checkpoint.restore_random_state(state["random"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ConfigError):
                raise
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"The checkpoint {path} does not fit this program ({first}); resume from another one."
            ) from error
        self.learner.set_rates()
        self._records.resume(self.coordinator.train_count, self.env_steps)
        self._trains_before = self.coordinator.train_count
        self._steps_of[self.coordinator.train_count] = self.env_steps

    def _check_same_run(self, state: dict[str, Any], path: Path) -> None:
        game, saved = state.get("game", {}), state.get("options", {})
        if game.get("md5") != self.game.md5:
            raise ConfigError(
                f"{path} is of the game {game.get('label')!r}, and this run is of {self.game.label!r}; "
                "pass the --env_id of that run."
            )
        for section, key in FIXED_OPTIONS:
            before, now = saved.get(section, {}).get(key), self.options[section][key]
            if before != now:
                raise ConfigError(
                    f"{section}.{key} was {before!r} in {path} and is {now!r} now; a resumed run cannot change it."
                )

    def close(self) -> None:
        """End the games, the language model and whatever else runs, each of them whatever becomes of the others."""
        parts = [self.coordinator.close, *(role.player.close for role in self._roles)]
        parts += [part.close for part in (self.engine, self._records) if part is not None]
        failed: Exception | None = None
        for close in parts:
            try:
                close()
            except Exception as error:
                if failed is not None:
                    log.error("while closing after %r: %r", failed, error)
                failed = failed or error
        if failed is not None:
            raise failed


def _engine_options(llm: EasyDict) -> dict[str, Any]:
    if llm.llm_engine != "vllm":
        return {"deterministic": llm.repeatable_prior}
    return {"tensor_parallel_size": llm.tensor_parallel_size, "gpu_memory_utilization": llm.gpu_memory_utilization}


def _stopped(stop: StopSignal) -> Stopped:
    """Says that a stage was given up because the run stops, which is no failure."""
    error = Stopped("the run is stopping")
    error.origin = stop
    return error


def _interrupted(stop: StopSignal) -> bool:
    """Whether the run stops because of a signal, not because it has reached its own end."""
    return stop.is_set() and str(getattr(stop, "stop_reason", "")).startswith("SIG")


def _seed_everything(seed: int) -> None:
    import random

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
