"""Ring buffers of transitions: preallocated storage, recycled rows, three laws of sampling, a version for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lzero_async.errors import ConfigError
from lzero_async.runs.soundness import check_finite, is_finite
from lzero_async.validation import one_of, positive_number, whole_number
from zoo.mbpo.learn.networks import generator_of, load_generator_state
from zoo.mbpo.learn.sum_tree import SumTree
from zoo.mbpo.learn.transitions import Transitions, check

SAMPLINGS = ("uniform", "recent", "priority")
KEPT_SIZES = 8  # numbers of rows n whose storage is kept for the next draw
PRIORITY_EXPONENT = 0.6  # 0 would be uniform
IMPORTANCE_EXPONENT = 0.4  # 1 would undo the bias of the priorities
PRIORITY_FLOOR = 1e-3  # added to each error, so that no row is lost for good


class Sample(NamedTuple):
    """n drawn transitions; the fields are parts of storage that the next draw of the same n writes over."""

    obs: Tensor  # [n, O]
    action: Tensor  # [n, A]
    reward: Tensor  # [n]
    next_obs: Tensor  # [n, O]
    terminated: Tensor  # [n]
    rows: Tensor  # [n] int64, places in the buffer
    versions: Tensor  # [n] int64, of whatever made the row
    weight: Tensor  # [n] importance weights, ones unless the sampling is `priority`


class Batch:
    """Storage for n rows of a buffer's table, and a Sample of views into it; `parts` share it row by row."""

    def __init__(self, n: int, obs_size: int, action_size: int, device: str | torch.device) -> None:
        width = _width(obs_size, action_size)
        self._sizes = (obs_size, action_size)
        self._set(
            torch.zeros(n, width, device=device),
            torch.zeros(n, dtype=torch.int64, device=device),
            torch.zeros(n, dtype=torch.int64, device=device),
            torch.ones(n, device=device),
        )

    def _set(self, table: Tensor, rows: Tensor, versions: Tensor, weight: Tensor) -> None:
        self.table, self.rows, self.versions, self.weight = table, rows, versions, weight
        self.sample = Sample(*_columns(table, *self._sizes), rows, versions, weight)

    def part(self, start: int, stop: int) -> Batch:
        """The rows from `start` to before `stop`, sharing this storage."""
        part = Batch.__new__(Batch)
        part._sizes = self._sizes
        part._set(*(array[start:stop] for array in (self.table, self.rows, self.versions, self.weight)))
        return part


