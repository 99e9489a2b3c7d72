"""A Hypothesis state machine on the coordinator's locking keeper: any order of requests, ends, time-outs and resumes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lzero_async import AsyncTrainingCoordinator, Bound, GateTimeout, Stopped
from lzero_async.core.gate import Ticket
from lzero_async.core.keeping.parked import REPLAY, Holder, Parked

POLICIES = ("wait", "drop", "allow")
pytestmark = pytest.mark.filterwarnings("ignore:num_collectors")


class NoWaiter:
    """The machine is one thread: it never blocks, it looks at what was granted."""

    woken = 0

    def wait(self, timeout: float | None) -> bool:
        raise AssertionError

    def wake(self) -> None:
        self.woken += 1
        assert self.woken == 1, "woken twice"


class KeeperMachine(RuleBasedStateMachine):
    @initialize(
        degree=st.integers(0, 4),
        workers=st.integers(1, 3),
        policy=st.sampled_from(POLICIES),
        publish_every=st.integers(1, 3),
        ahead=st.integers(0, 2),
        per_train=st.integers(1, 3),
        extra=st.integers(0, 2),
    )
    def start(
        self, degree: int, workers: int, policy: str, publish_every: int, ahead: int, per_train: int, extra: int
    ) -> None:
        self.options = {
            "num_collectors": workers,
            "bound": Bound(
                staleness_policy=policy,
                publish_every=min(publish_every, degree + 1),
                max_train_ahead=ahead if degree else 0,
                collects_per_train=per_train,
                oversampling=extra if degree and policy == "drop" else 0,
            ),
        }
        self.coordinator = AsyncTrainingCoordinator(degree, **self.options)
        self.forget()
        self.highest = degree
        self.trained_ids: set[int] = set()

    def forget(self) -> None:
        self.keeper = self.coordinator._keeper
        self.gate = self.keeper.gate
        self.collecting: list[Ticket] = []
        self.training: Ticket | None = None
        self.evaluating = False
        self.parked: list[Parked] = []
        self.holders: dict[int, Holder] = {}
        self.turn: Holder | None = None

    # -- requests -------------------------------------------------------------------------------------------------------

    def asked(self, answer: Ticket | Parked, kind: str, holder: Holder) -> None:
        if isinstance(answer, Parked):
            self.parked.append(answer)
        else:
            self.granted(kind, answer, holder)

    def granted(self, kind: str, ticket: Ticket, holder: Holder) -> None:
        if kind in ("train", "eval"):
            self.turn = holder
        if kind == "collect":
            self.collecting.append(ticket)
            self.holders[ticket.id] = holder
        elif kind == "train":
            assert self.training is None
            assert not self.evaluating
            self.training = ticket
            if ticket is not REPLAY:
                assert len(self.keeper.training()) == self.gate.per_train
                for one in self.keeper.training():
                    assert one.id not in self.trained_ids, "a batch was trained twice"
                    assert one.id in self.keeper.data
                    if self.gate.policy != "allow":
                        assert self.gate.version <= one.deadline, "past the bound"
        elif kind == "eval":
            self.evaluating = True

    @rule(of_run=st.booleans())
    def ask_to_collect(self, of_run: bool) -> None:
        holder = Holder("run" if of_run else None)
        self.asked(self.keeper.request_collect(NoWaiter, holder), "collect", holder)

    @rule(of_run=st.booleans())
    def ask_to_train(self, of_run: bool) -> None:
        holder = Holder("run" if of_run else None)
        self.asked(self.keeper.request_train(NoWaiter, holder), "train", holder)

    @rule(of_run=st.booleans())
    def ask_to_evaluate(self, of_run: bool) -> None:
        holder = Holder("run" if of_run else None)
        self.asked(self.keeper.request_eval(NoWaiter, holder), "eval", holder)

    # -- ends -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.collecting)
    @rule(data=st.data())
    def finish_a_collect(self, data: st.DataObject) -> None:
        ticket = self.collecting.pop(data.draw(st.integers(0, len(self.collecting) - 1)))
        holder = self.holders[ticket.id]
        answer = self.keeper.request_commit(ticket, f"data {ticket.id}", 0.0, 1.0, NoWaiter, holder=holder)
        self.asked(answer, "commit", holder)

    @precondition(lambda self: self.collecting)
    @rule(data=st.data(), failed=st.booleans())
    def lose_a_collect(self, data: st.DataObject, failed: bool) -> None:
        ticket = self.collecting.pop(data.draw(st.integers(0, len(self.collecting) - 1)))
        self.keeper.let_go(self.holders[ticket.id], failed=failed)

    @precondition(lambda self: self.collecting)
    @rule(data=st.data(), interrupt=st.booleans())
    def reject_a_collect(self, data: st.DataObject, interrupt: bool) -> None:
        ticket = self.collecting.pop(data.draw(st.integers(0, len(self.collecting) - 1)))
        before = self.gate.rejected
        if interrupt:
            self.keeper.let_go(self.holders[ticket.id], result=(None,))
        else:
            self.keeper.reject(ticket, 0.0, 1.0)
        assert self.gate.rejected == before + 1

    @precondition(lambda self: self.training is not None)
    @rule()
    def finish_the_train(self) -> None:
        ticket, self.training = self.training, None
        if ticket is not REPLAY:
            self.trained_ids.update(one.id for one in self.keeper.training())
        due = self.gate.version + 1 - self.gate.published >= self.gate.publish_every
        self.keeper.finish_train(0.0, 1.0, due, lambda result, starved: None, None)

    @precondition(lambda self: self.training is not None)
    @rule()
    def fail_the_train(self) -> None:
        self.training = None
        self.keeper.let_go(self.turn, failed=True)

    @precondition(lambda self: self.evaluating)
    @rule(failed=st.booleans())
    def finish_the_evaluation(self, failed: bool) -> None:
        self.evaluating = False
        self.keeper.finish_eval(0.0, 1.0, failed=failed)

    @precondition(lambda self: any(p.grant is not None or p.error is not None for p in self.parked))
    @rule()
    def take_what_was_granted(self) -> None:
        for parked in [p for p in self.parked if p.grant is not None or p.error is not None]:
            self.parked.remove(parked)
            assert parked.waiter.woken == 1
            if parked.grant is not None:
                self.granted(parked.kind, parked.grant, parked.holder)

    # -- interruptions -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), interrupt=st.booleans())
    def stop_waiting(self, data: st.DataObject, interrupt: bool) -> None:
        parked = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
        if interrupt:
            self.keeper.let_go(parked.holder, result=("a finished collect",) if parked.kind == "commit" else None)
            return
        try:
            self.granted(parked.kind, self.keeper.served(parked), parked.holder)
        except GateTimeout as error:
            assert "off_policy_degree" in str(error)
        except Stopped as error:
            assert str(error) == "test"

    @rule(degree=st.integers(0, 4))
    def change_the_degree(self, degree: int) -> None:
        if self.gate.publish_every <= degree + 1 and (
            degree or not (self.gate.max_train_ahead or self.gate.oversampling)
        ):
            self.keeper.set_degree(degree)
            self.highest = max(self.highest, degree)

    @rule(patient=st.booleans())
    def stop_and_go_on(self, patient: bool) -> None:
        """A run ends and its roles let go of what they hold; whoever is beside it keeps what is his, and another begins."""
        self.keeper.stop(Stopped("test"), patient=patient)
        for ticket in [ticket for ticket in self.collecting if self.holders[ticket.id].run]:
            self.keeper.let_go(self.holders[ticket.id])
            self.collecting.remove(ticket)
        for parked in [parked for parked in self.parked if parked.holder.run]:
            self.keeper.let_go(parked.holder, result=("a finished collect",) if parked.kind == "commit" else None)
            self.parked.remove(parked)
        if self.turn is not None and self.turn.run and (self.training or self.evaluating):
            self.keeper.let_go(self.turn)
            self.training, self.evaluating = None, False
        self.keeper.restart()
        assert {ticket.id for ticket in self.collecting} <= set(self.gate.tickets)
        assert self.gate.running is not None or not (self.training or self.evaluating)

    @precondition(lambda self: not self.gate.tickets)
    @rule()
    def give_up_the_remainder(self) -> None:
        waiting, abandoned = len(self.gate.waiting), self.gate.abandoned
        self.keeper.abandon_remainder()
        given_up = 0 if waiting >= self.gate.per_train else waiting
        assert (len(self.gate.waiting), self.gate.abandoned) == (waiting - given_up, abandoned + given_up)

    @rule(keep=st.booleans())
    def save_and_resume(self, keep: bool) -> None:
        state = self.coordinator.state_dict(with_batches=keep)
        admitted = self.gate.admitted
        self.coordinator = AsyncTrainingCoordinator(self.gate.degree, **self.options)
        self.coordinator.load_state_dict(state)
        self.forget()
        assert self.gate.admitted == admitted
        assert not self.gate.tickets

    # -- what always holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_account_is_exact(self) -> None:
        if not hasattr(self, "gate"):
            return
        assert self.gate.violations() == []
        assert len(self.gate.waiting) <= max(1, self.highest) * self.gate.per_train
        held = {t.id for t in self.gate.waiting} | {p.ticket.id for p in self.keeper._commits}
        assert set(self.keeper.data) == held

    @invariant()
    def nobody_waits_who_could_go(self) -> None:
        if not hasattr(self, "gate"):
            return
        gate, lines = self.gate, self.keeper._lines
        assert not (lines["collect"] and gate.collect_rule() is None), "lost wake-up of a collector"
        assert not (lines["train"] and gate.train_rule() is None), "lost wake-up of the learner"
        assert not (lines["train"] and gate.max_train_ahead and gate.replay_rule() is None), "lost wake-up of a replay"
        assert not (lines["eval"] and gate.eval_rule() is None), "lost wake-up of an evaluation"
        assert all(gate.commit_rule(p.ticket.id) is not None for p in self.keeper._commits), "lost wake-up of a commit"


def machine(examples: int, steps: int) -> type:
    case = type("Case", (KeeperMachine.TestCase,), {})
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestShell = machine(120, 60)


@pytest.mark.soak
@pytest.mark.timeout(7200)
class TestShellForAMillionSteps(machine(4000, 250)):
    """4,000 runs of 250 steps."""
