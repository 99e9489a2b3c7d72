"""Checkpoints are exact: what goes in comes out, and a file that is not as it was written is one sentence."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.checkpoint import CheckpointKind
from lzero_async.runs.checkpoint.packing import pack, unpack

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
KIND = CheckpointKind("lzero-async.test", 7, "Test")
Pair = namedtuple("Pair", "left right")


class Step(NamedTuple):
    """A named tuple with types."""

    observation: Any
    reward: float = 0.0


TORCH = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.float16, torch.bfloat16, torch.uint32, torch.int32,
    torch.float32, torch.uint64, torch.int64, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    *(getattr(torch, name) for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    ) if hasattr(torch, name)),
]  # fmt: skip
NUMPY = [
    *"?bBhHiIlLqQefdgFDG", "<M8[ns]", "M8[D]", "M8", "m8[us]", "S5", "U7", ">i4", ">f8", ">U3", ">M8[s]", ">c16",
]  # fmt: skip


def there_and_back(state: dict[str, Any]) -> dict[str, Any]:
    """Through the file's parts, without a disk."""
    entries = pack(state)
    return unpack(bytes(entries["body"].data), lambda name: memoryview(bytearray(entries[name].data)))


def in_order(value: Any) -> str:
    """Its text; a set has no order of its own."""
    if isinstance(value, (frozenset, tuple)):
        parts = [in_order(item) for item in value]
        return f"{type(value).__name__}({sorted(parts) if isinstance(value, frozenset) else parts})"
    return repr(value)


def assert_same(left: Any, right: Any, place: str = "") -> None:
    """Equal in type, order, and every bit."""
    assert type(left) is type(right), place
    if isinstance(left, dict):
        assert len(left) == len(right), place
        for (key, value), (other, another) in zip(left.items(), right.items(), strict=True):
            assert_same(key, other, f"{place}.keys")
            assert_same(value, another, f"{place}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), place
        for index, (value, another) in enumerate(zip(left, right, strict=True)):
            assert_same(value, another, f"{place}/{index}")
    elif isinstance(left, (set, frozenset)):
        assert sorted(map(in_order, left)) == sorted(map(in_order, right)), place
    elif isinstance(left, (np.ndarray, np.generic)):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), place
        assert left.tobytes() == right.tobytes(), place
    elif isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), place
        assert bits(left) == bits(right), place
    elif isinstance(left, (float, complex)):
        assert repr(left) == repr(right), place  # tells -0.0 from 0.0, and nan is nan
    else:
        assert left == right, place


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensors() -> st.SearchStrategy[torch.Tensor]:
    def make(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
        raw = np.random.default_rng(seed).bytes(math.prod(shape) * dtype.itemsize)
        if not raw:
            return torch.empty(shape, dtype=dtype)
        if dtype == torch.bool:
            return torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(shape) > 127
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)

    return st.builds(make, st.sampled_from(TORCH), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 99))


def arrays() -> st.SearchStrategy[Any]:
    dtypes = st.sampled_from([np.dtype(name) for name in NUMPY])
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)

    def make(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int, turned: bool) -> Any:
        made = np.zeros(shape, dtype)
        rng = np.random.default_rng(seed)
        if dtype.kind == "U":
            made[...] = rng.choice(np.array(["", "a", "öß", "\x00z"]), shape)
        elif dtype.kind == "b":
            made[...] = rng.random(shape) > 0.5
        elif dtype.kind != "S" and dtype.char not in "gG" and made.nbytes:
            made = np.frombuffer(bytearray(rng.bytes(made.nbytes)), dtype).reshape(shape)
        elif made.size:
            made[...] = rng.integers(0, 99, shape).astype(dtype)
        return made.T if turned else made

    return st.builds(make, dtypes, shapes, st.integers(0, 99), st.booleans())


