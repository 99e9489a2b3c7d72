"""Importing this imports what LightZero's roles import when they are made, so that a process which did can be forked for each."""

from __future__ import annotations

from importlib import import_module

from lzero_async.lightzero.silence import quiet

MODULES = (
    "torch._dynamo",  # by the first optimizer that is made
    "lzero.entry.utils",
    "lzero.mcts",
    "lzero.policy.random_policy",
    "lzero.policy.muzero",
    "lzero.policy.unizero",
    "lzero.worker",
    "lzero_async.lightzero.learner",
    "lzero_async.lightzero.players",
)

with quiet():
    for name in MODULES:
        import_module(name)
