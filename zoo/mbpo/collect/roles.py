"""The roles that play: collectors, whose environments go on from one collect to the next, and the evaluator.

Their factories import only what they need: a collector of gymnasium environments never imports torch, so its weights must
come as numpy arrays.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lzero_async.errors import BadData, ConfigError, StepOverdue, Stopped
from lzero_async.runs.soundness import check_finite
from lzero_async.types import StopSignal
from lzero_async.validation import whole_number
from lzero_async.workers.calls import interrupted, listen, stopped
from lzero_async.workers.parcels import Parcel
from lzero_async.workers.step_watch import StepWatch
from zoo.mbpo.collect.playing import NumpyPlaying, Playing
from zoo.mbpo.collect.recording import Episodes, Record
from zoo.mbpo.envs.guarding import STEP_TIMEOUT, STUCK, Guard
from zoo.mbpo.envs.vectorised import GymEnvs, VectorEnvs, shares
from zoo.mbpo.envs.waiting import WaitingEnvs
from zoo.mbpo.learn.transitions import Transitions

Emit = Callable[[Any], None]
MakeEnvs = Callable[[], VectorEnvs]
COLLECT_STREAM, EVAL_STREAM = 1, 2
EVENT_EVERY = 0.2  # seconds between two words to the parent about the steps made
RECENT_COLLECTS = 10
MOST_BAD = 100  # bad episodes in a row without a step that can be used after which a role gives up
HURRY = 1.0  # seconds that a step may still take when the run stops and nobody wants it any more
MAX_EVAL_STEPS = 100_000  # vector steps without the end of an evaluation after which none is expected


class CollectOrder(NamedTuple):
    """What a collector needs to know besides the weights."""

    version: int  # of the weights
    number: int  # of the collect; says which stream of random numbers to use
    steps: int  # of each environment
    random: bool = False  # uniform actions instead of the policy's


class _PlayingRole:
    """Environments, and a policy on whatever weights it is given."""

    event = ""  # what it tells the parent its steps are

    def __init__(
        self, name: str, make_envs: MakeEnvs, emit: Emit, playing: Callable[[Any], Playing], step_timeout: float
    ) -> None:
        self._step_timeout = step_timeout
        self._watch = StepWatch(step_timeout, on_overdue=lambda sentence: emit((STUCK, sentence)))
        self.envs = make_envs()
        self.guard = self.envs.guard = Guard(name, self._watch, emit)
        self.version = -1
        self._playing = playing(self.envs)
        self._emit, self._unsaid, self._said_at = emit, 0, time.monotonic()

    def ready(self) -> dict[str, Any]:
        """Answered once the role is made: the sizes of its environments."""
        envs = self.envs
        return {"num_envs": envs.num_envs, "obs_size": envs.obs_size, "action_size": envs.action_size}

    def close(self) -> None:
        """End the environments."""
        self._watch.limit(HURRY)
        try:
            with self.guard.running("the end of its environments"):
                self.envs.close()
        finally:
            self._watch.close()

    def load(self, version: int, weights: Parcel) -> None:
        """Take these weights, unless they are here already; BadData for those that are not finite."""
        if version != self.version:
            given = weights.read()
            for name, value in given.items():
                check_finite(name, value, f"the weights of version {version}")
            self._playing.load(given)
            self.version = version

    @contextmanager
    def _until(self, stop: StopSignal | None, gives_up: Callable[[StopSignal], bool]) -> Iterator[None]:
        """A time in which steps are watched. When the run stops, and `gives_up(stop)`, nobody waits for one that hangs; at
        another end of the run a step gets no more time than steps have needed so far."""

        def given_up() -> bool:
            return stop is not None and gives_up(stop)

        def hurry(reason: str) -> None:
            usual = max(HURRY, 10 * self._watch.longest)
            self._watch.limit(min(self._step_timeout, HURRY if given_up() else usual))

        self._watch.limit(self._step_timeout)
        self.guard.given_up = given_up
        unlisten = listen(stop, hurry)
        try:
            yield
        except StepOverdue:
            if stop is not None and given_up():
                raise stopped(stop) from None
            raise
        finally:
            unlisten()
            self._watch.close()  # a role that fails may be dropped, which must leave no thread

    def _told(self, steps: int) -> None:
        """Steps were made: tell the parent, now and then."""
        self._unsaid += steps
        if time.monotonic() - self._said_at >= EVENT_EVERY:
            self._emit((self.event, self._unsaid))
            self._unsaid, self._said_at = 0, time.monotonic()


class CollectorRole(_PlayingRole):
    """Plays a number of steps in all of its environments; their episodes go on in the next collect.

    `playing` gives it its policy and arrays; see `playing.Playing`.
    """

    event = "steps"

    def __init__(
        self,
        make_envs: MakeEnvs,
        worker: int,
        seed: int,
        emit: Emit,
        playing: Callable[[Any], Playing] = NumpyPlaying,
        step_timeout: float = STEP_TIMEOUT,
    ) -> None:
        super().__init__(f"collector {worker}", make_envs, emit, playing, step_timeout)
        self.worker, self.seed = worker, seed
        self._obs: Any = None
        self._episodes = Episodes(self.envs.num_envs)
        self._recent: deque[float] = deque(maxlen=RECENT_COLLECTS)
        self._ended_at: float | None = None
        self._bad_before = 0  # bad episodes when there was data last

    def collect(self, order: CollectOrder, weights: Parcel | None, stop: StopSignal | None = None) -> Parcel:
        """One batch: a Parcel of Transitions, row `step * num_envs + environment`, with its numbers beside it.

        A random collect needs no weights. Raises Stopped when `stop` is set, with nothing kept but the environments'
        progress.
        """
        begun = time.monotonic()
        whole_number("steps", order.steps, 1)
        if not order.random:
            if weights is None:
                raise ConfigError("weights is None; a collect that is not random needs the policy's weights.")
            self.load(order.version, weights)
        stream = [self.seed, COLLECT_STREAM, self.worker, order.number]
        with self._until(stop, lambda stop: stop.is_set()):
            if self._obs is None:
                # With the collect's number, so that a restarted collector does not begin the same episodes again.
                self._obs = self.envs.reset(stream)
            waited = self._listen_to(stop)
            rows, ends = self._play(order, self._playing.random(stream), stop)
        self._give_up_hopeless(rows.count)
        seconds = time.monotonic() - begun
        meta = {
            "worker": self.worker,
            "version": order.version,
            "number": order.number,
            "steps": rows.count,
            "reward_mean": float(rows.reward.mean()) if rows.count else 0.0,
            "left_out": order.steps * self.envs.num_envs - rows.count,
            "seconds": seconds,
            **self._times(begun, seconds, waited),
            **ends,
        }
        return Parcel(rows, meta)

    def _play(self, order: CollectOrder, random: Any, stop: StopSignal | None) -> tuple[Transitions, dict[str, Any]]:
        """The steps of one collect, and the ends of episodes in it."""
        record = Record(self._playing, order.steps, self.envs.num_envs)
        try:
            for _ in range(order.steps):
                if stop is not None and stop.is_set():
                    raise stopped(stop)  # half a collect is none
                action = self._playing.explore(random) if order.random else self._playing.act(self._obs, random)
                step = self.envs.step(action)
                record.add(self._obs, action, step)
                self._obs = step.obs
                self._told(self.envs.num_envs)
        except Stopped:
            self._episodes.add(*record.rewards_and_ends())  # the environments have gone on
            raise
        except BaseException:
            self._obs = None  # nobody knows what state they are in
            self._episodes = Episodes(self.envs.num_envs)
            raise
        return record.transitions(), self._episodes.add(*record.rewards_and_ends())

    def _give_up_hopeless(self, rows: int) -> None:
        """Raise BadData after many episodes of which nothing can be used."""
        bad = self.guard.bad_episodes
        if rows:
            self._bad_before = bad
        elif bad - self._bad_before >= MOST_BAD:
            raise BadData(f"the last {bad - self._bad_before} episodes of collector {self.worker} were all bad")

    def _listen_to(self, stop: StopSignal | None) -> float:
        """Let a wait in the environments end at `stop`; the seconds waited so far."""
        if not isinstance(self.envs, WaitingEnvs):
            return 0.0
        self.envs.stop = stop
        return self.envs.waited_seconds

    def _times(self, begun: float, seconds: float, waited: float) -> dict[str, float]:
        """Seconds: waited for nothing between collects, mean of the latest collects and, if known, of the simulator."""
        self._recent.append(seconds)
        idle = 0.0 if self._ended_at is None else begun - self._ended_at
        self._ended_at = begun + seconds
        times = {"idle_seconds": idle, "recent_seconds": sum(self._recent) / len(self._recent)}
        if isinstance(self.envs, WaitingEnvs):
            times["wait_seconds"] = self.envs.waited_seconds - waited
        return times


class EvaluatorRole(_PlayingRole):
    """Plays whole episodes with the policy's most likely actions and says how well it did."""

    event = "evaluation steps"

    def __init__(
        self,
        make_envs: MakeEnvs,
        seed: int,
        emit: Emit,
        playing: Callable[[Any], Playing] = NumpyPlaying,
        step_timeout: float = STEP_TIMEOUT,
    ) -> None:
        super().__init__("evaluator", make_envs, emit, playing, step_timeout)
        self.seed = seed

    def evaluate(
        self, version: int, weights: Parcel, episodes: int, repeat: int = 0, stop: StopSignal | None = None
    ) -> dict[str, Any]:
        """Returns and lengths of `episodes` new episodes, others for another `repeat`: mean, min and max, and `returns` itself.

        Each environment plays its share, so that short episodes count no more often than long ones. Raises Stopped when
        the run is interrupted. A bad episode is played again with a new seed.
        """
        begun = time.monotonic()
        whole_number("episodes", episodes, 1)
        self.load(version, weights)
        stream = [self.seed, EVAL_STREAM, version, *([repeat] if repeat else [])]
        with self._until(stop, interrupted):
            returns, lengths = self._play(episodes, self.envs.reset(stream), self._playing.random(stream), stop)
        return {
            "version": version,
            "episodes": episodes,
            "mean_return": float(np.mean(returns)),
            "min_return": float(np.min(returns)),
            "max_return": float(np.max(returns)),
            "mean_length": float(np.mean(lengths)),
            "min_length": int(np.min(lengths)),
            "max_length": int(np.max(lengths)),
            "returns": returns,
            "seconds": time.monotonic() - begun,
        }

    def play(self, seed: int) -> tuple[float, int]:
        """Return and length of one episode of the first environment, which is reset with this very seed."""
        with self._until(None, interrupted):
            returns, lengths = self._play(1, self.envs.reset_to(seed), self._playing.random([seed]), None)
        return returns[0], lengths[0]

    def act(self, observation: Any) -> Any:
        """The environment's actions [N, ...] for an observation as it gives it; N is 1 unless it observes N tensor
        environments."""
        obs = self.envs.flatten(observation)
        return self.envs.scale(self._playing.act(obs, None, deterministic=True))

    def _play(self, episodes: int, obs: Any, random: Any, stop: StopSignal | None) -> tuple[list[float], list[int]]:
        left = np.array(shares(episodes, self.envs.num_envs))
        running, ages = np.zeros(len(left)), np.zeros(len(left), dtype=int)
        returns: list[float] = []
        lengths: list[int] = []
        bad = self.guard.bad_episodes
        for _ in range(MAX_EVAL_STEPS * int(left.max())):
            if stop is not None and interrupted(stop):
                raise stopped(stop)  # half an evaluation is none; one that is due at a run's own end is finished
            step = self.envs.step(self._playing.act(obs, random, deterministic=True))
            obs = step.obs
            running += self._playing.on_cpu(step.reward)
            ages += 1
            ended = self._playing.on_cpu(step.terminated | step.truncated)
            if step.bad is not None:
                failed = self._playing.on_cpu(step.bad)
                ended &= ~failed
                running[failed], ages[failed] = 0.0, 0
                if self.guard.bad_episodes - bad >= MOST_BAD * episodes:
                    raise BadData(f"{self.guard.bad_episodes - bad} episodes of one evaluation were bad")
            for row in np.flatnonzero(ended & (left > 0)):
                returns.append(float(running[row]))
                lengths.append(int(ages[row]))
            left -= ended
            running[ended], ages[ended] = 0.0, 0
            self._told(len(left))
            if len(returns) == episodes:
                return returns, lengths
        raise ConfigError(
            f"An evaluation did not end within {MAX_EVAL_STEPS} steps an episode; give the environment a time limit, for "
            "example with env_args max_episode_steps."
        )


