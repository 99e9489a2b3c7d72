"""MBPO as an application of lzero-async; its entry point names this."""

from __future__ import annotations

from lzero_async.runs.applications import ApplicationEntry

APPLICATION = ApplicationEntry(
    name="mbpo",
    help="MBPO: SAC with a learned model, on vectorised simulators",
    train="zoo.mbpo.train:main",
)
