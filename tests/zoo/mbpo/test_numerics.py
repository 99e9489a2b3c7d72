"""MBPO's numbers: buffers, actor, SAC, dynamics, rollouts, mixing and the learner, on the CPU."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lzero_async.errors import ConfigError
from zoo.mbpo.collect.actor import NumpyActor
from zoo.mbpo.learn.buffers import TransitionBuffer
from zoo.mbpo.learn.dynamics import DynamicsEnsemble, held_out
from zoo.mbpo.learn.learner import Learner
from zoo.mbpo.learn.mixing import Mixer
from zoo.mbpo.learn.model_rollout import MARGIN, rollout
from zoo.mbpo.learn.sac import SAC
from zoo.mbpo.learn.sum_tree import SumTree
from zoo.mbpo.learn.transitions import Transitions, concatenate
from zoo.mbpo.options import LearnerOptions

SMALL = LearnerOptions(
    hidden_size=16,
    batch_size=32,
    real_ratio=0.25,
    real_buffer_size=300,
    model_buffer_size=200,
    ensemble_size=3,
    num_elites=2,
    dynamics_hidden_size=16,
    dynamics_batch_size=16,
    rollout_length=2,
    rollout_batch_size=16,
)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def numbered(first: int, count: int) -> Transitions:
    """Transitions whose every field says its own number."""
    number = np.arange(first, first + count, dtype=np.float32)
    return Transitions(
        np.stack([number, -number, 10 * number], 1),
        number[:, None] / 1e4,
        number + 0.5,
        number[:, None] + [1, 2, 3],
        number % 2,
    )


def linear_world(count: int, seed: int = 0) -> Transitions:
    """A system that a small network learns at once: 2 numbers pushed by 1 action; the end is a first number above 1."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    action = rng.uniform(-1, 1, (count, 1)).astype(np.float32)
    next_obs = (obs @ np.array([[0.9, 0.2], [-0.2, 0.9]]) + action * [0.5, 0.1]).astype(np.float32)
    reward = 3 * obs[:, 0] - action[:, 0]
    return Transitions(obs, action, reward, next_obs, (next_obs[:, 0] > 1).astype(np.float32))


def filled(capacity: int, *counts: int, **options: Any) -> TransitionBuffer:
    buffer = TransitionBuffer(capacity, 3, 1, **options)
    first = 0
    for version, count in enumerate(counts):
        buffer.add(numbered(first, count), version)
        first += count
    return buffer


