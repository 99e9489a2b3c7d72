"""The environment and the process under it: slots, ends, hangs, crashes, and nothing left behind."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.games import jericho_env
from zoo.jericho.priorzero.games.files import SHIPPED_FOLDER, SHIPPED_GAME, find_game
from zoo.jericho.priorzero.games.jericho_env import JerichoEnv, fill_slots
from zoo.jericho.priorzero.games.process import GameProcess, GameProcessError
from zoo.jericho.priorzero.games.session import GameState
from zoo.jericho.priorzero.play.episodes import Player, Style

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for all tests here, so that each state is searched once."""
    return str(tmp_path_factory.mktemp("store") / "valid_actions.sqlite")


@pytest.fixture
def make_env(store):
    made = []

    def make(**options):
        made.append(JerichoEnv({"valid_action_store": store, "step_timeout": 60.0, **options}))
        return made[-1]

    yield make
    for env in made:
        env.close()


def walkthrough() -> list[str]:
    return (SHIPPED_FOLDER / "walkthrough.txt").read_text().split("\n")[:-1]


def play(env: JerichoEnv, actions: list[str]) -> list:
    """The observation of reset and the timestep of each action, every action chosen by its slot."""
    seen = [env.reset()]
    obs = seen[0]
    for action in actions:
        seen.append(env.step(obs["valid_actions"].index(action)))
        obs = seen[-1].obs
    return seen


def test_the_walkthrough_wins_by_slots(make_env):
    env = make_env(max_steps=60)
    first, *steps = play(env, walkthrough())
    last = steps[-1]
    assert len(steps) < 60 and last.done and not any(step.done for step in steps[:-1])
    assert last.info["score"] == 100 == sum(step.reward for step in steps) == last.info["eval_episode_return"]
    assert last.info["won"] and not last.info["died"] and not last.info["abnormal"] and not last.info["timeout"]
    assert last.info["normalised_score"] == 1.0 and last.info["label"] == env.game.label
    assert [step.obs["timestep"] for step in steps] == list(range(1, len(steps) + 1)) and first["timestep"] == 0
    assert all(step.reward in (0, 5, 10) for step in steps)


def test_observations_follow_the_conventions(make_env):
    env = make_env(max_action_num=9)
    obs = env.reset()
    count = len(obs["valid_actions"])
    assert obs["action_mask"].dtype == np.int8 and obs["action_mask"].tolist() == [1] * count + [0] * (9 - count)
    assert obs["to_play"] == -1 and env.action_space.n == 9 and env.reward_space.shape == (1,)
    assert isinstance(obs["state"], GameState)
    assert obs["observation"] == "\n".join(
        [obs["state"].look, obs["state"].inventory, "Valid actions: " + ", ".join(obs["valid_actions"])]
    )
    with pytest.raises(ValueError, match="holds no action"):
        env.step(count)
    with pytest.raises(ValueError, match="holds no action"):
        env.step(-1)


def test_the_same_state_reads_the_same_however_it_was_reached(make_env):
    state, full = make_env(), make_env(observation="full")
    there_and_back = ["north", "south"]
    first, _, back = play(state, there_and_back)
    assert back.obs["observation"] == first["observation"]
    begun, _, back = play(full, there_and_back)
    assert back.obs["observation"] != begun["observation"]
    assert back.obs["observation"].startswith(back.obs["state"].response)


