"""The numbers of `zoo.episode_ppo`: episodes, the policy in numpy, GAE, PPO, and environments by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lzero_async import ConfigError, LzeroAsyncError, Parcel
from zoo.episode_ppo.envs.factories import FlatEnv, Spaces, describe, make_env, parse_env_args
from zoo.episode_ppo.learn.advantages import gae
from zoo.episode_ppo.learn.critic import Critic
from zoo.episode_ppo.learn.ppo import LOSSES, PPO, policy_objective
from zoo.episode_ppo.play.episode import Episode, Recording, check, pack, unpack
from zoo.episode_ppo.play.policy import NumpyPolicy
from zoo.mbpo.learn.networks import generator_of

DISCRETE, BOX = Spaces(3, "discrete", 4), Spaces(3, "box", 2)
HERE = "tests.zoo.episode_ppo.test_numerics"


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def agent_of(which: Spaces, **options: Any) -> PPO:
    """A small agent whose policy is not uniform."""
    agent = PPO(which, **{"hidden_size": 16, "minibatch_size": 32, "epochs": 2, **options})
    with torch.no_grad():
        agent.actor.parameters[-2].mul_(200.0)
    return agent


def episodes_of(agent: PPO, lengths: tuple[int, ...] = (5, 1, 40, 17), seed: int = 0) -> list[Episode]:
    """Episodes that this agent's policy played on random observations; every second one is truncated."""
    rng, policy, found = np.random.default_rng(seed), NumpyPolicy(agent.weights()), []
    for number, length in enumerate(lengths):
        recording = Recording(number, version=number // 2, worker=number % 3)
        for _ in range(length):
            obs = rng.standard_normal(agent.spaces.obs_size).astype(np.float32)
            recording.add(obs, *policy.act(obs, rng), float(rng.normal(1.0, 2.0)))
        last = rng.standard_normal(agent.spaces.obs_size)
        found.append(recording.finish(last, number % 2 == 0, number % 2 == 1, 0.25 * number))
    return found


def equal(one: Any, other: Any) -> bool:
    """Whether two nested states are the same to the last bit."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


# -- episodes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [DISCRETE, BOX])
def test_episodes_are_packed_and_unpacked_without_a_change(which: Spaces):
    episodes = episodes_of(agent_of(which))
    record = pack(episodes)
    assert len(record) == 12 and record["length"].tolist() == [5, 1, 40, 17]
    for one, other in zip(episodes, unpack(Parcel(record).open()), strict=True):
        assert all(map(equal, one, other))
    assert equal(pack(unpack(record)), record)
    assert pack([]) == {} and unpack({}) == []


def test_a_recording_gives_the_types_that_are_documented():
    episode = Recording(7, 3, 1)
    episode.add(np.zeros(2), np.int64(1), -0.5, 1)
    episode.add(np.ones(2), 0, -0.25, 2.5)
    found = episode.finish(np.full(2, 2.0), np.True_, False, 1)
    assert (found.number, found.version, found.worker, found.length, found.ret) == (7, 3, 1, 2, 3.5)
    assert found.action.dtype == np.int64 and found.action.tolist() == [1, 0]
    assert {found.obs.dtype, found.log_prob.dtype, found.reward.dtype, found.last_obs.dtype} == {np.dtype(np.float32)}
    assert found.terminated is True and found.truncated is False
    with pytest.raises(ConfigError, match="no steps"):
        Recording(0, 0, 0).finish(np.zeros(2), True, False, 0.0)
    with pytest.raises(ConfigError, match="neither terminated nor truncated"):
        check(found._replace(terminated=False))
    with pytest.raises(ConfigError, match="shapes"):
        check(found._replace(log_prob=found.log_prob[:1]))


def test_what_does_not_fit_is_not_packed_or_unpacked():
    episodes = episodes_of(agent_of(DISCRETE))
    with pytest.raises(ConfigError, match="2 kinds"):
        pack([*episodes, *episodes_of(agent_of(BOX))])
    record = pack(episodes)
    with pytest.raises(ConfigError, match="must hold"):
        unpack({name: value for name, value in record.items() if name != "seconds"})
    with pytest.raises(ConfigError, match="damaged: reward does"):
        unpack({**record, "reward": record["reward"][1:]})


# -- the policy in numpy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [DISCRETE, BOX])
def test_log_probabilities_of_numpy_and_torch_are_equal(which: Spaces):
    agent = agent_of(which)
    policy = NumpyPolicy(agent.weights())
    obs = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)
    action, log_prob = policy.act(obs, np.random.default_rng(1))
    with torch.no_grad():
        expected = agent.log_probs(torch.as_tensor(obs), torch.as_tensor(action))[0].numpy()
    np.testing.assert_allclose(log_prob, expected, atol=1e-5)
    assert np.ptp(log_prob) > 0.5
    rng = np.random.default_rng(1)
    for index in range(500):  # one row at a time draws the same from the same generator
        one, its_log_prob = policy.act(obs[index], rng)
        np.testing.assert_allclose(one, action[index], atol=1e-5)
        assert its_log_prob == pytest.approx(log_prob[index], abs=1e-5)
    assert isinstance(its_log_prob, float) and isinstance(one, int if which is DISCRETE else np.ndarray)


def test_actions_come_as_often_as_their_probability_says():
    policy = NumpyPolicy({"layer0.weight": np.zeros((1, 3)), "layer0.bias": np.log([0.2, 0.7, 0.1])})
    rng, obs = np.random.default_rng(0), np.zeros(1)
    draws = [policy.act(obs, rng)[0] for _ in range(20_000)]
    np.testing.assert_allclose(np.bincount(draws) / len(draws), [0.2, 0.7, 0.1], atol=0.01)
    assert policy.greedy(obs) == 1 and policy.greedy(np.zeros((2, 1))).tolist() == [1, 1]
    never = NumpyPolicy({"layer0.weight": np.zeros((1, 3)), "layer0.bias": np.array([-1e9, 0.0, -1e9])})
    assert {never.act(obs, rng) for _ in range(100)} == {(1, 0.0)}


class Zero:
    """A generator that draws its smallest number."""

    def random(self, size: int | None = None) -> Any:
        return 0.0 if size is None else np.zeros(size)


def test_an_action_of_probability_zero_is_not_drawn_by_the_smallest_random_number():
    policy = NumpyPolicy({"layer0.weight": np.zeros((1, 3)), "layer0.bias": np.array([-1e9, 0.0, 0.0])})
    assert policy.act(np.zeros(1), Zero())[0] == 1  # type: ignore[arg-type]
    assert policy.act(np.zeros((2, 1)), Zero())[0].tolist() == [1, 1]  # type: ignore[arg-type]


def test_gaussian_actions_have_their_mean_and_spread():
    weights = {"layer0.weight": np.zeros((1, 2)), "layer0.bias": np.array([1.0, -3.0]), "log_std": np.log([0.5, 2.0])}
    policy = NumpyPolicy(weights)
    rng, obs = np.random.default_rng(0), np.zeros(1)
    draws = np.array([policy.act(obs, rng)[0] for _ in range(20_000)])
    np.testing.assert_allclose(draws.mean(0), [1.0, -3.0], atol=0.05)
    np.testing.assert_allclose(draws.std(0), [0.5, 2.0], rtol=0.03)
    mode = policy.greedy(obs)
    policy.greedy(np.ones(1))
    np.testing.assert_allclose(mode, [1.0, -3.0])


def test_weights_of_other_names_are_refused():
    with pytest.raises(ConfigError, match="they must be"):
        NumpyPolicy({"layer1.weight": np.zeros((1, 1)), "layer1.bias": np.zeros(1)})


def test_workers_need_no_torch():
    modules = "zoo.episode_ppo.play.episode, zoo.episode_ppo.play.policy, zoo.episode_ppo.envs.factories"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- advantages ------------------------------------------------------------------------------------------------------------


def test_gae_is_the_sum_that_defines_it():
    rng, lengths = np.random.default_rng(0), [4, 1, 7]
    discount, gae_lambda = 0.9, 0.8
    reward, value = rng.standard_normal(12), rng.standard_normal(12)
    last_value, expected, start = np.array([0.7, -0.3, 0.0]), [], 0
    for episode, length in enumerate(lengths):
        rewards, values = reward[start : start + length], [*value[start : start + length], last_value[episode]]
        for step in range(length):
            total = 0.0
            for later in range(step, length):
                error = rewards[later] + discount * values[later + 1] - values[later]
                total += (discount * gae_lambda) ** (later - step) * error
            expected.append(total)
        start += length
    found = gae(reward, value, last_value, np.array(lengths), discount, gae_lambda)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_values_follow_a_truncation_but_not_a_terminal_state():
    """With lambda 1, the return is the discounted sum of rewards, and of V(last_obs) where the time ran out."""
    agent = agent_of(DISCRETE, gae_lambda=1.0, discount=0.5)
    ended, cut = (episode._replace(reward=np.array([1.0, 2.0], np.float32)) for episode in episodes_of(agent, (2, 2)))
    last = float(agent.critic.values(torch.as_tensor(cut.last_obs)[None])[0])
    rows, _ = agent._rows(pack([ended, cut]))
    returns = rows.target.numpy() * agent.critic.std + agent.critic.mean
    np.testing.assert_allclose(returns, [2.0, 2.0, 2.0 + 0.25 * last, 2.0 + 0.5 * last], atol=1e-5)
    assert abs(last) > 0.01
    np.testing.assert_allclose([rows.advantage.mean(), rows.advantage.std(correction=0)], [0, 1], atol=1e-5)


def test_the_critics_values_stay_while_its_units_follow_the_returns():
    critic, obs = Critic([3, 8], generator_of("cpu", 0)), torch.randn(50, 3, generator=generator_of("cpu", 1))
    rng = np.random.default_rng(0)
    returns = rng.normal(-500.0, 40.0, 1000)
    critic.follow(returns)
    scaled = critic.scale(returns)
    np.testing.assert_allclose([scaled.mean(), scaled.std()], [0.0, 1.0], atol=1e-6)
    before = critic.values(obs)
    assert np.abs(before + 500.0).max() < 80.0 and np.ptp(before) > 1.0  # an untrained critic begins among the returns
    for centre in (-480.0, 300.0):
        critic.follow(rng.normal(centre, 40.0, 1000))
        np.testing.assert_allclose(critic.values(obs), before, atol=1e-2)
    assert critic.mean > -300.0 and critic.std > 100.0
    critic = Critic([3, 8], generator_of("cpu", 0))
    critic.follow(np.full(10, 3.0))
    np.testing.assert_allclose(critic.scale(np.full(10, 3.0)), 0.0)


# -- PPO -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [DISCRETE, BOX])
def test_the_ratio_of_fresh_data_is_one(which: Spaces):
    """One gradient step on all rows: the loss is minus the mean of the normalised advantages, which is 0."""
    agent = agent_of(which, epochs=1, minibatch_size=1000)
    found = agent.update(episodes_of(agent))
    assert set(found) == {*LOSSES, "stale_kl", "moved_kl", "explained_variance", "updates", "bad_updates"}
    assert found["updates"] == agent.updates == 1 and agent.batches == 1
    assert found["clip_fraction"] == 0.0 and found["stale_kl"] < 1e-9 and found["approx_kl"] < 1e-9
    assert abs(found["policy_loss"]) < 1e-5
    assert found["moved_kl"] > 1e-9


def test_the_ratio_of_stale_data_is_against_the_policy_that_played():
    """Without clipping, the loss is the mean of advantage times p_now / p_then, computed here from both policies."""
    then, now = agent_of(DISCRETE), agent_of(DISCRETE, seed=1, clip=1e9, epochs=1, minibatch_size=1000)
    episodes = episodes_of(then)
    rows, _ = agent_of(DISCRETE, seed=1)._rows(pack(episodes))
    with torch.no_grad():
        ratio = (now.log_probs(rows.obs, rows.action)[0] - then.log_probs(rows.obs, rows.action)[0]).exp()
    found = now.update(episodes)
    assert found["policy_loss"] == pytest.approx(-float((ratio * rows.advantage).mean()), abs=1e-5)
    expected = float((ratio - 1 - ratio.log()).mean())
    assert found["stale_kl"] == pytest.approx(expected, rel=1e-3) and expected > 0.03


def test_clipping_stops_the_gradient_outside_and_only_in_the_advantages_direction():
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 0.9]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -2.0])
    loss = policy_objective(log_ratio, advantage, 0.2)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    np.testing.assert_allclose(gradient * -6, [0.0, -1.5, 0.5, 0.0, 1.1, -1.8], atol=1e-6)
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 1.1 - 1.8) / 6)
    far = torch.tensor([500.0], requires_grad=True)
    loss = policy_objective(far, torch.tensor([-1.0]), 0.2)
    assert torch.isfinite(loss) and torch.isfinite(torch.autograd.grad(loss, far)[0]).all()


def test_every_row_is_in_one_minibatch_of_an_epoch():
    agent = agent_of(DISCRETE, minibatch_size=30)
    parts = agent._minibatches(100)
    assert sorted(map(len, parts)) == [33, 33, 34]
    assert sorted(torch.cat(parts).tolist()) == list(range(100)) != torch.cat(parts).tolist()
    assert [len(part) for part in agent._minibatches(7)] == [7]


@pytest.mark.parametrize("which", [DISCRETE, BOX])
def test_an_update_makes_rewarded_actions_more_likely(which: Spaces):
    """Each step is an episode; one action (or a positive first number) is rewarded, far from 0 and in large units."""
    agent = agent_of(which, epochs=4, learning_rate=3e-3, entropy_weight=0.0)
    for round_number in range(6):
        episodes = episodes_of(agent, (1,) * 200, seed=round_number)
        good = [float(np.ravel(episode.action)[0] == 2 if which is DISCRETE else np.ravel(episode.action)[0] > 0)
                for episode in episodes]  # fmt: skip
        if round_number == 0:
            first = np.mean(good)
        rewarded = [e._replace(reward=np.float32([5000 + 1000 * g])) for e, g in zip(episodes, good, strict=True)]
        found = agent.update(rewarded)
    assert np.mean(good) > max(first + 0.2, 0.7)
    assert found["value_loss"] < 10.0


@pytest.mark.parametrize("which", [DISCRETE, BOX])
def test_entropy_grows_when_it_weighs_more_than_the_rewards(which: Spaces):
    agent = agent_of(which, entropy_weight=10.0, epochs=5)
    still = [episode._replace(reward=np.zeros_like(episode.reward)) for episode in episodes_of(agent, (1,) * 64)]
    entropies = [agent.update(still)["entropy"] for _ in range(4)]
    assert entropies == sorted(entropies) and entropies[-1] > entropies[0] + 0.005


def test_updates_can_be_decayed_and_ended_by_the_distance():
    still = agent_of(DISCRETE)
    before = still.weights()
    still.update(episodes_of(still), learning_rate_scale=0.0)
    assert equal(still.weights(), before)
    moves = agent_of(DISCRETE, learning_rate=0.1, epochs=50, target_kl=0.05)
    found = moves.update(episodes_of(moves))
    assert found["moved_kl"] > 0.05 and found["updates"] < 50 * 2
    small = agent_of(DISCRETE, learning_rate=1e-6, epochs=5, target_kl=0.05)
    assert small.update(episodes_of(small))["updates"] == 5 * 2


@pytest.mark.parametrize("which", [DISCRETE, BOX])
def test_a_resumed_agent_goes_on_exactly(which: Spaces):
    agent, other = agent_of(which, seed=3), agent_of(which, seed=4)
    for seed in range(2):
        agent.update(pack(episodes_of(agent, seed=seed)))
    other.load_state_dict(agent.state_dict())
    assert equal(other.state_dict(), agent.state_dict()) and agent.updates == 8
    episodes = episodes_of(agent, seed=5)
    assert agent.update(episodes, 0.5) == other.update(pack(episodes), 0.5)
    assert equal(other.state_dict(), agent.state_dict())
    with pytest.raises(ConfigError, match="it must be"):
        agent_of(which, hidden_size=8).load_state_dict(agent.state_dict())


def test_batches_that_cannot_be_trained_on_are_refused():
    agent = agent_of(DISCRETE)
    before = agent.state_dict()
    episodes = episodes_of(agent)
    with pytest.raises(ConfigError, match="no episodes"):
        agent.update([])
    with pytest.raises(ConfigError, match="do not fit"):
        agent.update(episodes_of(agent_of(BOX)))
    episodes[2].reward[39] = np.nan
    with pytest.raises(LzeroAsyncError, match=r"reward of episode 2 \(worker 2\)"):
        agent.update(episodes)
    episodes = episodes_of(agent)
    for place, terminated in ((1, True), (3, False)):  # what is behind a terminal state has no value
        episodes[place].last_obs[0] = np.inf
        episodes[place] = episodes[place]._replace(terminated=terminated, truncated=not terminated)
    with pytest.raises(LzeroAsyncError, match=r"last_obs of episode 3 \(worker 0\)"):
        agent.update(episodes)
    assert equal(agent.state_dict(), before)
    with pytest.raises(ConfigError, match="kind is 'both'"):
        PPO(Spaces(3, "both", 2))


# -- environments by name --------------------------------------------------------------------------------------------------


class Odd(gymnasium.Env):
    """Observes a dictionary and remembers what it was told."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space: Any = spaces.Dict(
        {
            "place": spaces.Discrete(3, start=5),
            "flags": spaces.MultiBinary(2),
            "table": spaces.Box(-9, 9, (2, 2), dtype=np.float64),
        }
    )
    action_space: Any = spaces.Discrete(4, start=-1)

    def __init__(self, red_agent: str = "none", size: int = 1) -> None:
        self.red_agent, self.size, self.actions = red_agent, size, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"table": [[1, 2], [3, 4]], "place": 6, "flags": np.array([1, 0], np.int8)}, {"seed": seed}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.reset()[0], np.float64(1.5), np.bool_(True), False, {}


