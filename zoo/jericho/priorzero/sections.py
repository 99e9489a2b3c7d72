"""The sections of PriorZero's options as types: each name with its type and range.

Values and meanings stand in priorzero_config.py and nowhere else; tests/zoo/priorzero/test_options.py checks that both have the
same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import Check, between, device, nonempty, port, resources, seed, text, whole
from lzero_async.runs.options import Also, Resources
from lzero_async.validation import LONGEST, duration, one_of, positive_number

KINDS = ("collector", "evaluator", "reanalyzer", "learner", "learner rank", "llm learner")
Mode = Literal["prior", "world_model", "llm", "prior_frozen", "llm_frozen"]


def _subset(*words: str) -> Check:
    def check(name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):  # as a command line gives it: prior,llm or [prior, llm]
            value = [word.strip().strip("'\"") for word in value.strip("[]()").split(",") if word.strip()]
        if not isinstance(value, Iterable):
            raise ConfigError(f"{name} is {value!r}; it must be a list of {', '.join(words)}.")
        return tuple(one_of(f"an entry of {name}", entry, words) for entry in value)

    return check


def _devices(name: str, value: Any) -> str:
    return ",".join(device(name, part) for part in text(name, value).split(","))


def _addresses(name: str, value: Any) -> str:
    return ",".join(split_addresses(name, text(name, value)))


def split_addresses(name: str, value: str) -> tuple[str, ...]:
    """The addresses in the text of option `name`, which has commas between them; none in an empty one."""
    if not value:
        return ()
    found = [part.strip().rstrip("/") for part in value.split(",")]
    for i, address in enumerate(found):
        scheme, _, place = address.partition("://")
        reason = ""
        if not address:
            reason = "has an empty address"
        elif scheme not in ("http", "https") or not place or place.startswith(("/", ":")) or " " in place:
            reason = f"has {address!r}, which is no address"
        elif address in found[:i]:
            reason = f"has {address} twice"
        if reason:
            raise ConfigError(
                f"{name} is {value!r}, which {reason}; it must be http://HOST:PORT, or several with commas between them."
            )
    return tuple(found)


_seed = partial(seed, bits=32)
_modes = _subset(*get_args(Mode))
_share = between(0, 1)


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The game and how it is played."""

    env_id: Annotated[str, nonempty]
    rom_dir: str
    max_steps: Annotated[int, whole(1)]
    max_action_num: Annotated[int, whole(2)]
    observation: Literal["state", "full"]
    num_envs: Annotated[int, whole(1), Also("collector_env_num")]
    evaluator_env_num: Annotated[int, whole(1)]
    step_timeout: Annotated[float, duration]
    env_asynchrony: Literal["auto", "on", "off"]
    max_batch: Annotated[int, whole(0)]
    max_wait_ms: Annotated[float, between(0, 60_000)]
    valid_action_store: str


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """How asynchronous the training is, and the agent."""

    off_policy_degree: Annotated[int, whole(-1)]
    async_eval: Annotated[bool, Also("enable_async_eval")]
    num_collectors: Annotated[int, whole(1)]
    backend: Literal["auto", "inline", "thread", "process", "ray"]
    ray_address: str
    ray_resources: Annotated[Resources, resources(*KINDS)]
    staleness_policy: Literal["wait", "drop", "allow"]
    adaptive_degree: bool
    max_degree: Annotated[int, whole(1)]
    max_restarts: Annotated[int, whole(0)]
    restart_backoff: Annotated[float, duration]
    hang_timeout: Annotated[float, between(1, LONGEST)]
    n_episode: Annotated[int, whole(1)]
    update_per_collect: Annotated[int, whole(0)]
    replay_ratio: Annotated[float, positive_number]
    batch_size: Annotated[int, whole(2)]
    replay_buffer_size: Annotated[int, whole(1)]
    game_segment_length: Annotated[int, whole(1)]
    num_unroll_steps: Annotated[int, whole(4)]
    td_steps: Annotated[int, whole(1)]
    discount_factor: Annotated[float, _share]
    num_simulations: Annotated[int, whole(1)]
    root_window: Annotated[int, whole(1)]
    reanalyze_ratio: Annotated[float, _share]
    reanalyze_workers: Annotated[int, whole(0)]
    reanalyze_share: Annotated[float, between(0.01, 1)]
    reanalyze_batches: Annotated[int, whole(1)]
    use_priority: bool
    absorbing_steps: Annotated[int, whole(0)]
    learning_rate: Annotated[float, positive_number]
    weight_decay: Annotated[float, between(0, 1)]
    grad_clip_value: Annotated[float, positive_number]
    on_bad_update: Literal["skip", "stop"]
    target_update_theta: Annotated[float, _share]
    temperature_start: Annotated[float, between(0, 10)]
    temperature_end: Annotated[float, between(0, 10)]
    temperature_decay_steps: Annotated[int, whole(1)]
    epsilon: Annotated[float, _share]
    stuck_steps: Annotated[int, whole(0)]
    stuck_epsilon: Annotated[float, _share]
    root_noise_weight: Annotated[float, _share]
    root_dirichlet_alpha: Annotated[float, positive_number]
    embed_dim: Annotated[int, whole(8)]
    num_layers: Annotated[int, whole(1)]
    num_heads: Annotated[int, whole(1)]
    dropout: Annotated[float, between(0, 0.9)]
    policy_entropy_weight: Annotated[float, between(0, 10)]
    learner_ranks: Annotated[int, whole(1)]
    device: Annotated[str, _devices, Also("learner_device")]
    collector_devices: Annotated[str, _devices]
    evaluator_device: Annotated[str, device]
    torch_threads: Annotated[int, whole(0)]


