"""A View as a run would give it, with numbers that differ from each other."""

from __future__ import annotations

from typing import Any

from lzero_async import AsyncTrainingCoordinator
from lzero_async.core.activity import RoleActivity
from lzero_async.telemetry.view import Count, View

STATISTICS: dict[str, Any] = {
    "off_policy_degree": 4, "active_collectors": 2, "collect_count": 12, "train_count": 11, "trained_collects": 23,
    "replay_count": 5, "eval_count": 3, "evals_skipped": 1, "version": 16, "open_collects": 2, "collect_train_lag": 1,
    "mean_lag": 1.25,
    "max_lag": 3, "collect_total_time": 20.0, "train_total_time": 15.0, "eval_total_time": 6.0, "collect_wait_time": 7.0,
    "train_wait_time": 2.5, "eval_wait_time": 0.5, "wall_time": 21.0, "overlap_efficiency": 0.75, "staleness_mean": 1.5,
    "staleness_max": 3, "staleness_counts": {0: 2, 1: 4, 2: 3, 3: 1}, "sample_age_mean": 8.5, "sample_age_max": 30.0,
    "dropped": 6, "failed": 7, "rejected": 15, "abandoned": 8, "restarts": 9, "retired": 10, "degree_changes": 13,
    "train_failures": 14, "refused_threads": 21, "missing_descriptors": 22,
    "bad_episodes": 15, "env_timeouts": 17, "bad_batches": 18, "bad_updates": 19,
}  # fmt: skip
OWN = {"bad_episodes", "env_timeouts", "bad_batches", "bad_updates"}  # of an application
ROLES = (
    RoleActivity("collector 0", "active", "collect", 1.0, 6.0, 3.0, 1.0),
    RoleActivity("collector 1", "waiting", "wait commit", 0.5, 4.0, 5.0, 1.0),
    RoleActivity("learner", "active", "train", 0.25, 9.0, 1.0, 0.0),
)


def sample_view(
    *, roles: tuple[RoleActivity, ...] = ROLES, steps: int = 1234, buffer: float | None = None, **statistics: Any
) -> View:
    """The view; `statistics` replace those above."""
    known = AsyncTrainingCoordinator(4).get_statistics()
    assert STATISTICS.keys() <= known.keys() | OWN
    return View(
        title="PriorZero: a game",
        elapsed=10.0,
        remaining=5.0,
        counts=(
            Count("steps_trained", steps, 20000),
            Count("steps_played", 1500),
            Count("episodes_trained", 20),
            Count("episodes_played", 25),
            Count("updates", 70, before=35),
        ),
        roles=roles,
        statistics=known | STATISTICS | statistics,
        fills={"queue": 0.5, "buffer": buffer},
        score="score",
        last_score=3.0,
        best_score=4.0,
        highest_score=None,
        recent_score=1.0,
        warnings=(),
    )
