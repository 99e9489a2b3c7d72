"""Rows of a replay buffer come out of their columns as they went in, and the columns stay few."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lzero_async.lightzero.columns import pack_rows, unpack_rows
from lzero_async.runs import checkpoint
from lzero_async.runs.checkpoint import CheckpointKind
from lzero_async.runs.checkpoint.packing import pack, unpack
from tests.runs.test_checkpoint import arrays, bits, tensors

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
KIND = CheckpointKind("lzero-async.test", 7, "Test")
ROOT = Path(__file__).parents[2]


def there_and_back(rows: list[Any]) -> list[Any]:
    """Through the parts of a checkpoint's file, without a disk."""
    entries = pack(pack_rows(rows))
    return unpack_rows(unpack(bytes(entries["body"].data), lambda name: memoryview(bytearray(entries[name].data))))


def assert_same(left: Any, right: Any) -> None:
    """Equal in type, order, and every bit."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert_same(list(left), list(right))
        assert_same(list(left.values()), list(right.values()))
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for value, another in zip(left, right, strict=True):
            assert_same(value, another)
    elif isinstance(left, (np.ndarray, np.generic)):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        if left.dtype == object:
            assert_same(list(left.flat), list(right.flat))
        else:
            assert left.tobytes() == right.tobytes()
    elif isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, bits(left)) == (right.dtype, right.shape, bits(right))
    elif isinstance(left, (float, complex)):
        assert repr(left) == repr(right)  # tells -0.0 from 0.0, and nan is nan
    else:
        assert left == right


def count_arrays(rows: list[Any]) -> int:
    return len(pack(pack_rows(rows))) - 1


def objects(items: list[Any]) -> Any:
    return np.fromiter(items, object, len(items))


leaves = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
    | st.complex_numbers() | arrays() | tensors()
    | st.sampled_from([
        np.float64(0.1), np.float32(-0.0), np.float32("nan"), np.int64(-3), np.uint64(2**64 - 1), np.bool_(True), np.int8(1),
        np.datetime64("2020-01-01"), np.datetime64("NaT"), np.timedelta64(3, "h"), np.complex64(1 - 2j), np.str_("a\0"),
        np.bytes_(b"a\0"), np.float16(2), {1, 2}, frozenset(), bytearray(b"ab"), OrderedDict(b=1, a=2),
    ])
)  # fmt: skip
keys = st.sampled_from(["a", "b", "", "$array", "kind", 0, 1, True, False, None, 1.0, -0.0, (1, True), (1, 1)])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3).map(objects)
        | st.dictionaries(keys, inner, max_size=3) | st.builds(lambda item: objects([item] * 4).reshape(2, 1, 2), inner)
        | st.builds(lambda item: objects([item]).reshape(()), inner)
    ),
    max_leaves=8,
)  # fmt: skip


@st.composite
def alike(draw: st.DrawFn, depth: int = 2) -> list[Any]:
    """Rows of one structure, as those of a buffer are, perhaps with holes."""
    count = draw(st.integers(0, 5))

    def column(depth: int) -> list[Any]:
        kind = draw(st.sampled_from(["leaf", "array", "tensor", "objects", *["dict", "list"] * bool(depth)]))
        if kind == "dict":
            names = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3))
            columns = {name: column(depth - 1) for name in names}
            return [{name: columns[name][row] for name in names} for row in range(count)]
        if kind == "list":
            return [[value] * length for length, value in enumerate(column(depth - 1))]
        if kind == "leaf":
            return [draw(draw(st.sampled_from([st.integers(), st.floats(), st.booleans(), st.text()])))] * count
        lengths = [draw(st.integers(0, 3)) for _ in range(count)]
        if kind == "objects":
            return [objects([[0.5] * item for item in range(length)]) for length in lengths]
        made = [np.arange(length * 2, dtype=np.float32).reshape(length, 2) for length in lengths]
        return made if kind == "array" else [torch.from_numpy(array) for array in made]

    rows = column(depth)
    return [None if draw(st.integers(0, 9)) == 0 else row for row in rows]


@settings(deadline=None, max_examples=200)
@given(st.lists(values, max_size=5))
@example([0, False, 0.0, None, np.int64(0), np.float64(0), 2**63, -(2**63), "0"])
@example([[], (), {}, objects([]), np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0)), torch.zeros(0), torch.zeros(3, 0)])
@example([np.array(1), np.array(1, ">i4"), np.array(b"abc"), np.array("ab"), torch.tensor(1), objects([np.array(2)])])
@example([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {1: 1}, {True: 1}, {}, None])
def test_rows_of_any_kind_come_out_as_they_went_in(rows: list[Any]) -> None:
    assert_same(unpack_rows(pack_rows(rows)), rows)
    assert_same(there_and_back(rows), rows)


@settings(deadline=None, max_examples=100)
@given(alike())
def test_rows_that_are_alike_come_out_as_they_went_in(rows: list[Any]) -> None:
    assert_same(there_and_back(rows), rows)


def test_a_large_array_stands_for_arrays_of_different_lengths() -> None:
    packed = pack_rows([np.ones((2, 3), np.uint8), np.zeros((0, 3), np.uint8), np.ones((4, 3), np.uint8)])
    assert_same(packed["data"], np.ones(18, np.uint8))
    assert packed["shapes"].tolist() == [[2, 3], [0, 3], [4, 3]]


def test_views_of_any_order_and_tensors_with_gradients() -> None:
    base = np.arange(24.0).reshape(4, 6)
    rows = [base.T, base[::2, ::-3], np.broadcast_to(np.float64(2), (3, 2)), np.asfortranarray(base)]
    assert_same(there_and_back(rows), [np.array(row, order="C") for row in rows])
    weights = [torch.nn.Parameter(torch.ones(2)), torch.ones(3, requires_grad=True), torch.arange(4.0).expand(2, 4).T]
    found = there_and_back(weights)
    assert_same(found, [weight.detach().clone() for weight in weights])
    assert not any(tensor.requires_grad for tensor in found)


@pytest.mark.parametrize("make", [np.arange, torch.arange, lambda size: np.array(["ab"] * size)])
def test_rows_own_their_memory(make: Callable[[int], Any]) -> None:
    """Else one row would keep the memory of all, and writing into the columns would change the rows."""
    rows = [make(5), make(3)]
    packed = pack_rows(rows)
    rows[0][:] = rows[0][1]
    first, second = unpack_rows(packed)
    first[:] = first[1]
    assert_same(second, make(3))
    assert_same(unpack_rows(packed), [make(5), make(3)])
    if isinstance(first, torch.Tensor):
        assert first.untyped_storage().nbytes() == first.nbytes
    else:
        assert first.base is None or first.base.nbytes == first.nbytes


def test_what_a_checkpoint_refuses_is_still_refused() -> None:
    with pytest.raises(checkpoint.ConfigError, match="sparse"):
        pack(pack_rows([{"a": torch.eye(2).to_sparse()}]))
    with pytest.raises(checkpoint.ConfigError, match="SimpleNamespace"):
        pack(pack_rows([SimpleNamespace()]))


def test_only_tensors_need_torch() -> None:
    code = "import sys; from lzero_async.lightzero.columns import pack_rows, unpack_rows"
    code += "; assert unpack_rows(pack_rows([1, [2]])) == [1, [2]]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# -- what buffers hold -----------------------------------------------------------------------------------------------------


def segments(count: int, *, board: bool = False, sampled: bool = False) -> list[dict[str, Any]]:
    """Real ones of LightZero, of different lengths, with the last of them in lists as while they are played."""
    from lzero_async.lightzero.silence import quiet

    with quiet():
        from easydict import EasyDict
        from lzero.mcts.buffer.game_segment import GameSegment
    config = EasyDict(
        num_unroll_steps=5, td_steps=5, discount_factor=0.997, gray_scale=False, transform2string=False, sampled_algo=sampled,
        gumbel_algo=False, use_ture_chance_label_in_chance_encoder=sampled,
        model=dict(frame_stack_num=2, action_space_size=9, observation_shape=(3,), image_channel=1),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        segment = GameSegment(None, 20, config)
        segment.reset([rng.random(3, np.float32)] * 2)
        for step in range(3 + number % 5):
            legal = 9 - step if board else 9
            mask = np.int8(np.arange(9) < legal)
            segment.append(rng.integers(9), rng.random(3, np.float32), rng.random(), mask, 1 + step % 2, step, step % 3)
            visits = rng.integers(1, 9, legal).tolist()
            segment.store_search_stats(visits, rng.random(), rng.random((4, 2)) if sampled else None)
        if number < count - 1:
            segment.game_segment_to_array()
        found.append({name: value for name, value in vars(segment).items() if name != "action_space"})
    return found


@pytest.mark.parametrize("board", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_segments_of_lightzero_are_kept(board: bool, sampled: bool, tmp_path: Path) -> None:
    pytest.importorskip("lzero")
    rows = segments(30, board=board, sampled=sampled)
    assert (rows[0]["child_visit_segment"].dtype == object) is board
    checkpoint.save(tmp_path / "a.safetensors", {"rows": pack_rows([*rows, None])}, KIND)
    found = unpack_rows(checkpoint.load(tmp_path / "a.safetensors", KIND)["rows"])
    assert_same(found, [*rows, None])
    assert count_arrays(rows[:10]) == count_arrays(rows[:29]) < 70
    assert count_arrays(rows) < 120


def transition(number: int) -> dict[str, Any]:
    """As AlphaZero's collector makes it of a game of Connect4."""
    return {
        "obs": {"observation": torch.rand(3, 6, 7), "action_mask": torch.ones(7, dtype=torch.int8), "board": torch.zeros(6, 7),
            "current_player_index": torch.tensor(number % 2), "to_play": None if number % 3 else torch.tensor([1])},
        "action": torch.tensor([number]), "probs": torch.rand(7, dtype=torch.float64),
        "reward": torch.rand(1) if number % 2 else number, "done": number % 9 == 0, "collect_iter": number,
        "replay_unique_id": f"buffer_{number}", "priority": 1.0,
    }  # fmt: skip


def test_transitions_of_alphazero_are_kept(tmp_path: Path) -> None:
    rows = [None if number % 50 == 7 else transition(number) for number in range(500)]
    assert count_arrays(rows[:60]) == count_arrays(rows) < 30
    checkpoint.save(tmp_path / "a.safetensors", {"rows": pack_rows(rows)}, KIND)
    assert_same(unpack_rows(checkpoint.load(tmp_path / "a.safetensors", KIND)["rows"]), rows)


def test_compressed_observations_are_one_array() -> None:
    """As LightZero keeps images with `transform2string`: every segment's text has a width of its own."""
    rows = [np.array([bytes(range(1, 1 + width)) for width in range(1, length)]) for length in range(2, 200)]
    assert len({row.dtype for row in rows}) == len(rows)
    assert count_arrays(rows) == 2
    assert_same(there_and_back(rows), rows)


def test_thousands_of_rows_are_a_few_calls_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    joined = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda *args, **more: (calls.append(1), joined(*args, **more))[1])
    rows = [{"obs": np.ones((5, 4), np.float32), "visits": objects([[0.5] * 3, [1.0]])} for _ in range(3000)]
    assert_same(unpack_rows(pack_rows(rows))[-1], rows[-1])
    assert len(calls) == 1
