"""The Ray cluster of a run: started for it, or joined by its address; where in it a role may live."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.validation import role_resources
from lzero_async.workers.ray.liveness import Machines

PATIENCE = 10.0  # seconds for a cluster's machine to answer
MOMENT = 1.0  # the same for one that answered before


class Cluster:
    """A connection to a cluster; `ours` says that it was started for this run and ends with it."""

    def __init__(self, ray: Any, ours: bool, connected: bool, resources: Mapping[str, Mapping[str, float]]) -> None:
        self.ray, self._ours, self._connected, self._resources = ray, ours, connected, resources
        self.node = ray.get_runtime_context().get_node_id()
        self.refusals = ray.exceptions.ActorUnschedulableError, ray.exceptions.RuntimeEnvSetupError
        self._lock = threading.Lock()
        self._suspects: set[str] = set()
        self._machines = Machines()
        self.has_actors = False
        """Whether an actor of this program has ever begun."""

    def options(self, name: str, pin_to_driver: bool) -> dict[str, Any]:
        """What the role of that name needs of a machine, as Ray wants it told."""
        kind = name.rstrip("0123456789").strip()
        # On a machine of our own every role has room; roles that mostly wait may be more than the cores.
        needs = dict(self._resources.get(kind, {} if self._ours or pin_to_driver else {"CPU": 1}))
        memory = {"memory": needs.pop("memory")} if "memory" in needs else {}
        return {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0), "resources": needs, **memory}

    def strategy(self, pin_to_driver: bool) -> Any:
        """Where Ray is to place an actor now: on this machine with `pin_to_driver`, else spread over the machines; on those that
        are gone, though Ray has not noticed yet, only if there is no room elsewhere."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

        if pin_to_driver:
            return NodeAffinitySchedulingStrategy(self.node, soft=False)
        gone = sorted(self._gone())
        return NodeLabelSchedulingStrategy({}, soft={"ray.io/node-id": NotIn(*gone)}) if gone else "SPREAD"

    def attend(self, node: str, tell: Callable[[], None]) -> Callable[[], None]:
        """Have `tell()` called when a machine does not answer any more, which Ray itself may find out a minute later.
        Returns what ends that."""
        if node != self.node:
            for other in self.ray.nodes():
                if other["NodeID"] == node:
                    return self._machines.attend(other["NodeManagerAddress"], other["NodeManagerPort"], tell)
        return lambda: None

    def suspect(self, node: str) -> None:
        """A role was lost on this machine: it may be gone."""
        with self._lock:
            self._suspects.add(node)

    def _gone(self) -> set[str]:
        """The suspects that do not answer, as long as Ray counts them."""
        with self._lock:
            suspects = set(self._suspects)
        if not suspects:
            return suspects
        counted = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        gone = {name for name in suspects & counted.keys() if not _is_there(counted[name])}
        with self._lock:
            self._suspects -= suspects - gone
        return gone

    def why_not(self, place: Mapping[str, Any]) -> str:
        """What an actor wants and what there is."""
        wanted = {"CPU": place["num_cpus"], "GPU": place["num_gpus"], **place["resources"]}
        wanted |= {"memory": place["memory"]} if "memory" in place else {}
        asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items() if amount) or "nothing special"
        free = self.ray.available_resources()
        there = ", ".join(f"{free.get(name, 0):g} {name}" for name in wanted if wanted[name] or name == "CPU")
        remedy = "add machines, or change ray_resources"
        if all(free.get(name, 0) >= amount for name, amount in wanted.items()):
            remedy = (
                "so either no single machine has as much, or its process is still being started, or Ray has not noticed yet "
                "that its machine is gone"
            )
        return f"it needs {asked}, and all machines together have {there} free; {remedy}"

    def refusal_of_all(self, name: str, error: BaseException) -> ConfigError | None:
        """What is wrong if a role is lost before it begins, wherever it is placed, and no other ever began; None if there
        is nothing that would explain it."""
        if self._ours or self.has_actors or not _sends_token():
            return None
        return ConfigError(
            f"{name} does not begin anywhere in the Ray cluster ({in_a_line(error)}); was it started without a token? This "
            "program has one and uses it: set RAY_AUTH_MODE=disabled in the environment, or start the cluster again, with "
            "RAY_AUTH_MODE=token on every machine."
        )

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
        self._machines.close()
        if self._connected:
            self.ray.shutdown()


def join_cluster(address: str, resources: Mapping[str, Mapping[str, float]]) -> Cluster:
    """Connect to the cluster at `address` ('': start one on this machine, that nobody else can reach). A program that is
    connected already goes on with that. Raises ConfigError."""
    resources = role_resources("ray_resources", resources)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address or address.startswith(("127.", "localhost:")):
        # On every system: stay on loopback. Else Ray takes the machine's own address instead, also to look for a cluster.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
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
        except ray.exceptions.AuthenticationError as error:  # token mode, but no token
            raise _refused(address) from error
        except (OSError, RuntimeError, ValueError) as error:
            if _mentions(error, "AuthenticationError"):
                raise _refused(address) from error
            raise ConfigError(
                f"ray_address is {address!r}, but no Ray cluster answers there ({in_a_line(error)}); start one with "
                "'ray start --head' and give HOST:6379 or auto, or leave ray_address out."
            ) from error
        return Cluster(ray, False, True, resources)
    try:
        ray.init(
            address="local",  # never one that happens to run here
            include_dashboard=False,
            _system_config={"prestart_worker_first_driver": False},
            **settings,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"backend is 'ray', but no Ray cluster can be started on this machine ({in_a_line(error)}); start one yourself "
            "with 'ray start --head' and give ray_address, or choose backend 'process'."
        ) from error
    return Cluster(ray, True, True, resources)


def in_a_line(error: BaseException) -> str:
    """What Ray says of an error, which may be a page, for a sentence of ours."""
    return " ".join(str(error).split())[:400]


def _refused(address: str) -> ConfigError:
    """What to say of a cluster that wants another token than this program sends. With an address that the user names Ray
    sends none unless it is told to, even if there is one."""
    remedy = "put what 'ray get-auth-token' prints on the cluster's first machine into ~/.ray/auth_token on this one"
    if _sends_token():
        return ConfigError(
            f"ray_address is {address!r}, but this program has no token that the Ray cluster there would take; {remedy}."
        )
    return ConfigError(
        f"ray_address is {address!r}, but the Ray cluster there refuses programs without its token; set RAY_AUTH_MODE=token "
        f"in the environment, and {remedy}."
    )


def _sends_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _mentions(error: BaseException | None, word: str) -> bool:
    """Whether an error or one of its causes has this word; Ray hands its causes on as text."""
    return error is not None and (word in str(error) or _mentions(error.__cause__, word))


def _is_there(node: Mapping[str, Any]) -> bool:
    """Whether the Ray process of a machine listens."""
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=MOMENT).close()
    except OSError:
        return False
    return True


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("it is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
