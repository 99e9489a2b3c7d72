"""LightZero's configs made small, and its own serial entries with the digest of the weights after every update.

python -m tests.lightzero.small CONFIG serial|ours UPDATES FOLDER     prints one JSON line
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from lzero_async.lightzero.configs import Call, find_config, run_config
from lzero_async.lightzero.parts import digest_of

SIZES = dict(
    n_episode=2, collector_env_num=2, evaluator_env_num=1, num_simulations=4, update_per_collect=5, batch_size=8
)


SEGMENTS = dict(num_segments=2, game_segment_length=20, reanalyze_batch_size=4, reanalyze_partition=0.75, eval_freq=12)
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # what else there is: the config, the entry, the policy's values
    "muzero segments": ("cartpole_muzero", "train_muzero_segment", dict(
        **SEGMENTS, buffer_reanalyze_freq=0.5, update_per_collect=None, replay_ratio=0.2)),
    "unizero segments": ("cartpole_unizero", "train_unizero_segment", dict(
        **SEGMENTS, buffer_reanalyze_freq=0.5, train_start_after_envsteps=100)),
    "several reanalyses a collect": ("cartpole_muzero", "train_muzero_segment", dict(
        **SEGMENTS, buffer_reanalyze_freq=2, update_per_collect=6)),
    "epsilon": ("cartpole_muzero", "train_muzero", dict(
        eps=dict(eps_greedy_exploration_in_collect=True, start=1.0, end=0.05, decay=300, type="linear"), eval_freq=7,
        threshold_training_steps_for_final_temperature=20, manual_temperature_decay=True)),
    "priorities and reanalysis": ("cartpole_muzero", "train_muzero", dict(
        use_priority=True, eval_freq=7, update_per_collect=None, replay_ratio=0.1, reanalyze_ratio=0.5)),
    "a late start": ("cartpole_unizero", "train_unizero", dict(
        train_start_after_envsteps=100, eval_freq=7, update_per_collect=None, replay_ratio=0.1)),
    "cosine": ("cartpole_unizero", "train_unizero", dict(cos_lr_scheduler=True, reanalyze_ratio=0.2)),
    "piecewise": ("cartpole_efficientzero", "train_muzero", dict(
        piecewise_decay_lr_scheduler=True, optim_type="SGD", threshold_training_steps_for_final_lr=20, use_priority=True)),
    "rezero": ("cartpole_rezero_mz", "train_rezero", dict(eval_freq=7)),
    "replay ratio": ("tictactoe_sampled_alphazero_bot_mode", "train_alphazero", dict(
        eval_freq=7, update_per_collect=None, replay_ratio=0.5)),
}  # fmt: skip


def shrink(call: Call, **more: Any) -> Call:
    """The same call with sizes that take seconds; `more` are keys of the policy section, or `env_manager`."""
    main, create = call.main, call.create
    sizes = {**SIZES, **more}
    manager = sizes.pop("env_manager", None)
    policy, env = main.policy, main.env
    policy.update(sizes)
    if "num_segments" in policy:
        policy.num_segments = policy.collector_env_num
    if "mcts" in policy:
        policy.mcts.num_simulations = sizes["num_simulations"]
    policy.replay_buffer_size = min(2000, policy.get("replay_buffer_size", 2000))
    policy.cuda = False
    env.collector_env_num, env.evaluator_env_num = policy.collector_env_num, policy.evaluator_env_num
    env.n_evaluator_episode = policy.evaluator_env_num
    world = policy.model.get("world_model_cfg")
    if world is not None:
        envs = max(policy.collector_env_num, policy.evaluator_env_num)
        world.update(
            env_num=envs, collector_env_num=policy.collector_env_num, evaluator_env_num=policy.evaluator_env_num
        )
        world.update(device="cpu", num_simulations=sizes["num_simulations"])
    if manager:
        create.env_manager.type = manager
    return replace(call, main=main, create=create)


def captured(name: str) -> Call:
    """The call that a config makes; nothing is run."""
    calls: list[Call] = []
    run_config(find_config(name), [], calls.append)
    return calls[0]


def seeded_resets() -> None:
    """LightZero's cartpole never seeds its environment; here it does, so that two runs can be compared."""
    import gymnasium as gym

    made, count = gym.make, 0

    def make(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        env = made(*args, **kwargs)
        count += 1
        first, inner = 1000 + count, env.reset

        def reset(**given: Any) -> Any:
            nonlocal first
            first += 7
            return inner(**{"seed": first, **given})

        env.reset = reset
        return env

    gym.make = make


def note_updates(digests: list[str]) -> None:
    """Have DI-engine's learner write the digest of the weights after every update."""
    from ding.worker import BaseLearner

    made = BaseLearner.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        train = self.train

        def trained(*given: Any, **named: Any) -> Any:
            logged = train(*given, **named)
            policy = self._policy.forward.__self__
            digests.append(digest_of(policy._collect_model.state_dict()))
            return logged

        self.train = trained

    BaseLearner.__init__ = init


def run(name: str, how: str, updates: int, folder: str) -> list[str]:
    """Make so many updates, by LightZero's own entry or by ours at degree 0."""
    import torch

    torch.set_num_threads(1)
    seeded_resets()
    digests: list[str] = []
    config, entry, more = CASES.get(name, (name, "", {}))
    call = replace(shrink(captured(config), env_manager="base", **more), max_train_iter=updates)
    call = replace(call, entry=entry) if entry else call
    call.main.exp_name = str(Path(folder) / how)
    note_updates(digests)
    if how == "serial":
        serially(call)
    else:
        from lzero_async.lightzero.running import Wishes, start

        start(call, Wishes({"off_policy_degree": 0, "report": False, "trace": False}))
    return digests


def serially(call: Call) -> Any:
    """LightZero's own entry, its trees' dice seeded where ours seeds them."""
    import importlib

    from lzero_async.lightzero.dice import seed_dice

    module = importlib.import_module(f"lzero.entry.{call.entry}")
    seed_all = module.set_pkg_seed

    def seed_and_dice(seed: int, **more: Any) -> None:
        seed_all(seed, **more)
        seed_dice(seed)

    module.set_pkg_seed = seed_and_dice
    return getattr(module, call.entry)(
        [call.main, call.create], seed=call.seed, model_path=call.model_path, max_train_iter=call.max_train_iter
    )


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        found = run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    print(json.dumps(found))
