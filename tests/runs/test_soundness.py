"""Checks of data: what is wrong is named, with its value and its place."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from lzero_async.errors import BadData
from lzero_async.runs.soundness import check_finite, check_like, finite_rows, first_bad, is_finite

torch = pytest.importorskip("torch")
KINDS = [np.asarray, torch.as_tensor]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_is_named(bad: float) -> None:
    for value in (bad, np.float32(bad), np.array(bad), torch.tensor(bad)):
        with pytest.raises(BadData) as caught:
            check_finite("reward", value, "environment 3 at step 17")
        assert str(caught.value) == f"reward of environment 3 at step 17 is {bad}"
        assert pickle.loads(pickle.dumps(caught.value)).kind == "not finite"


@pytest.mark.parametrize("make", KINDS)
def test_the_place_in_an_array_is_named(make: object) -> None:
    values = make([[1.0, 2.0], [math.nan, math.inf]])  # type: ignore[operator]
    with pytest.raises(BadData, match=r"^weights is nan at \[1, 0\] \(and 1 more of 4 values are not finite\)$"):
        check_finite("weights", values)
    assert finite_rows(values).tolist() == [True, False]
    assert type(finite_rows(values)) is type(values)


def test_what_is_finite() -> None:
    for value in (1, 1.5, True, np.arange(3), np.zeros((2, 0)), torch.arange(3), torch.zeros(2, dtype=torch.bool)):
        assert is_finite(value)
        check_finite("it", value)
    assert not is_finite(np.array([None]))
    assert not is_finite(np.array(["text"]))


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_a_wrong_shape_is_named(make: object) -> None:
    check_like("observation", make((3,)), (3,))  # type: ignore[operator]
    with pytest.raises(
        BadData, match=r"^observation of environment 1 has the shape \[2\]; it must be \[3\]$"
    ) as caught:
        check_like("observation", make((2,)), (3,), where="environment 1")  # type: ignore[operator]
    assert caught.value.kind == "shape"


def test_a_wrong_type_is_named() -> None:
    with pytest.raises(BadData, match="reward is of object; it must be numbers"):
        check_like("reward", None, ())
    with pytest.raises(BadData, match="done is of float64"):
        check_like("done", 0.5, (), "b")
    with pytest.raises(BadData, match="is no array"):
        check_like("observation", [[1.0], [1.0, 2.0]], (2,))
    check_like("reward", torch.tensor(1), (), "fi")
    check_like("done", torch.tensor(True), (), "b")


def test_the_first_bad_value_of_a_state_is_named() -> None:
    state = {"a": [1.0, 2], "n": None, "t": "text", "net": {"w": torch.ones(2), "b": np.ones(2)}, "steps": [{"x": 1.0}]}
    assert first_bad(state) == ""
    state["net"]["w"][1] = math.inf  # type: ignore[index]
    assert first_bad(state) == "net.w is inf at [1]"
    assert first_bad({"steps": [{"x": 1.0}, {"x": math.nan}]}) == "steps.1.x is nan"
    assert first_bad({"a": [1.0, math.nan]}) == "a is nan at [1]"
