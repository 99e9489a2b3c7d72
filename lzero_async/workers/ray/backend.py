"""Workers as actors of a Ray cluster: on this machine, or on any that the cluster has.

Ray places them, moves what they return, and says when one is lost; counting, restarting and everything else is the same as
for processes. A batch is fetched to this machine as soon as its call ends, so that it survives the machine that made it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from lzero_async.clock import RealClock
from lzero_async.errors import WorkerDied
from lzero_async.threads import ThreadGroup
from lzero_async.validation import duration
from lzero_async.workers._bootstrap import specification
from lzero_async.workers.backend import Factory, Worker, close_all
from lzero_async.workers.ray.cluster import Cluster, join_cluster
from lzero_async.workers.ray.life import Life
from lzero_async.workers.supervision import LivingWorker

log = logging.getLogger("lzero_async")
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_MOMENT: Final = 1.0  # seconds for threads whose actors were ended


class RayBackend:
    """Starts roles as actors. `address` is that of a cluster ('': one of its own on this machine); `resources` what a role
    needs of a machine, by the kind of role; `hang_timeout` the seconds without a sign of life after which one is ended."""

    kind = "ray"

    def __init__(
        self,
        *,
        hang_timeout: float = 60.0,
        address: str = "",
        resources: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self._hang_timeout = duration("hang_timeout", hang_timeout)
        self.cluster: Cluster | None = join_cluster(address, resources or {})
        self._threads = ThreadGroup(RealClock(), "lzero-ray")
        self._workers: list[RayWorker] = []

    def start(
        self,
        name: str,
        factory: Factory,
        *,
        on_event: Callable[[Any], None] | None = None,
        environment: Mapping[str, str] | None = None,
        output: str = "",
        pin_to_driver: bool = False,
    ) -> Worker:
        """See `Backend.start`."""
        if self.cluster is None:
            raise WorkerDied(f"{name} cannot be started: its backend is closed.")
        place = self.cluster.options(name, pin_to_driver)
        paths = filter(None, (_ROOT, os.environ.get("PYTHONPATH")))
        # Ray's processes have the environment of whoever started the cluster.
        ours = {key: value for key, value in os.environ.items() if key.startswith("LZERO_ASYNC_")}
        place["runtime_env"] = {"env_vars": {**ours, **(environment or {}), "PYTHONPATH": os.pathsep.join(paths)}}
        new_life = partial(
            Life, name, specification(name, factory), on_event, place, pin_to_driver, os.path.abspath(output) if output else "",
            self._hang_timeout, self.cluster,
        )  # fmt: skip
        worker = RayWorker(name, new_life, self._threads)
        self._workers.append(worker)
        return worker

    def close(self, timeout: float = 5.0) -> None:
        """Close every worker, all at the same time, and leave the cluster; one of its own ends."""
        deadline = time.monotonic() + duration("timeout", timeout, zero=True)
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.begin_close(for_good=True)
            close_all([*workers], timeout)
        finally:
            self._threads.join(max(_MOMENT, deadline - time.monotonic()))
            cluster, self.cluster = self.cluster, None
            if cluster is not None:
                cluster.leave()


class RayWorker(LivingWorker[Life]):
    """One role in an actor; see `Worker`."""

    @property
    def node(self) -> str:
        """Ray's name of the machine that the role lives on; '' while it has no place."""
        return self._life.node
