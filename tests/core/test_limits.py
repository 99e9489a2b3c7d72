"""`max_seconds`, SIGTERM and Ctrl+C end a run from every state, within one stage and two seconds."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound, Recovery
from lzero_async.errors import GateTimeout
from lzero_async.testing import VirtualClock
from lzero_async.threads import ThreadGroup
from lzero_async.validation import MAX_BACKOFF, backoff

STAGE = 7.0  # seconds of the longest stage
LIMIT = 20.0
SLACK = 2.0


class States:
    """Settings of `run` and of the coordinator for each state that a run can be in when its time is over."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def seconds(self, seconds: float) -> Any:
        return lambda *context: self.clock.sleep(seconds) or 1.0

    def fails(self, *context: Any) -> None:
        raise OSError("out of order")

    def case(self, name: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
        quick, slow = self.seconds(0.01), self.seconds(STAGE)
        long_queue = {"bound": Bound(staleness_policy="allow", queue_capacity=500)}
        failing = {"recovery": Recovery(on_failure="restart", max_restarts=10**6, restart_backoff=30.0)}
        tries = {"recovery": Recovery(train_retries=100, learner=Learner())}
        evaluated = {"eval_every": 1, "eval_fn": slow}
        cases: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
            "all collected, a long queue left": (35, {"max_collect": 30}, {"train_fn": self.seconds(1.0)}),
            "a queue of 500": (4, {}, {"train_fn": slow, **long_queue}),
            "in a collect": (2, {}, {"collect": slow}),
            "in a train": (2, {}, {"train_fn": slow}),
            "in an evaluation": (2, evaluated, {}),
            "in a train, an evaluation due": (2, {**evaluated, "eval_every": 3}, {"train_fn": self.seconds(6.9)}),
            "a background evaluation runs": (2, evaluated, {"enable_async_eval": True}),
            "a background evaluation waits for another": (
                2, evaluated, {"enable_async_eval": True, "eval_overlap": "wait"},
            ),
            "collectors back off": (2, {}, {"collect": self.fails, **failing}),
            "a background role works": (2, {"background": {"other": slow}}, {}),
            "a background role backs off": (2, {"background": {"other": self.fails}}, failing),
            "a train is tried again and again": (2, {}, {"train_fn": self.fails_late, **tries}),
            "in turn": (0, {}, {"collect": slow, "train_fn": slow}),
            "in turn, in an evaluation": (0, evaluated, {"train_fn": slow}),
            "in turn, a collector backs off": (0, {}, {"collect": self.fails, **failing}),
        }  # fmt: skip
        degree, run, settings = cases[name]
        run = {"collect": settings.pop("collect", quick), "train_fn": settings.pop("train_fn", quick), **run}
        return degree, run, settings

    def fails_late(self, *context: Any) -> None:
        self.clock.sleep(STAGE)
        raise OSError("out of order")


class Learner:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


NAMES = (
    "all collected, a long queue left", "a queue of 500", "in a collect", "in a train", "in an evaluation",
    "in a train, an evaluation due", "a background evaluation runs", "a background evaluation waits for another",
    "collectors back off", "a background role works", "a background role backs off", "a train is tried again and again",
    "in turn", "in turn, in an evaluation", "in turn, a collector backs off",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["max_seconds", "SIGTERM"])
@pytest.mark.parametrize("on_stop", ["finish", "abandon"])
def test_a_run_ends_in_time(name: str, how: str, on_stop: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lzero_async")
    with VirtualClock() as clock:
        degree, options, settings = States(clock).case(name)
        coordinator = AsyncTrainingCoordinator(degree, get_weights=dict, clock=clock, **settings)
        failure: list[BaseException] = []
        if how == "max_seconds":
            options["max_seconds"] = LIMIT
        else:  # the handler of a signal calls this in a thread of its own
            signals = ThreadGroup(clock, "signal")
            signals.start(
                "handler", lambda: (clock.sleep(LIMIT), coordinator.stop("SIGTERM", patient=on_stop == "finish"))
            )
        try:
            reason = coordinator.run(**options, on_stop=on_stop, handle_signals=False, print_statistics=False).reason
        except OSError as error:  # a train that was tried again until the end
            failure.append(error)
            reason = how
        took = clock.now()
        assert reason == how
        assert bool(failure) == (name == "a train is tried again and again" and on_stop == "finish")
        assert LIMIT <= took <= LIMIT + STAGE + SLACK, f"{took - LIMIT:.3g} s after its end"
        clock.sleep(60.0)  # what was left behind ends
        coordinator.close()
        assert not coordinator._keeper.gate.violations()


def test_a_pause_doubles_up_to_a_limit_however_often_a_role_failed() -> None:
    assert [backoff(0.5, failures) for failures in (0, 1, 5, 6, 2000, 10**9)] == [0.5, 1.0, 16.0, 30.0, 30.0, 30.0]
    assert backoff(1e-3, 2000) == MAX_BACKOFF


def test_a_collector_may_fail_more_than_a_thousand_times_in_a_row() -> None:
    failures = 0

    def collect() -> str:
        nonlocal failures
        failures += 1
        if failures < 1100:
            raise OSError("out of order")
        return "data"

    with VirtualClock() as clock:
        recovery = Recovery(on_failure="restart", max_restarts=10**4, restart_backoff=1e-3)
        coordinator = AsyncTrainingCoordinator(1, recovery=recovery, clock=clock)
        result = coordinator.run(
            lambda context: collect(), lambda batch: None, max_train=1, print_statistics=False, handle_signals=False
        )
        assert result.reason == "max_train" and result.statistics["restarts"] == 1099
        coordinator.close()


@pytest.mark.parametrize("waits_for", ["collect", "eval"])
def test_time_is_over_also_while_a_run_in_turn_waits_for_a_users_own_collect(waits_for: str) -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(0, clock=clock)
        own = ThreadGroup(clock, "own")

        def take_the_turn(*context: Any) -> None:
            own.start("own", lambda: coordinator.run_collect(lambda: clock.sleep(1000.0) or 1))
            clock.sleep(1.0)

        run: dict[str, Any] = {"eval_fn": lambda context: 1.0, "eval_every": 1}
        if waits_for == "collect":
            take_the_turn()
        begun = clock.now()
        result = coordinator.run(
            lambda context: 1, take_the_turn, max_seconds=LIMIT, print_statistics=False, handle_signals=False, **run
        )
        assert result.reason == "max_seconds"
        assert clock.now() - begun == LIMIT
        assert own.join(2000.0) == []
        coordinator.close()


def test_a_wait_of_the_users_own_that_ran_out_is_not_taken_for_the_end_of_the_time() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(1, clock=clock)

        def train(batch: Any) -> None:
            coordinator.run_eval(lambda: 1.0, timeout=1.0)  # which waits for the end of this very train

        with pytest.raises(GateTimeout, match="start an evaluation"):
            coordinator.run(lambda context: 1, train, max_seconds=LIMIT, print_statistics=False, handle_signals=False)
        assert clock.now() < LIMIT
        coordinator.close()
