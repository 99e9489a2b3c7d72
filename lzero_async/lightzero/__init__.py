"""LightZero's training entries, asynchronous: `from lzero.entry import train_muzero` becomes
`from lzero_async.lightzero import train_muzero`. LightZero is imported only when one of them is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lzero_async.lightzero.entries import ENTRIES

__all__ = [
    "train_alphazero",
    "train_muzero",
    "train_muzero_segment",
    "train_muzero_with_gym_env",
    "train_muzero_with_reward_model",
    "train_rezero",
    "train_unizero",
    "train_unizero_segment",
]


def _entry(name: str) -> Callable[..., Any]:
    def train(
        input_cfg: Sequence[Any],
        seed: int = 0,
        model: Any = None,
        model_path: str | None = None,
        max_train_iter: int | None = None,
        max_env_step: int | None = None,
        *,
        resume: str | None = None,
        **options: Any,
    ) -> Any:
        from lzero_async.lightzero.configs import call_of
        from lzero_async.lightzero.running import Wishes, start
        from lzero_async.lightzero.running import resume as go_on

        if resume is not None:
            given = {"max_train_iter": max_train_iter, "max_env_step": max_env_step}
            limits = {key: int(value) for key, value in given.items() if value is not None}
            code, policy = go_on(resume, {**limits, **options}, model=model)
        else:
            main, create = input_cfg
            call = call_of(name, main, create, seed, model, model_path, max_train_iter, max_env_step, **options)
            code, policy = start(call, Wishes())
        if code:
            raise KeyboardInterrupt  # the run has ended in order and can be resumed
        return policy

    train.__name__ = train.__qualname__ = name
    train.__doc__ = (
        f"LightZero's `{name}`, with its arguments, asynchronous. Options by name: off_policy_degree (2), num_collectors (1), "
        "enable_async_eval (False), backend ('auto'), and whatever `lzero-async lightzero --help` lists; they may also stand "
        "in the config's policy section. `resume` is the folder of a run to continue. Returns the trained policy."
    )
    assert name in ENTRIES
    return train


train_alphazero = _entry("train_alphazero")
train_muzero = _entry("train_muzero")
train_muzero_segment = _entry("train_muzero_segment")
train_muzero_with_gym_env = _entry("train_muzero_with_gym_env")
train_muzero_with_reward_model = _entry("train_muzero_with_reward_model")
train_rezero = _entry("train_rezero")
train_unizero = _entry("train_unizero")
train_unizero_segment = _entry("train_unizero_segment")
