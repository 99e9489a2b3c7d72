"""How an application describes its pipeline to the tools: the block `pipeline` of summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lzero_async.errors import ConfigError


@dataclass(frozen=True)
class Rounds:
    """Rounds of whole episodes that environments play at their own pace: `episodes` in a round, environments that play
    `at_once`, and what they have done so far: `complete` episodes, `steps`, and `busy_seconds` of all of them."""

    episodes: int
    at_once: int
    complete: int
    steps: int
    busy_seconds: float


@dataclass(frozen=True)
class PipelineDescription:
    """What the tools cannot know of an application. The defaults describe a loop with the library's own option names.

    A setting is typed as `flags` with `{degree}`, `{collectors}` and `{queued}` (samples that so many batches are:
    `degree * degree_unit`) filled in, at degree 0 as `flags_in_turn` if there are such. For another number of environments
    `size_flags` follow, which also know `{environments}`, `{each}` (of one collector) and the `amounts`, which grow with them.
    """

    sample: str = "an environment step"  # what is counted as a sample
    collected: float = 0  # samples so far; the library fills these three in from the application's counts
    trained: float = 0
    updates: float = 0
    collectors: int = 1
    environments: int = 1  # of all collectors
    degree: str = "off_policy_degree"  # what the degree is called
    degree_unit: float = 1
    least_degree: int = 0
    flags: str = "--off_policy_degree {degree} --num_collectors {collectors}"
    flags_in_turn: str = ""
    size_flags: str = ""
    amounts: Mapping[str, float] = field(default_factory=dict)
    one_collector: str = ""  # why the number of collectors cannot be chosen
    shared: bool = False  # the collectors have a fixed number of environments between them
    max_train_ahead: int = 0
    eval_every: int | None = None  # trains between evaluations; None: as the run's counts say
    rounds: Rounds | None = None
    train_parts: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # roles that share a train: columns of its seconds
    refused: str = ""  # why such a run says nothing of other settings
    notes: tuple[str, ...] = ()

    def growth(self, collectors: int, environments: int | None) -> float:
        """How many times as much a collect has to do when so many collectors have so many environments between them."""
        if environments is None:
            return 1.0
        return environments / self.environments * (1.0 if self.shared else self.collectors / collectors)

    def typed(self, degree: int, collectors: int, environments: int | None = None) -> str:
        """The flags of a setting."""
        words = [(not degree and self.flags_in_turn) or self.flags]
        words += [self.size_flags] if environments is not None and self.size_flags else []
        growth, whole = self.growth(collectors, environments), environments or self.environments
        values = {name: max(1, round(amount * growth)) for name, amount in self.amounts.items()}
        values |= {"degree": degree, "collectors": collectors, "queued": round(degree * self.degree_unit * growth)}
        try:
            return " ".join(words).format(**values, environments=whole, each=max(1, whole // collectors))
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"The flags {' '.join(words)!r} of the run's summary cannot be filled in ({error!r})."
            ) from None


def pipeline_of(summary: Mapping[str, Any]) -> PipelineDescription:
    """The description in a summary; what it leaves out is as in a plain loop. Where no samples are counted, batches are."""
    block = summary.get("pipeline") or {}
    known = {one.name: block[one.name] for one in fields(PipelineDescription) if block.get(one.name) is not None}
    trains = summary["statistics"]["train_count"]
    known["trained"] = known.get("trained") or summary["counts"].get(summary["axis"]) or trains
    known["collected"] = known.get("collected") or known["trained"]
    if "rounds" in known:
        known["rounds"] = Rounds(**known["rounds"])
    return PipelineDescription(**known)
