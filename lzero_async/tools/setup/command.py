"""The program: `lzero-async setup APPLICATION` installs the lock that the application carries."""

from __future__ import annotations

import argparse
import importlib.resources
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import find_application, how_to_install
from lzero_async.runs.options import program_parser, with_underscores
from lzero_async.tools.setup.locked import TORCH, Lock, alone, check_environment, exit_code, install, read_lock

DESCRIPTION: Final = """Install the tested versions of everything that an application needs into the running environment.

  lzero-async setup NAME --dry_run    say what would be installed
  lzero-async setup NAME              install it

The versions come from the lock that the application carries; pip does not choose. The command can be interrupted and
repeated: what is complete stays, what is missing or torn is installed again."""
TEXT_WIDTH: Final = 100


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("setup", DESCRIPTION)
    parser.add_argument("application", metavar="APPLICATION", help="its name; lzero-async train lists them")
    parser.add_argument("--dry_run", action="store_true", help="say what would be installed, and install nothing")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Install the lock; return the exit code: 0 done, 1 pip failed, 2 bad input, 130 interrupted."""
    flags = _parser().parse_args([with_underscores(word) for word in arguments])
    return exit_code(lambda: set_up(flags.application, dry_run=flags.dry_run))


def set_up(application: str, *, dry_run: bool) -> int:
    """Say what will be done, and do it."""
    lock = read_lock(_lock_file(application))
    check_environment(lock)
    if dry_run:
        print(plan(application, lock, lock.missing(), listed=True))
        print("Nothing was installed (--dry_run).")
        return 0
    with alone():
        missing = lock.missing()
        print(plan(application, lock, missing, listed=False), flush=True)
        if missing:
            install([lock])
            print(f"Installed. lzero-async train {application} --help explains how to train.")
    return 0


def _lock_file(application: str) -> Path:
    """The lock that the application's entry names."""
    name = find_application(application).lock
    if not name:
        raise ConfigError(
            f"{application} carries no lock, since pip can install what it needs: {how_to_install(application)}."
        )
    package, _, file = name.partition(":")
    found = Path(str(importlib.resources.files(package) / file))
    if not found.is_file():
        raise ConfigError(f"The lock {name}, which {application} names, is not installed; install {application} again.")
    return found


def plan(application: str, lock: Lock, missing: Sequence[str], *, listed: bool) -> str:
    """What an installation does: how many packages, how much room, into which environment, in which steps."""
    if not missing:
        return f"All {len(lock.pins)} packages of {application} are complete in {sys.prefix}."
    free = shutil.disk_usage(sys.prefix).free / 1e9
    lines = [
        f"{application} needs {len(lock.pins)} packages; {len(missing)} are missing here.",
        f"environment  {sys.prefix} (Python {sys.version.split()[0]}, {free:.0f} GB free)",
        f"lock         {lock.path}",
        *([f"size         {lock.size}"] if lock.size else []),
    ]
    torch = [pin for pin in missing if pin.startswith(TORCH)]
    others = [pin for pin in missing if pin not in torch]
    if torch:
        lines.append(f"first        pip install {torch[0]}, with its dependencies")
    if others:
        lines.append(
            f"{'then' if torch else 'step':13}pip install --no-deps, {len(others)} packages{':' if listed else ''}"
        )
        lines += (
            [fill(", ".join(others), TEXT_WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)]
            if listed
            else []
        )
    return "\n".join(lines)