def test_the_step_limit_ends_an_episode(make_env):
    env = make_env(max_steps=2)
    _, one, two = play(env, ["north", "south"])
    assert not one.done and not one.info["timeout"]
    assert two.done and two.info["timeout"] and not two.info["abnormal"] and not two.obs["state"].done
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(0)
    assert not env.step(env.reset()["valid_actions"][0]).done


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV], ids=lambda s: s.name)
def test_a_hang_or_crash_ends_the_episode_and_the_next_has_a_fresh_process(make_env, caplog, sent):
    env = make_env(step_timeout=0.5 if sent == signal.SIGSTOP else 60.0)
    env.reset()
    before = env.step("north")
    process = env._process
    os.kill(process.pid, sent)
    if sent != signal.SIGSTOP:
        process._process.wait()
    with caplog.at_level(logging.WARNING):
        end = env.step("south")
    assert end.done and end.info["abnormal"] and end.reward == 0.0
    assert end.info["eval_episode_return"] == before.info["score"] and end.obs["state"].look == before.obs["state"].look
    assert any("episode ended" in record.message for record in caplog.records)
    assert process._process.poll() is not None and not process.alive
    env._process_options["timeout"] = 60.0
    obs = env.reset()
    assert env._process.pid != process.pid
    assert not env.step(obs["valid_actions"][0]).done
    counts = env.statistics()
    assert counts["abnormal_ends"] == 1 and counts["process_starts"] == 2


def test_a_process_that_is_gone_says_so_and_close_is_harmless(store):
    process = GameProcess(find_game(SHIPPED_GAME), store_path=store)
    process.reset()
    process.close()
    process.close()
    assert process._process.poll() == 0
    with pytest.raises(GameProcessError, match="has ended"):
        process.step("look")


def test_asking_for_statistics_does_not_come_between_a_step_and_its_answer(store):
    game = GameProcess(find_game(SHIPPED_GAME), store_path=store)
    game.reset()
    game.begin_step("look")
    assert game.statistics()["episodes"] == 1  # as of the last answer
    assert game.end_step().moves == 1
    assert game.statistics()["steps"] == 1
    game.close()
    assert game.statistics()["steps"] == 1


def test_an_answer_that_nobody_fetched_is_not_taken_for_another(store):
    game = GameProcess(find_game(SHIPPED_GAME), store_path=store)
    first = game.reset()
    game.begin_step(first.valid_actions[0])  # and its caller is gone
    assert game.reset() == first
    assert game.step(first.valid_actions[0]).moves == 1
    game.close()


def test_errors_in_the_game_process_reach_the_caller(store):
    process = GameProcess(find_game(SHIPPED_GAME), store_path=store)
    process.reset()
    with pytest.raises(ValueError, match="would leave the game"):
        process.step("quit")
    with pytest.raises(GameProcessError, match="AttributeError"):
        process._call("no_such_method")
    assert process.reset().valid_actions
    process.close()


def test_a_game_that_never_starts_is_tried_three_times(make_env, monkeypatch, caplog):
    env = make_env()
    monkeypatch.setattr("zoo.jericho.priorzero.games.process._CODE", "raise SystemExit(3)")
    with caplog.at_level(logging.WARNING), pytest.raises(GameProcessError, match="code 3"):
        env.reset()
    assert env.statistics()["process_starts"] == 3


def test_processes_start_at_the_same_time(make_env):
    envs = [make_env() for _ in range(2)]
    for env in envs:
        env.begin_reset()
    starting = [(env._process.pid, env.waitable()) for env in envs]  # nobody has waited for an interpreter yet
    assert all(pipe is not None for _, pipe in starting)
    first, second = (env.end_reset() for env in envs)
    assert first["observation"] == second["observation"]
    assert [env._process.pid for env in envs] == [pid for pid, _ in starting]


def test_a_start_that_fails_is_the_answer_to_the_first_request(store):
    process = GameProcess(find_game(SHIPPED_GAME), store_path=store, wait=False, no_such_option=1)
    process.begin_reset()
    with pytest.raises(GameProcessError, match="no_such_option"):
        process.end_reset()
    process.close()


def test_begin_reset_tries_once_and_the_next_has_a_fresh_process(make_env, monkeypatch):
    env = make_env()
    with monkeypatch.context() as patch:
        patch.setattr("zoo.jericho.priorzero.games.process._CODE", "raise SystemExit(3)")
        env.begin_reset()
        with pytest.raises(GameProcessError, match="code 3"):
            env.end_reset()
    assert env.statistics()["process_starts"] == 1
    env.begin_reset()
    assert env.end_reset()["timestep"] == 0