any_text = st.text(st.characters(codec=None), max_size=5) | st.sampled_from(
    ["$array", "a/b", "a", "1", "(1, 2)", "\ud83d\ude00"]
)
scalars = st.sampled_from([
    np.float64(0.1), np.float32(-0.0), np.uint64(2**64 - 1), np.bool_(True), np.datetime64("NaT"), np.timedelta64(3, "h"),
    np.complex64(1 - 2j), np.str_("a\0"), np.str_(""), np.bytes_(b"a\0"), np.longdouble(1) / 3, np.float16("nan"),
])  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats() | st.complex_numbers() | any_text
    | st.binary(max_size=9) | scalars
)  # fmt: skip
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text | st.binary(max_size=3),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2) | st.builds(Pair, inner, inner),
    max_leaves=3,
)
values = st.recursive(
    leaves | arrays() | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.builds(Pair, inner, inner) | st.builds(Step, inner)
        | st.dictionaries(keys, inner, max_size=3) | st.sets(keys, max_size=3)
        | st.dictionaries(any_text, inner, max_size=3).map(OrderedDict) | st.binary(max_size=5).map(bytearray)
    ),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(any_text, values, max_size=4))
def test_every_state_comes_out_as_it_went_in(state: dict[str, Any]) -> None:
    assert_same(there_and_back(state), state)


def test_names_that_collide_are_kept_apart(tmp_path: Path) -> None:
    state = {
        "a/b": np.zeros(2), "a": {"b": np.ones(2), "b#2": np.full(2, 5.0)}, 1: np.full(2, 2.0), "1": np.full(2, 3.0),
        (1, 2): torch.full((2,), 4.0), "(1, 2)": torch.full((2,), 5.0), None: {0.5: np.arange(3)}, "0.5": 1,
    }  # fmt: skip
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"state": state, "long": {"x" * 600: np.ones(1), "x" * 601: np.zeros(1)}}, KIND)
    found = checkpoint.load(path, KIND)
    assert_same(found["state"], state)
    assert [float(value[0]) for value in found["long"].values()] == [1.0, 0.0]


