"""What LightZero 0.2.0 itself cannot run, found before anything starts and said in one sentence."""

from __future__ import annotations

from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.lightzero.configs import Call
from lzero_async.lightzero.entries import ENTRIES

POLICIES: Final = {
    "stochastic_muzero": "its evaluator passes a timestep that the policy does not take",
    "alphazero": "the wheel has no compiled tree, and the Python one returns fewer values than the policy unpacks",
    "gumbel_alphazero": "the policy imports a compiled tree that the wheel does not have",
}


def fault(call: Call) -> str:
    """Why LightZero's own entry fails with this config, '' if it does not as far as is known."""
    policy, main = str(call.create.policy.type), call.main
    if policy in POLICIES:
        return POLICIES[policy]
    if _get(main, "policy", "simulation_env_config_type") == "sampled_self_play":
        return "the policy does not know the simulation_env_config_type 'sampled_self_play'"
    if (_get(main, "policy", "random_collect_episode_num") or 0) > 0 and not ENTRIES[call.entry].ignores_random_collect:
        return (
            "random_collect_episode_num is set, and its random policy does not take the timestep that collectors pass"
        )
    if policy == "unizero" and _get(main, "policy", "use_priority"):
        return "use_priority is set, and UniZero's learner does not say the priorities"
    if policy in ("muzero", "gumbel_muzero") and call.create.env.type == "gomoku" and _get(main, "env", "channel_last"):
        return "channel_last is true, and the network wants the channels first"
    return ""


def check(call: Call) -> None:
    """ConfigError if LightZero itself cannot run this."""
    if found := fault(call):
        raise ConfigError(f"LightZero 0.2.0 itself cannot run this config: {found}.")


def _get(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if hasattr(config, "get") else None
    return config
