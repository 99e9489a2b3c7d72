"""What collectors hand to the learner, and its replay buffer, as plain arrays: nothing in a checkpoint is a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lzero_async.lightzero.columns import pack_rows, unpack_rows

RING: Final = (
    "tail", "max_priority", "beta", "head", "next_unique_id", "valid_count", "push_count", "cur_learner_iter",
    "cur_collector_envstep",
)  # fmt: skip
COUNTERS: Final = ("base_idx", "num_of_collected_episodes")
BEGAN: Final = "began_with"  # the version that a segment's first step was played with


@dataclass
class Collected:
    """One collect: game segments with their meta data, or AlphaZero's transitions, which have none."""

    data: list[Any]
    meta: list[dict[str, Any]]

    def length(self, most: int) -> int:
        """Transitions that count for the replay ratio, at most so many of a segment."""
        return sum(min(len(one), most) for one in self.data) if self.meta else len(self.data)


def detached(value: Any) -> Any:
    """The same data in memory of their own: those of a parcel would keep its memory mapped for as long as the buffer has them."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: detached(part) for key, part in value.items()}
    if isinstance(value, list):
        return [detached(part) for part in value]
    if hasattr(value, "obs_segment"):
        vars(value).update(detached(vars(value)))
        return value
    return value.clone() if hasattr(value, "untyped_storage") else value


def pack_batch(collected: Collected) -> dict[str, Any]:
    """A collect as arrays."""
    return {"rows": _pack(collected.data, segments=bool(collected.meta)), "meta": pack_rows(collected.meta)}


def unpack_batch(packed: Mapping[str, Any], policy: Any) -> Collected:
    """The collect that was packed; `policy` is the policy section of the config."""
    meta = unpack_rows(packed["meta"])
    return Collected(_unpack(packed["rows"], policy, segments=bool(meta)), meta)


def stored(buffer: Any) -> int:
    """Transitions in a replay buffer of either kind."""
    return int(buffer.count() if hasattr(buffer, "_sum_tree") else buffer.get_num_of_transitions())


def used_bytes(segments: list[Any]) -> int:
    """Bytes of the arrays of game segments."""
    return sum(value.nbytes for one in segments for value in vars(one).values() if isinstance(value, np.ndarray))


def buffer_state(buffer: Any) -> dict[str, Any]:
    """A replay buffer as arrays and numbers."""
    if hasattr(buffer, "_sum_tree"):
        rows = [row for row in buffer._data if row is not None]
        used = np.asarray([buffer._use_count[row["replay_buffer_idx"]] for row in rows], dtype=np.int64)
        return {"rows": pack_rows(rows), "used": used, **{name: getattr(buffer, f"_{name}") for name in RING}}
    return {
        "rows": _pack(buffer.game_segment_buffer, segments=True),
        "priorities": np.asarray(buffer.game_pos_priorities, dtype=np.float64),
        "positions": np.asarray(buffer.game_segment_game_pos_look_up, dtype=np.int64).reshape(-1, 2),
        **{name: int(getattr(buffer, name)) for name in COUNTERS},
    }


def load_buffer_state(buffer: Any, state: Mapping[str, Any], policy: Any) -> None:
    """Fill an empty buffer from what `buffer_state` gave."""
    if hasattr(buffer, "_sum_tree"):
        for row, used in zip(unpack_rows(state["rows"]), state["used"], strict=True):
            place = row["replay_buffer_idx"]
            buffer._data[place], buffer._use_count[place] = row, int(used)
            buffer._set_weight(row)
        for name in RING:
            setattr(buffer, f"_{name}", state[name])
        return
    buffer.game_segment_buffer = _unpack(state["rows"], policy, segments=True)
    buffer.game_pos_priorities = np.asarray(state["priorities"])
    buffer.game_segment_game_pos_look_up = [(int(segment), int(step)) for segment, step in state["positions"]]
    for name in COUNTERS:
        setattr(buffer, name, int(state[name]))


def _pack(rows: list[Any], *, segments: bool) -> dict[str, Any]:
    return pack_rows([_attributes(row) for row in rows] if segments else rows)


def _attributes(segment: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(segment).items() if name != "action_space"}


def _unpack(packed: Mapping[str, Any], policy: Any, *, segments: bool) -> list[Any]:
    rows = unpack_rows(packed)
    if not segments:
        return rows
    from lzero.mcts.buffer.game_segment import GameSegment

    made = []
    for row in rows:
        segment = GameSegment(None, policy.game_segment_length, policy)
        vars(segment).update(row)
        made.append(segment)
    return made