@pytest.mark.parametrize("dtype", NUMPY)
def test_every_type_of_numpy_is_kept(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(dtype)
    values = np.arange(24).astype("U") if kind.kind in "SU" else np.arange(24)
    made = values.astype(kind).reshape(4, 6)
    state = {"plain": made, "part": made[::2, 1::3], "turned": made.T, "none": made[:0], "single": made[0, 0, ...]}
    state["still"] = np.frombuffer(made.tobytes(), kind).reshape(4, 6) if made.nbytes else made  # cannot be written to
    checkpoint.save(tmp_path / "a.safetensors", state, KIND)
    found = checkpoint.load(tmp_path / "a.safetensors", KIND)
    assert_same(found, {name: np.array(value) for name, value in state.items()})
    for value in found.values():
        value[...] = value  # what was loaded can be changed


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_every_type_of_torch_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    made = torch.frombuffer(bytearray(random.Random(3).randbytes(24 * dtype.itemsize)), dtype=torch.uint8)
    made = (made > 99 if dtype == torch.bool else made.view(dtype)).reshape(4, 6)
    state = {"plain": made, "part": made[::2, 1::3], "turned": made.T, "none": made[:0], "single": made[0, 0]}
    if dtype.is_complex and dtype != torch.complex32:
        state |= {"conjugate": made.conj(), "negative": made.conj().imag}
    checkpoint.save(tmp_path / "a.safetensors", state, KIND)
    found = checkpoint.load(tmp_path / "a.safetensors", KIND)
    assert_same(found, state)
    for value in found.values():
        value.zero_()


def test_parameters_are_kept_as_tensors(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    checkpoint.save(tmp_path / "a.safetensors", {"w": layer.weight, "all": layer.state_dict()}, KIND)
    found = checkpoint.load(tmp_path / "a.safetensors", KIND)
    assert_same(found["w"], layer.weight.detach())
    assert_same(found["all"], layer.state_dict())


def test_a_single_number_of_any_stride_is_kept(tmp_path: Path) -> None:
    row = torch.arange(6.0).reshape(1, 6)
    state = {
        "column": row[:, 3],
        "corner": torch.arange(9.0).reshape(3, 3)[::2, ::2][1:, 1:],
        "imaginary": torch.tensor([1 + 2j]).conj().imag,
        "bits": row.to(torch.bfloat16)[:, 2:3],
    }
    checkpoint.save(tmp_path / "a.safetensors", state, KIND)
    found = checkpoint.load(tmp_path / "a.safetensors", KIND)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "column": [3.0], "corner": [[8.0]], "imaginary": [-2.0], "bits": [[2.0]]
    }  # fmt: skip


def test_safetensors_reads_the_file_by_name(tmp_path: Path) -> None:
    from safetensors.numpy import load_file as load_arrays
    from safetensors.torch import load_file

    weights = {"bias": torch.ones(3, dtype=torch.bfloat16), "weight": torch.rand(2, 3), "half": torch.rand(5).half()}
    odd = {
        "bytes": np.array(["ab"]),
        "flag": np.array([True]),
        "\ud800": np.arange(3),
        "words": np.arange(5, dtype=np.uint16),
    }
    checkpoint.save(tmp_path / "a.safetensors", {"weights": weights, "odd": odd, "text": "ö" * 7}, KIND)
    found = load_file(tmp_path / "a.safetensors")
    for name, value in weights.items():
        assert_same(found[f"/weights/{name}"], value)
    found = {name: value for name, value in found.items() if name.startswith("/odd")}
    assert found["/odd/bytes"].dtype == torch.uint8
    del weights["bias"]  # numpy has no bfloat16
    checkpoint.save(tmp_path / "b.safetensors", weights, KIND)
    assert_same(load_arrays(tmp_path / "b.safetensors")["/weight"], weights["weight"].numpy())


def quantised() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.array([None]), "object"),
        (np.zeros(2, [("a", "f4")]), "'a'"),
        (np.zeros(2, "V3"), "V3"),
        (np.ma.masked_array([1.0], [True]), "MaskedArray"),
        (torch.sparse_coo_tensor([[0]], [1.0], [2], check_invariants=True), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (quantised(), "qint8"),
        ({torch.ones(1): 1}, "key of type Tensor"),
        ({"set": {(torch.ones(1),)}}, "key of type Tensor"),
        (torch.Size([1]), "Size"),
        (print, "builtin"),
        (object(), "object"),
        (namedtuple("Inner", "x")(1), "Inner"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(value: Any, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="/deep/1") as caught:
        checkpoint.save(tmp_path / "a.safetensors", {"deep": [0, value]}, KIND)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_goes_round_in_circles_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["again"] = [state]
    with pytest.raises(ConfigError, match="100 levels"):
        checkpoint.save(tmp_path / "a.safetensors", state, KIND)
    deep: Any = 1
    for level in range(99):
        deep = {level: deep} if level % 2 else (deep,)
    checkpoint.save(tmp_path / "a.safetensors", {"deep": deep}, KIND)
    assert checkpoint.load(tmp_path / "a.safetensors", KIND) == {"deep": deep}


def test_text_of_more_than_a_hundred_megabytes_is_kept(tmp_path: Path) -> None:
    text = "0123456789" * 10_500_000
    checkpoint.save(tmp_path / "a.safetensors", {"text": text, "w": torch.ones(3)}, KIND)
    found = checkpoint.load(tmp_path / "a.safetensors", KIND)
    assert found["text"] == text
    from safetensors import safe_open

    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("/w"), torch.ones(3))


def test_a_class_that_the_program_has_not_imported_is_not_imported(tmp_path: Path) -> None:
    """Only data are loaded: a file cannot have a module run, nor a class that is no such tuple made."""
    path = tmp_path / "a.safetensors"
    (tmp_path / "owns_a_class.py").write_text("from typing import NamedTuple\nclass Own(NamedTuple):\n    x: int\n")
    code = (
        "import sys; from pathlib import Path; from lzero_async.runs import checkpoint; {0}"
        "kind = checkpoint.CheckpointKind('lzero-async.test', 7, 'Test'); path = Path(sys.argv[1]); {1}"
    )
    save = code.format("import owns_a_class; ", "checkpoint.save(path, {'a': owns_a_class.Own(3)}, kind)")
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}
    subprocess.run([sys.executable, "-c", save, str(path)], env=environment, check=True, timeout=60)
    with pytest.raises(ConfigError, match=r"owns_a_class.Own\(x\).*import its module first"):
        checkpoint.load(path, KIND)
    assert checkpoint.load(path, KIND, arrays=False) == {"a": (3,)}
    for module, name in (
        ("os", "_exit"),
        ("builtins", "tuple"),
        ("tests.runs.test_checkpoint", "Step"),
        ("sys", "exit"),
    ):
        body = json.dumps({"a": {"$named": [module, name, ["x"], [3]]}}).encode()
        with pytest.raises(ConfigError, match="does not have"):
            unpack(body, lambda _: memoryview(b""))


