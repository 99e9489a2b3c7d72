"""The roles of a run: how they are started, where they are, and what their processes use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from lzero_async.core.activity import RoleActivity
from lzero_async.telemetry.utilisation import Use, use_of
from lzero_async.workers.backend import Backend, Factory, Worker

PLACES: Final = {
    "process": "a process each",
    "ray": "an actor each on Ray",
}  # backends whose roles have processes of their own


def thread_limit(number: int) -> dict[str, str]:
    """The environment variables of a process whose numerical libraries may use so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))


class RoleSet:
    """The roles that `workers` names, on one backend; what they print goes to files in `folder`."""

    def __init__(self, backend: Backend, folder: Path, workers: Callable[[], list[Worker]]) -> None:
        self.backend, self.folder, self._workers = backend, folder, workers
        self._before: dict[tuple[str, int], Use] = {}  # what each process had used when the run began
        self._after: dict[str, Use] | None = None  # when it was over

    def start(
        self,
        name: str,
        factory: Factory,
        *,
        threads: int = 1,
        on_event: Callable[[Any], None] | None = None,
        pin_to_driver: bool = False,
        **environment: str,
    ) -> Worker:
        """Start a role whose libraries may use so many threads; see `Backend.start`."""
        return self.backend.start(
            name,
            factory,
            on_event=on_event,
            environment={**thread_limit(threads), **environment},
            output=self.output(name),
            pin_to_driver=pin_to_driver,
        )

    def output(self, name: str) -> str:
        """The file with what a role prints."""
        return str(self.folder / f"{name.replace(' ', '-')}.out")

    @property
    def place(self) -> str:
        """Where roles live that have processes of their own; '' if they have none."""
        return PLACES.get(self.backend.kind, "")

    def pids(self) -> dict[str, int]:
        """The processes of the roles that have one of their own on this machine."""
        if not self.place:
            return {}
        return {worker.name: worker.pid for worker in self._workers() if worker.alive and not worker.host}

    def begin(self) -> None:
        """A run begins: from now on what they use is its own."""
        pids = self.pids()
        self._before = {(name, pids[name]): used for name, used in use_of(pids).items()}
        self._after = None

    def end(self) -> None:
        """The run is over: what they use from now on is not its own."""
        self._after = self.used()

    def used(self) -> dict[str, Use]:
        """What the roles that have a process of their own used since the run began, and their memory."""
        if self._after is not None:
            return self._after
        pids, nothing = self.pids(), Use(0.0, 0, 0.0)
        return {name: used.since(self._before.get((name, pids[name]), nothing)) for name, used in use_of(pids).items()}

    def rows(self, activity: Iterable[RoleActivity]) -> list[dict[str, Any]]:
        """What each role did and used; one that works for others, who have the spans (environments of a pool, say), has no
        seconds of its own."""
        workers = {worker.name: worker for worker in self._workers()}
        spent, used = {one.role: one for one in activity}, self.used()
        rows = []
        for role in [*spent, *(name for name in workers if name not in spent and name in used)]:
            one, (cpu, memory, queued) = spent.get(role), used.get(role, (None, None, None))
            seconds = {name: None if one is None else getattr(one, name) for name in ("active", "waiting", "idle")}
            restarts = workers[role].restarts if role in workers else 0
            used_by = {"cpu_seconds": cpu, "queued_seconds": queued, "memory_bytes": memory}
            rows.append({"role": role, **seconds, **used_by, "restarts": restarts})
        return rows