def odd(action_space: Any = None, observation_space: Any = None, old: bool = False) -> Odd:
    env = Odd()
    env.action_space = action_space or env.action_space
    env.observation_space = observation_space or env.observation_space
    if old:
        env.step = lambda action: (None, 0.0, True, {})  # type: ignore[method-assign]
    return env


def without_seed() -> Odd:
    env = odd()
    env.reset = lambda: ({}, {})  # type: ignore[method-assign]
    return env


def nothing() -> None:
    return None


def failing() -> None:
    raise TypeError("a fault inside")


def test_factories_get_their_arguments_and_observations_become_vectors():
    arguments = parse_env_args(["red_agent=B_lineAgent", "size=3"])
    env = make_env(f"{HERE}:Odd", arguments)
    assert (env.env.red_agent, env.env.size) == ("B_lineAgent", 3)
    assert env.spaces == describe(f"{HERE}:Odd") == Spaces(9, "discrete", 4)
    obs, info = env.reset(seed=4)
    # In the order of the keys: flags, place as one of 5, 6 and 7, table.
    assert obs.tolist() == [1, 0, 0, 1, 0, 1, 2, 3, 4] and obs.dtype == np.float32 and info == {"seed": 4}
    found = env.step(0)
    assert [type(value) for value in found[1:4]] == [float, bool, bool] and found[1:4] == (1.5, True, False)
    env.step(np.int64(3))
    assert env.env.actions == [-1, 2]
    env.close()


