"""`zoo/mbpo/train.py` whose continuous trainer waits for dynamics and rollouts: both have told of work before its third batch.

Without that a short run may end before the roles beside the agent have done anything; nothing else is changed.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.mbpo.async_trainer import AsyncTrainer

ENTRY = Path(__file__).resolve().parents[3] / "zoo" / "mbpo" / "train.py"


def patient(learn: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`AsyncTrainer._learn` that takes the second batch of a run when the dynamics have fitted the first, and the third when
    there is model data by these dynamics."""
    batches: dict[AsyncTrainer, int] = {}
    begun: dict[AsyncTrainer, dict[str, int]] = {}

    def waiting(trainer: AsyncTrainer, batch: Any) -> dict[str, Any]:
        first = begun.setdefault(trainer, dict(trainer.counters))
        if not batch.replay:  # one without a batch may owe nothing, so it has not to be waited for
            batches[trainer] = batches.get(trainer, 0) + 1
        stop = trainer.coordinator.stop_signal
        while not _told(trainer, batches.get(trainer, 0), first) and not stop.is_set():
            stop.wait(0.002)
        return learn(trainer, batch)

    return waiting


def _told(trainer: AsyncTrainer, batches: int, first: dict[str, int]) -> bool:
    fitted = trainer._reports["dynamics"].get("dynamics_updates", 0) > first["dynamics_updates"]
    rolled = len(trainer.model_queue) > 0 or trainer.counters["model_data"] > first["model_data"]
    return (fitted or batches < 2) and (rolled or batches < 3)


if __name__ == "__main__":
    AsyncTrainer._learn = patient(AsyncTrainer._learn)  # type: ignore[method-assign]
    runpy.run_path(str(ENTRY), run_name="__main__")
