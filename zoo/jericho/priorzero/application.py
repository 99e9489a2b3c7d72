"""PriorZero as an application of lzero-async; its entry point names this."""

from __future__ import annotations

from lzero_async.runs.applications import ApplicationEntry

APPLICATION = ApplicationEntry(
    name="priorzero",
    help="PriorZero: UniZero with a language model's prior, on text games",
    train="zoo.jericho.priorzero.priorzero_entry:main",
    lock="zoo.jericho.priorzero:stack.lock.txt",
)
