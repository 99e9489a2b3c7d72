"""The numbers of one run, under names that mean the same for every application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.runs.run_files import Run, busy_seconds, by_role


@dataclass(frozen=True)
class Measured:
    """One run. A sample is what the application learns from one environment step; times are seconds.

    `collect_seconds`, `train_seconds` and `eval_seconds` are sums over all roles of a kind; `busy` and `utilisation` are
    shares, None where there is nothing to know.
    """

    seconds: float
    collected: int  # environment steps
    trained: int  # samples that were trained on; what was dropped is not among them
    updates: int
    trains: int
    collect_seconds: float
    train_seconds: float
    eval_seconds: float
    collectors: int
    envs: int
    staleness_mean: float
    staleness_max: float
    dropped: int
    failed: int
    restarts: int
    busy: Mapping[str, float]
    utilisation: Mapping[str, float | None]

    @property
    def throughput(self) -> float:
        """Environment steps collected per second."""
        return self.collected / self.seconds

    @property
    def effective(self) -> float:
        """Samples trained on per second."""
        return self.trained / self.seconds


def measure(
    run: Run,
    statistics: Mapping[str, Any],
    *,
    collected: float,
    trained: float,
    updates: float,
    collectors: int,
    envs: int,
    busy: Mapping[str, float] | None = None,
) -> Measured:
    """The numbers of a run from its coordinator's statistics and what only its application knows."""
    seconds, trains = float(statistics["wall_time"]), int(statistics["train_count"])
    if trains < 1 or seconds <= 0 or trained <= 0:
        raise ConfigError(f"The run in {run.folder} ended before its first train; give it more --seconds.")
    return Measured(
        seconds=seconds,
        collected=int(collected),
        trained=int(trained),
        updates=int(updates),
        trains=trains + int(statistics["replay_count"]),
        collect_seconds=float(statistics["collect_total_time"]),
        train_seconds=sum(span.seconds for span in run.of("train", "replay")),
        eval_seconds=float(statistics["eval_total_time"]),
        collectors=collectors,
        envs=envs,
        staleness_mean=float(statistics["staleness_mean"]),
        staleness_max=float(statistics["staleness_max"]),
        dropped=int(statistics["dropped"]),
        failed=int(statistics["failed"]),
        restarts=int(statistics["restarts"]),
        busy=busy_of(run) if busy is None else busy,
        utilisation=dict(run.results.get("utilisation") or {}),
    )


def busy_of(run: Run) -> dict[str, float]:
    """The share of the run that each kind of role worked, from its trace."""
    roles = by_role(run.spans)
    shares = {role: busy_seconds(spans, 0.0, run.seconds) / run.seconds for role, spans in roles.items()}
    collectors = [share for role, share in shares.items() if role.startswith("collector ")]
    others = {role: share for role, share in shares.items() if not role.startswith("collector ")}
    return {"collectors": sum(collectors) / len(collectors), **others} if collectors else others
