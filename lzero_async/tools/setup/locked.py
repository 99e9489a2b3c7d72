"""Install a lock into the running Python's environment, and check that every file arrived.

Can be interrupted and repeated: what is complete stays, what is missing or torn is installed again. Needs the standard library
and pip only, since it runs before anything else is there.
"""

from __future__ import annotations

import fcntl
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from lzero_async.errors import ConfigError

TORCH: Final = "torch=="
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Lock:
    """The pins of a lock file, `name==version` each, and what its comments say of it."""

    path: Path
    pins: tuple[str, ...]
    python: str
    size: str

    def missing(self) -> list[str]:
        """The pins that are not installed in full."""
        return [pin for pin in self.pins if not is_complete(pin)]


def read_lock(path: Path) -> Lock:
    """The lock. A comment `# python: 3.11` names its Python, `# size: ...` the room that it takes."""
    lines = path.read_text().splitlines()
    said = {match[1]: match[2] for line in lines if (match := re.match(r"# (python|size): (.+)", line))}
    pins = tuple(line for line in lines if line and not line.startswith("#"))
    return Lock(path, pins, said.get("python", ""), said.get("size", ""))


def check_environment(lock: Lock) -> None:
    """ConfigError in one sentence if the lock cannot be installed here."""
    if sys.platform != "linux":
        raise ConfigError(f"The locked packages are for Linux, but this is {sys.platform}; use a Linux machine.")
    running = ".".join(map(str, sys.version_info[:2]))
    if lock.python and running != lock.python:
        raise ConfigError(
            f"The locked packages are for Python {lock.python}, but this is {running}; make an environment with "
            f"Python {lock.python} and repeat the command there."
        )
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"The environment {sys.prefix} has no pip; install it with {sys.executable} -m ensurepip and repeat the command."
        )


def install(locks: Sequence[Lock]) -> None:
    """Install what is missing of the locks, torch first; ConfigError if something is still incomplete afterwards."""
    pins = [pin for lock in locks for pin in lock.pins]
    missing = [pin for lock in locks for pin in lock.missing()]
    print(f"Installing {len(missing)} of {len(pins)} packages into {sys.prefix} ...", flush=True)
    if torch := [pin for pin in missing if pin.startswith(TORCH)]:
        # With its dependencies: a CUDA build needs its own libraries, which no lock of ours can know.
        pip([*torch, *(word for lock in locks for word in ("-c", str(lock.path)))])
        missing = [pin for pin in missing if not is_complete(pin)]
    if missing:
        pip(["--no-deps", "--force-reinstall", *missing])
    if torn := [pin for pin in missing if not is_complete(pin)]:
        raise ConfigError(
            f"These packages are still incomplete: {', '.join(torn)}; remove {sys.prefix}, make it again and repeat the command."
        )


def pip(arguments: Sequence[str]) -> None:
    """Run `pip install` with its progress on the screen."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments], check=True)


def is_complete(pin: str) -> bool:
    """Whether this version is installed and every file that it recorded is there in full."""
    name, version = pin.split("==")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    if re.sub(r"\+.*", "", distribution.version) != version:
        return False
    files = distribution.files
    if not files:
        return False
    for file in files:
        if file.suffix == ".pyc":
            continue
        try:
            size = Path(str(file.locate())).stat().st_size
        except OSError:
            return False
        if file.size is not None and size != file.size:
            return False
    return True


@contextmanager
def alone() -> Iterator[None]:
    """Two installations into one environment wait for each other; ConfigError if it cannot be written to."""
    path = Path(sys.prefix) / ".install-lock"
    try:
        lock = path.open("w")
    except OSError as error:
        raise ConfigError(
            f"The environment {sys.prefix} cannot be written to ({error.strerror}); make one, for example with "
            "python3.11 -m venv .venv, and repeat the command there."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def exit_code(program: Callable[[], int]) -> int:
    """Run an installation and return its exit code; an interrupted or failed one says how to continue."""
    try:
        return program()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; the same command continues from here.", file=sys.stderr)
        return INTERRUPTED
    except subprocess.CalledProcessError as error:
        print(
            f"error: a step ended with code {error.returncode}: see above; the same command continues from here.",
            file=sys.stderr,
        )
        return 1
