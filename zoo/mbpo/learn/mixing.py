"""Batches of real and model data, mixed by `real_ratio` in one preallocated batch."""

from __future__ import annotations

from torch import Tensor

from lzero_async.errors import ConfigError
from lzero_async.validation import real_number, whole_number
from zoo.mbpo.learn.buffers import Batch, Sample, TransitionBuffer


class Mixer:
    """Draws batches: the first `real_ratio` of the rows from `real`, the others from `model`.

    While the model buffer is empty, all rows are real.
    """

    def __init__(self, real: TransitionBuffer, model: TransitionBuffer, batch_size: int, real_ratio: float) -> None:
        self._real, self._model = real, model
        self.real_ratio = real_number("real_ratio", real_ratio)
        if not 0.0 <= self.real_ratio <= 1.0:
            raise ConfigError(f"real_ratio is {real_ratio!r}; it must lie between 0 and 1, where 1 is real data only.")
        self.resize(batch_size)

    def resize(self, batch_size: int) -> None:
        """Change the number of rows of a batch."""
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self._batch = Batch(self.batch_size, self._real.obs_size, self._real.action_size, self._real.device)
        self._split = round(self.batch_size * self.real_ratio)
        self._parts = (self._batch.part(0, self._split), self._batch.part(self._split, self.batch_size))
        self.real_rows = self.batch_size

    def sample(self) -> Sample:
        """One batch, valid until the next; its first `real_rows` rows are real."""
        self.real_rows = self._split if self._model.count else self.batch_size
        if self.real_rows == self.batch_size:
            return self._real.sample(self.batch_size, self._batch)
        if self._split:
            self._real.sample(self._split, self._parts[0])
        self._model.sample(self.batch_size - self._split, self._parts[1])
        return self._batch.sample

    def update_priorities(self, errors: Tensor) -> None:
        """Give the TD errors [batch_size] of the last batch to the buffers that its rows came from."""
        rows, real = self._batch.rows, self.real_rows
        if real:
            self._real.update_priorities(rows[:real], errors[:real])
        if real < self.batch_size:
            self._model.update_priorities(rows[real:], errors[real:])
