"""Reading a saved coordinator state: everything is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lzero_async.core.statistics import Recorder
from lzero_async.errors import ConfigError

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
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"The saved state of the gate cannot be read ({error!r}); use another checkpoint.") from error
    if given != len(ids):
        raise ConfigError(f"The state has {len(ids)} waiting batches, but {given} were given; give one for each.")
    return dict(zip(ids, data, strict=True))


def _part(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = state.get(name)
    if not isinstance(part, Mapping):
        raise ConfigError(f"The saved state has no {name!r}; use another checkpoint.")
    return part
