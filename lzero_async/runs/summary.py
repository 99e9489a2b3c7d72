"""summary.json: what a run was and came to, in the same words for every application, written while it runs and at its end."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from lzero_async.core.trace import to_json
from lzero_async.errors import ConfigError
from lzero_async.runs.run_dir import SUMMARY

FORMAT: Final = 2  # 1 had no pipeline and no results
PACKAGES: Final = (
    "lzero-async",
    "torch",
    "numpy",
    "LightZero",
    "DI-engine",
    "jericho",
    "transformers",
    "gymnasium",
    "vllm",
)


class OtherFormat(ConfigError):
    """The run was written by another version, which reads it."""


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write it in one step: whoever reads finds the old one or the new one."""
    new = folder / f"{SUMMARY}.new"
    lines = [f"{to_json(name)}: {to_json(value)}" for name, value in summary.items()]
    new.write_text(
        "{\n" + ",\n".join([f'"format": {FORMAT}', *lines]) + "\n}\n"
    )  # a line each: indenting long lists is slow
    new.replace(folder / SUMMARY)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run's folder; ConfigError if there is none that can be read, OtherFormat if another version wrote it."""
    path = folder / SUMMARY
    try:
        found = dict(json.loads(path.read_text(), parse_constant=_refuse))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder} holds no run ({SUMMARY} is missing); give the folder of a run.") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give the folder of another run.") from error
    if found.get("format") != FORMAT:
        raise OtherFormat(
            f"{path} has the format {found.get('format', 'of an older version')}, and this version reads {FORMAT}; use the "
            "version that wrote it, or run it again."
        )
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def read_results(folder: Path) -> dict[str, Any]:
    """All that a run came to: its summary, with the application's own results beside the numbers of every run."""
    found = read_summary(folder)
    return {**found, **found["results"]}


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a run that came to its end."""
    return (folder / SUMMARY).is_file() and read_summary(folder)["ended_by"] is not None


def versions() -> dict[str, str]:
    """Python and the packages that matter, those that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "lzero-async" not in found:
        found["lzero-async"] = "from a checkout"
    return found


def machine() -> dict[str, Any]:
    """What it runs on; GPUs are named where torch is in use already."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    torch, gpus = sys.modules.get("torch"), []
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory,
        "gpus": gpus,
    }
