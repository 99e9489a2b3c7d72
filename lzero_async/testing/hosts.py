"""Hosts of a test on this machine: each has a network, a name and a home of its own, and a cable that can be pulled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

SWITCH = "lzero-{pid}-switch"
HOST = "lzero-{pid}-{number}"
ADDRESS = "198.51.100.{number}"  # of a range that is for examples, and no way leads out
RAY_FOLDER = "/tmp/ray"  # where Ray has its files: each host sees its own there
_UNSHARED = ("unshare", "--uts", "--mount", "bash", "-c")  # a name and mounts that only what follows sees
_ENTER = f"""
hostname "$1" && mount --make-rprivate / && mount --bind "$2/ray" {RAY_FOLDER} && export HOME="$2/home" && shift 2 && exec "$@"
"""


class Hosts:
    """`count` hosts, numbered from 1, at one switch; nothing leads from there to anywhere else. What only one of them sees
    is in `folder`. Needs root, `ip` and `unshare`: see `possible`."""

    def __init__(self, count: int, folder: Path) -> None:
        self._folder, self._numbers = folder, range(1, count + 1)
        Path(RAY_FOLDER).mkdir(exist_ok=True)
        self._switch = SWITCH.format(pid=os.getpid())
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for number in self._numbers:
            for name in ("ray", "home"):
                (folder / f"{number}" / name).mkdir(parents=True)
            self._connect(number)

    @staticmethod
    def possible() -> bool:
        """Whether this machine lets us make hosts."""
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            return False
        name = f"lzero-{os.getpid()}-try"
        if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
            return False
        try:
            enter = ["ip", "netns", "exec", name, *_UNSHARED, "hostname lzero && mount --make-rprivate /"]
            return subprocess.run(enter, capture_output=True, check=False).returncode == 0
        finally:
            _ip("netns", "delete", name)

    @staticmethod
    def address(number: int) -> str:
        """Where a host is reached by the others."""
        return ADDRESS.format(number=number)

    def home(self, number: int) -> Path:
        """A host's home folder."""
        return self._folder / f"{number}" / "home"

    def command(self, number: int, *words: str) -> list[str]:
        """What runs a command on a host."""
        own = f"host{number}", str(self._folder / f"{number}")
        return ["ip", "netns", "exec", self._name(number), *_UNSHARED, _ENTER, "_", *own, *words]

    def pull_command(self, number: int) -> list[str]:
        """What pulls a host's cable; it may also be run on a host."""
        return ["ip", "-n", self._switch, "link", "set", f"port{number}", "down"]

    def close(self) -> None:
        """End every process on the hosts, and the hosts."""
        for number in self._numbers:
            name = self._name(number)
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in found.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it went with another one
            _ip("netns", "delete", name)
        _ip("netns", "delete", self._switch)

    def _name(self, number: int) -> str:
        return HOST.format(pid=os.getpid(), number=number)

    def _connect(self, number: int) -> None:
        name, port = self._name(number), f"port{number}"
        _ip("netns", "add", name)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
        _ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", name, "route", "add", "default", "dev", "eth0")  # by which programs find out their own address


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