def test_what_to_wait_on_is_readable_when_the_answer_is_there(make_env):
    env = make_env()
    assert env.waitable() is None
    obs = env.reset()
    env.begin_step(0)
    env.begin_reset()  # and the answer to the step, which nobody fetches, is not taken for this one's
    while (pipe := env.waitable()) is not None:
        assert wait([pipe], 60)
    assert env.end_reset()["observation"] == obs["observation"]


def test_the_watchdog_s_time_runs_from_the_beginning_of_a_step(make_env):
    env = make_env(step_timeout=0.5)
    env.reset()
    os.kill(env._process.pid, signal.SIGSTOP)
    before = time.monotonic()
    env.begin_step(0)
    assert before + 0.5 <= env.deadline <= time.monotonic() + 0.5
    pipe = env.waitable()
    assert pipe is not None and not wait([pipe], max(0.0, env.deadline - time.monotonic()))
    assert env.waitable() is None
    end = env.end_step()
    assert end.done and end.info["abnormal"] and "did not answer within 0.5 s" in end.info["failure"]


def test_a_game_that_hangs_does_not_hold_another_back(make_env):
    """The first game stands still from its first step until the second has ended."""
    envs = [make_env(max_steps=5) for _ in range(2)]
    steps = 0

    def stepped(count: int) -> None:
        nonlocal steps
        if not steps:
            os.kill(envs[0]._process.pid, signal.SIGSTOP)
        steps += count
        if envs[1]._steps == 5:
            os.kill(envs[0]._process.pid, signal.SIGCONT)

    player = Player(envs, None, None, None, asynchronous=True)
    played = player.play(2, np.random.default_rng(0), Style(mode="random"), on_step=stepped)
    assert [len(episode) for episode in played] == [5, 5] and steps == 10
    assert not any(episode.info["abnormal"] for episode in played)


