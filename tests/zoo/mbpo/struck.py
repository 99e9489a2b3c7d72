"""Roles of `zoo.mbpo` that die or fail at a moment that a test has chosen.

A test puts files into the folder $MBPO_STRUCK. A role that comes to the moment of a file's name takes the file away and
kills its own process; one that comes to "once <moment>" takes it away and raises, and to "broken <moment>" raises every time.
Moments are "<method> <count>" of learning
roles, counted in one process, and "collector <worker> step <count>" or "evaluator step <count>" of environments.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from zoo.mbpo import roles
from zoo.mbpo.collect import roles as collecting
from zoo.mbpo.envs.sources import GymSource

FOLDER = "MBPO_STRUCK"
METHODS = ("train", "fit", "roll")


def come_to(moment: str) -> None:
    """Die or fail here if that was wished."""
    folder = Path(os.environ[FOLDER])
    if (folder / f"broken {moment}").exists() or _taken(folder / f"once {moment}"):
        raise RuntimeError(f"struck at {moment}")
    if _taken(folder / moment):
        os.kill(os.getpid(), signal.SIGKILL)


def _taken(wish: Path) -> bool:
    try:
        wish.unlink()
    except FileNotFoundError:
        return False
    return True


def _struck(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    counts = itertools.count(1)

    def done(*words: Any) -> Any:
        result = method(*words)
        come_to(f"{name} {next(counts)}")  # its work is done and not told
        return result

    return done


def make_role(role: str, options: Any, sizes: tuple[int, int], emit: Callable[[Any], None]) -> Any:
    """As `roles.make_role`; roles with real data of their own can be asked for its observations."""
    made = MAKE_ROLE(role, options, sizes, emit)
    for method in METHODS:
        if hasattr(made, method):
            setattr(made, method, _struck(getattr(made, method), method))
    buffer = getattr(made, "_real", None) or made.learner.real
    made.observations = lambda: buffer.newest(buffer.count).obs.tolist()
    return made


MAKE_ROLE = roles.make_role


def collector(worker: int, *words: Any) -> Any:
    """A collector of gymnasium environments."""
    return _with_struck_steps(collecting.gym_collector(*words), f"collector {worker} step")


def evaluator(*words: Any) -> Any:
    """The evaluator on gymnasium environments."""
    return _with_struck_steps(collecting.evaluator(*words), "evaluator step")


def _with_struck_steps(role: Any, name: str) -> Any:
    step, counts = role.envs.step, itertools.count(1)

    def struck(action: Any) -> Any:
        come_to(f"{name} {next(counts)}")
        return step(action)

    role.envs.step = struck
    return role


class StruckSource(GymSource):
    """Where such collectors and evaluators come from."""

    def collector(self, num_envs: int, worker: int) -> Any:
        return partial(collector, worker, *super().collector(num_envs, worker).args)

    def evaluator(self, num_envs: int) -> Any:
        return partial(evaluator, *super().evaluator(num_envs).args)