def equal(one: Any, other: Any) -> bool:
    """Whether two nested states are the same to the last bit."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def test_transitions_are_counted_taken_joined_and_carried_by_name():
    both = concatenate([numbered(0, 3), numbered(3, 2)])
    assert both.count == 5 and both.obs.dtype == np.float32
    assert both.take(both.reward > 3).reward.tolist() == [3.5, 4.5]
    again = Transitions.from_arrays(both.to_arrays())
    assert all(np.array_equal(one, other) for one, other in zip(again, both, strict=True))
    tensors = Transitions(*map(torch.as_tensor, both))
    assert torch.equal(concatenate([tensors, tensors]).reward[5:], tensors.reward)


def test_transitions_of_unequal_shapes_are_refused():
    arrays = numbered(0, 3).to_arrays()
    with pytest.raises(ConfigError, match="shapes"):
        Transitions.from_arrays({**arrays, "reward": arrays["reward"][:2]})
    with pytest.raises(ConfigError, match="lack the field 'action'"):
        Transitions.from_arrays({name: value for name, value in arrays.items() if name != "action"})
    with pytest.raises(ConfigError, match="at least one part"):
        concatenate([])
    with pytest.raises(ConfigError, match="this buffer holds 2 and 1"):
        TransitionBuffer(4, 2, 1).add(numbered(0, 3), 0)


@pytest.mark.parametrize("counts", [(3,), (7, 7), (5, 5, 3), (25,), (4, 23), (10, 10)])
def test_buffer_keeps_the_newest_rows_with_their_versions(counts: tuple[int, ...]):
    buffer = filled(10, *counts)
    total = sum(counts)
    assert (buffer.total_added, buffer.count, buffer.share_filled) == (total, min(total, 10), min(total, 10) / 10)
    expected = numbered(max(0, total - 10), min(total, 10))
    assert all(np.array_equal(one, other) for one, other in zip(buffer.newest(99), expected, strict=True))
    assert buffer.newest(2).reward.tolist() == expected.reward[-2:].tolist()
    sample = buffer.gather(torch.arange(buffer.count))
    starts = np.cumsum([0, *counts[:-1]])
    versions = [int(np.searchsorted(starts, number, side="right")) - 1 for number in sample.obs[:, 0].tolist()]
    assert sample.versions.tolist() == versions
    assert buffer.serials().tolist() == sample.obs[:, 0].tolist()  # the serial number stays with its transition


@pytest.mark.parametrize("sampling", ["uniform", "recent", "priority"])
def test_sample_holds_whole_rows_in_storage_that_is_used_again(sampling: str):
    buffer = filled(50, 30, 30, sampling=sampling)
    sample = buffer.sample(333)
    number = sample.obs[:, 0]
    assert set(number.tolist()) <= set(range(10, 60)) and len(set(number.tolist())) > 25
    assert torch.equal(sample.next_obs, number[:, None] + torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(sample.reward, number + 0.5) and torch.equal(sample.terminated, number % 2)
    assert torch.equal(sample.rows, number.long() % 50)
    first = number.tolist()
    again = buffer.sample(333)
    assert again.obs.data_ptr() == sample.obs.data_ptr() and again.obs[:, 0].tolist() != first
    assert buffer.sample(332).obs.data_ptr() != sample.obs.data_ptr()
    assert filled(50, 30, 30, sampling=sampling).sample(333).obs[:, 0].tolist() == first  # its own seeded generator


def test_uniform_sampling_draws_all_rows_alike():
    drawn = np.bincount(filled(20, 20).sample(20_000).rows, minlength=20)
    assert drawn.min() > 880 and drawn.max() < 1120  # 1000 each, standard deviation 31


def test_recent_sampling_halves_over_the_half_life():
    buffer = filled(1000, 1700, sampling="recent", recent_half_life=0.2)
    ranks = 1699 - buffer.sample(100_000).obs[:, 0]
    assert ranks.min() == 0 and ranks.max() > 950
    shares = torch.histc(ranks, 5, 0, 1000) / 100_000
    assert torch.allclose(shares, torch.tensor([16.0, 8, 4, 2, 1]) / 31, atol=0.006)


def test_sum_tree_finds_rows_by_their_share():
    tree = SumTree(5)
    tree.set(torch.tensor([0, 2, 4]), torch.tensor([1.0, 2.0, 0.5]))
    points = torch.tensor([0.0, 0.99, 1.0, 2.99, 3.0, 3.49, 3.5], dtype=torch.float64)
    assert float(tree.total) == 3.5
    assert tree.find(points).tolist() == [0, 0, 2, 2, 4, 4, 4]  # the last is the end itself: never an empty row
    tree.set(torch.tensor([2]), torch.tensor([0.0]))
    assert tree.find(torch.tensor([1.2], dtype=torch.float64)).tolist() == [4]


def test_priority_sampling_follows_the_errors_and_weighs_them_back():
    buffer = filled(10, 10, sampling="priority")
    errors = torch.arange(1.0, 11.0) ** (1 / 0.6)  # so that the priorities are about 1 to 10
    buffer.update_priorities(torch.arange(10), errors)
    sample = buffer.sample(11_000)
    drawn = torch.bincount(sample.rows, minlength=10)
    assert torch.allclose(drawn / 200, torch.arange(1.0, 11.0), rtol=0.02)
    expected = (sample.rows + 1.0) ** -0.4
    assert torch.allclose(sample.weight, expected, atol=2e-3)
    buffer.add(numbered(10, 1), 1)  # over row 0; it has the highest priority seen
    assert torch.bincount(buffer.sample(11_000).rows, minlength=10)[0] > 1500
    assert filled(10, 10).sample(7).weight.tolist() == [1.0] * 7


@pytest.mark.parametrize("sampling", ["uniform", "recent", "priority"])
@pytest.mark.parametrize("capacity", [4, 10, 30])
def test_resize_keeps_the_newest_and_goes_on(sampling: str, capacity: int):
    buffer = filled(10, 7, 7, sampling=sampling)
    buffer.update_priorities(torch.arange(10), torch.arange(10.0))
    last = int(buffer.gather(torch.tensor([3])).obs[0, 0])  # row 3 was written last, with error 3
    buffer.resize(capacity)
    kept = min(10, capacity)
    assert buffer.newest(99).obs[:, 0].tolist() == list(range(14 - kept, 14)) and last == 13
    assert buffer.serials().tolist() == buffer.gather(torch.arange(kept)).obs[:, 0].tolist()
    assert set(buffer.sample(300).obs[:, 0].tolist()) <= set(range(14 - kept, 14))
    if sampling == "priority":
        drawn = buffer.sample(4000).obs[:, 0]
        assert (drawn == 13).sum() < (drawn == 11).sum() * 4  # rows 1 and 3 kept their own priorities
        assert (drawn == 13).sum() > (drawn == 11).sum() * 1.3
    buffer.add(numbered(14, 3), 2)
    kept = min(kept + 3, capacity)
    assert buffer.newest(99).obs[:, 0].tolist() == list(range(17 - kept, 17))


@pytest.mark.parametrize("sampling", ["uniform", "recent", "priority"])
def test_buffer_resumes_exactly(sampling: str):
    buffer = filled(20, 15, 13, sampling=sampling, seed=1)
    buffer.update_priorities(torch.tensor([1, 5]), torch.tensor([3.0, 0.1]))
    buffer.sample(5)
    other = TransitionBuffer(8, 3, 1, sampling=sampling, seed=2)
    other.add(numbered(90, 8), 7)
    other.load_state_dict(buffer.state_dict())
    for one in (buffer, other):
        one.add(numbered(28, 3), 4)
    assert equal(buffer.state_dict(), other.state_dict()) and other.capacity == 20
    assert all(torch.equal(one, two) for one, two in zip(buffer.sample(64), other.sample(64), strict=True))
    assert torch.equal(buffer.sample_obs(9), other.sample_obs(9))


def test_age_and_starts():
    buffer = filled(10, 4, 4)
    sample = buffer.gather(torch.tensor([0, 1, 2, 7]))
    assert buffer.age(sample, 3) == (2.75, 3.0)
    starts = buffer.sample_obs(64)
    kept = starts.clone()
    buffer.sample_obs(64)
    assert torch.equal(starts, kept) and set(starts[:, 0].tolist()) == set(range(8))
    with pytest.raises(ConfigError, match="the buffer is empty"):
        TransitionBuffer(5, 3, 1).sample(2)
    with pytest.raises(ConfigError, match="choose one of uniform, recent, priority"):
        TransitionBuffer(5, 3, 1, sampling="newest")


def test_mixer_takes_its_share_of_each_buffer_and_real_rows_while_there_are_no_others():
    real, model = filled(50, 50, sampling="priority"), TransitionBuffer(50, 3, 1, sampling="priority")
    mixer = Mixer(real, model, 20, 0.3)
    assert mixer.sample().reward.max() < 100 and mixer.real_rows == 20
    model.add(numbered(1000, 50), 9)
    sample = mixer.sample()
    assert mixer.real_rows == 6
    assert (sample.reward < 100).tolist() == [True] * 6 + [False] * 14
    assert sample.versions.tolist() == [0] * 6 + [9] * 14
    storage = sample.obs.data_ptr()
    errors = torch.zeros(20)
    errors[0], errors[6] = 1e6, 1e6
    rows = sample.rows.clone()
    mixer.update_priorities(errors)
    assert real.sample(10).rows.tolist().count(int(rows[0])) >= 9
    assert model.sample(10).rows.tolist().count(int(rows[6])) >= 9
    assert mixer.sample().obs.data_ptr() == storage
    mixer.resize(10)
    assert len(mixer.sample().reward) == 10 and mixer.real_rows == 3
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Mixer(real, model, 20, 1.5)


@pytest.mark.parametrize(("ratio", "real_rows"), [(0.0, 0), (1.0, 8)])
def test_mixer_at_the_ends_of_the_ratio(ratio: float, real_rows: int):
    model = TransitionBuffer(50, 3, 1)
    model.add(numbered(1000, 5), 0)
    mixer = Mixer(filled(50, 5), model, 8, ratio)
    assert (mixer.sample().reward < 100).sum() == mixer.real_rows == real_rows
    mixer.update_priorities(torch.ones(8))


def test_numpy_actor_equals_the_torch_actor():
    agent = SAC(5, 2, hidden_size=32, seed=3)
    agent.actor.flat.mul_(3.0)  # far from zero, where tanh bends
    actor = NumpyActor({name: value.numpy() for name, value in SAC(5, 2, hidden_size=32).actor_weights().items()})
    actor.load({name: value.numpy() for name, value in agent.actor_weights().items()})
    for rows in (1, 8, 256, 8):
        obs = np.random.default_rng(rows).standard_normal((rows, 5)).astype(np.float32)
        with torch.no_grad():
            mean, log_std = agent.distribution(torch.from_numpy(obs))
        noise = torch.from_numpy(np.random.default_rng(7).standard_normal((rows, 2), dtype=np.float32))
        drawn = torch.tanh(mean + log_std.exp() * noise).numpy()
        assert np.abs(actor.act(obs, np.random.default_rng(7)) - drawn).max() < 1e-5
        mode = actor.act(obs, np.random.default_rng(7), deterministic=True)
        assert np.abs(mode - agent.act(torch.from_numpy(obs), deterministic=True).numpy()).max() < 1e-5
        assert mode.dtype == np.float32 and np.abs(log_std.numpy()).max() > 0.1


def test_numpy_actor_copies_and_refuses_other_weights():
    weights = {name: value.numpy().copy() for name, value in SAC(3, 1, hidden_size=8).actor_weights().items()}
    actor = NumpyActor(weights)
    obs, rng = np.ones((4, 3), np.float32), np.random.default_rng(0)
    before = actor.act(obs, rng, deterministic=True)
    for value in weights.values():
        value += 1
    assert np.array_equal(actor.act(obs, rng, deterministic=True), before)
    with pytest.raises(ConfigError, match="it must be"):
        actor.load({**weights, "layer0.bias": np.zeros(9, np.float32)})
    with pytest.raises(ConfigError, match="it needs"):
        actor.load({"layer0.bias": np.zeros(8, np.float32)})
    with pytest.raises(ConfigError, match="they must be layer0"):
        NumpyActor({"weight": np.zeros((3, 2), np.float32)})


def test_collectors_need_no_torch():
    code = "import sys, zoo.mbpo.collect.actor, zoo.mbpo.learn.transitions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_agent_learns_a_bandit_and_respects_termination():
    """Reward -(a - 0.5)^2 and the end at once: the mode goes to 0.5, the value is the reward alone."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1, 1, (1000, 1)).astype(np.float32)
    obs = rng.standard_normal((1000, 2)).astype(np.float32)
    data = Transitions(obs, action, 10.0 - 5 * (action[:, 0] - 0.5) ** 2, obs, np.ones(1000, np.float32))
    buffer = TransitionBuffer(1000, 2, 1)
    buffer.add(data, 0)
    agent = SAC(2, 1, hidden_size=32, learning_rate=3e-3, target_entropy=-2.0)
    for _ in range(400):
        found = agent.update(buffer.sample(128))
    mode = agent.act(torch.from_numpy(obs), deterministic=True)
    assert float((mode - 0.5).abs().mean()) < 0.15
    assert (
        6.5 < float(found["q_mean"]) < 7.7
    )  # 7.1 on average; without termination it would grow to 10 / (1 - discount)
    assert found["td_errors"].shape == (128,) and float(found["td_errors"].mean()) < 0.5
    drawn = agent.act(torch.zeros(500, 2))
    assert drawn.std() > 0.01 and drawn.abs().max() <= 1


