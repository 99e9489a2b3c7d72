"""The Ray cluster of a run: started for it, or joined by its address; where in it a role may live."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from lzero_async.config import role_resources
from lzero_async.errors import ConfigError

PATIENCE = 10.0  # seconds for a cluster's machine to answer
STORE_SHARE = 0.2  # of this machine's memory, for the object store of a cluster that we start


class Cluster:
    """A connection to a cluster; `ours` says that it was started for this run and ends with it."""

    def __init__(self, ray: Any, ours: bool, connected: bool, resources: Mapping[str, Mapping[str, float]]) -> None:
        self.ray, self._ours, self._connected, self._resources = ray, ours, connected, resources
        self.node = ray.get_runtime_context().get_node_id()

    def options(self, name: str, here: bool) -> dict[str, Any]:
        """How Ray is to place the role of that name: with what it needs, spread over the machines, or `here`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = name.rstrip("0123456789").strip()
        # On a machine of our own every role has room; roles that mostly wait may be more than the cores.
        needs = dict(self._resources.get(kind, {} if self._ours or here else {"CPU": 1}))
        return {
            "num_cpus": needs.pop("CPU", 0),
            "num_gpus": needs.pop("GPU", 0),
            "resources": needs,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node, soft=False) if here else "SPREAD",
        }

    def why_not(self, place: Mapping[str, Any]) -> str:
        """What an actor wants and what there is."""
        wanted = {"CPU": place["num_cpus"], "GPU": place["num_gpus"], **place["resources"]}
        asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items() if amount) or "nothing special"
        free = self.ray.available_resources()
        there = ", ".join(f"{free.get(name, 0):g} {name}" for name in wanted if wanted[name] or name == "CPU")
        return f"it needs {asked}, and all machines together have {there} free; add machines, or change ray_resources"

    def get(self, reference: Any, seconds: float) -> Any:
        """What a reference refers to; None if it is not there within that time."""
        try:
            return self.ray.get(reference, timeout=seconds)
        except self.ray.exceptions.GetTimeoutError:
            return None

    def kill(self, actor: Any) -> None:
        """End an actor, wherever it is."""
        if self.ray.is_initialized():
            self.ray.kill(actor, no_restart=True)

    def leave(self) -> None:
        """Disconnect, unless somebody else in this process connected; a cluster of our own ends."""
        if self._connected:
            self.ray.shutdown()


def join_cluster(address: str, resources: Mapping[str, Mapping[str, float]]) -> Cluster:
    """Connect to the cluster at `address` ('': start one on this machine, that nobody else can reach). A program that is
    connected already goes on with that. Raises ConfigError."""
    resources = role_resources("ray_resources", resources)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on every system: listen on loopback only
    try:
        import ray
    except ImportError as error:
        raise ConfigError("backend is 'ray', but Ray is not installed; pip install 'lzero-async[ray]'.") from error
    if ray.is_initialized():
        return Cluster(ray, False, False, resources)
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.WARNING}
    if address:
        try:
            _knock(address)
            ray.init(address=address, **settings)
        except (OSError, RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"ray_address is {address!r}, but no Ray cluster answers there ({said}); start one with "
                "'ray start --head' and give HOST:6379 or auto, or leave ray_address out."
            ) from error
        return Cluster(ray, False, True, resources)
    ray.init(
        address="local",  # never one that happens to run here
        include_dashboard=False,
        object_store_memory=int(STORE_SHARE * _memory()),
        _system_config={"prestart_worker_first_driver": False},
        **settings,
    )
    return Cluster(ray, True, True, resources)


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("it is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
