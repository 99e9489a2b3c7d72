"""What PriorZero's checkpoints are."""

from __future__ import annotations

from typing import Final

from lzero_async.runs.checkpoint import CheckpointKind

CHECKPOINT: Final = CheckpointKind("lzero-async.priorzero", 2, "PriorZero")