def test_critic_target_is_the_one_of_the_book():
    """One update with a learning rate of almost 0, so that the errors of the update can be computed by hand."""
    agent = SAC(3, 1, hidden_size=8, learning_rate=1e-12, discount=0.9, seed=5)
    buffer = filled(64, 64)
    sample = buffer.sample(16)
    agent.log_temperature.fill_(-1.0)
    generator = torch.Generator()
    generator.set_state(agent.state_dict()["generator"])
    noise = torch.randn((2, 16, 1), generator=generator)[0]
    with torch.no_grad():
        mean, log_std = agent.distribution(sample.next_obs)
        raw = torch.distributions.Normal(mean, log_std.exp())
        drawn = mean + log_std.exp() * noise
        log_prob = (raw.log_prob(drawn) - torch.log(1 - torch.tanh(drawn) ** 2 + 1e-6)).sum(1)
        inputs = torch.cat((sample.next_obs, torch.tanh(drawn)), 1)
        value = agent.target(inputs.expand(2, 16, 4))[..., 0].min(0).values - np.exp(-1.0) * log_prob
        goal = sample.reward + 0.9 * (1 - sample.terminated) * value
        known = agent.critic(torch.cat((sample.obs, sample.action), 1).expand(2, 16, 4))[..., 0]
    errors = agent.update(sample)["td_errors"]
    assert torch.allclose(errors, (known - goal).abs().mean(0), rtol=1e-4, atol=1e-3)
    assert 0 < sample.terminated.sum() < 16


