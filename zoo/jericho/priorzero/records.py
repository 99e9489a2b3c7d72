"""The numbers of a run on disk: TensorBoard scalars in log/, and one line per train in metrics.jsonl."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Records:
    """Writes into a run's folder. Nothing is opened before the first number, so that `resume` can come before it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metrics = folder / "metrics.jsonl"
        self._board: Any = None
        self._purge: int | None = None

    def prepare(self) -> None:
        """Import TensorBoard's writer, which takes seconds, while nobody waits for it."""
        import tensorboardX  # noqa: F401

    def scalars(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers for TensorBoard at this environment step."""
        if self._board is None:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(str(self._folder / "log"), purge_step=self._purge)
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def train(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl, for whoever wants numbers without TensorBoard."""
        with self._metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def resume(self, trains: int, env_steps: int) -> None:
        """Forget what a killed run made after its last checkpoint; it is made again."""
        self._purge = env_steps + 1
        if not self._metrics.is_file():
            return
        kept = []
        for line in self._metrics.read_text(errors="replace").splitlines():
            try:
                if json.loads(line)["train"] <= trains:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                log.warning("a line of %s cannot be read and is left out: %.60s", self._metrics, line)
        new = self._metrics.with_name("metrics.jsonl.new")
        new.write_text("".join(kept))
        new.replace(self._metrics)

    def flush(self) -> None:
        """Put on disk what TensorBoard still holds back."""
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        """Write what is left and close the files."""
        if self._board is not None:
            self._board.close()
