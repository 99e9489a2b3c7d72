"""The same as train_isaac_async.py with the batch trainer (v2): steps of all environments, batch by batch."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from zoo.mbpo import train_isaac_async
from zoo.mbpo.options import BATCH


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code as train.py does."""
    return train_isaac_async.main(arguments, BATCH, "python zoo/mbpo/train_isaac_async_v2.py")


if __name__ == "__main__":
    sys.exit(main())
