"""The two roles that play: LightZero's collector and evaluator, on whatever weights they are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from lzero_async.lightzero.parts import Emit, Parts, other_seed
from lzero_async.lightzero.storing import BEGAN, Collected
from lzero_async.types import StopSignal
from lzero_async.workers.calls import interrupted, stopped
from lzero_async.workers.parcels import Parcel

EVENT_EVERY: Final = 0.2  # seconds between two words to the owner about the steps made
SCORES: Final = {
    "mean_return": "reward_mean", "min_return": "reward_min", "max_return": "reward_max",
    "mean_length": "avg_envstep_per_episode",
}  # fmt: skip


@dataclass(frozen=True)
class CollectOrder:
    """What a collector needs to know besides the weights; `number` counts its own collects, the other counts are the run's."""

    version: int
    number: int
    updates: int
    env_steps: int
    episodes: int


class _PlayingRole:
    """Plays with one version of the weights at a time."""

    event = ""  # what it tells the owner its steps are

    def __init__(self, emit: Emit) -> None:
        self.version = -1
        self._emit, self._unsaid, self._said_at = emit, 0, 0.0

    def _load(self, parts: Parts, version: int, weights: Parcel) -> None:
        # AlphaZero's search plays in training mode, which moves the statistics of its norms: they begin as published every time.
        if version != self.version or parts.policy._collect_model.training:
            parts.load(weights.read)
        self.version = version

    @contextmanager
    def _watched(self, player: Any, over: Callable[[], bool], stop: StopSignal) -> Iterator[None]:
        """While LightZero's `player` plays: its steps are told, and it ends when the run does."""
        played, forward = player._policy, player._policy.forward

        def step(states: Any, *args: Any, **kwargs: Any) -> Any:
            if over():
                raise stopped(stop)
            self._unsaid += len(states)
            if time.monotonic() - self._said_at >= EVENT_EVERY:
                self._emit((self.event, self._unsaid))
                self._unsaid, self._said_at = 0, time.monotonic()
            return forward(states, *args, **kwargs)

        player._policy = played._replace(forward=step)
        try:
            yield
        finally:
            player._policy = played