@dataclass(frozen=True, kw_only=True)
class LLMConfig:
    """The language model and its prior."""

    llm_engine: Literal["transformers", "vllm"]
    llm: str
    llm_url: Annotated[str, _addresses]
    llm_devices: Annotated[str, _devices]
    tensor_parallel_size: Annotated[int, whole(1)]
    gpu_memory_utilization: Annotated[float, _share]
    root_policy: Literal["llm_logits", "wm_logits", "llm_plus_wm_logits"]
    llm_weight: Annotated[float, _share]
    weighting: Literal["fixed", "adaptive"]
    history_length: Annotated[int, whole(0)]
    use_cot: bool
    prior_temperature: Annotated[float, positive_number]
    reduction: Literal["mean", "sum"]
    repeatable_prior: bool
    prior_cache_size: Annotated[int, whole(1)]


@dataclass(frozen=True, kw_only=True)
class LLMTrainConfig:
    """How the language model learns from what the search finds."""

    llm_train: Literal["off", "distill", "rft", "both"]
    llm_schedule: Literal["together", "alternate"]
    llm_every: Annotated[int, whole(1)]
    llm_warmup: Annotated[int, whole(0)]
    llm_updates: Annotated[int, whole(1)]
    llm_batch_size: Annotated[int, whole(1)]
    llm_holdout: Annotated[float, between(0, 0.9)]
    llm_share: Annotated[float, _share]
    llm_method: Literal["lora", "full"]
    lora_rank: Annotated[int, whole(1)]
    lora_alpha: Annotated[int, whole(1)]
    llm_learning_rate: Annotated[float, positive_number]
    llm_warmup_updates: Annotated[int, whole(0)]
    llm_lr_schedule: Literal["constant", "cosine"]
    llm_decay_updates: Annotated[int, whole(1)]
    llm_weight_decay: Annotated[float, between(0, 1)]
    llm_grad_clip: Annotated[float, positive_number]
    llm_tokens_per_pass: Annotated[int, whole(1)]
    distill_weight: Annotated[float, between(0, 1_000)]
    distill_power: Annotated[float, positive_number]
    rft_weight: Annotated[float, between(0, 1_000)]
    rft_ratio: Literal["ppo", "gspo"]
    rft_clip: Annotated[float, between(0, 1)]
    rft_max_correction: Annotated[float, positive_number]
    rft_steps: Annotated[int, whole(1)]
    llm_kl_weight: Annotated[float, between(0, 1_000)]
    llm_entropy_weight: Annotated[float, between(0, 1_000)]
    llm_learner_device: Annotated[str, device]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The frozen text encoder."""

    encoder_model: str
    max_tokens: Annotated[int, whole(8)]
    cache_size: Annotated[int, whole(1)]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run: how long, what is evaluated, saved and shown."""

    exp_name: Annotated[str, nonempty]
    seed: Annotated[int, _seed]
    max_iter: Annotated[int, whole(0)]
    max_env_steps: Annotated[int, whole(0), Also("max_env_step")]
    max_seconds: Annotated[float, between(0, LONGEST)]
    target_score: Annotated[float, between(0, 1e9), Also("target_return")]
    eval_every: Annotated[int, whole(0)]
    eval_episodes: Annotated[int, whole(1)]
    eval_modes: Annotated[tuple[Mode, ...], _modes]
    final_eval_modes: Annotated[tuple[Mode, ...], _modes]
    eval_temperature: Annotated[float, between(0, 10)]
    checkpoint_every: Annotated[int, whole(0)]
    checkpoint_buffer: bool
    plain: bool
    trace: bool
    report: bool
    wandb: Literal["off", "offline", "online"]
    metrics_port: Annotated[int, port]


@dataclass(frozen=True, kw_only=True)
class PriorZeroOptions:
    """All options of a run, by section."""

    env_config: EnvConfig
    policy_config: PolicyConfig
    llm_config: LLMConfig
    llm_train_config: LLMTrainConfig
    encoder_config: EncoderConfig
    run_config: RunConfig
