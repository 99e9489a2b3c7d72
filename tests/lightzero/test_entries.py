"""What is data or words: when entries evaluate, what overlap can gain, which config is meant, what LightZero cannot run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from easydict import EasyDict
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async.errors import ConfigError
from lzero_async.lightzero.configs import Call, change, find_config, installed_configs, named_for_seed
from lzero_async.lightzero.entries import ENTRIES, EvalSchedule, reanalyze_rule
from lzero_async.lightzero.gain import most_to_gain, shares
from lzero_async.lightzero.options import backend_of, build_options
from lzero_async.lightzero.parts import other_seed
from lzero_async.lightzero.upstream import check


@settings(deadline=None)  # the first one imports LightZero
@given(st.integers(1, 50), st.lists(st.integers(0, 30), max_size=30), st.sampled_from(sorted(ENTRIES)))
def test_evaluations_are_due_when_lightzeros_own_evaluator_says_so(freq: int, more: list[int], name: str) -> None:
    from lzero.worker import AlphaZeroEvaluator, MuZeroEvaluator

    alphazero = ENTRIES[name].transitions
    theirs = SimpleNamespace(_last_eval_iter=-1 if alphazero else 0, _eval_freq=freq)
    asks = (AlphaZeroEvaluator if alphazero else MuZeroEvaluator).should_eval
    own, updates = EvalSchedule(name, freq), 0
    if alphazero:
        asks(theirs, 0)  # its loop asks before the first collect, too, and does not evaluate then
    for step in more:
        updates += step
        due = asks(theirs, updates)
        expected = {"train_unizero": updates == 0 or due, "train_alphazero": due and updates > 0}.get(name, due)
        assert own.is_due(updates) == expected


@given(st.integers(1, 64), st.floats(0.05, 0.75), st.integers(1, 9), st.integers(0, 2000))
def test_a_reanalysis_waits_for_as_many_transitions_as_lightzeros(
    size: int, part: float, unroll: int, found: int
) -> None:
    policy = EasyDict(reanalyze_batch_size=size, reanalyze_partition=part, num_unroll_steps=unroll)
    assert (found > reanalyze_rule("train_muzero_segment", policy)[1]) == (found // unroll > int(size / part))


def statistics(collect: float, train: float, evaluate: float) -> dict[str, float]:
    return {"collect_total_time": collect, "train_total_time": train, "eval_total_time": evaluate}


@pytest.mark.parametrize(
    ("seconds", "options", "words"),
    [
        ((2, 97, 1), {}, ("training 97%", "at most 1.02x", "a GPU")),
        ((2, 97, 1), {"async_eval": True}, ("at most 1.03x",)),
        ((80, 20, 0), {}, ("at most 1.25x", "--num_collectors 4")),
        ((80, 20, 0), {"num_collectors": 4}, ("at most 5.00x", "nearly even")),
        ((50, 50, 0), {}, ("at most 2.00x", "nearly even")),
        ((10, 30, 60), {"async_eval": True}, ("at most 1.67x", "eval_freq")),
    ],
)
def test_the_limit_is_told_with_what_would_change_it(
    seconds: Any, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = most_to_gain(statistics(*seconds), build_options(options))
    assert all(word in said for word in words), said
    assert sum(shares(statistics(*seconds)).values()) == pytest.approx(1)


def test_before_anything_ran_nothing_is_promised() -> None:
    assert "at most 1.00x" in most_to_gain(statistics(0, 0, 0), build_options({}))


def test_a_config_is_a_file_a_module_or_a_short_name(tmp_path: Path) -> None:
    known = installed_configs()
    assert len(known) >= 80
    short = find_config("cartpole_unizero")
    assert short == find_config("cartpole_unizero_config") == find_config(str(short))
    assert short == find_config("zoo.classic_control.cartpole.config.cartpole_unizero_config")
    with pytest.raises(ConfigError, match="did you mean cartpole_unizero"):
        find_config("cartpole_unizro")
    with pytest.raises(ConfigError, match="no file"):
        find_config(str(tmp_path / "none.py"))


def test_a_value_of_the_config_is_set_by_its_name() -> None:
    known = {"policy": {"batch_size": 256, "model": {"norm_type": "BN"}, "eps": None}, "env": {"stop_value": 1}}
    config = EasyDict(policy=dict(batch_size=256))
    change(config, ["policy.batch_size=64", "policy.model.norm_type=LN", "env.stop_value=None"], known)
    assert config.policy == {"batch_size": 64, "model": {"norm_type": "LN"}} and config.env.stop_value is None
    with pytest.raises(ConfigError, match=r"no policy\.batchsize; did you mean policy\.batch_size"):
        change(config, ["policy.batchsize=1"], known)
    change(config, ["policy.batch_size=.5", "policy.eps=FALSE"], known)
    assert config.policy.batch_size == 0.5 and config.policy.eps is False
    with pytest.raises(ConfigError, match="the config has 256 there"):
        change(config, ["policy.batch_size=many"], known)
    with pytest.raises(ConfigError, match="write it as"):
        change(config, ["batch_size"], known)


def test_the_folder_says_the_seed_that_was_given() -> None:
    assert named_for_seed("data/cartpole_bs256_seed0", 7) == "data/cartpole_bs256_seed7"
    assert named_for_seed("data/cartpole", 7) == "data/cartpole"


@pytest.mark.parametrize(
    ("entry", "policy", "env", "more", "why"),
    [
        ("train_muzero", "stochastic_muzero", "cartpole_lightzero", {}, "timestep"),
        ("train_alphazero", "alphazero", "tictactoe", {}, "compiled tree"),
        ("train_alphazero", "gumbel_alphazero", "gomoku", {}, "compiled tree"),
        (
            "train_muzero_segment",
            "muzero",
            "cartpole_lightzero",
            {"random_collect_episode_num": 4},
            "does not take the timestep",
        ),
    ],
)
def test_what_lightzero_cannot_run_is_one_sentence(entry: str, policy: str, env: str, more: Any, why: str) -> None:
    create = EasyDict(policy=dict(type=policy), env=dict(type=env))
    with pytest.raises(ConfigError, match=f"LightZero 0.2.0 itself cannot run this config: .*{why}"):
        check(Call(entry, EasyDict(policy=more, env={}), create))


def test_roles_have_processes_unless_everything_is_in_turn() -> None:
    assert backend_of(build_options({"off_policy_degree": 0})) == "inline"
    assert backend_of(build_options({"off_policy_degree": 0, "async_eval": True})) == "process"
    assert backend_of(build_options({})) == "process"
    with pytest.raises(ConfigError, match="inline"):
        build_options({"backend": "inline"})
    with pytest.raises(ConfigError, match="raise the degree"):
        build_options({"off_policy_degree": 0, "num_collectors": 2})


def test_no_two_collectors_and_no_two_lives_have_the_same_seed() -> None:
    seeds = {other_seed(0, worker, number) for worker in range(8) for number in range(50)}
    assert len(seeds) == 400 and 0 in seeds and all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("name", ["cartpole_muzero", "cartpole_unizero", "tictactoe_sampled_alphazero_bot_mode"])
def test_the_flags_for_another_number_of_environments_make_a_config_that_fits(name: str, tmp_path: Path) -> None:
    """As `advise` and `compare` recommend them."""
    from lzero_async.lightzero.application import describe
    from lzero_async.lightzero.running import Wishes, _settle, compile_plan
    from tests.lightzero.small import captured

    call = captured(name)
    options = build_options({})
    typed = describe(options, compile_plan(call, call.main, options, tmp_path).config).typed(2, 1, 16)
    words = typed.split()
    sets = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert len(sets) >= 3 and all(one.endswith("=16") for one in sets)
    main, options = _settle(call, Wishes({}, sets))
    config = compile_plan(call, main, options, tmp_path).config
    assert (
        config["env"]["collector_env_num"]
        == config["policy"]["collector_env_num"]
        == config["policy"]["n_episode"]
        == 16
    )
    if name == "cartpole_unizero":
        assert config["policy"]["model"]["world_model_cfg"]["env_num"] == 16