# -- files that are not as they were written ---------------------------------------------------------------------------


STATE = {
    "options": {"a": [1, 2.5, None], "name": "ö"}, "learner": {"w": torch.arange(40.0), "b": torch.ones(3).bfloat16()},
    "replay": {"rows": np.arange(30, dtype=np.uint16), "when": np.array(["2020-01-01"], "M8[D]"), "none": np.zeros((0, 3))},
    "step": Step(np.ones(3), 0.5),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.safetensors"
    checkpoint.save(path, STATE, KIND)
    return path.read_bytes()


def assert_refused(path: Path, *, arrays: bool = True) -> None:
    with pytest.raises(ConfigError) as caught:
        checkpoint.load(path, KIND, arrays=arrays)
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    assert "damaged" in said


def test_every_flipped_bit_is_seen(whole: bytes, tmp_path: Path) -> None:
    """One bit of every byte of the file: length, header, padding, arrays, body, checksums."""
    path, bit = tmp_path / "a.safetensors", random.Random(0)
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << bit.randrange(8)
        path.write_bytes(data)
        assert_refused(path)


def test_every_cut_and_addition_is_seen(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for size in {*range(40), *range(40, len(whole), 29), len(whole) - 1}:
        path.write_bytes(whole[:size])
        assert_refused(path)
        assert_refused(path, arrays=False)
    path.write_bytes(whole + b"\0")
    assert_refused(path)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damage_of_any_kind_is_one_sentence(whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Runs of bytes that were lost to zeros, moved, repeated or made up."""
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start + 1, min(len(whole), start + 300)))
    put = data.draw(st.sampled_from([bytes(end - start), whole[end : 2 * end - start]]) | st.binary(max_size=300))
    found = whole[:start] + put + whole[end:]
    path.write_bytes(found)
    if found == whole:
        assert_same(checkpoint.load(path, KIND), STATE)
    else:
        assert_refused(path)


def test_the_damaged_part_is_named(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    place = whole.index(torch.arange(40.0).numpy().tobytes())
    data = bytearray(whole)
    data[place + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"the checksum of /learner/w is wrong\); use another one"):
        checkpoint.load(path, KIND)
    assert checkpoint.load(path, KIND, arrays=False)["options"] == STATE["options"]  # nothing of it was read


@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize(("version", "said"), [("7", "7"), ("0", "0"), (None, "None")])
def test_an_older_format_is_refused_in_one_sentence(
    version: str | None, said: str, arrays: bool, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    body = json.dumps({"w": {"$tensor": "/w"}})
    named = {} if version is None else {"version": version}
    save_file({"/w": torch.ones(3)}, path, metadata={"format": KIND.format, **named, "body": body})
    with pytest.raises(ConfigError, match=rf"checkpoint format {said}, and this version reads 2\.7; use the version"):
        checkpoint.load(path, KIND, arrays=arrays)
    save_file({"/w": torch.ones(3)}, path)
    with pytest.raises(ConfigError, match=f"is not a checkpoint of {KIND.title}; give --resume one"):
        checkpoint.load(path, KIND, arrays=arrays)


def test_a_state_that_changes_while_it_is_saved_is_still_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is summed is what is written."""
    from lzero_async.runs.checkpoint import tensor_file

    array, write_pieces = np.zeros(3_000_000, np.uint8), tensor_file._write_pieces

    class Changing:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, data: Any) -> None:
            array[:] += 1
            self._file.write(data)

    monkeypatch.setattr(tensor_file, "_write_pieces", lambda file, data: write_pieces(Changing(file), data))
    checkpoint.save(tmp_path / "a.safetensors", {"a": array}, KIND)
    assert set(checkpoint.load(tmp_path / "a.safetensors", KIND)["a"]) <= set(range(9))


def test_what_was_loaded_stays_when_the_file_is_written_into(tmp_path: Path) -> None:
    """By cp or rsync --inplace, say, which put another one in its place without a new file."""
    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for file, value in ((path, 1.0), (other, 2.0)):
        state = {"a": np.full(50_000, value), "t": torch.full((50_000,), value), "c": torch.full((9,), value * 1j)}
        checkpoint.save(file, state, KIND)
    found = checkpoint.load(path, KIND)
    with path.open("r+b") as file:
        file.write(other.read_bytes())
    assert set(found["a"]) == {1.0} and found["t"].unique().tolist() == [1.0] and set(found["c"].tolist()) == {1j}
    found["a"][:] = 3.0
    found = checkpoint.load(path, KIND)
    assert set(found["a"]) == {2.0}
    os.truncate(path, 100)
    assert found["t"].unique().tolist() == [2.0]


def test_checkpoints_that_are_saved_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"

    def save(number: int) -> None:
        for _ in range(12):
            checkpoint.save(path, {"a": np.full(300_000 + number, number), "number": number}, KIND)

    save(0)
    fork = os.fork()
    if not fork:
        try:
            save(3)
            os._exit(0)
        finally:
            os._exit(1)
    with ThreadPoolExecutor(2) as threads:
        saving = [threads.submit(save, number) for number in (1, 2)]
        while not all(one.done() for one in saving):
            found = checkpoint.load(path, KIND)
            assert len(found["a"]) == 300_000 + found["number"] and set(found["a"][::1000]) == {found["number"]}
        for one in saving:
            one.result()
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Also one that had the number of a process that lives."""
    for number in (1, os.getpid(), os.getppid()):
        (tmp_path / f".a.safetensors.{number}-9.tmp").write_bytes(b"half")
    (tmp_path / ".other.safetensors.1-9.tmp").write_bytes(b"of another one")
    (tmp_path / ".a.safetensors.9-9.tmp").mkdir()  # what cannot be removed is left there
    checkpoint.save(tmp_path / "a.safetensors", {"a": 1}, KIND)
    assert sorted(os.listdir(tmp_path)) == [".a.safetensors.9-9.tmp", ".other.safetensors.1-9.tmp", "a.safetensors"]


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    np.random.standard_normal()
    checkpoint.save(tmp_path / "a.safetensors", {"random": checkpoint.random_state()}, KIND)
    draw = lambda: (np.random.standard_normal(3).tolist(), torch.rand(3).tolist(), random.random())  # noqa: E731
    drawn = draw()
    checkpoint.restore_random_state(checkpoint.load(tmp_path / "a.safetensors", KIND)["random"])
    assert draw() == drawn