def test_warnings_of_the_game_process_are_logged_here(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        GameProcess(find_game(SHIPPED_GAME), store_path=str(tmp_path / "file" / "store")).close()
    assert any("not kept on disk" in record.message for record in caplog.records)


def test_the_game_process_ends_with_its_parent():
    """The parent is killed outright, and so can close nothing."""
    code = f"""
import signal
from zoo.jericho.priorzero.games.files import find_game
from zoo.jericho.priorzero.games.process import GameProcess
process = GameProcess(find_game({SHIPPED_GAME!r}))
print(process.pid, flush=True)
signal.pause()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True)
    with parent.stdout as output:
        child = os.pidfd_open(int(output.readline()))
        parent.kill()
        parent.wait()
    try:
        assert select.select([child], [], [], 30)[0], "the game's process outlived its parent"
    finally:
        os.close(child)


def test_the_game_process_needs_no_heavy_package():
    code = """
import sys
import zoo.jericho.priorzero.games.process, zoo.jericho.priorzero.games.session, zoo.jericho.priorzero.games.adapters
heavy = {"torch", "transformers", "spacy", "ding", "lzero", "lzero_async", "gym"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, done.stderr.decode()


def test_the_interrupt_of_a_terminal_does_not_reach_the_game(store):
    process = GameProcess(find_game(SHIPPED_GAME), store_path=store)
    assert os.getpgid(process.pid) != os.getpgid(0)
    os.kill(process.pid, signal.SIGINT)
    assert process.reset().valid_actions
    process.close()
    assert process._process.returncode == 0


def test_two_games_in_threads_do_not_disturb_each_other(tmp_path):
    """Each has its own process and no store, so both search at the same time."""
    envs = [JerichoEnv({"valid_action_store": "", "step_timeout": 60.0}) for _ in range(2)]
    seen: list[list] = [[], []]

    def run(number: int) -> None:
        first, *steps = play(envs[number], walkthrough()[:10])
        seen[number] = [first["observation"], *[step.obs["observation"] for step in steps]]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for env in envs:
        env.close()
    assert len(seen[0]) == 11 and seen[0] == seen[1]


class FakeProcess:
    """Says what it is told to, in place of a game."""

    actions: tuple[str, ...] = ()
    alive = True

    def __init__(self, *_args, **_options):
        self.sent: list[str] = []

    def begin_reset(self, seed=None):
        self.seed = seed

    def end_reset(self):
        return GameState(
            "hello", "A room.", "You are carrying nothing.", "Room", self.actions, 0.0, 0, 0, False, False, False
        )

    def begin_step(self, action):
        self.sent.append(action)

    def end_step(self):
        return self.end_reset()

    def statistics(self):
        return {}

    def close(self):
        pass


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(jericho_env, "GameProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "actions", ())
    return FakeProcess


def test_without_a_valid_action_there_is_one_slot_look(fake):
    env = JerichoEnv({"max_action_num": 3})
    obs = env.reset()
    assert obs["valid_actions"] == ("look",) and obs["action_mask"].tolist() == [1, 0, 0]
    env.step(0)
    assert env._process.sent == ["look"] and env.statistics()["no_valid_action"] == 2


def test_more_actions_than_slots_keep_the_moves(fake, monkeypatch):
    actions = tuple(sorted([f"take thing{n}" for n in range(30)] + ["north", "go west", "up"]))
    monkeypatch.setattr(fake, "actions", actions)
    first, second = (JerichoEnv({"max_action_num": 8}) for _ in range(2))
    obs = first.reset()
    assert {"north", "go west", "up"} < set(obs["valid_actions"]) <= set(actions)
    assert len(obs["valid_actions"]) == 8 and list(obs["valid_actions"]) == sorted(obs["valid_actions"])
    assert obs["action_mask"].tolist() == [1] * 8
    assert second.reset()["valid_actions"] == obs["valid_actions"] == first.reset()["valid_actions"]
    assert first.statistics()["slot_overflows"] == 2
    assert len(fill_slots(("down", "east", "north", "up"), 2)) == 2


def test_the_choice_among_too_many_depends_on_the_actions_only():
    actions = tuple(f"take thing{n}" for n in range(40))
    assert fill_slots(actions, 5) == fill_slots(actions, 5) != fill_slots(actions[1:], 5)
    assert fill_slots(actions[:5], 5) == actions[:5]


def test_seeds_reach_the_game(fake):
    env = JerichoEnv({})
    env.reset()
    assert env._process.seed is None
    env.seed(7)
    env.reset()
    env.reset()
    assert env._process.seed == 7
    env.reset(seed=9)
    assert env._process.seed == 9
    drawn = []
    for _ in range(2):
        env.seed(7, dynamic_seed=True)
        for _ in range(3):
            env.reset()
            drawn.append(env._process.seed)
    assert drawn[:3] == drawn[3:] and len(set(drawn)) == 3


def test_one_config_per_environment():
    cfg = {"collector_env_num": 3, "evaluator_env_num": 2, "max_steps": 5}
    assert [c["max_steps"] for c in JerichoEnv.create_collector_env_cfg(cfg)] == [5, 5, 5]
    evaluators = JerichoEnv.create_evaluator_env_cfg(cfg)
    assert len(evaluators) == 2 and not evaluators[0]["is_collect"] and evaluators[0] is not evaluators[1]
    assert cfg["collector_env_num"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0"),
        ({"max_action_num": 2.5}, "whole number"),
        ({"step_timeout": float("nan")}, "step_timeout is nan"),
        ({"observation": "raw"}, "'state' or 'full'"),
        ({"game": "zork1.z5"}, "find_game"),
        ({"env_id": "absent.z5"}, "not found"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        JerichoEnv(options)


def test_it_is_registered():
    from ding.utils import ENV_REGISTRY

    assert ENV_REGISTRY.get("jericho_priorzero") is JerichoEnv
