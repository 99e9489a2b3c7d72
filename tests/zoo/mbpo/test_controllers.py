"""The controllers of queue size, collectors and batch size, by hand and on a small model of a queue."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lzero_async.errors import ConfigError
from zoo.mbpo.controllers import LONGEST_MEMORY, WINDOW, BatchSizeTuner, CollectorTuner, QueueSizeTuner, Tuning

TUNERS: list[Callable[[int, int, int], Any]] = [
    QueueSizeTuner,
    lambda start, low, high: CollectorTuner(start, low, high, 4),
    BatchSizeTuner,
]
MANY = 400  # windows
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def limits(most: int) -> st.SearchStrategy[tuple[int, int, int]]:
    """Start, least and largest, in a range that fits."""
    return st.lists(st.integers(1, most), min_size=3, max_size=3).map(lambda n: (sorted(n)[1], min(n), max(n)))


class Line:
    """Collectors, a queue that drops what does not fit, and a learner: work per second, all of it deterministic.

    Each batch takes `overhead` seconds more than its items; `useful` collectors work at once, more wait for each other.
    """

    def __init__(
        self, item: float, train: float, *, useful: float = math.inf, overhead: float = 0.0, train_item: float = 0.0
    ) -> None:
        self.item, self.train, self.useful = item, train, useful
        self.overhead, self.train_item = overhead, train_item
        self.queue = self.lost = 0.0

    def step(self, collectors: int = 1, size: int = 10, batch: int = 1) -> dict[str, Any]:
        """One train: what it saw."""
        rate = min(collectors, self.useful) / (batch * self.item + self.overhead)
        waited = max(0.0, (1 - self.queue) / rate)
        busy = self.train + self.train_item * batch
        queue = max(self.queue, 1.0) - 1 + rate * busy
        self.queue = min(queue, float(size))
        self.lost += queue - self.queue
        dropped = int(self.lost)
        self.lost -= dropped
        return {"starved": waited > 1e-9, "dropped": dropped, "fill": self.queue, "feed": batch / (waited + busy)}


def changes(values: list[int]) -> int:
    return sum(before != after for before, after in pairwise(values))


# -- queue size --------------------------------------------------------------------------------------------------------


def follow_fill(tuner: QueueSizeTuner, fill: Callable[[int], float], windows: int = MANY) -> list[int]:
    sizes = []
    for _ in range(windows * WINDOW):
        tuner.after_train(min(fill(tuner.value), tuner.value))
        sizes.append(tuner.value)
    return sizes


def test_the_queue_grows_by_a_quarter_above_the_band_and_rests_after_it() -> None:
    tuner = QueueSizeTuner(40, 1, 100)
    answers = [tuner.after_train(tuner.value) for _ in range(3 * WINDOW)]
    assert answers[WINDOW - 1] == Tuning(50, "100% of the queue is in use, above 80%")
    assert answers[3 * WINDOW - 1] is not None and tuner.value == 62
    assert [place for place, answer in enumerate(answers) if answer] == [WINDOW - 1, 3 * WINDOW - 1]


def test_the_queue_shrinks_below_the_band_and_ends_silently_at_its_limits() -> None:
    tuner = QueueSizeTuner(40, 25, 100)
    assert follow_fill(tuner, lambda size: 0)[-1] == 25
    assert all(tuner.after_train(0) is None for _ in range(10 * WINDOW))
    assert follow_fill(tuner, lambda size: size)[-1] == 100
    assert all(tuner.after_train(100) is None for _ in range(10 * WINDOW))


@given(limits(2000), st.floats(0, 2000))
@example((1, 1, 9), 0.9)  # too much for a queue of 1, too little for one of 2
@QUICK
def test_a_steady_fill_comes_into_the_band_where_a_size_can_do_that_and_never_flaps(
    numbers: tuple[int, int, int], fill: float
) -> None:
    start, low, high = numbers
    sizes = follow_fill(QueueSizeTuner(start, low, high), lambda size: fill)
    assert all(low <= size <= high for size in sizes)
    assert changes(sizes[len(sizes) // 2 :]) == 0
    least, most = max(low, math.ceil(fill / 0.799)), min(high, math.floor(fill / 0.501))
    if least <= most:
        assert 0.5 <= fill / sizes[-1] <= 0.8


@given(limits(500), st.floats(0, 1.2), st.integers(0, 2**16))
@QUICK
def test_a_noisy_fill_ends_with_few_changes(numbers: tuple[int, int, int], share: float, seed: int) -> None:
    """The fill follows the size, with noise: whatever the share, steps in both directions die out."""
    dice = random.Random(seed)
    start, low, high = numbers
    sizes = follow_fill(QueueSizeTuner(start, low, high), lambda size: size * share * dice.uniform(0.5, 1.5))
    assert all(low <= size <= high for size in sizes)
    assert changes(sizes[len(sizes) // 2 :]) <= 20  # of 200 windows


def test_a_band_that_one_step_would_jump_over_is_refused() -> None:
    for use in ((0.7, 0.8), (0.5, 1.1), (0.8, 0.5), (0, 0.5)):
        with pytest.raises(ConfigError, match="use is"):
            QueueSizeTuner(1, 1, 2, use=use)


# -- collectors --------------------------------------------------------------------------------------------------------


def follow_line(tuner: CollectorTuner, line: Line, windows: int = MANY, **more: Any) -> tuple[list[int], list[bool]]:
    numbers, starved = [], []
    for _ in range(windows * WINDOW):
        seen = line.step(tuner.value)
        tuner.after_train(seen["starved"], seen["feed"], dropped=seen["dropped"], queue_use=seen["fill"] / 10, **more)
        numbers.append(tuner.value)
        starved.append(seen["starved"])
    return numbers, starved


@given(limits(16), st.integers(1, 400).map(lambda twentieths: twentieths / 20))
@QUICK
def test_collectors_that_wait_for_simulators_rise_until_the_learner_is_fed(
    limited: tuple[int, int, int], item: float
) -> None:
    """A train takes a second and each collector `item` seconds per batch, so that `item` collectors feed it."""
    start, low, high = limited
    numbers, starved = follow_line(CollectorTuner(start, low, high, 2), Line(item, 1.0), cpu_use=0.5)
    assert all(low <= number <= high for number in numbers)
    assert all(abs(after - before) <= 1 for before, after in pairwise(numbers))
    half = len(numbers) // 2
    assert changes(numbers[half:]) <= 12  # in 200 windows: a probe now and then, taken back
    needed = math.ceil(item - 1e-9)
    if low <= needed <= high:
        assert sum(starved[half:]) <= 0.05 * half
        assert set(numbers[half:]) <= {needed - 1, needed}  # one less while a full queue drains
    if needed > high:
        assert numbers[-1] == high
    if needed <= low and item < 0.99 * low:
        assert numbers[-1] == low


def test_no_collector_is_added_while_the_cores_are_busy() -> None:
    for cpu_use, most in ((1.91, 2), (1.89, 8), (None, 3)):
        cores = 3 if cpu_use is None else 2
        numbers, _ = follow_line(CollectorTuner(2, 1, 8, cores), Line(50, 1.0), windows=50, cpu_use=cpu_use)
        assert numbers[-1] == max(numbers) == most


def test_one_more_that_brings_no_more_data_is_taken_back_and_remembered() -> None:
    tuner = CollectorTuner(2, 1, 8, 4)
    numbers, _ = follow_line(tuner, Line(50, 1.0, useful=3), cpu_use=1.0)
    assert max(numbers) == 4
    assert numbers[len(numbers) // 2 :].count(3) > 0.95 * len(numbers) / 2
    assert changes(numbers) <= 20  # in 400 windows
    tries = [place // WINDOW for place, pair in enumerate(pairwise(numbers)) if pair == (3, 4)]
    pauses = [later - sooner for sooner, later in pairwise(tries)]
    assert len(pauses) >= 4 and pauses == sorted(pauses) and pauses[-1] > 4 * pauses[0]


def test_why_collectors_change_is_said() -> None:
    def reasons(tuner: CollectorTuner, **seen: Any) -> list[str]:
        answers = [tuner.after_train(seen.pop("starved", False), 1.0, **seen) for _ in range(WINDOW)]
        return [answer.reason for answer in answers if answer]

    assert reasons(CollectorTuner(4, 1, 8, 2), dropped=1) == ["batches were dropped and the learner never waited"]
    assert reasons(CollectorTuner(4, 1, 8, 2), queue_use=0.9) == ["the queue stayed full and the learner never waited"]
    assert reasons(CollectorTuner(4, 1, 8, 2), queue_use=0.7) == []
    tuner = CollectorTuner(1, 1, 8, 2)
    answers = [tuner.after_train(True, 1.0) for _ in range(3 * WINDOW)]
    assert [answer for answer in answers if answer] == [
        Tuning(2, "the learner waited for data"),
        Tuning(1, "one more collector did not bring more data"),
    ]


def test_drops_in_a_window_with_waits_change_nothing() -> None:
    tuner = CollectorTuner(4, 1, 8, 4)
    assert all(tuner.after_train(place % 2 == 0, 1.0, dropped=1) is None for place in range(5 * WINDOW))


# -- batch size --------------------------------------------------------------------------------------------------------


def follow_batches(tuner: BatchSizeTuner, line: Line, windows: int = MANY, **more: Any) -> tuple[list[int], list[dict]]:
    sizes, all_seen = [], []
    for _ in range(windows * WINDOW):
        seen = line.step(1, batch=tuner.value)
        tuner.after_train(seen["starved"], dropped=seen["dropped"], **more)
        sizes.append(tuner.value)
        all_seen.append(seen)
    return sizes, all_seen


@given(limits(4096), st.floats(1e-4, 1), st.floats(0, 10), st.floats(0, 2e-3))
@QUICK
def test_batches_stay_in_their_limits_and_settle(
    limited: tuple[int, int, int], item: float, overhead: float, train_item: float
) -> None:
    start, low, high = limited
    line = Line(item, 1.0, overhead=overhead, train_item=train_item)
    sizes, seen = follow_batches(BatchSizeTuner(start, low, high), line)
    assert all(low <= size <= high for size in sizes)
    half = len(sizes) // 2
    assert changes(sizes[half:]) <= 8
    if len(set(sizes[half:])) == 1 and low < sizes[-1] < high:
        starved = sum(one["starved"] for one in seen[half:])
        dropped = sum(one["dropped"] for one in seen[half:])
        assert starved < 0.25 * half or dropped > 0  # it rests only where it should not halve
        assert dropped == 0 or starved > 0  # nor double


def test_batches_halve_when_every_collector_is_active_and_double_when_some_are_dropped() -> None:
    slow, fast = Line(0.01, 1.0), Line(0.01, 1.0)
    assert follow_batches(BatchSizeTuner(1024, 64, 4096), slow)[0][-1] == 64  # 0.64 s a batch: the learner is fed
    assert follow_batches(BatchSizeTuner(1024, 64, 4096), Line(0.01, 1.0), all_active=False)[0][-1] == 1024
    sizes, seen = follow_batches(BatchSizeTuner(16, 1, 4096), fast)
    half = len(sizes) // 2
    assert sizes[half:].count(64) > 0.9 * half  # 100 items come in per train: 64 drops some, 128 makes it wait
    assert sum(one["starved"] for one in seen[half:]) <= 0.03 * half


# -- all of them -------------------------------------------------------------------------------------------------------


def drive(tuner: Any, starved: bool, dropped: int = 0) -> Tuning | None:
    if isinstance(tuner, QueueSizeTuner):
        return tuner.after_train(0 if starved else tuner.value)
    if isinstance(tuner, CollectorTuner):
        return tuner.after_train(starved, 1.0 * tuner.value, dropped=dropped, cpu_use=1.0)
    return tuner.after_train(starved, dropped=dropped)


@pytest.mark.parametrize("make", TUNERS)
def test_the_same_two_conditions_in_turn_do_not_flap_for_ever(make: Callable[[int, int, int], Any]) -> None:
    """Whatever the number, it is too small at 8 and too large beyond: the worst that a steady world can be."""
    tuner = make(8, 1, 64)
    values = []
    for _ in range(8 * LONGEST_MEMORY * WINDOW):
        wants_more = tuner.value <= 8
        starved = wants_more if isinstance(tuner, CollectorTuner) else not wants_more
        drive(tuner, starved, 0 if starved else 1)
        values.append(tuner.value)
    assert changes(values[: 32 * WINDOW]) >= 2
    assert changes(values[len(values) // 2 :]) <= 2 * (4 + 1)  # a probe in LONGEST_MEMORY windows


@pytest.mark.parametrize("make", TUNERS)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60), st.lists(st.booleans(), max_size=40))
@QUICK
def test_a_resumed_controller_decides_as_the_one_that_went_on(
    make: Callable[[int, int, int], Any], first: list[tuple[bool, int]], then: list[bool]
) -> None:
    """Saved where a window ends; numbers that JSON holds."""
    one, two = make(8, 2, 64), make(5, 2, 64)
    for starved, dropped in first:
        for _ in range(WINDOW):
            drive(one, starved, dropped)
    two.load_state_dict(one.state_dict())
    assert two.value == one.value and two.state_dict() == one.state_dict()
    for starved in then:
        for _ in range(WINDOW):
            assert drive(one, starved, not starved) == drive(two, starved, not starved)
        assert 2 <= one.value == two.value <= 64


@pytest.mark.parametrize("make", TUNERS)
def test_a_saved_number_outside_the_range_is_taken_inside(make: Callable[[int, int, int], Any]) -> None:
    saved = make(60, 1, 64).state_dict()
    tuner = make(2, 1, 9)
    tuner.load_state_dict(saved)
    assert tuner.value == 9


@pytest.mark.parametrize("make", TUNERS)
@pytest.mark.parametrize(
    "change",
    [
        {"value": "many"}, {"value": None}, {"value": 1.5}, {"value": -1}, {"rest": -1}, {"rest": None}, {"turn": 2},
        {"turn": 0.5}, {"blocked": [1]}, {"blocked": 3}, {"blocked": [1, -1]}, {"memory": [1, 0]}, {"memory": "ab"},
    ],
)  # fmt: skip
def test_a_saved_state_that_makes_no_sense_is_refused_and_changes_nothing(
    make: Callable[[int, int, int], Any], change: dict[str, Any]
) -> None:
    tuner = make(8, 1, 64)
    before = tuner.state_dict()
    for state in ({**before, "value": 9, **change}, {key: before[key] for key in before if key not in change}):
        with pytest.raises(ConfigError, match="cannot be read"):
            tuner.load_state_dict(state)
        assert tuner.state_dict() == before


@pytest.mark.parametrize("make", TUNERS)
@pytest.mark.parametrize("numbers", [(0, 0, 5), (5, 6, 10), (11, 6, 10), (5, 6, 4), (1.5, 1, 4), (True, 1, 4)])
def test_ranges_that_cannot_be_are_refused(make: Callable[[int, int, int], Any], numbers: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        make(*numbers)


def test_collectors_need_cores_and_windows_are_trains() -> None:
    with pytest.raises(ConfigError, match="cores is 0"):
        CollectorTuner(1, 1, 2, 0)
    tuner = BatchSizeTuner(8, 1, 64, window=1)
    assert tuner.after_train(True) == Tuning(4, "the learner waited for data though every collector was active")
    with pytest.raises(ConfigError, match="window is 0"):
        BatchSizeTuner(8, 1, 64, window=0)
