"""How much work the caches saved, as the roles report it."""

from __future__ import annotations

from typing import Any

from lzero_async import Worker


class Reuse:
    """The last report of each role in each of its processes."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, worker: Worker, report: dict[str, Any]) -> None:
        """A role reports."""
        key = report["key"], worker.name
        self._reports.pop(key, None)  # the newest is the last: it tells what the roles of a process share
        self._reports[key] = report

    def totals(self) -> dict[str, float]:
        """Hits of the encoder's, the prior's and the valid actions' caches, of all roles."""
        values: dict[str, float] = {}
        reports = list(self._reports.values())
        shared = {report["key"]: report["shared"] for report in reports}  # roles in one process share these
        for counts in (*shared.values(), *(report["games"] for report in reports)):
            for name, value in counts.items():
                values[name] = values.get(name, 0) + value
        for name, known, asked in (
            ("encoder_hit_rate", values.get("encoder_asked", 0) - values.get("encoder_encoded", 0), "encoder_asked"),
            ("prior_hit_rate", values.get("prior_hits", 0), "prior_requests"),
        ):
            if name in values:
                values[name] = known / values[asked] if values[asked] else 0.0
        return values
