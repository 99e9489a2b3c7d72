"""The batch that travels from a collector to the learner, and how it is saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from zoo.jericho.priorzero.play.open_game import Episode


@dataclass
class Collected:
    """The episodes of one collect, how many seconds they took, and where they come from: the version of the weights, the
    worker, its stream of random numbers, and its process."""

    episodes: list[Episode]
    seconds: float
    tags: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Environment steps in it."""
        return sum(map(len, self.episodes))

    def summary(self) -> dict[str, Any]:
        """What everybody may know without opening it."""
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "scores": [float(episode.info.get("score", 0)) for episode in self.episodes],
            "lengths": [len(episode) for episode in self.episodes],
            **self.tags,
        }


def pack_batch(data: Collected) -> dict[str, Any]:
    """Plain values and arrays for a checkpoint."""
    return {
        "seconds": data.seconds,
        "tags": dict(data.tags),
        "episodes": [_plain(asdict(episode)) for episode in data.episodes],
    }


def _plain(episode: dict[str, Any]) -> dict[str, Any]:
    """Without what only describes: the numbers of an episode are kept, its names and texts too."""
    kept = (bool, int, float, str, tuple)
    episode["info"] = {key: value for key, value in episode["info"].items() if isinstance(value, kept)}
    return episode


def unpack_batch(saved: dict[str, Any]) -> Collected:
    """The batch of such values."""
    names = {field.name for field in fields(Episode)}
    episodes = [
        Episode(**{key: value for key, value in episode.items() if key in names}) for episode in saved["episodes"]
    ]
    return Collected(episodes, float(saved["seconds"]), dict(saved.get("tags", {})))
