"""AsyncTrainer v2, batch by batch: collect `num_steps_per_env` steps from all environments, queue the batch, process it.

One collector and one learner, each a process: while the learner works on one batch, the collector makes the next ones, at
most `batch_queue_size` ahead; then it waits, and nothing is dropped. With a queue of 0 the same loop is the synchronous
trainer: collect, train, evaluate, strictly in turn.
"""

from __future__ import annotations

from typing import Any

from lzero_async.types import Batch
from zoo.mbpo.options import BATCH, SYNC, MbpoOptions
from zoo.mbpo.trainer import Trainer


class AsyncTrainerV2(Trainer):
    """The batch trainer, and, with `--trainer sync`, the synchronous one."""

    trainers = (BATCH, SYNC)

    def _collecting(self) -> dict[str, Any]:
        options = self.options
        return {"num_collectors": 1, "collection_batch_size": options.num_steps_per_env * options.num_envs}

    def _coordination(self) -> dict[str, Any]:
        options = self.options
        return {
            "off_policy_degree": 0 if options.trainer == SYNC else options.batch_queue_size,
            "buffer_size": options.real_buffer_size,
            "batch_size": options.num_steps_per_env * options.num_envs,
        }

    def _start_learners(self, options: MbpoOptions, sizes: tuple[int, int]) -> None:
        self.learner = self._start_role("learner", "LearnerRole", options, sizes)

    def _learn(self, batch: Batch) -> dict[str, Any]:
        report: dict[str, Any] = self.learner.call("train", batch.version, batch.version + batch.staleness, batch.data)
        return report
