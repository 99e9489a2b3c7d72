"""Hosts of a test on this machine: each has a network, a name and a home of its own, and a cable that can be pulled."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
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
        self._switch = SWITCH.format(pid=os.getpid())
        _make_ray_folder()
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for number in self._numbers:
                for name in ("ray", "home"):
                    (folder / f"{number}" / name).mkdir(parents=True)
                self._connect(number)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def possible() -> bool:
        """Whether this machine lets us make hosts: one is made."""
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            return False
        with tempfile.TemporaryDirectory() as folder:
            try:
                hosts = Hosts(1, Path(folder))
            except (OSError, subprocess.CalledProcessError):
                return False
            try:
                return subprocess.run(hosts.command(1, "true"), capture_output=True, check=False).returncode == 0
            finally:
                hosts.close()

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

    def cable_command(self, number: int, state: str) -> list[str]:
        """What pulls a host's cable ("down") or plugs it in ("up"); it may also be run on a host."""
        return ["ip", "-n", self._switch, "link", "set", f"port{number}", state]

    def close(self) -> None:
        """End every process on the hosts, and the hosts."""
        for number in self._numbers:
            for _ in range(100):  # one may start another while it is being ended
                if not (pids := self._processes(number)):
                    break
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for name in (*map(self._name, self._numbers), self._switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def _processes(self, number: int) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self._name(number)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

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


def _make_ray_folder() -> None:
    """Each host has its own mounted over it; Ray lets every user write there."""
    folder = Path(RAY_FOLDER)
    if not folder.is_dir():
        folder.mkdir()
        folder.chmod(0o777)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
