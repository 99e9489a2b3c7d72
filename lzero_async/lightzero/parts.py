"""LightZero's own parts (environments, policy, learner, buffer, collector, evaluator), built in the order of its entries.

At degree 0 all roles are made of one `Parts`, so that they share the policy and the random numbers as LightZero's own do. In a
process of its own a role has one with only what it needs, and its own copy of the policy.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from lzero_async.errors import ConfigError
from lzero_async.lightzero.dice import seed_dice
from lzero_async.lightzero.entries import ENTRIES, Entry

BEST: Final = "ckpt_best.pth.tar"  # beside ours
LEARNER, COLLECTOR, EVALUATOR = "learner", "collector", "evaluator"
ALL: Final = (LEARNER, COLLECTOR, EVALUATOR)
MOST_SEEDS: Final = 2**31 - 2**16
Emit = Callable[[Any], None]


@dataclass(frozen=True)
class Plan:
    """What every role is made from; it travels. `config` is compiled, `folder` is the run's, `model` is a network of the user's
    own, `path` is where modules beside the config are found."""

    entry: str
    config: dict[str, Any]
    imports: tuple[str, ...]
    policy: str
    folder: str
    model: Any = None
    model_path: str | None = None
    path: tuple[str, ...] = ()

    def easy(self) -> Any:
        """The compiled config as LightZero wants it."""
        from easydict import EasyDict

        config = EasyDict(self.config)
        config.exp_name = os.path.relpath(self.folder)  # LightZero writes to ./exp_name
        return config


@dataclass
class Writer:
    """Stands for TensorBoard's writer: what LightZero records is kept until `hand_over`, for the process that writes it."""

    rows: list[tuple[str, float, int]] = field(default_factory=list)

    def add_scalar(self, tag: str, value: Any, step: int | None = None, *_: Any, **__: Any) -> None:
        """One number."""
        self.rows.append((tag, float(value), int(step or 0)))

    def add_histogram(self, *_: Any, **__: Any) -> None:
        """Left out: no policy of LightZero records one."""

    add_text = add_scalars = add_histogram

    def flush(self) -> None:
        """Nothing is written here."""

    close = flush

    def hand_over(self, emit: Emit) -> None:
        """Tell the run's owner what was recorded."""
        rows, self.rows = self.rows, []
        if rows:
            emit(("scalars", rows))

    def last(self, *names: str) -> dict[str, float]:
        """The last value of each of these names, whatever stands before them."""
        found = {tag.rpartition("/")[2]: value for tag, value, _ in self.rows}
        return {name: found[name] for name in names}