def test_gymnasium_ids_are_described_and_played():
    assert describe("CartPole-v1") == Spaces(4, "discrete", 2)
    assert describe("FrozenLake-v1", {"is_slippery": False}) == Spaces(16, "discrete", 4)
    assert describe("tests.zoo.mbpo.gym_envs:Counting-v0") == Spaces(4, "box", 2)
    env = make_env("Pendulum-v1", {"g": 1.0})
    assert env.spaces == Spaces(3, "box", 1) and env.env.unwrapped.g == 1.0
    first = env.reset(seed=0)[0]
    kept = first.copy()
    env.step(np.array([0.5], np.float32))
    assert np.array_equal(first, kept) and np.array_equal(env.reset(seed=0)[0], kept)


def test_an_observation_is_kept_when_the_environment_writes_into_its_own():
    inner, shared = odd(observation_space=spaces.Box(0, 9, (2,))), np.zeros(2, np.float32)
    inner.reset = lambda seed=None: (shared, {})  # type: ignore[method-assign]
    env = FlatEnv(inner, "odd")
    first = env.reset()[0]
    shared += 1
    assert first.tolist() == [0, 0] and env.reset()[0].tolist() == [1, 1]


def test_actions_are_scaled_where_both_bounds_are_finite_and_clipped_to_them():
    low, high = np.float32([[0, -np.inf, -1e9]]), np.float32([[10, np.inf, np.inf]])
    env = FlatEnv(odd(action_space=spaces.Box(low, high)), "odd")
    for action in ([-1.0, 3.0, 5.0], [1.5, -3.0, -2e9], [0.5, 0.0, 0.0]):
        env.step(np.array(action, np.float32))
    assert [action.tolist() for action in env.env.actions] == [[[0, 3, 5]], [[10, -3, -1e9]], [[7.5, 0, 0]]]
    assert env.env.actions[0].dtype == np.float32 and env.spaces == Spaces(9, "box", 3)


