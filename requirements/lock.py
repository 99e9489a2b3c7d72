"""Resolve stack.in and dev.in into full locks for the running Python, on this machine's platform.

    python requirements/lock.py [--upgrade]

Pins of the present locks are kept where they still fit; --upgrade lets everything move. Nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GPU_ONLY = re.compile(r"(nvidia|cuda)-|triton$")


def main() -> int:
    """Write both locks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="do not keep the present pins")
    upgrade = parser.parse_args().upgrade
    stack_in = (HERE / "stack.in").read_text()
    wanted, relaxed, unneeded = _lines(stack_in), _words(stack_in, "relaxed"), _words(stack_in, "not needed")
    loose = [line for line in wanted if _name(line) in relaxed]
    print(f"reading what {', '.join(loose)} declare ...", flush=True)
    declared = [
        requirement
        for package in _report(["--no-deps", *loose])
        for requirement in package["metadata"].get("requires_dist", [])
        if "extra ==" not in requirement and _name(requirement) not in unneeded | relaxed
    ]
    print("resolving the stack ...", flush=True)
    plain = [line for line in wanted if line not in loose]
    pins = _pins(_report([*plain, *declared, *_constraints("stack", upgrade)])) | {_name(line): line for line in loose}
    _write("stack", pins)
    print("resolving the tools ...", flush=True)
    tools = _pins(
        _report(
            [*_lines((HERE / "dev.in").read_text()), *_constraints("dev", upgrade), "-c", str(HERE / "stack.lock.txt")]
        )
    )
    _write("dev", {name: pin for name, pin in tools.items() if name not in pins})
    return 0


def _report(arguments: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report"]
        subprocess.run([*command, str(report), *arguments], check=True)
        return list(json.loads(report.read_text())["install"])


def _pins(packages: list[dict[str, Any]]) -> dict[str, str]:
    metadata = [package["metadata"] for package in packages]
    return {
        _name(m["name"]): f"{m['name']}=={m['version'].split('+')[0]}"
        for m in metadata
        if not GPU_ONLY.match(_name(m["name"]))
    }


def _constraints(lock: str, upgrade: bool) -> list[str]:
    path = HERE / f"{lock}.lock.txt"
    return [] if upgrade or not path.exists() else ["-c", str(path)]


def _write(lock: str, pins: dict[str, str]) -> None:
    path = HERE / f"{lock}.lock.txt"
    version = ".".join(map(str, sys.version_info[:2]))
    header = [f"# Made by `make lock` from {lock}.in; install with --no-deps.", f"# python: {version}"]
    present = path.read_text().splitlines() if path.exists() else []
    header += [line for line in present if line.startswith("# size:")]  # measured by hand
    path.write_text("".join(f"{line}\n" for line in [*header, *(pins[name] for name in sorted(pins))]))
    print(f"wrote {path.name}: {len(pins)} pins", flush=True)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _words(text: str, title: str) -> set[str]:
    found = re.search(rf"^# {title}: (.+)$", text, re.MULTILINE)
    return {_name(word) for word in found.group(1).split()} if found else set()


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found.group(0)).lower()


if __name__ == "__main__":
    sys.exit(main())
