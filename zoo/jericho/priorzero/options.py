"""Options are put together, typed and checked here, once; then they are an EasyDict that nobody questions again."""

from __future__ import annotations

import ast
import copy
import difflib
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from easydict import EasyDict

from lzero_async.errors import ConfigError
from lzero_async.runs.options import (
    WATCHING,
    Check,
    between,
    device,
    flag,
    nonempty,
    present_device,
    resources,
    seed,
    text,
    whole,
    words,
)
from lzero_async.validation import LONGEST, duration, one_of, positive_number
from zoo.jericho.priorzero import priorzero_config


def _subset(*words: str) -> Check:
    def check(name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):  # as --set gives it: prior,llm or [prior, llm]
            value = [word.strip() for word in value.strip("[]()").split(",") if word.strip()]
        if not isinstance(value, Iterable):
            raise ConfigError(f"{name} is {value!r}; it must be a list of {', '.join(words)}.")
        return tuple(one_of(f"an entry of {name}", entry, words) for entry in value)

    return check


def _devices(name: str, value: Any) -> str:
    return ",".join(device(name, part) for part in text(name, value).split(","))


def _addresses(name: str, value: Any) -> str:
    return ",".join(split_addresses(name, text(name, value)))


KINDS = ("collector", "evaluator", "reanalyzer", "learner", "learner rank")
_seed = partial(seed, bits=32)
_modes = _subset("prior", "world_model", "llm")
_share = between(0, 1)

RULES: dict[str, dict[str, Check]] = {
    "env_config": dict(
        env_id=nonempty, rom_dir=text, max_steps=whole(1), max_action_num=whole(2), observation=words("state", "full"),
        collector_env_num=whole(1), evaluator_env_num=whole(1), step_timeout=duration, valid_action_store=text,
        env_asynchrony=words("auto", "on", "off"), max_batch=whole(0), max_wait_ms=between(0, 60_000),
    ),
    "policy_config": dict(
        off_policy_degree=whole(-1), enable_async_eval=flag, num_collectors=whole(1),
        backend=words("auto", "inline", "thread", "process", "ray"),
        ray_address=text, ray_resources=resources(*KINDS), staleness_policy=words("wait", "drop", "allow"),
        adaptive_degree=flag, max_degree=whole(1), max_restarts=whole(0), restart_backoff=duration,
        hang_timeout=between(1, LONGEST), n_episode=whole(1), update_per_collect=whole(0),
        replay_ratio=positive_number, batch_size=whole(2), replay_buffer_size=whole(1), game_segment_length=whole(1),
        num_unroll_steps=whole(4), td_steps=whole(1), discount_factor=_share, num_simulations=whole(1),
        root_window=whole(1), reanalyze_ratio=_share, reanalyze_workers=whole(0),
        reanalyze_share=between(0.01, 1), reanalyze_batches=whole(1), use_priority=flag, absorbing_steps=whole(0),
        learning_rate=positive_number, weight_decay=between(0, 1), grad_clip_value=positive_number,
        on_bad_update=words("skip", "stop"),
        target_update_theta=_share, temperature_start=between(0, 10), temperature_end=between(0, 10),
        temperature_decay_steps=whole(1), epsilon=_share, stuck_steps=whole(0), stuck_epsilon=_share,
        root_noise_weight=_share, root_dirichlet_alpha=positive_number,
        embed_dim=whole(8), num_layers=whole(1), num_heads=whole(1), dropout=between(0, 0.9),
        policy_entropy_weight=between(0, 10), learner_ranks=whole(1), learner_device=_devices, collector_devices=_devices,
        evaluator_device=device, torch_threads=whole(0),
    ),
    "llm_config": dict(
        llm_engine=words("transformers", "vllm"), llm=text, llm_url=_addresses, llm_devices=_devices,
        tensor_parallel_size=whole(1), gpu_memory_utilization=_share,
        root_policy=words("llm_logits", "wm_logits", "llm_plus_wm_logits"),
        llm_weight=_share, weighting=words("fixed", "adaptive"), history_length=whole(0), use_cot=flag,
        prior_temperature=positive_number, reduction=words("mean", "sum"), prior_cache_size=whole(1), repeatable_prior=flag,
    ),
    "encoder_config": dict(encoder_model=text, max_tokens=whole(8), cache_size=whole(1)),
    "run_config": dict(
        exp_name=nonempty, seed=_seed, max_iter=whole(0), max_env_step=whole(0), max_seconds=between(0, LONGEST),
        target_score=between(0, 1e9), eval_every=whole(0), eval_episodes=whole(1), eval_modes=_modes, final_eval_modes=_modes,
        eval_temperature=between(0, 10), checkpoint_every=whole(0), checkpoint_buffer=flag,
        **{name: option.check for name, option in WATCHING.items()},
    ),
}  # fmt: skip


