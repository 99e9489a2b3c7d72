"""Reading a saved coordinator state: everything is checked before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lzero_async.core.statistics import Recorder
from lzero_async.errors import ConfigError

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator

STATE_FORMAT: Final = 2


class SavedState(NamedTuple):
    """The parts of a saved state; `batches` maps the ids of the waiting batches to their data, if that is known."""

    gate: Mapping[str, Any]
    recorder: Recorder
    adaptive: Mapping[str, Any] | None
    batches: dict[int, Any] | None


def read_state(state: Any, batches: Sequence[Any] | None) -> SavedState:
    """Take a state apart; `batches`, or else what was saved with it, is the data of the waiting batches in order."""
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        raise ConfigError(f"This is not a coordinator state of format {STATE_FORMAT}; use another checkpoint.")
    gate = _part(state, "gate")
    recorder = Recorder()
    recorder.load_state_dict(_part(state, "statistics"))
    for name, count in recorder.base.items():
        if isinstance(reached := gate.get(name), int) and count > reached:
            raise ConfigError(
                f"The saved state is not consistent ({name} is {reached}, and was {count} at the last reset); use another "
                "checkpoint."
            )
    adaptive = None if state.get("adaptive") is None else _part(state, "adaptive")
    data = state.get("batches") if batches is None else batches
    return SavedState(gate, recorder, adaptive, None if data is None else _by_id(gate, data))


def _by_id(gate: Mapping[str, Any], data: Sequence[Any]) -> dict[int, Any]:
    try:
        ids, given = [int(ticket[0]) for ticket in gate["waiting"]], len(data)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"The saved state of the gate cannot be read ({error!r}); use another checkpoint.") from error
    if given != len(ids):
        raise ConfigError(f"The state has {len(ids)} waiting batches, but {given} were given; give one for each.")
    return dict(zip(ids, data, strict=True))


def _part(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = state.get(name)
    if not isinstance(part, Mapping):
        raise ConfigError(f"The saved state has no {name!r}; use another checkpoint.")
    return part


def state_dict(coordinator: AsyncTrainingCoordinator, *, with_batches: bool = False) -> dict[str, Any]:
    """What a resumed run needs, as plain numbers; `with_batches` adds the data of the waiting batches as it is."""
    with coordinator._keeper.lock:
        gate = coordinator._keeper.gate
        state: dict[str, Any] = {
            "format": STATE_FORMAT,
            "gate": gate.state_dict(),
            "statistics": coordinator._keeper.recorder.state_dict(),
            "adaptive": None if coordinator._adaptive is None else coordinator._adaptive.state_dict(),
        }
        if with_batches:
            state["batches"] = [coordinator._keeper.data[ticket.id] for ticket in gate.waiting]
        return state


def load_state_dict(
    coordinator: AsyncTrainingCoordinator, state: Mapping[str, Any], *, batches: Sequence[Any] | None = None
) -> None:
    """Resume from `state_dict()`, after the learner was restored and before anything runs.

    `batches` (or what was saved with them) is the data of the waiting batches; without it they are abandoned.
    Open collects are abandoned in any case. If the degree is now smaller, the lag drains first.
    """
    saved = read_state(state, batches)
    adaptive = copy.copy(coordinator._adaptive)
    if adaptive is not None and saved.adaptive is not None:
        adaptive.load_state_dict(saved.adaptive)
    with coordinator._keeper.lock:
        gate, data = coordinator._keeper.gate, coordinator._keeper.data
        if gate.tickets or gate.running:
            raise ConfigError(
                f"A state is loaded before the run starts, but {len(gate.tickets)} collect(s) are open "
                f"and the learner is {gate.running or 'idle'}; use a new coordinator."
            )
        gate.load_state_dict(saved.gate, keep_waiting=saved.batches is not None)
        data.clear()
        if saved.batches is not None:
            data.update((ticket.id, saved.batches[ticket.id]) for ticket in gate.waiting)
        coordinator._keeper.recorder = saved.recorder
        coordinator._adaptive = adaptive
        if adaptive is not None:
            gate.set_degree(adaptive.degree)
        version = gate.version
    if coordinator._get_weights is not None:
        coordinator.weights.restart(coordinator._get_weights(), version)
    coordinator._keeper.settle()
