"""The two roles that play: collectors, and the evaluator. Each has its own model, environments and language-model client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from lzero_async.errors import BadData
from lzero_async.lightzero.silence import quiet
from lzero_async.types import StopSignal
from lzero_async.workers.calls import interrupted, stopped
from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.options import trains_llm
from zoo.jericho.priorzero.play.batch import Collected, LLMWeights, Recorder, Weights
from zoo.jericho.priorzero.play.components import Parts, untouched_random
from zoo.jericho.priorzero.play.episodes import Player, Style
from zoo.jericho.priorzero.play.open_game import Episode, OpenGame
from zoo.jericho.priorzero.roles.factories import CollectOrder

COLLECT_STREAM, EVAL_STREAM, PLAY_STREAM = 1, 2, 4  # 3 is the reanalyzers'
FROZEN = "_frozen"  # at the end of a mode: with the language model as it was at first
EVENT_EVERY = 0.2  # seconds between two words to the parent about the steps made


class _PlayingRole:
    """A player with its own model, on whatever weights it is given."""

    event = ""  # what it tells the parent its steps are
    records = False  # whether it keeps what the prior was asked

    def __init__(
        self, parts: Parts, envs: int, device: str, emit: Callable[[Any], None], *, asynchronous: bool
    ) -> None:
        parts.limit_threads()
        with quiet():
            from lzero.model.unizero_model import UniZeroModel

            from zoo.jericho.priorzero.play.search import TreeSearch
        options, llm, env = parts.options, parts.options.llm_config, parts.options.env_config
        cfg = parts.unizero(device)
        with untouched_random(), quiet():
            self.model = UniZeroModel(**cfg.model).to(cfg.device)
        self.parts, self.version = parts, -1
        self._llm: LLMWeights | None = None
        self._recorder = Recorder(parts.prior) if self.records and trains_llm(options) and parts.prior else None
        self._emit, self._unsaid, self._said_at = emit, 0, 0.0
        self.player = Player(
            [parts.new_env() for _ in range(envs)],
            parts.encoder,
            TreeSearch(self.model, cfg, options.policy_config.root_window),
            parts.prior,
            root_policy=llm.root_policy,
            llm_weight=llm.llm_weight,
            weighting=llm.weighting,
            observation=env.observation,
            history_length=llm.history_length,
            asynchronous=asynchronous,
            max_batch=env.max_batch,
            max_wait_ms=env.max_wait_ms,
            on_trouble=lambda name: emit(("trouble", name)),
            recorder=self._recorder,
        )

    def ready(self) -> dict[str, Any]:
        """Answered once the role is made."""
        return self.statistics()

    def load(self, version: int, weights: Weights) -> None:
        """Take these weights, unless they are here already. No search keeps anything, so no cache has to be cleared."""
        if version != self.version:
            self.model.load_state_dict(weights.world_model.read())
            self.version = version
        self._llm = weights.llm
        self.parts.use_llm(weights.llm)

    def told(self, steps: int) -> None:
        """Steps were made: tell the parent, now and then."""
        self._unsaid += steps
        if time.monotonic() - self._said_at >= EVENT_EVERY:
            self._emit((self.event, self._unsaid))
            self._unsaid, self._said_at = 0, time.monotonic()

    def statistics(self) -> dict[str, Any]:
        """Counts of the caches, under the key of what is shared within a process, and of the games."""
        games: dict[str, float] = {}
        for env in self.player.envs:
            for name, value in env.statistics().items():
                if isinstance(value, (int, float)):
                    games[f"game_{name}"] = games.get(f"game_{name}", 0) + value
        games["game_isolated"] = self.player.isolated
        return {"key": self.parts.key, "shared": self.parts.statistics(), "games": games}

    def close(self) -> None:
        """End the games and the language model."""
        self.player.close()
        self.parts.close()


class CollectorRole(_PlayingRole):
    """Plays whole episodes with one version of the weights."""

    event = "steps"
    records = True

    def __init__(self, parts: Parts, worker: int, device: str, asynchronous: bool, emit: Callable[[Any], None]) -> None:
        super().__init__(parts, parts.options.env_config.num_envs, device, emit, asynchronous=asynchronous)
        self.worker = worker

    def collect(self, order: CollectOrder, weights: Weights, stop: StopSignal) -> Parcel:
        """One batch: a Parcel of Collected, its tags beside it."""
        self.load(order.version, weights)
        policy, seed = self.parts.options.policy_config, self.parts.options.run_config.seed
        share = min(1.0, order.env_steps / policy.temperature_decay_steps)
        style = Style(
            mode="prior" if self.parts.prior is not None else "world_model",
            num_simulations=policy.num_simulations,
            temperature=policy.temperature_start + share * (policy.temperature_end - policy.temperature_start),
            epsilon=policy.epsilon,
            stuck_steps=policy.stuck_steps,
            stuck_epsilon=policy.stuck_epsilon,
            noise_weight=policy.root_noise_weight,
        )
        stream = [seed, COLLECT_STREAM, self.worker, order.number]
        start = time.monotonic()
        if self._recorder is not None:
            self._recorder.clear()
        episodes = self.player.play(
            policy.n_episode, np.random.default_rng(stream), style, on_step=self.told, should_stop=stop.is_set
        )
        if stop.is_set():
            raise stopped(stop)  # half a collect is none
        collected = Collected(
            episodes,
            time.monotonic() - start,
            {
                "version": order.version, "worker": self.worker, "stream": stream, "source": f"collector {os.getpid()}",
                "llm_version": 0 if self._llm is None else self._llm.version,
            },
            None if self._recorder is None else self._recorder.table(),
        )  # fmt: skip
        return Parcel(collected, {**collected.summary(), "statistics": self.statistics()})


class EvaluatorRole(_PlayingRole):
    """Plays with frozen weights and says how well."""

    event = "evaluation steps"

    def __init__(self, parts: Parts, device: str, asynchronous: bool, emit: Callable[[Any], None]) -> None:
        super().__init__(parts, parts.options.env_config.evaluator_env_num, device, emit, asynchronous=asynchronous)

    def evaluate(
        self, modes: tuple[str, ...], version: int, weights: Weights, repeat: int, stop: StopSignal
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """A row of the evaluation table for each mode, with other seeds for another `repeat`, and the role's statistics."""
        self.load(version, weights)
        rows = []
        for mode in modes:
            rows.append(self._play(mode, version, repeat, lambda: interrupted(stop)))
            if interrupted(stop):  # half an evaluation is none; one that is due at a run's own end is finished
                raise stopped(stop)
        return rows, self.statistics()

    def _play(self, mode: str, version: int, repeat: int, should_stop: Callable[[], bool]) -> dict[str, Any]:
        run = self.parts.options.run_config
        rng = np.random.default_rng([run.seed, EVAL_STREAM, version, *([repeat] if repeat else [])])
        with self._llm_of(mode):
            played = self.player.play(
                run.eval_episodes, rng, self._style(mode), on_step=self.told, should_stop=should_stop
            )
        return {
            "mode": mode,
            "version": version,
            **_outcome(played, self.parts.game),
        }

    @contextmanager
    def _llm_of(self, mode: str) -> Iterator[None]:
        """Inside, the prior answers as this mode wants it: with the weights that are here, or as the model was at first."""
        if mode.endswith(FROZEN):
            self.parts.use_llm(None)
        try:
            yield
        finally:
            self.parts.use_llm(self._llm)

    def _style(self, mode: str) -> Style:
        policy, run = self.parts.options.policy_config, self.parts.options.run_config
        mode = mode.removesuffix(FROZEN)
        return Style(mode=mode, num_simulations=policy.num_simulations, temperature=run.eval_temperature)

    def play(self, mode: str, seed: int) -> Episode:
        """One episode with the weights that are here, of a game that is reset with this very seed."""
        with self._llm_of(mode):
            (episode,) = self.player.play(
                1, np.random.default_rng([seed, PLAY_STREAM]), self._style(mode), seeds=[seed]
            )
        return episode

    def begin(self, observation: Mapping[str, Any]) -> OpenGame:
        """An episode whose game somebody else plays, at its first observation; it draws as that of seed 0 does."""
        (game,) = self.player.new_games(1, np.random.default_rng([0, PLAY_STREAM]))
        game.begin(dict(observation))
        return game

    def act(self, game: OpenGame, mode: str) -> str:
        """The next command of such an episode; BadData if there is none."""
        with self._llm_of(mode):
            acted = self.player.act([game], self._style(mode))
        if not acted:
            raise game.broken or BadData("the language model gave no prior")
        return str(game.obs["valid_actions"][game.action])


def _outcome(played: list[Episode], game: Any) -> dict[str, Any]:
    scores = [float(episode.info.get("score", 0)) for episode in played] or [0.0]
    return {
        "episodes": len(played),
        "scores": scores,
        "mean": float(np.mean(scores)),
        "best": float(np.max(scores)),
        "normalised": float(np.mean(scores)) / max(game.max_score, 1),
        "length": float(np.mean([len(episode) for episode in played])) if played else 0.0,
        "won": sum(bool(episode.info.get("won")) for episode in played),
        "died": sum(bool(episode.info.get("died")) for episode in played),
        "commands": list(played[int(np.argmax(scores))].info["commands"]) if played else [],
    }