def test_importance_weights_scale_the_critic_loss_and_targets_follow_slowly():
    agents = [SAC(3, 1, hidden_size=8, tau=0.25) for _ in range(2)]
    sample = filled(64, 64).sample(16)
    whole = agents[0].update(sample)
    half = agents[1].update(sample._replace(weight=torch.full((16,), 0.5)))
    assert float(half["critic_loss"]) == pytest.approx(float(whole["critic_loss"]) / 2, rel=1e-5)
    start = SAC(3, 1, hidden_size=8).critic.flat
    assert torch.allclose(agents[0].target.flat, start + 0.25 * (agents[0].critic.flat - start), atol=1e-6)


def test_temperature_falls_while_the_policy_is_more_random_than_wanted():
    wide, narrow = SAC(3, 1, hidden_size=8, target_entropy=-50.0), SAC(3, 1, hidden_size=8, target_entropy=50.0)
    sample = filled(64, 64).sample(16)
    wide.update(sample)
    narrow.update(sample)
    assert float(wide.log_temperature) < 0 < float(narrow.log_temperature)


def test_agent_resumes_exactly():
    agent, other = SAC(3, 1, hidden_size=8, seed=1), SAC(3, 1, hidden_size=8, seed=2)
    sample = filled(64, 64).sample(16)
    agent.update(sample)
    other.load_state_dict(agent.state_dict())
    for one in (agent, other):
        one.update(sample)
    assert equal(agent.state_dict(), other.state_dict()) and other.updates == 2
    assert torch.equal(agent.act(sample.obs), other.act(sample.obs))
    with pytest.raises(ConfigError, match="has the shape"):
        SAC(3, 1, hidden_size=9).load_state_dict(agent.state_dict())