class TransitionBuffer:
    """The newest `capacity` transitions on `device`.

    `uniform` draws all rows alike. `recent` draws the rank from the newest on by an exponential law cut at the oldest
    row: a row is half as likely as one that is `recent_half_life` (a share of the filled buffer) newer. `priority` draws in
    proportion to (|error| + floor) ** exponent; new rows have the highest priority seen, and `Sample.weight` holds the
    importance weights.
    """

    def __init__(
        self,
        capacity: int,
        obs_size: int,
        action_size: int,
        *,
        device: str | torch.device = "cpu",
        sampling: str = "uniform",
        recent_half_life: float = 0.25,
        seed: int = 0,
    ) -> None:
        self.capacity = whole_number("capacity", capacity, 1)
        self.obs_size = whole_number("obs_size", obs_size, 1)
        self.action_size = whole_number("action_size", action_size, 1)
        self.sampling = one_of("sampling", sampling, SAMPLINGS)
        self.recent_half_life = positive_number("recent_half_life", recent_half_life)
        self.device = torch.device(device)
        self.total_added = 0
        self.count = 0
        self._head = 0  # the row that is written next
        self._generator = generator_of(self.device, seed)
        self._table = torch.zeros(self.capacity, _width(obs_size, action_size), device=self.device)
        self._versions = torch.zeros(self.capacity, dtype=torch.int64, device=self.device)
        self._tree = SumTree(self.capacity, self.device) if self.sampling == "priority" else None
        self._top = torch.ones((), dtype=torch.float64, device=self.device)  # the highest priority seen
        self._batches: dict[int, Batch] = {}

    @property
    def share_filled(self) -> float:
        """Filled share of the capacity, 0 to 1."""
        return self.count / self.capacity

    def add(self, transitions: Transitions, version: int) -> None:
        """Store transitions made by `version` over the oldest rows; of more than fit, the newest stay.

        Raises BadData, with nothing stored, if a value is not finite.
        """
        check(transitions)
        if transitions.obs.shape[1] != self.obs_size or transitions.action.shape[1] != self.action_size:
            raise ConfigError(
                f"the transitions have {transitions.obs.shape[1]} observation and {transitions.action.shape[1]} action "
                f"columns; this buffer holds {self.obs_size} and {self.action_size}."
            )
        added = transitions.count
        kept = transitions if added <= self.capacity else transitions.take(slice(added - self.capacity, None))
        rows = (self._head + torch.arange(kept.count, device=self.device)) % self.capacity
        new = torch.empty(kept.count, self._table.shape[1], device=self.device)
        for column, field in zip(_columns(new, self.obs_size, self.action_size), kept, strict=True):
            column.copy_(torch.as_tensor(field))
        if not is_finite(new):
            for name, field in kept.to_arrays().items():
                check_finite(name, field, "the batch")
        self._table.index_copy_(0, rows, new)
        self._versions[rows] = version
        if self._tree is not None:
            self._tree.set(rows, self._top.expand(kept.count))
        self._head = (self._head + kept.count) % self.capacity
        self.count = min(self.count + added, self.capacity)
        self.total_added += added

    def sample(self, n: int, out: Batch | None = None) -> Sample:
        """n transitions drawn with replacement, valid until the next draw of the same n; `out` gets them instead, if given.

        An empty buffer raises ConfigError.
        """
        self._need_rows()
        batch = self._batch(n) if out is None else out
        if self.sampling == "uniform":
            torch.randint(0, self.count, (n,), generator=self._generator, out=batch.rows)
        elif self.sampling == "recent":
            batch.rows.copy_(self._recent_rows(n))
        else:
            self._draw_by_priority(batch)
        return self.gather(batch.rows, batch)

    def gather(self, rows: Tensor, out: Batch | None = None) -> Sample:
        """The transitions at `rows`, valid until the next draw of as many; `out` gets them instead, if given."""
        batch = self._batch(len(rows)) if out is None else out
        if rows is not batch.rows:
            batch.rows.copy_(rows)
            batch.weight.fill_(1.0)
        torch.index_select(self._table, 0, rows, out=batch.table)
        torch.index_select(self._versions, 0, rows, out=batch.versions)
        return batch.sample

    def sample_obs(self, n: int) -> Tensor:
        """n observations [n, O] drawn uniformly, to start rollouts from: a tensor of their own."""
        self._need_rows()
        rows = torch.randint(0, self.count, (n,), generator=self._generator, device=self.device)
        return self._table[rows, : self.obs_size]

    def newest(self, n: int) -> Transitions:
        """Copies of the newest n transitions (fewer if there are fewer), in the order in which they came."""
        return self.take(self._rows_by_rank(torch.arange(min(n, self.count) - 1, -1, -1, device=self.device)))

    def take(self, rows: Tensor) -> Transitions:
        """Copies of the transitions at `rows`."""
        return Transitions(*_columns(self._table[rows], self.obs_size, self.action_size))

    def serials(self) -> Tensor:
        """For each filled row, how many transitions were added before it: a number that stays with a transition."""
        rows = torch.arange(self.count, device=self.device)
        return self.total_added - 1 - (self._head - 1 - rows) % self.capacity

    def age(self, sample: Sample, version: int) -> tuple[float, float]:
        """Mean and largest age of the sampled rows: `version` minus the row's."""
        ages = version - sample.versions
        return float(ages.double().mean()), float(ages.max())

    def update_priorities(self, rows: Tensor, errors: Tensor) -> None:
        """Set the rows' priorities from their TD errors; does nothing unless the sampling is `priority`."""
        if self._tree is None:
            return
        priorities = (errors.detach().abs().double() + PRIORITY_FLOOR) ** PRIORITY_EXPONENT
        torch.maximum(self._top, priorities.max(), out=self._top)
        self._tree.set(rows, priorities)

    def fit_to(self, capacity: int) -> None:
        """Have this capacity; a loaded buffer has the one that was saved."""
        if self.capacity != capacity:
            self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Change the capacity; the newest rows that fit stay, with their versions and priorities."""
        capacity = whole_number("capacity", capacity, 1)
        kept = min(self.count, capacity)
        rows = self._rows_by_rank(torch.arange(kept - 1, -1, -1, device=self.device))
        weights = None if self._tree is None else self._tree.weights[rows]
        table, versions = self._table[rows], self._versions[rows]
        self._table = torch.zeros(capacity, self._table.shape[1], device=self.device)
        self._versions = torch.zeros(capacity, dtype=torch.int64, device=self.device)
        self._table[:kept], self._versions[:kept] = table, versions
        self.capacity, self.count, self._head = capacity, kept, kept % capacity
        if weights is not None:
            self._tree = SumTree(capacity, self.device)
            self._tree.set(torch.arange(kept, device=self.device), weights)

    def state_dict(self) -> dict[str, Any]:
        """The filled rows and all that the next draw depends on, as tensors and numbers."""
        state = {
            "capacity": self.capacity,
            "head": self._head,
            "total_added": self.total_added,
            "table": self._table[: self.count].cpu().clone(),
            "versions": self._versions[: self.count].cpu().clone(),
            "generator": self._generator.get_state(),
        }
        if self._tree is not None:
            state["priorities"] = self._tree.weights[: self.count].cpu().clone()
            state["top_priority"] = float(self._top)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, with its capacity; other row widths raise ConfigError.

        With `priority`, rows saved under another sampling have the highest priority.
        """
        table = torch.as_tensor(state["table"], device=self.device)
        if table.shape[1] != self._table.shape[1]:
            raise ConfigError(
                f"the saved rows have {table.shape[1]} columns; this buffer's have {self._table.shape[1]}."
            )
        self.count = 0
        self.resize(int(state["capacity"]))
        self.count = len(table)
        self._table[: self.count] = table
        self._versions[: self.count] = torch.as_tensor(state["versions"], device=self.device)
        self._head, self.total_added = int(state["head"]), int(state["total_added"])
        load_generator_state(self._generator, state["generator"])
        if self._tree is not None:
            self._top.fill_(float(state.get("top_priority", 1.0)))
            saved = torch.as_tensor(state.get("priorities", self._top.expand(self.count)), device=self.device)
            self._tree.set(torch.arange(self.count, device=self.device), saved)

    def _recent_rows(self, n: int) -> Tensor:
        """Rows whose rank from the newest on follows the exponential law, by its inverse distribution function."""
        points = torch.rand(n, generator=self._generator, device=self.device, dtype=torch.float64)
        shares = -torch.log2(1.0 - points * (1.0 - 2.0 ** (-1.0 / self.recent_half_life))) * self.recent_half_life
        return self._rows_by_rank((shares * self.count).long().clamp_(max=self.count - 1))

    def _draw_by_priority(self, batch: Batch) -> None:
        """One row from each n-th part of the sum of priorities, so that a batch is spread evenly over it."""
        assert self._tree is not None
        n = len(batch.rows)
        points = torch.rand(n, generator=self._generator, device=self.device, dtype=torch.float64)
        points += torch.arange(n, device=self.device)
        batch.rows.copy_(self._tree.find(points * (self._tree.total / n)))
        weight = self._tree.weights[batch.rows] ** -IMPORTANCE_EXPONENT
        batch.weight.copy_(weight / weight.max())

    def _rows_by_rank(self, ranks: Tensor) -> Tensor:
        """Rows of the transitions that came as the `ranks`-th from the newest (0) on."""
        return (self._head - 1 - ranks) % self.capacity

    def _batch(self, n: int) -> Batch:
        if n not in self._batches:
            if len(self._batches) >= KEPT_SIZES:
                self._batches.pop(next(iter(self._batches)))
            self._batches[n] = Batch(n, self.obs_size, self.action_size, self.device)
        return self._batches[n]

    def _need_rows(self) -> None:
        if not self.count:
            raise ConfigError("the buffer is empty; add transitions before drawing some.")


def _width(obs_size: int, action_size: int) -> int:
    return 2 * obs_size + action_size + 2


def _columns(table: Tensor, obs_size: int, action_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The five fields of a Transitions as views of the table's columns."""
    inputs = obs_size + action_size
    last = table.shape[1] - 1
    return (
        table[:, :obs_size],
        table[:, obs_size:inputs],
        table[:, inputs],
        table[:, inputs + 1 : last],
        table[:, last],
    )
