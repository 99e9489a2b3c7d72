"""What a run has learned, ready to use: its application loads the weights and says how to act with them."""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import ApplicationEntry, find_application, installed, resolve
from lzero_async.runs.checks import device as device_name
from lzero_async.runs.checks import present_device
from lzero_async.runs.run_dir import BEST_CHECKPOINT, LAST_CHECKPOINT
from lzero_async.runs.summary import read_summary
from lzero_async.validation import one_of, whole_number

WEIGHTS: Final = ("best", "last")
MOST_SEEDS: Final = 2**31  # which every environment takes


class PlayedEpisode(NamedTuple):
    """One episode: the seed that its environment was reset with, what it came to, and its steps."""

    seed: int
    score: float
    steps: int


class Policy(ABC):
    """A trained policy. `score_name` is what its application calls an episode's score.

    `policy(observation)` takes what the run's environment returns, and returns an action that this environment takes.
    """

    score_name: ClassVar[str] = "return"

    @abstractmethod
    def __call__(self, observation: Any) -> Any:
        """The action that an evaluation would take."""

    @abstractmethod
    def play_episode(self, seed: int) -> PlayedEpisode:
        """One episode as evaluations play them, of an environment that is reset with this seed; the same one every time."""

    def play(self, episodes: int = 10, seed: int = 0) -> list[PlayedEpisode]:
        """Play so many episodes, the first with `seed`, each other one with the next seed."""
        return [self.play_episode(number) for number in seeds(episodes, seed)]

    def close(self) -> None:  # noqa: B027  not every policy has something to end
        """End the environments and whatever else runs."""

    def __enter__(self) -> Policy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_policy(run: str | Path, weights: str = "best", device: str = "cpu", **options: Any) -> Policy:
    """The policy of a run: `load_policy("runs/mine")(observation)` is an action.

    run: the run's folder. weights: those that scored best (without an evaluation, the last ones), or the last ones.
    device: 'cpu', 'cuda', 'cuda:N' or 'auto'. options: those of the application's own. Raises ConfigError for a folder
    that holds no run, an application that is not installed, and a checkpoint that cannot be read.
    """
    folder = Path(run)
    entry = application_of(folder)
    own = own_options(entry)
    for name in options:
        if name not in own:
            close = difflib.get_close_matches(name, own, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(own) or 'none'}."
            raise ConfigError(f"{name} is no option of the policy of {entry.name}; {hint}")
    found = present_device("device", device_name("device", device))
    policy: Policy = resolve(entry.policy)(folder, find_weights(folder, weights), found, **options)
    return policy


def application_of(folder: Path) -> ApplicationEntry:
    """The application that wrote a run's folder; ConfigError if it is not installed or has no policy."""
    program = str(read_summary(folder).get("program"))
    if program not in installed():
        raise ConfigError(
            f"{folder} holds a run of {program!r}, which is not installed here; install that application."
        )
    entry = find_application(program)
    if not entry.policy:
        raise ConfigError(
            f"{folder} holds a run of {program}, which cannot play: its ApplicationEntry names no policy."
        )
    return entry


def own_options(entry: ApplicationEntry) -> dict[str, inspect.Parameter]:
    """The options of an application's policy: the keyword-only arguments of its function."""
    parameters = inspect.signature(resolve(entry.policy)).parameters
    return {name: one for name, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}


def find_weights(folder: Path, weights: str) -> Path:
    """The checkpoint with these weights; where no evaluation was made, the last ones stand in for the best."""
    best, last = folder / BEST_CHECKPOINT, folder / LAST_CHECKPOINT
    path = best if one_of("weights", weights, WEIGHTS) == "best" and best.is_file() else last
    if not path.is_file():
        raise ConfigError(f"{folder} has no checkpoint yet ({path} is missing); give the folder of a run that has one.")
    return path


def seeds(episodes: int, seed: int) -> range:
    """The seeds of so many episodes, the first of which has `seed`."""
    first = whole_number("seed", seed, 0)
    last = first + whole_number("episodes", episodes, 1)
    if last > MOST_SEEDS:
        raise ConfigError(f"seed is {seed}, so that the last of {episodes} episodes has one above 2**31 - 1; lower it.")
    return range(first, last)