# -- factories: functools.partial of one of these, without its last argument, is what a backend starts ---------------------


def gym_envs(env_id: str, num_envs: int, env_args: Mapping[str, Any] | None, step_seconds: float) -> VectorEnvs:
    """Gymnasium's environments; each step of all of them waits `step_seconds` besides (0: not at all)."""
    if not isinstance(step_seconds, (int, float)) or isinstance(step_seconds, bool) or not step_seconds >= 0:
        raise ConfigError(f"step_seconds is {step_seconds!r}; it must be a number of seconds of at least 0.")
    envs = GymEnvs(env_id, num_envs, env_args=env_args)
    return WaitingEnvs(envs, step_seconds) if step_seconds else envs


def gym_collector(
    env_id: str,
    num_envs: int,
    env_args: Mapping[str, Any] | None,
    step_seconds: float,
    worker: int,
    seed: int,
    emit: Emit,
    *,
    step_timeout: float = STEP_TIMEOUT,
) -> CollectorRole:
    """A collector of gymnasium environments."""
    envs = partial(gym_envs, env_id, num_envs, env_args, step_seconds)
    return CollectorRole(envs, worker, seed, emit, step_timeout=step_timeout)


def evaluator(
    env_id: str,
    num_envs: int,
    env_args: Mapping[str, Any] | None,
    step_seconds: float,
    seed: int,
    emit: Emit,
    *,
    step_timeout: float = STEP_TIMEOUT,
) -> EvaluatorRole:
    """The evaluator on gymnasium environments."""
    envs = partial(gym_envs, env_id, num_envs, env_args, step_seconds)
    return EvaluatorRole(envs, seed, emit, step_timeout=step_timeout)


def tensor_collector(
    factory: str,
    factory_args: Mapping[str, Any] | None,
    worker: int,
    seed: int,
    emit: Emit,
    *,
    step_timeout: float = STEP_TIMEOUT,
) -> CollectorRole:
    """A collector of tensor environments. On the inline and thread backends what it collects stays on their device."""
    from zoo.mbpo.collect.tensor_playing import TensorPlaying
    from zoo.mbpo.envs.tensor_envs import tensor_envs

    envs = partial(tensor_envs, factory, factory_args)
    return CollectorRole(envs, worker, seed, emit, TensorPlaying, step_timeout)


def tensor_evaluator(
    factory: str,
    factory_args: Mapping[str, Any] | None,
    seed: int,
    emit: Emit,
    *,
    step_timeout: float = STEP_TIMEOUT,
) -> EvaluatorRole:
    """The evaluator on tensor environments."""
    from zoo.mbpo.collect.tensor_playing import TensorPlaying
    from zoo.mbpo.envs.tensor_envs import tensor_envs

    return EvaluatorRole(partial(tensor_envs, factory, factory_args), seed, emit, TensorPlaying, step_timeout)
