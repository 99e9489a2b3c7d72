"""What a LightZero run has learned, as LightZero's evaluator plays it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.lightzero.entries import ENTRIES
from lzero_async.lightzero.learner import KIND
from lzero_async.lightzero.parts import EVALUATOR, Parts, Plan
from lzero_async.lightzero.running import plan_of
from lzero_async.lightzero.silence import quiet
from lzero_async.runs import checkpoint
from lzero_async.runs.policy import PlayedEpisode, Policy


def load(folder: Path, path: Path, device: str) -> LightZeroPolicy:
    """The policy in a checkpoint of a run."""
    state = checkpoint.load(path, KIND)
    with checkpoint.fitting(path):
        plan = plan_of(state)
        weights = state["weights"] if "weights" in state else state["learner"]["policy"]["model"]
        config = {**plan.config, "policy": {**plan.config["policy"], "device": device, "cuda": device != "cpu"}}
        config["env"] = {**config["env"], "evaluator_env_num": 1, "n_evaluator_episode": 1}
        config["env"]["manager"] = {**config["env"]["manager"], "type": "base"}
    plan = Plan(**{**vars(plan), "config": config, "folder": str(folder.resolve() / "log" / "play")})
    with checkpoint.fitting(path), quiet():
        return LightZeroPolicy(plan, weights)


class LightZeroPolicy(Policy):
    """LightZero's evaluator with one environment. An observation is the dictionary that the environment returns: `observation`,
    `action_mask`, `to_play`. The search sees one frame stack, which `policy(observation)` keeps from call to call; `begin()`
    starts another episode."""

    def __init__(self, plan: Plan, weights: Mapping[str, Any]) -> None:
        self._parts = Parts(plan, (EVALUATOR,))
        self._parts.load(lambda: weights)
        self._frames: list[Any] = []

    def begin(self) -> None:
        """The next observation is the first of an episode."""
        self._frames = []
        self._parts.policy.eval_mode.reset()

    def __call__(self, observation: Any) -> Any:
        if not isinstance(observation, Mapping) or "action_mask" not in observation:
            raise ConfigError(
                f"The observation is a {type(observation).__name__} without an action_mask; give the dictionary that LightZero's "
                "environment returns."
            )
        if ENTRIES[self._parts.plan.entry].transitions:
            return self._parts.policy.eval_mode.forward({0: observation})[0]["action"]
        return self._search(observation)

    def _search(self, observation: Mapping[str, Any]) -> Any:
        import numpy as np
        import torch
        from lzero.mcts.utils import prepare_observation

        policy = self._parts.cfg.policy
        number = int(policy.model.frame_stack_num)
        frame = np.asarray(observation["observation"])
        self._frames = [*(self._frames or [frame] * (number - 1)), frame][-number:]
        stacked = prepare_observation(np.asarray([self._frames]), policy.model.model_type)
        found = self._parts.policy.eval_mode.forward(
            torch.from_numpy(stacked).to(policy.device), [np.asarray(observation["action_mask"])],
            [np.asarray(observation["to_play"])], ready_env_id={0}, timestep=[np.asarray(observation.get("timestep", -1))],
        )  # fmt: skip
        return found[0]["action"]

    def play_episode(self, seed: int) -> PlayedEpisode:
        evaluator, writer = self._parts.evaluator, self._parts.writer
        evaluator._env.seed(seed, dynamic_seed=False)
        with quiet():
            evaluator.eval(None, 0, 0, n_episode=1)
        found = writer.last("reward_mean", "envstep_count")
        writer.rows.clear()
        return PlayedEpisode(seed, float(found["reward_mean"]), int(found["envstep_count"]))

    def new_env(self) -> Any:
        """Another environment of the run's, to act in; close it when it is not needed any more."""
        return self._parts._new_envs(EVALUATOR).env_ref

    def close(self) -> None:
        self._parts.evaluator.close()