class CollectorRole(_PlayingRole):
    """LightZero's collector. Its episodes are of seeds that no other collector and no earlier life of it has had."""

    event = "steps"

    def __init__(self, parts: Parts, emit: Emit) -> None:
        super().__init__(emit)
        self.parts, self.worker = parts, parts.worker
        self._fresh = True  # nothing of the parts' state is worth to go on with

    def ready(self) -> None:
        """Answered once the role is made."""

    def digest(self) -> str:
        """A digest of the weights that were played with last."""
        return self.parts.digest()

    def collect(self, order: CollectOrder, weights: Parcel, stop: StopSignal) -> Parcel:
        """One collect: a Parcel of Collected, its numbers beside it."""
        self.prepare(order, weights)
        how, parts = self._how(order), self.parts
        more = (
            {"collect_with_pure_policy": parts.cfg.policy.collect_with_pure_policy} if parts.entry.pure_policy else {}
        )
        return self._collect(order, stop, how, train_iter=order.updates, policy_kwargs=how, **more)

    def prepare(self, order: CollectOrder, weights: Parcel) -> None:
        """Make ready for a collect of this order, its weights included."""
        self._begin_anew(order.number)
        self._load(self.parts, order.version, weights)

    def _begin_anew(self, number: int) -> None:
        """After a restart, a resume or a broken collect: other episodes and other dice than before."""
        parts = self.parts
        if self._fresh and number:
            seed = other_seed(int(parts.cfg.seed), self.worker, number)
            if not parts.shared:  # the learner has its random numbers here, too, which a resume has put back
                parts.seed_everything(seed)
            parts.collector._env.seed(seed)
            parts.collector._env.reset()
            parts.collector.reset()
        self._fresh = False

    def _how(self, order: CollectOrder) -> dict[str, float]:
        """Temperature and epsilon, which follow LightZero's counters: updates and environment steps."""
        from ding.rl_utils import get_epsilon_greedy_fn
        from lzero.policy import visit_count_temperature

        policy, eps = self.parts.cfg.policy, self.parts.cfg.policy.get("eps")
        temperature = visit_count_temperature(
            policy.manual_temperature_decay, policy.fixed_temperature_value,
            policy.threshold_training_steps_for_final_temperature, trained_steps=order.updates,
        )  # fmt: skip
        if eps is None or not eps.get("eps_greedy_exploration_in_collect"):
            return {"temperature": temperature, "epsilon": 0.0}
        epsilon = get_epsilon_greedy_fn(start=eps.start, end=eps.end, decay=eps.decay, type_=eps.type)
        return {"temperature": temperature, "epsilon": epsilon(order.env_steps)}

    def _collect(self, order: CollectOrder, stop: StopSignal, how: dict[str, float], **arguments: Any) -> Parcel:
        parts, start = self.parts, time.monotonic()
        collector, ended = parts.collector, []
        # LightZero counts what one collector did in its life; here there may be several, and more than one life.
        collector._total_envstep_count, collector._total_episode_count = order.env_steps, order.episodes
        before, output = collector.envstep, collector._output_log

        def note(train_iter: int) -> None:
            ended.extend(collector._episode_info[known:])
            output(train_iter)

        known, collector._output_log = len(collector._episode_info), note
        self._fresh = True  # unless it ends well
        try:
            with self._watched(collector, stop.is_set, stop):
                found = collector.collect(**arguments)
        finally:
            del collector._output_log
        self._fresh = False
        if parts.entry.transitions:
            collected = Collected([one for episode in found for one in episode], [])
        else:
            collected = Collected(*map(list, found))
        meta = {
            "steps": collector.envstep - before, "returns": [float(one["reward"]) for one in ended], **how,
            "began_with": self._tag(collected, order.version), "seconds": time.monotonic() - start,
            "version": order.version, "worker": self.worker,
        }  # fmt: skip
        parts.writer.hand_over(self._emit)
        return Parcel(collected, meta)

    def _tag(self, collected: Collected, version: int) -> int:
        """Tell every segment the version that it began with; the oldest of those that are handed out."""
        if not collected.meta:
            return version
        for segment in (*collected.data, *(getattr(self.parts.collector, "last_game_segments", None) or ())):
            if segment is not None:
                vars(segment).setdefault(BEGAN, version)
                segment.action_space = None  # gym's generator in it cannot be read back by numpy 1.26
        return min((getattr(segment, BEGAN) for segment in collected.data), default=version)

    def close(self) -> None:
        """End the environments."""
        with suppress(OSError, EOFError):  # processes of their own that have ended already
            self.parts.collector.close()


class EvaluatorRole(_PlayingRole):
    """LightZero's evaluator, on frozen weights."""

    event = "evaluation steps"

    def __init__(self, parts: Parts, emit: Emit) -> None:
        super().__init__(emit)
        self.parts = parts

    def ready(self) -> None:
        """Answered once the role is made."""

    def digest(self) -> str:
        """A digest of the weights that were played with last."""
        return self.parts.digest()

    def evaluate(
        self, version: int, weights: Parcel, at: dict[str, int], repeat: int, stop: StopSignal
    ) -> dict[str, Any]:
        """A row of scores; `at` says how far the run was with these weights."""
        self._load(self.parts, version, weights)
        evaluator, writer = self.parts.evaluator, self.parts.writer
        with self._watched(evaluator, lambda: interrupted(stop), stop):
            evaluator.eval(None, at["updates"], at["steps_trained"])
        found = writer.last(*SCORES.values(), "episode_count")
        writer.hand_over(self._emit)
        scores = {name: found[theirs] for name, theirs in SCORES.items()}
        return {**scores, "version": version, "episodes": int(found["episode_count"]), "returns": []}

    def close(self) -> None:
        """End the environments."""
        with suppress(OSError, EOFError):
            self.parts.evaluator.close()
