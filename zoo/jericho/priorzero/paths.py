"""Where things that outlive a run are kept."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "LZERO_ASYNC_CACHE"


def valid_actions_file() -> Path:
    """Where valid actions are kept, unless the user names another file."""
    return cache_dir() / "valid_actions.sqlite"


def cache_dir() -> Path:
    """The user's cache folder: `$LZERO_ASYNC_CACHE`, else `$XDG_CACHE_HOME/lzero_async`, else `~/.cache/lzero_async`."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lzero_async"