def build_options(
    preset: str = "embedded",
    *,
    quick_test: bool = False,
    saved: Mapping[str, Mapping[str, Any]] | None = None,
    changes: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
) -> EasyDict:
    """The checked options: the config file, then the preset, `--quick_test`, `changes` by dotted name, `--set` texts.

    With the `saved` options of a run to go on with, those stand in for the preset.
    """
    one_of("--preset", preset, priorzero_config.PRESETS)
    sections = copy.deepcopy(priorzero_config.SECTIONS)
    layers = [priorzero_config.PRESETS[preset] if saved is None else saved]
    layers += [priorzero_config.QUICK_TEST] if quick_test else []
    for layer in layers:
        for section, values in layer.items():
            for key, value in values.items():
                _put(sections, f"{section}.{key}", value)
    for path, value in (changes or {}).items():
        _put(sections, path, value)
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment!r} has no '='; write it as --set policy_config.batch_size=64.")
        _put(sections, path.strip(), _parse(value.strip()))
    return check_options(sections)


def check_options(sections: Mapping[str, Mapping[str, Any]]) -> EasyDict:
    """Reject unknown names and bad values, also those that only clash with each other; return an EasyDict."""
    for section in sections:
        _known(section, RULES, "section")
    checked: dict[str, dict[str, Any]] = {}
    for section, rules in RULES.items():
        values = dict(sections.get(section, {}))
        for key in values:
            _known(key, rules, f"option of {section}", section)
        if missing := [key for key in rules if key not in values]:
            raise ConfigError(f"{section}.{missing[0]} is missing; put it back into priorzero_config.py.")
        checked[section] = {key: check(f"{section}.{key}", values[key]) for key, check in rules.items()}
    options = EasyDict(checked)
    for section, key in (("run_config", "eval_modes"), ("run_config", "final_eval_modes")):
        options[section][key] = tuple(checked[section][key])  # EasyDict turns tuples of text into lists of text
    _check_together(options)
    return options


def _check_together(options: EasyDict) -> None:
    policy, llm, run = options.policy_config, options.llm_config, options.run_config
    _check_roles(options)
    if policy.replay_buffer_size <= policy.batch_size:
        raise ConfigError(
            f"policy_config.replay_buffer_size is {policy.replay_buffer_size}, not more than batch_size "
            f"{policy.batch_size}; enlarge it."
        )
    if policy.embed_dim % policy.num_heads or policy.embed_dim % 8:
        raise ConfigError(
            f"policy_config.embed_dim is {policy.embed_dim}; it must be a multiple of 8 and of num_heads "
            f"({policy.num_heads})."
        )
    if policy.root_window > policy.num_unroll_steps - 1:
        raise ConfigError(
            f"policy_config.root_window is {policy.root_window}; it must be below num_unroll_steps "
            f"({policy.num_unroll_steps}), the longest sequence that the world model is trained on."
        )
    if llm.root_policy == "wm_logits" and (wanted := {"prior", "llm"} & {*run.eval_modes, *run.final_eval_modes}):
        raise ConfigError(
            f"llm_config.root_policy is 'wm_logits', which loads no language model, but {' and '.join(sorted(wanted))} "
            "is to be evaluated; set run_config.eval_modes and run_config.final_eval_modes to ['world_model']."
        )
    if run.target_score and not (run.eval_every and run.eval_modes):
        raise ConfigError(
            f"run_config.target_score is {run.target_score:g}, but nothing is evaluated: set eval_every and eval_modes."
        )
    if not (run.max_iter or run.max_env_step or run.max_seconds):
        raise ConfigError(
            "run_config.max_iter, max_env_step and max_seconds are all 0, so the run would never end; set one."
        )


def _check_roles(options: EasyDict) -> None:
    policy = options.policy_config
    if policy.backend == "inline" and not is_synchronous(options):
        raise ConfigError(
            "policy_config.backend is 'inline', which runs everything in turn; at this off_policy_degree set it to "
            "'process', 'thread' or 'ray'."
        )
    if policy.adaptive_degree and policy.off_policy_degree == 0:
        raise ConfigError("policy_config.adaptive_degree needs off_policy_degree 1 or more (or -1) to start from.")
    if policy.adaptive_degree and policy.off_policy_degree > policy.max_degree:
        raise ConfigError(
            f"policy_config.off_policy_degree is {policy.off_policy_degree}, above max_degree {policy.max_degree}; "
            "raise max_degree or lower the degree."
        )
    if policy.reanalyze_workers and is_synchronous(options):
        raise ConfigError(
            f"policy_config.reanalyze_workers is {policy.reanalyze_workers}, but at off_policy_degree 0 everything runs in turn; "
            "set the degree to 1 or more, or use reanalyze_ratio, which searches inside the updates."
        )
    if policy.num_collectors > 1 and is_synchronous(options):
        raise ConfigError(
            f"policy_config.num_collectors is {policy.num_collectors}, but at off_policy_degree 0 one plays at a time; set "
            "it to 1 or the degree to 1 or more."
        )
    _check_ranks(policy)
    share = core_share(options)
    if policy.torch_threads > share:
        raise ConfigError(
            f"policy_config.torch_threads is {policy.torch_threads}, but {busy_roles(options)} role(s) share "
            f"{_cores()} core(s), so each may use {share}; set it to at most that, or to 0."
        )