def small_ensemble(**options: Any) -> DynamicsEnsemble:
    sizes = {"ensemble_size": 4, "num_elites": 2, "hidden_size": 24, "hidden_layers": 2, "learning_rate": 3e-3}
    return DynamicsEnsemble(2, 1, **{**sizes, **options})


@pytest.fixture(scope="module")
def fitted() -> tuple[DynamicsEnsemble, TransitionBuffer]:
    buffer = TransitionBuffer(2000, 2, 1)
    buffer.add(linear_world(2000), 0)
    ensemble = small_ensemble()
    ensemble.fit(buffer, 600, 64)
    return ensemble, buffer


def test_dynamics_learn_change_reward_and_termination(fitted: tuple[DynamicsEnsemble, TransitionBuffer]):
    ensemble, buffer = fitted
    fresh = Transitions(*map(torch.from_numpy, linear_world(500, seed=9)))
    next_obs, reward, terminated = ensemble.predict(fresh.obs, fresh.action)
    assert float((next_obs - fresh.next_obs).abs().mean()) < 0.05
    assert float((reward - fresh.reward).abs().mean()) < 0.15
    assert float((terminated == fresh.terminated).float().mean()) > 0.95 and 0 < terminated.mean() < 0.3
    before = small_ensemble()
    assert before.fit(buffer, 0)["holdout_error"] > 20 * ensemble.fit(buffer, 0)["holdout_error"]
    assert before.predict(fresh.obs, fresh.action)[2].sum() == 0  # nothing terminates before it was learned


