"""Gymnasium environments that go wrong now and then, and write down each time that they do.

Each fault of FAULTS strikes an episode with its own probability, at a step drawn beforehand; an episode that ends earlier is
sound. What struck is one line in a file of the process, in the folder that $POISON_FOLDER names.
"""

from __future__ import annotations

import json
import os
import random
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

FOLDER: Final = "POISON_FOLDER"
FAULTS: Final = ("nan", "inf", "shape", "crash_by_state", "crash", "hang")
FOR_EVER: Final = 3600.0


class Poison:
    """The faults of one environment: `begin` draws what becomes of an episode, `strike` says what strikes at a step."""

    def __init__(self, probability: float, length: int) -> None:
        self._probability, self._length = probability, length
        self._random = random.Random(os.urandom(8))
        self._fault, self._at, self._step = "", 0, 0

    def begin(self, first_obs: Any) -> None:
        """A new episode. A crash by state follows from its first observation, so the same seed crashes again."""
        drawn = [name for name in FAULTS if name != "crash_by_state" and self._random.random() < self._probability]
        state = zlib.crc32(np.ascontiguousarray(first_obs).tobytes())
        if state % 10_000 < 10_000 * self._probability:
            drawn.append("crash_by_state")
        self._fault = self._random.choice(drawn) if drawn else ""
        self._at, self._step = self._random.randint(1, self._length), 0

    def strike(self) -> str:
        """One more step: the fault that strikes now, written down, or ''. Crashes and hangs happen here."""
        self._step += 1
        if not self._fault or self._step != self._at:
            return ""
        with open(Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps({"fault": self._fault, "time": time.time()}) + "\n")
        if self._fault in ("crash", "crash_by_state"):
            raise RuntimeError(f"poisoned: {self._fault}")
        if self._fault == "hang":
            time.sleep(FOR_EVER)
        return self._fault


def injected(folder: Path) -> Counter[str]:
    """How often each fault struck, over all processes."""
    lines = (line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines())
    return Counter(json.loads(line)["fault"] for line in lines)


class Poisoned(gymnasium.Wrapper):  # type: ignore[misc, type-arg]
    """An environment with poison in it."""

    def __init__(self, env: gymnasium.Env[Any, Any], probability: float, length: int) -> None:
        super().__init__(env)
        self._poison = Poison(probability, length)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        self._poison.begin(obs)
        return obs, info

    def step(self, action: Any) -> Any:
        fault = self._poison.strike()
        obs, reward, terminated, truncated, info = self.env.step(action)
        if fault == "nan":
            reward = float("nan")
        elif fault == "inf":
            obs = np.full_like(obs, np.inf)
        elif fault == "shape":
            obs = np.concatenate([obs, obs])
        return obs, reward, terminated, truncated, info


def make_pendulum(probability: float = 0.01, length: int = 50) -> gymnasium.Env[Any, Any]:
    """Pendulum with episodes of `length` steps."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=length, disable_env_checker=True)
    return Poisoned(env, probability, length)


if "PoisonedPendulum-v0" not in gymnasium.registry:
    gymnasium.register("PoisonedPendulum-v0", make_pendulum)