class Parts:
    """The parts of the roles in `roles`; `worker` is the number of a collector."""

    policy: Any
    learner: Any
    buffer: Any
    collector: Any = None
    evaluator: Any = None
    reward_model: Any = None

    def __init__(self, plan: Plan, roles: tuple[str, ...], worker: int = 0) -> None:
        sys.path[:0] = [place for place in plan.path if place not in sys.path]
        self.plan, self.roles, self.worker = plan, roles, worker
        self.shared = roles == ALL
        self.entry: Entry = ENTRIES[plan.entry]
        self.cfg = plan.easy()
        self.seed = other_seed(int(self.cfg.seed), worker, 0)
        self.writer = Writer()
        for name in plan.imports:
            importlib.import_module(name)
        self._build()

    def _build(self) -> None:
        from ding.policy import create_policy

        cfg, policy = self.cfg, self.cfg.policy
        envs = {role: self._new_envs(role) for role in (COLLECTOR, EVALUATOR) if role in self.roles}
        if COLLECTOR in envs:
            envs[COLLECTOR].seed(self.seed)
        if EVALUATOR in envs:
            envs[EVALUATOR].seed(cfg.seed, dynamic_seed=False)
        self.seed_everything(self.seed)
        policy.use_wandb = False  # the run's owner has it
        self.policy = create_policy(policy, model=self.plan.model, enable_field=["learn", "collect", "eval"])
        if self.plan.model_path is not None and LEARNER in self.roles:
            self.policy.learn_mode.load_state_dict(load_file(self.plan.model_path, policy.device))
        if LEARNER in self.roles:
            self._build_learner()
        if COLLECTOR in self.roles:
            self.collector = self._new_collector(envs[COLLECTOR])
        if EVALUATOR in self.roles:
            self.evaluator = self._new_evaluator(envs[EVALUATOR])
        if LEARNER in self.roles:
            self._build_reward_model()
            self.learner.call_hook("before_run")

    def seed_everything(self, seed: int) -> None:
        """Seed this process and the trees' dice."""
        from ding.utils import set_pkg_seed

        set_pkg_seed(seed, use_cuda=self.cfg.policy.cuda)
        seed_dice(seed)

    def _new_envs(self, role: str) -> Any:
        """The vectorised environments of collector or evaluator."""
        from ding.envs import BaseEnvManager, DingEnvWrapper, create_env_manager, get_vec_env_setting

        env = copy.deepcopy(self.cfg.env)  # some environments take out of it what they have read
        if self.entry.gym_envs:
            from lzero.envs.get_wrapped_env import get_wrappered_env

            configs = getattr(DingEnvWrapper, f"create_{role}_env_cfg")(env)
            return BaseEnvManager(
                [get_wrappered_env(one, env.env_id) for one in configs], cfg=BaseEnvManager.default_config()
            )
        env_fn, *configs = get_vec_env_setting(env)
        mine = configs[0 if role == COLLECTOR else 1]
        return create_env_manager(env.manager, [partial(env_fn, cfg=one) for one in mine])

    def _build_learner(self) -> None:
        from ding.worker import BaseLearner, create_buffer

        cfg = self.cfg
        self.learner = BaseLearner(cfg.policy.learn.learner, self.policy.learn_mode, self.writer, exp_name=cfg.exp_name)
        if self.entry.transitions:
            self.buffer = create_buffer(cfg.policy.other.replay_buffer, tb_logger=self.writer, exp_name=cfg.exp_name)
        else:
            buffers = importlib.import_module("lzero.mcts")
            self.buffer = getattr(buffers, self.entry.buffers[self.plan.policy])(cfg.policy)

    def _new_collector(self, envs: Any) -> Any:
        made = self._worker(self.entry.collector)
        collector = made(env=envs, policy=self.policy.collect_mode, **self._usual(COLLECTOR, self.worker))
        collector._instance_name = COLLECTOR  # of LightZero's tags: a second collector only has another folder
        return collector

    def _new_evaluator(self, envs: Any) -> Any:
        made, cfg = self._worker(self.entry.evaluator), self.cfg
        return made(
            eval_freq=cfg.policy.eval_freq, n_evaluator_episode=cfg.env.n_evaluator_episode, stop_value=cfg.env.stop_value,
            env=envs, policy=self.policy.eval_mode, **self._usual(EVALUATOR),
        )  # fmt: skip

    @staticmethod
    def _worker(name: str) -> Any:
        return getattr(importlib.import_module("lzero.worker"), name)

    def _usual(self, role: str, number: int = 0) -> dict[str, Any]:
        """The arguments that collectors and evaluators share."""
        name = f"{role}-{number}" if number else role
        known = {"tb_logger": self.writer, "exp_name": self.cfg.exp_name, "instance_name": name}
        return known if self.entry.transitions else {**known, "policy_config": self.cfg.policy}

    def _build_reward_model(self) -> None:
        if self.entry.reward_model:
            from lzero.reward_model.rnd_reward_model import RNDRewardModel

            policy = self.policy
            self.reward_model = RNDRewardModel(
                self.cfg.reward_model, policy.collect_mode.get_attribute("device"), self.writer,
                policy._learn_model.representation_network,
                policy._target_model_for_intrinsic_reward.representation_network,
                self.cfg.policy.use_momentum_representation_network,
            )  # fmt: skip

    # -- weights -------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """The weights of the model that plays, as they are now."""
        return dict(self.policy._collect_model.state_dict())

    def load(self, read: Callable[[], Mapping[str, Any]]) -> None:
        """Play with these weights; what a world model remembers of older ones is forgotten. Shared ones are here already."""
        if not self.shared:
            self.policy._collect_model.load_state_dict(read())
            self.clear_caches()

    def clear_caches(self) -> None:
        """Forget what a world model has cached."""
        if hasattr(self.policy, "recompute_pos_emb_diff_and_clear_cache"):
            self.policy.recompute_pos_emb_diff_and_clear_cache()

    def digest(self) -> str:
        """A digest of every weight that is played with."""
        return digest_of(self.weights())


def digest_of(weights: Mapping[str, Any]) -> str:
    """A digest of weights, of their names and every bit."""
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def load_file(path: str, device: str) -> Any:
    """A checkpoint of LightZero's, as data."""
    import torch

    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ConfigError(f"model_path is {path!r}, which cannot be read as a checkpoint ({error}).") from error


def other_seed(seed: int, worker: int, number: int) -> int:
    """The seed of a collector that begins with its collect of this number: its own for every collector and every life."""
    if worker == number == 0:
        return seed
    return int(np.random.SeedSequence((seed, worker, number)).generate_state(1, np.uint64)[0] % MOST_SEEDS)