def test_arguments_are_read_as_json_or_text():
    words = ["a=3", "b=[1, 2]", "c=true", "d=B_lineAgent", "e=x=y", "f=", 'g="3"', "two-words=null"]
    assert parse_env_args(words) == {
        "a": 3, "b": [1, 2], "c": True, "d": "B_lineAgent", "e": "x=y", "f": "", "g": "3", "two_words": None,
    }  # fmt: skip
    for wrong, match in ((["a"], "NAME=VALUE"), (["=3"], "NAME=VALUE"), (["a=1", "a=2"], "twice")):
        with pytest.raises(ConfigError, match=match):
            parse_env_args(wrong)


@pytest.mark.parametrize(
    ("spec", "arguments", "match"),
    [
        ("CartPoll-v1", {}, "Did you mean 'CartPole-v1'"),
        ("", {}, "must be the id"),
        ("no_such_module:make", {}, "'no_such_module' cannot be imported"),
        (":make", {}, "cannot be imported"),
        (f"{HERE}:Od", {}, f"Did you mean {HERE}:[Oo]dd"),
        (f"{HERE}:Missing-v0", {}, "registers no such environment"),
        (f"{HERE}:Odd", {"blue_agent": 1}, "do not fit .*blue_agent"),
        ("CartPole-v1", {"blue_agent": 1}, "do not fit CartPole-v1"),
        (f"{HERE}:nothing", {}, "NoneType without observation_space"),
        (f"{HERE}:without_seed", {}, "takes no seed"),
        (f"{HERE}:odd", {"action_space": spaces.MultiBinary(2)}, "Discrete, or a Box of floats"),
        (f"{HERE}:odd", {"action_space": spaces.Box(0, 9, (1,), dtype=np.int64)}, "Discrete, or a Box of floats"),
        (f"{HERE}:odd", {"observation_space": spaces.Text(5)}, "Box, Discrete or MultiBinary"),
        (f"{HERE}:odd", {"observation_space": spaces.Dict({"flags": spaces.Text(5)})}, "Box, Discrete or MultiBinary"),
        (
            f"{HERE}:odd",
            {"observation_space": spaces.Dict({"table": spaces.Box(0, 1, (3,))})},
            r"shape \[4\]; it must be \[3\]",
        ),
    ],
)
def test_environments_that_cannot_be_used_are_one_sentence(spec: str, arguments: dict[str, Any], match: str):
    with pytest.raises(ConfigError, match=match):
        describe(spec, arguments)


