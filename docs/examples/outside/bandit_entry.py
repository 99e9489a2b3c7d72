"""What the entry point names. Every command reads it, so it imports nothing heavy."""

from lzero_async.runs.applications import ApplicationEntry

APPLICATION = ApplicationEntry(
    name="bandit", help="learn which of ten arms pays best", train="bandit:main", policy="bandit:load"
)
