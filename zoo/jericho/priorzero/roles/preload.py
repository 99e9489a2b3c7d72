"""Importing this imports what the roles import when they are made, so that a process which did can be forked for each of them."""

from __future__ import annotations

from importlib import import_module

from lzero_async.lightzero.silence import quiet

MODULES = (
    "lzero.model.unizero_model",
    "lzero.policy.unizero",
    "torch._dynamo",  # by the first optimizer that is made
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gpt2.tokenization_gpt2",
    "zoo.jericho.priorzero.games.jericho_env",
    "zoo.jericho.priorzero.llm.prior",
    "zoo.jericho.priorzero.llm.transformers_engine",
    "zoo.jericho.priorzero.play.search",
    "zoo.jericho.priorzero.play.text_encoder",
    "zoo.jericho.priorzero.roles.learner",
    "zoo.jericho.priorzero.roles.players",
)

with quiet():
    for name in MODULES:
        import_module(name)