def test_faults_of_an_environment_stay_what_they_are():
    with pytest.raises(TypeError, match="a fault inside"):
        describe(f"{HERE}:failing")
    env = make_env(f"{HERE}:odd", {"old": True})
    with pytest.raises(ConfigError, match="gives 4 values; gymnasium's interface has 5"):
        env.step(0)


# -- learning --------------------------------------------------------------------------------------------------------------


def play(env: FlatEnv, policy: NumpyPolicy, rng: np.random.Generator, number: int, version: int) -> Episode:
    recording = Recording(number, version, worker=0)
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    while True:
        action, log_prob = policy.act(obs, rng)
        new, reward, terminated, truncated, _ = env.step(action)
        recording.add(obs, action, log_prob, reward)
        obs = new
        if terminated or truncated:
            return recording.finish(obs, terminated, truncated, 0.0)


def test_cartpole_is_learned_from_whole_episodes():
    """About 2 s: a random policy gets 20 to 25; here, episodes of 15,000 steps bring it to 100 and more."""
    env, rng = make_env("CartPole-v1"), np.random.default_rng(0)
    agent = PPO(env.spaces, seed=0)
    returns: list[float] = []
    while sum(returns) < 15_000:  # CartPole's rewards are 1 a step
        batch, policy = [], NumpyPolicy(agent.weights())
        while sum(episode.length for episode in batch) < 1_500:
            batch.append(play(env, policy, rng, len(returns) + len(batch), agent.batches))
        returns += [episode.ret for episode in batch]
        agent.update(batch)
    assert np.mean(returns[:20]) < 35 < 100 < np.mean(returns[-20:])
