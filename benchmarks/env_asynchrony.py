"""Environments that think for unequal times: stepping those that are ready, against all in lockstep.

    python -m benchmarks.env_asynchrony

Each of 8 environments plays one episode; how long it thinks at each step is drawn beforehand, lognormal with sigma 1. The
drawn times say what could be gained: in lockstep every round lasts as long as its slowest environment, else the whole lasts
as long as the environment whose times sum to the most. The player is the real one; thinking takes time but no processor.
"""

from __future__ import annotations

import heapq
import threading
import time
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.harness import Bar, format_row, judge, main_guard
from zoo.jericho.priorzero.play.episodes import Player, Style

ENVS, STEPS, MEAN, SIGMA = 8, 150, 0.05, 1.0
ATTAINED = 0.9
SEEDS = (0, 1, 2)


def bars() -> list[Bar]:
    """The bar of the share of the possible gain that is reached, and what stands beside it."""
    each = [
        lambda key=key: float(np.median([measure(seed)[key] for seed in SEEDS])) for key in ("share", "gain", "theory")
    ]
    return [
        Bar(f"{ENVS} environments, lognormal think times: gain / possible gain", ATTAINED, True, each[0], 1),
        Bar(f"{ENVS} environments, lognormal think times: times faster than lockstep", None, True, each[1], 1),
        Bar("the same: possible gain with these think times", None, True, each[2], 1),
        Bar(f"E[longest of {ENVS}] / E[mean], the gain of endless episodes", None, True, asymptotic, 1),
    ]


@lru_cache(maxsize=len(SEEDS))
def measure(seed: int) -> dict[str, float]:
    """Wall times of both ways over the same think times, their ratio, and the ratio that the think times allow."""
    spread = np.random.default_rng(seed).lognormal(-(SIGMA**2) / 2, SIGMA, size=(ENVS, STEPS))
    seconds = MEAN * spread
    lockstep, asynchronous = (wall(seconds, flag) for flag in (False, True))
    theory = seconds.max(axis=0).sum() / seconds.sum(axis=1).max()
    gain = lockstep / asynchronous
    return {
        "lockstep": lockstep,
        "asynchronous": asynchronous,
        "gain": gain,
        "theory": float(theory),
        "share": gain / float(theory),
    }


def wall(seconds: np.ndarray, asynchronous: bool) -> float:
    """Seconds for one episode in each environment, which thinks for these times [environments, steps]."""
    timer = Timer()
    player = Player([ThinkingEnv(timer, row) for row in seconds], None, None, None, asynchronous=asynchronous)
    rng, style = np.random.default_rng(0), Style(mode="random")
    try:
        player.play(0, rng, style)  # loads what the first call loads
        began = time.perf_counter()
        played = player.play(len(seconds), rng, style)
        taken = time.perf_counter() - began
    finally:
        player.close()
        timer.close()
    assert [len(episode) for episode in played] == [seconds.shape[1]] * len(seconds)
    return taken


def asymptotic(draws: int = 200_000) -> float:
    """What endless episodes would gain: the mean of the longest think time of a round, over the mean think time."""
    times = np.random.default_rng(0).lognormal(0.0, SIGMA, size=(draws, ENVS))
    return float(times.max(axis=1).mean() / times.mean())


class Timer:
    """Writes a byte to a pipe when its time has come; one thread for all pipes."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Connection]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lzero-timer", daemon=True)
        self._thread.start()

    def at(self, moment: float, pipe: Connection) -> None:
        """Write to the pipe at this monotonic time."""
        with self._changed:
            heapq.heappush(self._due, (moment, id(pipe), pipe))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                while self._due and self._due[0][0] <= time.monotonic():
                    heapq.heappop(self._due)[2].send_bytes(b"!")
                self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)


class ThinkingEnv:
    """A game of as many steps as it is given think times, in seconds."""

    def __init__(self, timer: Timer, seconds: np.ndarray) -> None:
        self._timer, self._seconds, self._step, self._thinking = timer, seconds, 0, False
        self._reader, self._writer = Pipe(duplex=False)
        state = SimpleNamespace(look="", inventory="", response="")
        self._obs = {"state": state, "valid_actions": ("wait", "look"), "action_mask": np.ones(2, np.int8)}

    def seed(self, seed: int) -> None:
        pass

    def reset(self) -> dict[str, Any]:
        self._step = 0
        return self._obs

    def begin_step(self, action: int) -> None:
        self._thinking = True
        self._timer.at(time.monotonic() + self._seconds[self._step], self._writer)

    def waitable(self) -> Connection | None:
        return self._reader if self._thinking and not self._reader.poll() else None

    def end_step(self) -> SimpleNamespace:
        self._reader.recv_bytes()
        self._thinking = False
        self._step += 1
        done = self._step == len(self._seconds)
        return SimpleNamespace(obs=self._obs, reward=0.0, done=done, info={})

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def main() -> int:
    rows = [judge("environments", bar, [bar.measure()]) for bar in bars()]
    print("\n".join(format_row(row) for row in rows))
    for seed in SEEDS:
        print({name: round(value, 3) for name, value in measure(seed).items()})
    return int(any(row["met"] is False for row in rows))


if __name__ == "__main__":
    main_guard(main)
