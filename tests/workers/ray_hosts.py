"""A Ray cluster over several hosts with a network of their own, started as a user starts it, and a run that loses one of them
when its cable is pulled: nobody is told anything, and all its processes go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.workers.hosts import Hosts
from tests.workers.ray_nodes import Loss, lose_a_node

ROOT = Path(__file__).resolve().parents[2].parent
PORT = 6379
SECONDS = 120.0  # for one command of a host, unless said otherwise


class RayHosts:
    """`count` hosts: the first is the head, without cores unless `head_cores` are given, the others have `cores` each. All
    have the cluster's token. Needs Ray, and `Hosts.possible()`."""

    def __init__(self, count: int, folder: Path, *, cores: int = 4, head_cores: int = 0) -> None:
        self.hosts = Hosts(count, folder)
        try:
            token = self.run(1, "ray", "get-auth-token", "--generate").stdout.strip()
            for number in range(2, count + 1):
                (self.hosts.home(number) / ".ray").mkdir()
                (self.hosts.home(number) / ".ray" / "auth_token").write_text(token)
            head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--num-cpus={head_cores}"]
            self.run(1, "ray", "start", *head)
            for number in range(2, count + 1):
                self.run(number, "ray", "start", f"--address={self.address}", f"--num-cpus={cores}")
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of the cluster, for programs on its hosts."""
        return f"{self.hosts.address(1)}:{PORT}"

    def run(
        self, number: int, program: str, *words: str, seconds: float = SECONDS, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `ray`, or `python`, on a host, in the folder of the project; CalledProcessError if it fails."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        clean |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", **environment}
        command = self.hosts.command(number, str(Path(sys.executable).parent / program), *words)
        done = subprocess.run(
            command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, [program, *words], done.stdout, done.stderr)
        return done

    def close(self) -> None:
        """End the cluster and its hosts."""
        self.hosts.close()


def pull_a_cable(folder: Path, batches: int = 90) -> Loss:
    """Train on so many batches on a cluster of three hosts, and pull the cable of the one with collector 0 meanwhile."""
    cluster = RayHosts(3, folder)
    try:
        cables = [json.dumps(cluster.hosts.cable_command(number, "down")) for number in (1, 2, 3)]
        done = cluster.run(1, "python", "-m", __name__, str(batches), *cables, seconds=300.0)
    finally:
        cluster.close()
    return Loss(**json.loads(done.stdout.splitlines()[-1]))


class _Cables:
    def __init__(self, commands: list[list[str]]) -> None:
        import ray

        ray.init(address="auto", log_to_driver=False, configure_logging=False)
        self._commands = dict(zip((Hosts.address(place + 1) for place in range(len(commands))), commands, strict=True))
        self._ray = ray

    def remove(self, name: str) -> None:
        address = next(node["NodeManagerAddress"] for node in self._ray.nodes() if node["NodeID"] == name)
        subprocess.run(self._commands[address], check=True)


if __name__ == "__main__":
    found = lose_a_node(_Cables([json.loads(word) for word in sys.argv[2:]]), batches=int(sys.argv[1]))
    sys.stdout.write(json.dumps(found._asdict()) + "\n")
