"""Bad data, hung environments and gradients that are not finite in `zoo.episode_ppo`: they fail an episode or an update, are
counted, and never reach the weights."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async import Parcel
from lzero_async import errors as known_errors
from lzero_async.runs import checkpoint
from tests.commands import Command
from tests.zoo.episode_ppo.envs import SPEC, env_seed, length_of, make_flat, watch
from tests.zoo.episode_ppo.test_barrier import Table, roles, weights_of
from tests.zoo.episode_ppo.test_numerics import DISCRETE, agent_of, episodes_of, equal
from tests.zoo.episode_ppo.test_run import (
    COLLECTORS,
    COUNT,
    ENTRY,
    FOREVER,
    REPOSITORY,
    SMALL,
    UPDATES,
    arguments,
    assert_account_closes,
    learned,  # noqa: F401
    make,
    results_of,
    rows_of,
    state_of,
    stop_after,
)
from zoo.episode_ppo.learn import ppo
from zoo.episode_ppo.learn.role import LearnerRole
from zoo.episode_ppo.learn.saving import KIND
from zoo.episode_ppo.options import build_options
from zoo.episode_ppo.play.episode import pack
from zoo.episode_ppo.play.evaluator import SEED_OFFSET
from zoo.episode_ppo.play.policy import NumpyPolicy
from zoo.episode_ppo.train import main

HOWS = (
    "nan", "inf", "huge", "shape", "row", "ragged", "text", "none", "reward nan", "reward inf", "reward huge",
    "reward array", "reward none",
)  # fmt: skip
BAD = {"4": "nan", "5": "inf", "7": "reward nan", "9": "shape", "11": "text"}  # by length
LIMIT = 1.0  # seconds for a step that hangs; others may be slow on a busy machine, but not that slow


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    watch.clear()
    yield
    watch.released.set()
    watch.clear()


def tries_of(numbers: range, seed: int = 0) -> dict[int, list[bool]]:
    """Whether each try of an episode is bad by BAD; the last one is the one that counts."""
    found = {}
    for number in numbers:
        bad = [str(length_of(env_seed(seed, number, attempt))) in BAD for attempt in range(2)]
        found[number] = bad if bad[0] else bad[:1]
    return found


# -- where it arises -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
def test_an_environment_refuses_bad_data_by_name(how: str) -> None:
    env = make_flat(bad={6: how})
    seed = next(seed for seed in range(100) if length_of(seed) == 6)
    assert env.reset(seed)[0].dtype == np.float32
    env.step(0)
    with pytest.raises(known_errors.BadData, match=f"of env '{SPEC}'"):
        env.step(0)


@pytest.mark.parametrize("where", ["layer0.weight", "layer1.bias"])
def test_weights_that_are_not_finite_are_refused_where_they_arrive(where: str) -> None:
    weights = weights_of(0)
    weights[where].flat[3 % weights[where].size] = np.nan
    with pytest.raises(known_errors.BadData, match=f"{where} is nan"):
        NumpyPolicy(weights)


@pytest.mark.parametrize("collector", COLLECTORS)
def test_bad_data_cost_their_episode_and_nothing_else(collector: str, tmp_path: Path, learned: Any) -> None:  # noqa: F811
    words = arguments(tmp_path / "run", collector, env_args=json.dumps({"bad": BAD}), eval_every=2)
    assert main(words) == 0
    results = results_of(tmp_path / "run")
    tries = tries_of(range(COUNT * UPDATES))
    usable = [number for number, bad in tries.items() if not bad[-1]]
    failed = sum(map(sum, tries.values()))
    assert failed >= 10 and len(usable) < COUNT * UPDATES
    assert sorted(itertools.chain(*learned.numbers)) == usable
    pool = results["environments"]
    expected = {"started": 36, "complete": len(usable), "left_out": 36 - len(usable), "failed": failed, "abandoned": 0}
    assert {name: pool[name] for name in expected} == expected
    assert pool["bad_data"] == failed and pool["env_timeouts"] == 0
    assert results["counters"]["episodes"] == len(usable)
    assert results["statistics"]["failed"] == 0
    in_evaluations = results["evaluation_failures"]
    assert in_evaluations["bad_data"] == in_evaluations["failed"] > 0
    shown = json.loads((tmp_path / "run" / "summary.json").read_text())["statistics"]
    assert shown["bad_episodes"] == failed + in_evaluations["failed"]
    assert all(np.isfinite(value).all() for value in state_of(tmp_path / "run")["learner"]["agent"]["policy"].values())
    assert_account_closes(tmp_path / "run")


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_run_whose_episodes_were_left_out_is_resumed_with_new_numbers(
    collector: str,
    tmp_path: Path,
    learned: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        words = {"env_args": json.dumps({"bad": BAD}), "eval_every": 0}
        assert main(arguments(folder, collector, total_episodes=8 * COUNT, **words)) == 130
    assert_account_closes(folder)
    before = state_of(folder)["pool"]
    assert main(["--resume", str(folder)]) == 0
    pool = results_of(folder)["environments"]
    assert pool["started"] == pool["complete"] + pool["left_out"] + pool["abandoned"] >= before["started"]
    assert pool["left_out"] >= before["left_out"] and pool["failed"] >= before["failed"] > 0
    trained = list(itertools.chain(*learned.numbers))
    assert len(set(trained)) == len(trained) == results_of(folder)["counters"]["episodes"]
    bad = tries_of(range(pool["started"]))
    assert not [number for number in trained if bad[number][-1]]
    assert main(["--resume", str(folder)]) == 0  # it is over: what was left out counts
    assert len(list(itertools.chain(*learned.numbers))) == len(trained)


# -- environments that hang ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "backend", "shares"),
    [("async", "process", (2, 1)), ("sync", "process", (3,)), ("sync", "thread", (3,)), ("async", "thread", (3,))],
)
def test_an_environment_that_hangs_is_replaced_and_its_episode_counted(
    kind: str, backend: str, shares: tuple[int, ...]
) -> None:
    seed = env_seed(5, 4)
    made = Table(kind, backend, list(shares), {"hangs": [seed]}, step_timeout=LIMIT)
    try:
        played = made.play(12)
        statistics = made.pool.statistics()
    finally:
        watch.released.set()
        made.close()
        for role in roles:  # one that was left behind does not end by itself
            role._watch.close()
        roles.clear()
    assert [episode.number for episode in played] == list(range(12))
    lengths = {number: length_of(env_seed(5, number, int(number == 4))) for number in range(12)}
    assert {episode.number: episode.length for episode in played} == lengths
    assert (statistics.failed, statistics.env_timeouts, statistics.left_out, statistics.complete) == (1, 1, 0, 12)
    restarts = sum(worker.restarts for worker in made.pool.workers)
    interrupted = kind == "sync" and backend == "process"  # in the main thread of its process
    assert restarts == (0 if interrupted else 1)
    assert statistics.replayed <= (0 if interrupted else 11)


def test_an_evaluation_in_which_an_environment_hangs_goes_on_without_it(tmp_path: Path) -> None:
    first = 2 * 3  # the evaluation of version 2
    seeds = [env_seed(SEED_OFFSET, first + 1, attempt) for attempt in range(2)] + [env_seed(SEED_OFFSET, first + 2)]
    trainer = make(
        tmp_path / "run", "sync", backend="process", env_args={"hangs": seeds}, step_timeout=LIMIT, total_episodes=2 * COUNT
    )  # fmt: skip
    try:
        assert trainer.run().reason == "max_train"
        assert trainer.evaluator is not None and trainer.evaluator.restarts == 3
        (row,) = trainer.history
        assert (row["episodes"], row["left_out"]) == (2, 1)
        assert trainer.eval_failures == {"failed": 3, "bad_data": 0, "env_timeouts": 3, "left_out": 1}
        assert trainer.view().statistics["env_timeouts"] == 3
    finally:
        trainer.close()


def test_a_try_of_an_evaluation_counts_though_the_next_one_hangs(tmp_path: Path) -> None:
    first = 2 * 3  # the evaluation of version 2
    bad, *others = [env_seed(SEED_OFFSET, first + place) for place in range(3)]
    assert length_of(bad) not in map(length_of, others)
    settings = {"bad": {str(length_of(bad)): "nan"}, "hangs": [env_seed(SEED_OFFSET, first, 1)]}
    trainer = make(
        tmp_path / "run", "sync", backend="process", env_args=settings, step_timeout=LIMIT, total_episodes=2 * COUNT
    )  # fmt: skip
    try:
        assert trainer.run().reason == "max_train"
        assert trainer.eval_failures == {"failed": 3, "bad_data": 1, "env_timeouts": 2, "left_out": 1}
    finally:
        trainer.close()


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_run_ends_when_it_is_asked_to_though_its_environments_hang(collector: str, tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", tmp_path / "seen"
    seen.mkdir()
    env_args = json.dumps({"hangs": [env_seed(0, number) for number in range(COUNT)], "struck": str(seen)})
    words = arguments(folder, collector, backend="process", env_args=env_args, step_timeout=3600, eval_every=0)
    process = Command(
        [sys.executable, str(ENTRY), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
    )
    waited = threading.Event()
    for _ in range(int(FOREVER / 0.05)):
        if (seen / "hung").exists() or process.poll() is not None:
            break
        waited.wait(0.05)
    process.send_signal(signal.SIGTERM)
    try:
        said, _ = process.communicate(timeout=FOREVER / 2)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "ended by: SIGTERM" in said
    assert state_of(folder)["counters"]["episodes"] == 0


# -- the learner -----------------------------------------------------------------------------------------------------------


def spoil_steps(monkeypatch: pytest.MonkeyPatch, bad: range | set[int]) -> None:
    """Let the losses of these gradient steps, counted from 0, be NaN."""
    steps, objective = itertools.count(), ppo.policy_objective

    def spoiled(*words: Any) -> Any:
        return objective(*words) * (np.nan if next(steps) in bad else 1.0)

    monkeypatch.setattr(ppo, "policy_objective", spoiled)


def test_a_bad_gradient_step_is_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(DISCRETE, epochs=4, minibatch_size=1000, on_bad_update="skip")
    episodes = episodes_of(agent)
    spoil_steps(monkeypatch, {0, 2})
    found = agent.update(episodes)
    assert (found["updates"], found["bad_updates"], agent.updates) == (2, 2, 2)
    assert all(np.isfinite(value) for value in found.values())
    assert all(np.isfinite(value).all() for value in agent.weights().values())


def test_a_bad_gradient_step_can_stop_the_run_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(DISCRETE, epochs=1, minibatch_size=1000, on_bad_update="stop")
    episodes, before = episodes_of(agent), agent.weights()
    spoil_steps(monkeypatch, {0})
    with pytest.raises(known_errors.BadData, match="loss of a gradient step is nan"):
        agent.update(episodes)
    assert equal(agent.weights(), before)


def test_returns_that_are_not_finite_do_not_reach_the_critic() -> None:
    agent = agent_of(DISCRETE, on_bad_update="skip")
    episodes = episodes_of(agent)
    before = agent.state_dict()["critic"]
    agent.critic.mean = 1e300  # its squares are not finite
    assert agent.update(episodes) == {"updates": 0.0, "bad_updates": 1.0}
    agent.critic.mean = before["mean"]
    assert equal(agent.state_dict()["critic"], before)


@pytest.mark.parametrize("on_bad_update", ["skip", "stop"])
def test_a_learner_that_cannot_learn_ends_the_run_and_the_last_good_checkpoint_stands(
    on_bad_update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zoo.episode_ppo.learn.role import MOST_BAD_IN_A_ROW

    options = {
        "checkpoint_every": 2,
        "eval_every": 0,
        "total_episodes": 20 * COUNT,
        "epochs": 1,
        "minibatch_size": 10**6,
    }
    words = [*arguments(tmp_path / "run", "sync", **options), "--on_bad_update", on_bad_update]
    with monkeypatch.context() as patch:
        spoil_steps(patch, range(2, 10**6))
        assert main(words) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said and "is nan" in said and "The run ends here." in said
    trains = 2 + (MOST_BAD_IN_A_ROW - 1 if on_bad_update == "skip" else 0)
    assert len(rows_of(tmp_path / "run")) == trains
    state = state_of(tmp_path / "run")
    assert state["counters"]["episodes"] == trains // 2 * 2 * COUNT
    assert all(np.isfinite(value).all() for value in state["learner"]["agent"]["policy"].values())
    assert state["counters"]["bad_updates"] == trains // 2 * 2 - 2


def learner_of() -> LearnerRole:
    options = build_options({**SMALL, "on_bad_update": "skip"})
    return LearnerRole(options, tuple(make_flat().spaces))


def test_weights_that_are_not_finite_are_neither_handed_on_nor_saved_nor_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(tmp_path / "run", "sync", eval_every=0, total_episodes=COUNT)
    try:
        trainer.run()
        trainer.save()
        good = trainer.last_checkpoint.read_bytes()
        role = trainer.learner._home.role  # type: ignore[attr-defined]
        role.agent.actor.flat.data[3] = np.nan
        with pytest.raises(known_errors.BadData, match=r"weights are not handed on.*is nan"):
            trainer.learner.call("weights")
        with pytest.raises(known_errors.BadData, match=r"state is not saved.*is nan.*; the checkpoint before stands"):
            trainer.save()
        assert trainer.last_checkpoint.read_bytes() == good
    finally:
        trainer.close()
    state = state_of(tmp_path / "run")
    state["learner"]["agent"]["policy"]["layer0.weight"][0, 0] = np.inf
    checkpoint.save(tmp_path / "run" / "ckpt" / "last.safetensors", state, KIND)
    assert main(["--resume", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "No run can go on from the checkpoint" in said and "layer0.weight is inf" in said and "Traceback" not in said


def test_a_learner_says_which_episode_is_bad() -> None:
    role = learner_of()
    episodes = episodes_of(role.agent)
    episodes[1].reward[0] = np.nan
    with pytest.raises(known_errors.LzeroAsyncError, match="the reward of episode"):
        role.train([Parcel(pack(episodes), {})], 1.0)


# -- options ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e10", "soon"])
def test_a_step_timeout_is_checked(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(tmp_path / "run", "sync"), "--step_timeout", value]) == 2
    assert "step_timeout" in capsys.readouterr().err


@pytest.mark.parametrize("greedy", [False, True])
def test_logits_that_overflow_are_bad_data_and_no_action(greedy: bool) -> None:
    inf_less_inf = np.array([[3.0, 3.0], [-3.0, -3.0]], np.float32)
    policy = NumpyPolicy({"layer0.weight": inf_less_inf, "layer0.bias": np.zeros(2, np.float32)})
    obs = np.full(2, 3e38, np.float32)
    with np.errstate(all="ignore"), pytest.raises(known_errors.BadData, match="logits are not finite"):
        policy.greedy(obs) if greedy else policy.act(obs, np.random.default_rng(0))