def _check_ranks(policy: EasyDict) -> None:
    """The ranks of a data-parallel learner: equal shares, processes, and a device for each."""
    ranks, names = policy.learner_ranks, policy.learner_device.split(",")
    if ranks == 1 and len(names) > 1:
        raise ConfigError(
            f"policy_config.learner_device is {policy.learner_device!r}, but there is one learner; name one device, or set "
            f"learner_ranks to {len(names)}."
        )
    if ranks == 1:
        return
    if policy.batch_size % ranks:
        raise ConfigError(
            f"policy_config.batch_size is {policy.batch_size}, which {ranks} learner ranks cannot share equally; set it to a "
            f"multiple of learner_ranks, {policy.batch_size // ranks * ranks or ranks} for example."
        )
    if policy.backend in ("inline", "thread"):
        raise ConfigError(
            f"policy_config.learner_ranks is {ranks}, and each needs a process of its own, but backend is "
            f"{policy.backend!r}; set backend to 'auto', 'process' or 'ray'."
        )
    if len(names) not in (1, ranks) or (len(names) > 1 and "auto" in names):
        raise ConfigError(
            f"policy_config.learner_device is {policy.learner_device!r} for {ranks} learner ranks; give 'auto', 'cpu', 'cuda' "
            "(a GPU for each), or one device for each rank with commas between them."
        )
    taken = [device_of(policy.learner_device, rank) for rank in range(ranks)]
    if len({name.partition(":")[0] for name in taken}) > 1 or any(
        ":" in name and taken.count(name) > 1 for name in taken
    ):
        raise ConfigError(
            f"policy_config.learner_device is {policy.learner_device!r}, but the learner's {ranks} ranks need a GPU each, or "
            "the CPU all of them; name a different GPU for each rank, or 'cpu'."
        )


def _put(sections: dict[str, dict[str, Any]], path: str, value: Any) -> None:
    section, dot, key = path.partition(".")
    if not dot:
        owners = [name for name, rules in RULES.items() if section in rules]
        hint = f"; did you mean {owners[0]}.{section}?" if owners else "."
        raise ConfigError(f"{path!r} is not a full name of an option (section.option){hint}")
    _known(section, RULES, "section")
    _known(key, RULES[section], f"option of {section}", section)
    sections[section][key] = value


def _known(name: str, names: Iterable[str], what: str, section: str = "") -> None:
    names = list(names)
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=1)
    owners = [other for other, rules in RULES.items() if name in rules and other != section]
    if close:
        hint = f"did you mean {close[0]!r}?"
    elif owners:
        hint = f"it belongs to {owners[0]}."
    else:
        hint = f"the names are {', '.join(names)}."
    raise ConfigError(
        f"{name!r} is not an {what}; {hint}" if what[0] in "aeio" else f"{name!r} is not a {what}; {hint}"
    )


def _parse(text: str) -> Any:
    """A Python value if the text is one, else the text itself."""
    try:
        value = ast.literal_eval(text)
        return int(value) if isinstance(value, float) and value.is_integer() and "." not in text else value  # 1e5
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)


def steps_per_collect(options: EasyDict) -> int:
    """Transitions of one collect at most: the unit in which off_policy_degree counts."""
    return min(options.policy_config.n_episode * options.env_config.max_steps, options.policy_config.replay_buffer_size)


def backend_of(options: EasyDict) -> str:
    """Where the roles of a run with these options live."""
    policy = options.policy_config
    if policy.backend != "auto":
        return str(policy.backend)
    alone = is_synchronous(options) and not policy.enable_async_eval and policy.learner_ranks == 1
    return "inline" if alone else "process"


def is_synchronous(options: EasyDict) -> bool:
    """Whether collect, train and evaluation run strictly in turn."""
    return options.policy_config.off_policy_degree == 0 and not options.policy_config.adaptive_degree


def plays_asynchronously(options: EasyDict) -> bool:
    """Whether the games of one role go at their own pace."""
    chosen = options.env_config.env_asynchrony
    return chosen == "on" or (chosen == "auto" and not is_synchronous(options))