def test_dynamics_answer_each_row_in_its_place_by_an_elite(fitted: tuple[DynamicsEnsemble, TransitionBuffer]):
    ensemble, _ = fitted
    for rows in (1, 2, 3, 7):
        obs = torch.arange(float(rows))[:, None].expand(rows, 2) / 10
        next_obs, reward, terminated = ensemble.predict(obs, torch.zeros(rows, 1))
        assert next_obs.shape == (rows, 2) and reward.shape == terminated.shape == (rows,)
        assert torch.allclose(reward, 3 * obs[:, 0], atol=0.4)
    other = small_ensemble(seed=8)
    other.load_weights({name: value.numpy() for name, value in ensemble.weights().items()})
    with torch.no_grad():  # members other than the elites answer nonsense, and nobody hears it
        for member in set(range(4)) - set(other.elites.tolist()):
            other.weights()["layer2.bias"][member] = 1e6
    assert other.predict(torch.zeros(300, 2), torch.zeros(300, 1))[1].abs().max() < 5
    with torch.no_grad():
        other.weights()["layer2.bias"][other.elites[1]] = 1e6
    far = other.predict(torch.zeros(300, 2), torch.zeros(300, 1))[1] > 1e3
    assert far.sum() == 150 and 0 < far[:150].sum() < 150  # each elite has half of the rows, at random


def test_held_out_rows_are_a_fixed_share_and_never_trained_on():
    held = held_out(torch.arange(100_000), 0.1)
    assert 9_900 < held.sum() < 10_100
    assert 40 < held[:500].sum() < 60 and 40 < held[::64][:500].sum() < 60  # also in each environment of 64
    buffer = TransitionBuffer(400, 2, 1)
    world = linear_world(1000)
    poisoned = held_out(torch.arange(1000), 0.2).numpy()
    world.reward[poisoned] = 1e30  # whoever trains on one of these has a loss that is not finite
    buffer.add(world.take(slice(0, 600)), 0)
    ensemble = small_ensemble(num_elites=4)
    first = ensemble.fit(buffer, 5, 16, holdout_share=0.2)
    buffer.resize(300)
    second = ensemble.fit(buffer, 5, 16, holdout_share=0.2)
    buffer.add(world.take(slice(600, None)), 1)
    third = ensemble.fit(buffer, 5, 16, holdout_share=0.2)
    for report in (first, second, third):
        assert np.isfinite(report["dynamics_loss"]) and np.isinf(report["holdout_error"])
    assert ensemble.bad.count == 0


def test_elites_are_the_best_members_and_the_normaliser_is_of_the_data():
    buffer = TransitionBuffer(500, 2, 1)
    world = linear_world(500)
    buffer.add(world._replace(obs=world.obs * 100 + 500, next_obs=world.next_obs * 100 + 500), 0)
    ensemble = small_ensemble()
    ensemble.fit(buffer, 100, 64)
    low, high = ensemble.bounds
    trained = world.take(~held_out(torch.arange(500), 0.1).numpy())
    assert torch.allclose(low[:2], torch.from_numpy(trained.next_obs.min(0) * 100 + 500))
    assert high[2] == trained.reward.max()
    with torch.no_grad():
        for member in (0, 2):
            ensemble.weights()["layer2.bias"][member] += 3.0
    report = ensemble.fit(buffer, 0)
    assert set(ensemble.elites.tolist()) == {1, 3} and report["holdout_error"] < 0.3


