"""What was left out of the data and of the training, counted from the very start of a run, resumes included."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from lzero_async.errors import StepOverdue, WorkerStuck

TIMEOUT = "timeout"
log = logging.getLogger(__name__)


class Troubles:
    """Bad episodes by their kind, environments that hung, batches that the learner refused, updates that were left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bad_episodes: dict[str, int] = {}
        self._lost_to_hanging = 0  # roles that were ended, because an environment hung in them
        self._learner: dict[str, int] = {}
        self._before: dict[str, int] = {}  # the learner's counts before the last resume or restart

    def episode(self, kind: str, sentence: str) -> None:
        """An episode was left out; said at the first, second, fourth, eighth of its kind and so on."""
        with self._lock:
            count = self.bad_episodes[kind] = self.bad_episodes.get(kind, 0) + 1
        if count & (count - 1) == 0:
            log.warning("bad episode, left out (%d of this kind: %s): %s", count, kind.replace("_", " "), sentence)

    def role_failed(self, error: Exception | None) -> None:
        """A role is made anew after this error."""
        if isinstance(error, (WorkerStuck, StepOverdue)):
            with self._lock:
                self._lost_to_hanging += 1

    def learned(self, report: Mapping[str, Any]) -> None:
        """What the learners say of themselves."""
        names = ("bad_batches", "bad_updates", "dynamics_bad_updates")
        for name in (name for name in names if name in report):
            before, now = self._learner.get(name, 0), int(report[name])
            if now < before:  # its role was made anew and counts from 0
                self._before[name] = self._before.get(name, 0) + before
            self._learner[name] = now

    def counts(self) -> dict[str, int]:
        """The totals."""
        with self._lock:
            learner = {
                name: self._before.get(name, 0) + count for name, count in {**self._zero(), **self._learner}.items()
            }
            return {
                "bad_episodes": sum(self.bad_episodes.values()),
                "env_timeouts": self.bad_episodes.get(TIMEOUT, 0) + self._lost_to_hanging,
                "bad_batches": learner["bad_batches"],
                "bad_updates": learner["bad_updates"] + learner["dynamics_bad_updates"],
            }

    def _zero(self) -> dict[str, int]:
        return dict.fromkeys(("bad_batches", "bad_updates", "dynamics_bad_updates"), 0)

    def line(self) -> str:
        """One line about them; '' if there were none."""
        counts = self.counts()
        if not any(counts.values()):
            return ""
        kinds = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in sorted(self.bad_episodes.items()))
        return (
            f"left out: {counts['bad_episodes']:,} bad episodes{f' ({kinds})' if kinds else ''}, {counts['bad_batches']:,} "
            f"batches, {counts['bad_updates']:,} updates; time-outs of environments: {counts['env_timeouts']:,}"
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        counts = self.counts()
        with self._lock:
            return {
                "bad_episodes": dict(self.bad_episodes),
                "lost_to_hanging": self._lost_to_hanging,
                "bad_batches": counts["bad_batches"],
                "bad_updates": counts["bad_updates"],
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self.bad_episodes = {str(kind): int(count) for kind, count in state["bad_episodes"].items()}
        self._lost_to_hanging = int(state["lost_to_hanging"])
        self._before = {name: int(state[name]) for name in ("bad_batches", "bad_updates")}