def busy_roles(options: EasyDict) -> int:
    """How many roles may compute at the same time on this machine."""
    policy = options.policy_config
    if _on_other_machines(options):
        return int(policy.learner_ranks)
    collectors = 0 if is_synchronous(options) else policy.num_collectors
    return int(policy.learner_ranks + collectors + bool(policy.enable_async_eval))


def _on_other_machines(options: EasyDict) -> bool:
    """Whether roles that need not be on this machine are where a cluster has room for them."""
    return options.policy_config.backend == "ray" and bool(options.policy_config.ray_address)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_share(options: EasyDict) -> int:
    """Cores for each role that computes at the same time as others; at least one."""
    return max(1, _cores() // busy_roles(options))


def threads_of(options: EasyDict, kind: str) -> int:
    """Threads of torch in a role of this kind: its share of this machine's cores, or the cores that Ray keeps for it."""
    policy = options.policy_config
    if _on_other_machines(options) and not kind.startswith("learner"):
        return policy.torch_threads or max(1, int(policy.ray_resources.get(kind, {}).get("CPU", 1)))
    return policy.torch_threads or core_share(options)


def device_of(devices: str, number: int) -> str:
    """The device that the role with this number takes of a list."""
    choices = devices.split(",")
    return choices[number % len(choices)]


def check_device(device: str) -> str:
    """The device to use, or a ConfigError when it is not there."""
    return present_device("A device", device, "set it to 'auto' or 'cpu'")


def take_device(device: str) -> str:
    """The device to use, a GPU with its number, which becomes this thread's default: DI-engine puts models where that is, and
    what is put on "cuda" later, by whatever thread, would go elsewhere."""
    found = numbered(check_device(device))
    if found != "cpu":
        import torch

        torch.cuda.set_device(found)
    return found


def numbered(device: str) -> str:
    """The device with its number if it is a GPU."""
    return "cuda:0" if device == "cuda" else device


def rank_device(device: str, rank: int, ranks: int) -> str:
    """The device of one of the learner's ranks: on GPUs each has its own."""
    found = check_device(device)
    if ranks == 1 or found == "cpu":
        return found
    import torch

    count = torch.cuda.device_count()
    if found == "cuda" and ranks > count:
        raise ConfigError(
            f"policy_config.learner_ranks is {ranks}, but torch finds {count} GPU(s) here and each rank needs its own; set it "
            f"to at most {count}, or learner_device to 'cpu'."
        )
    return f"cuda:{rank}" if found == "cuda" else found


def unizero_config(options: EasyDict, features: int, device: str = "cpu") -> EasyDict:
    """LightZero's configuration of UniZero for these options, over vectors of `features` numbers, on a device."""
    from ding.utils import deep_merge_dicts
    from lzero.mcts.buffer.game_buffer_unizero import UniZeroGameBuffer
    from lzero.policy.unizero import UniZeroPolicy

    policy, env = options.policy_config, options.env_config
    unroll = policy.num_unroll_steps
    world_model = dict(
        action_space_size=env.max_action_num, max_blocks=unroll, max_tokens=2 * unroll, context_length=2 * unroll,
        device=device, num_layers=policy.num_layers, num_heads=policy.num_heads, embed_dim=policy.embed_dim,
        embed_pdrop=policy.dropout, resid_pdrop=policy.dropout, attn_pdrop=policy.dropout, obs_type="vector", env_num=1,
        num_simulations=policy.num_simulations, policy_entropy_weight=policy.policy_entropy_weight, support_size=101,
    )  # fmt: skip
    model = dict(
        model_type="mlp", observation_shape=features, action_space_size=env.max_action_num, frame_stack_num=1,
        norm_type="LN", world_model_cfg=world_model,
    )  # fmt: skip
    own = dict(
        model=model, cuda=device.startswith("cuda"), device=device, use_wandb=False, action_type="fixed_action_space",
        collector_env_num=env.collector_env_num, evaluator_env_num=env.evaluator_env_num,
        batch_size=policy.batch_size, replay_buffer_size=policy.replay_buffer_size,
        game_segment_length=policy.game_segment_length, num_unroll_steps=unroll, td_steps=policy.td_steps,
        discount_factor=policy.discount_factor, num_simulations=policy.num_simulations,
        reanalyze_ratio=policy.reanalyze_ratio, use_priority=policy.use_priority,
        update_per_collect=policy.update_per_collect, replay_ratio=policy.replay_ratio,
        learning_rate=policy.learning_rate, weight_decay=policy.weight_decay, grad_clip_value=policy.grad_clip_value,
        target_update_theta=policy.target_update_theta, root_dirichlet_alpha=policy.root_dirichlet_alpha,
        root_noise_weight=policy.root_noise_weight,
    )  # fmt: skip
    defaults = deep_merge_dicts(UniZeroGameBuffer.default_config(), UniZeroPolicy.default_config())
    return EasyDict(deep_merge_dicts(defaults, own))


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
