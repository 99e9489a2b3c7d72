"""Faults written by hand: the mistakes that would hurt most, one line each, and drawn mutants that change nothing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.drawing import Mutant


class Fault(NamedTuple):
    """A line of a function, wherever that stands in its package, and what it becomes."""

    area: str
    function: str
    line: str
    broken: str


class FaultGone(Exception):
    """The line of a fault is not in the source any more."""


FAULTS: Final = [
    # a collect is admitted though its batch would be too old
    Fault("gate", "collect_rule",
          "if self._next_place() + tickets >= (self.published + 1) * per_train + self.room:",
          "if self._next_place() + tickets >= (self.published + 2) * per_train + self.room:"),
    # more batches wait than the degree allows
    Fault("gate", "commit_rule",
          "if len(self.waiting) >= self.lag_bound:",
          "if len(self.waiting) > self.lag_bound:"),
    # one replay too many in a row
    Fault("gate", "replay_rule",
          "if self.degree == 0 or self.replays_in_row >= self.max_train_ahead:",
          "if self.degree == 0 or self.replays_in_row > self.max_train_ahead:"),
    # weights come one train late
    Fault("gate", "publish_due",
          "return self.version - self.published >= self.publish_every",
          "return self.version - self.published > self.publish_every"),
    # the batch of a failed train loses its turn
    Fault("gate", "_taken",
          'return self.per_train if self.running == "train" or self.owed else 0',
          'return self.per_train if self.running == "train" else 0'),
    # what is dropped is not counted
    Fault("gate", "_drop",
          "self.dropped += len(tickets)",
          "self.dropped += 0"),
    # a batch loses its priority on its way to the queue
    Fault("gatekeeper", "request_commit",
          "if self._try_commit(ticket, priority):",
          "if self._try_commit(ticket):"),
    # a closed coordinator is stopped for another reason, and can be restarted
    Fault("gatekeeper", "set",
          "if self.error is None or isinstance(error, CoordinatorClosed):",
          "if self.error is None:"),
    # the data of a trained batch is kept for ever
    Fault("gatekeeper", "finish_train",
          "del self.data[ticket.id]",
          "pass"),
    # a failed collect is counted as abandoned, and the other way round
    Fault("gatekeeper", "_let_go_of_tickets",
          "elif failed:",
          "elif not failed:"),
    # whoever sleeps does not hear of the stop
    Fault("gatekeeper", "set",
          "waiter.wake()",
          "pass"),
    # one collect more than max_collect
    Fault("gatekeeper", "_limit_rule",
          'if self._max_collect is not None and count(gate, "committed") + tickets >= self._max_collect:',
          'if self._max_collect is not None and count(gate, "committed") + tickets > self._max_collect:'),
    # buffers overlap
    Fault("parcels", "pack",
          "end += -(-raw.nbytes // _ALIGN) * _ALIGN",
          "end += raw.nbytes // _ALIGN * _ALIGN"),
    # whoever writes into an opened parcel writes into everybody's
    Fault("parcels", "of",
          "mapped = cls(lease.descriptor, size, access=mmap.ACCESS_COPY)",
          "mapped = cls(os.open(f'/proc/self/fd/{lease.descriptor}', os.O_RDWR), size)"),
    # memory that somebody sees is used again
    Fault("parcels", "_free",
          "return [region for region in self._watched if region.is_free()]",
          "return [region for region in self._watched if region.is_free() or True]"),
    # a live value is handed on without a copy
    Fault("parcels", "settled",
          "self._value, self._live = copy(self._value), False",
          "self._live = False"),
    # one train too many
    Fault("loop", "_ended",
          "elif self.max_train is not None and coordinator.train_count >= self.max_train:",
          "elif self.max_train is not None and coordinator.train_count > self.max_train:"),
    # one restart too many
    Fault("loop", "_pause_after",
          'if coordinator.recovery.on_failure != "restart" or failures >= coordinator.recovery.max_restarts:',
          'if coordinator.recovery.on_failure != "restart" or failures > coordinator.recovery.max_restarts:'),
    # the second failure hides the first
    Fault("loop", "_fail",
          "if self.failure is None:",
          "if self.failure is None or error is not None:"),
    # a count that was never reached is taken from a saved state
    Fault("resume", "read_state",
          "if isinstance(reached := gate.get(name), int) and count > reached:",
          "if isinstance(reached := gate.get(name), int) and count > reached + 1:"),
    # the data of saved batches is not counted
    Fault("resume", "_by_id",
          "if given != len(ids):",
          "if given < len(ids):"),
    # a token sees what comes after it
    Fault("search", "_advance",
          "hidden_from = torch.arange(end, device=self.device)[None, None, None] > positions[:, None, :, None]",
          "hidden_from = torch.arange(end, device=self.device)[None, None, None] > positions[:, None, :, None] + 1"),
    # a new node's keys overwrite those of its action
    Fault("search", "_expand",
          "hidden = self._advance(latent.unsqueeze(1), keys, values, sizes + 1)[:, 0]",
          "hidden = self._advance(latent.unsqueeze(1), keys, values, sizes)[:, 0]"),
    # padding counts as positions, so that the wrong ones are evicted
    Fault("replay", "_remove",
          "positions = sum(min(len(segment), length) for segment in gone)",
          "positions = sum(len(segment) for segment in gone)"),
    # answers of other weights are found
    Fault("prior", "_key",
          "parts: list[Any] = [prompt_key(query.prompt), query.item.actions, weights, self._reduction]",
          "parts: list[Any] = [prompt_key(query.prompt), query.item.actions, self._reduction]"),
]  # fmt: skip


def locate(root: Path, package: str, fault: Fault) -> Mutant:
    """The fault as a change of the one line in the package that it is about."""
    found = []
    for path in sorted((root / package).rglob("*.py")):
        source = path.read_bytes()
        if fault.line.encode() not in source:
            continue
        lines = source.splitlines(keepends=True)
        named = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
        for function in (node for node in named if node.name == fault.function):
            for number in range(function.lineno - 1, function.end_lineno or 0):
                if lines[number].strip() == fault.line.encode():
                    start = sum(map(len, lines[:number])) + len(lines[number]) - len(lines[number].lstrip())
                    end = start + len(fault.line.encode())
                    place = str(path.relative_to(root))
                    found.append(Mutant(*fault, place, start, end, fault.broken))
    if len(found) != 1:
        raise FaultGone(
            f"{len(found)} lines of {fault.function}() in {package} are {fault.line!r}; adapt tests/mutants/faults.py."
        )
    return found[0]


EQUIVALENT: Final[dict[str, str]] = {
    "_take: capacity = 1 << max(16, (size - 1).bit_length()) -> capacity = 1 << max(16, (size - 2).bit_length())": (
        "sizes are multiples of the alignment, so that both are the same"
    ),
    "request_commit: return ticket -> return None": "only whether it is a parked request is looked at",
    "__init__: self.rank = (0, 0) -> self.rank = (0, 1)": "a request gets its rank before anybody compares it",
    "tensors_travel_in_parcels: if importlib.util.find_spec('torch') is None: -> if importlib.util.find_spec('torch') is not None:": (  # noqa: E501
        "it is a check of the conformance suite, not a parcel"
    ),
    "_line_up: priority = 0.0 -> priority = 1.0": "a line in order of arrival needs equal priorities, whatever they are",
}
"""Drawn mutants that no test can kill, by name, with the reason."""