def test_dynamics_resume_exactly_and_copy(fitted: tuple[DynamicsEnsemble, TransitionBuffer]):
    _, buffer = fitted
    one, other = small_ensemble(seed=1), small_ensemble(seed=2)
    one.fit(buffer, 3, 16)
    other.load_state_dict(one.state_dict())
    for each in (one, other):
        each.fit(buffer, 3, 16)
    assert equal(one.state_dict(), other.state_dict()) and (other.version, other.updates) == (2, 6)
    assert torch.equal(
        one.predict(torch.ones(9, 2), torch.ones(9, 1))[0], other.predict(torch.ones(9, 2), torch.ones(9, 1))[0]
    )
    with pytest.raises(ConfigError, match="at most ensemble_size"):
        small_ensemble(num_elites=5)
    with pytest.raises(ConfigError, match="none of them to train on"):
        small_ensemble().fit(TransitionBuffer(5, 2, 1), 1)


class FakeDynamics:
    """Counts up: the first number grows by 1 a step; ends at 3, is not a number at 10, and explodes at 20."""

    def __init__(self) -> None:
        self.bounds = (torch.tensor([0.0, -1.0]), torch.tensor([30.0, 1.0]))  # one observation and the reward

    def predict(self, obs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        next_obs = obs + 1
        next_obs[next_obs == 10] = torch.nan
        next_obs[next_obs == 20] = 1e9
        return next_obs, action[:, 0] / 100, (next_obs[:, 0] == 3).float()


def test_rollouts_branch_end_and_are_cut():
    starts = torch.tensor([[0.0], [1.0], [8.0], [18.0], [25.0]])
    found = rollout(FakeDynamics(), lambda obs: obs * 2, starts, 3)
    data = found.transitions
    pairs = [(float(one), float(two)) for one, two in zip(data.obs[:, 0], data.next_obs[:, 0], strict=True)]
    top = 30 + 30 * MARGIN
    expected = [
        (0, 1),
        (1, 2),
        (8, 9),
        (18, 19),
        (25, 26),
        (1, 2),
        (2, 3),
        (19, top),
        (26, 27),
        (2, 3),
        (top, top),
        (27, 28),
    ]
    assert pairs == expected
    assert (found.clamped, found.dropped) == (2, 1)
    assert torch.equal(data.action, data.obs * 2) and torch.allclose(data.reward, data.obs[:, 0] / 50)
    assert data.terminated.tolist() == [float(two == 3) for _, two in pairs]
    assert rollout(FakeDynamics(), lambda obs: obs, torch.tensor([[2.0]]), 9).transitions.count == 1


def test_learner_counts_its_work_and_the_ages_of_its_data():
    learner = Learner(SMALL, 2, 1)
    world = linear_world(300)
    learner.take(world.take(slice(0, 150)), 2)
    learner.take(world.take(slice(150, None)), 4)
    assert learner.roll(10) == 0 and learner.model_data == 0  # nothing is known of the world yet
    first = learner.train_agent(3, version=5)
    assert 1 <= first["real_age_mean"] <= 3 and first["real_age_max"] == 3 and "model_age_max" not in first
    report = learner.train_dynamics(4)
    assert np.isfinite(report["dynamics_loss"]) and report["holdout_rows"] > 0
    rows = learner.roll(40)
    assert 40 < rows <= 80 and learner.model.count == rows
    learner.train_dynamics(2)
    learner.roll(40)
    second = learner.train_agent(5, version=5)
    assert 0 < second["model_age_mean"] < 1 == second["model_age_max"]
    assert np.isfinite(list(second.values())).all() and second["temperature"] > 0
    counted = (learner.real_data, learner.agent_updates, learner.dynamics_updates)
    assert counted == (300, 8, 6) and learner.model_data == learner.model.total_added
    assert learner.train_agent(0) == {}


@pytest.mark.parametrize("sampling", ["uniform", "recent", "priority"])
def test_learner_resumes_exactly(sampling: str):
    def work(learner: Learner) -> dict[str, float]:
        learner.take(linear_world(120, seed=learner.real_data), learner.agent_updates)
        learner.train_dynamics(3)
        learner.roll(30)
        return learner.train_agent(4, learner.agent_updates)

    options = replace(SMALL, sampling=sampling)
    learner, other = Learner(options, 2, 1), Learner(replace(options, seed=9), 2, 1)
    for _ in range(3):
        work(learner)
    other.load_state_dict(learner.state_dict())
    assert work(learner) == work(other)
    assert equal(learner.state_dict(), other.state_dict())
    assert other.model_data == learner.model_data > 200
