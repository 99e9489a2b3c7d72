"""Options are put together, typed and checked here, once."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import present_device
from lzero_async.runs.options import CommandLine, Option, closest, groups_of, title_of
from lzero_async.validation import one_of
from zoo.jericho.priorzero import priorzero_config
from zoo.jericho.priorzero.sections import PolicyConfig, PriorZeroOptions

if TYPE_CHECKING:
    from easydict import EasyDict

SECTIONS: Final[dict[str, type]] = get_type_hints(PriorZeroOptions)
OPTIONS: Final[dict[str, dict[str, Option]]] = {
    section: {name: option for group in groups_of(kind).values() for name, option in group.items()}
    for section, kind in SECTIONS.items()
}


@cache
def command_line() -> CommandLine:
    """Every option as a flag, with the value and the meaning that it has in priorzero_config.py."""
    said = meanings(inspect.getsource(priorzero_config))
    values = _own_values()
    return CommandLine(
        {
            f"{section}: {title_of(SECTIONS[section])}": {
                name: option._replace(default=values[section].get(name), help=said[section].get(name, ""))
                for name, option in options.items()
            }
            for section, options in OPTIONS.items()
        },
        ("preset", "quick_test", "resume", "set"),
    )


def by_section(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same changes by section.option."""
    return {f"{section}.{name}": changes[name] for section in OPTIONS for name in OPTIONS[section] if name in changes}


def meanings(source: str) -> dict[str, dict[str, str]]:
    """By section and option of priorzero_config.py: the comment above it."""
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = {
                str(word.arg): _comment_above(lines, word.lineno) for word in node.value.keywords
            }
    return found


def _comment_above(lines: list[str], number: int) -> str:
    comment: list[str] = []
    while (line := lines[number - 2].strip()).startswith("#"):
        comment.insert(0, line.removeprefix("#").strip())
        number -= 1
    return " ".join(comment)


def build_options(
    preset: str = "embedded",
    *,
    quick_test: bool = False,
    saved: Mapping[str, Mapping[str, Any]] | None = None,
    changes: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
) -> PriorZeroOptions:
    """The checked options: the config file, then the preset, `--quick_test`, `changes` by dotted name, `--set` texts.

    With the `saved` options of a run to continue, those stand in for the preset.
    """
    one_of("--preset", preset, priorzero_config.PRESETS)
    sections = _own_values()
    layers: list[Mapping[str, Mapping[str, Any]]] = [priorzero_config.PRESETS[preset] if saved is None else saved]
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


def _own_values() -> dict[str, dict[str, Any]]:
    """What stands in the config file, by the options' own names; an older name that a user has put there counts."""
    found: dict[str, dict[str, Any]] = {}
    for section, values in priorzero_config.SECTIONS.items():
        older = {other: name for name, option in OPTIONS[section].items() for other in option.also if other in values}
        found[section] = {name: value for name, value in values.items() if name not in older}
        found[section] |= {name: values[other] for other, name in older.items()}
    return found


def check_options(sections: Mapping[str, Mapping[str, Any]]) -> PriorZeroOptions:
    """The typed options; ConfigError for unknown names, bad values, and values that only clash with each other."""
    for section in sections:
        _known(section, OPTIONS, "a section")
    checked: dict[str, Any] = {}
    for section, options in OPTIONS.items():
        values = {_option_named(section, key): value for key, value in sections.get(section, {}).items()}
        if missing := [key for key in options if key not in values]:
            raise ConfigError(f"{section}.{missing[0]} is missing; put it back into priorzero_config.py.")
        made = {key: option.check(f"{section}.{key}", values[key]) for key, option in options.items()}
        checked[section] = SECTIONS[section](**made)
    options_of_run = PriorZeroOptions(**checked)
    _check_together(options_of_run)
    return options_of_run


def _check_together(options: PriorZeroOptions) -> None:
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
    _check_llm_training(options)
    if run.target_score and not (run.eval_every and run.eval_modes):
        raise ConfigError(
            f"run_config.target_score is {run.target_score:g}, but nothing is evaluated: set eval_every and eval_modes."
        )
    if not (run.max_iter or run.max_env_steps or run.max_seconds):
        raise ConfigError(
            "run_config.max_iter, max_env_steps and max_seconds are all 0, so the run would never end; set one."
        )


def _check_roles(options: PriorZeroOptions) -> None:
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


def _check_llm_training(options: PriorZeroOptions) -> None:
    llm, run, how = options.llm_config, options.run_config, options.llm_train_config
    frozen = sorted({"prior_frozen", "llm_frozen"} & {*run.eval_modes, *run.final_eval_modes})
    if how.llm_train == "off":
        if frozen:
            raise ConfigError(
                f"{frozen[0]} is to be evaluated, but the language model is not trained, so it is always as it was at first; "
                f"evaluate {frozen[0].removesuffix('_frozen')} instead, or set llm_train_config.llm_train."
            )
        return
    unused = {"distill": how.distill_weight, "rft": how.rft_weight, "both": how.distill_weight + how.rft_weight}
    wrong = {
        f"the weight of that loss is 0 ({how.llm_train}); give it one": not unused[how.llm_train],
        "llm_share goes by the clock, and at off_policy_degree 0 a run repeats exactly; set it to 0": (
            bool(how.llm_share) and is_synchronous(options)
        ),
        "llm_config.root_policy is 'wm_logits', which loads none; choose another": llm.root_policy == "wm_logits",
        "llm_config.llm_engine is 'vllm', whose model cannot be trained yet; use 'transformers'": llm.llm_engine
        == "vllm",
        "llm_config.use_cot is on, and reasoning cannot be trained yet; switch it off": llm.use_cot,
        "policy_config.learner_ranks is above 1, which cannot be combined yet; set it to 1": (
            options.policy_config.learner_ranks > 1
        ),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise ConfigError(f"The language model is to be trained (llm_train is {how.llm_train!r}), but {what}.")


def trains_llm(options: PriorZeroOptions) -> bool:
    """Whether the language model learns."""
    return options.llm_train_config.llm_train != "off"


def _check_ranks(policy: PolicyConfig) -> None:
    """The ranks of a data-parallel learner: equal shares, processes, and a device for each."""
    ranks, names = policy.learner_ranks, policy.device.split(",")
    if ranks == 1 and len(names) > 1:
        raise ConfigError(
            f"policy_config.device is {policy.device!r}, but there is one learner; name one device, or set "
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
            f"policy_config.device is {policy.device!r} for {ranks} learner ranks; give 'auto', 'cpu', 'cuda' "
            "(a GPU for each), or one device for each rank with commas between them."
        )
    taken = [device_of(policy.device, rank) for rank in range(ranks)]
    if len({name.partition(":")[0] for name in taken}) > 1 or any(
        ":" in name and taken.count(name) > 1 for name in taken
    ):
        raise ConfigError(
            f"policy_config.device is {policy.device!r}, but the learner's {ranks} ranks need a GPU each, or "
            "the CPU all of them; name a different GPU for each rank, or 'cpu'."
        )


def _put(sections: dict[str, dict[str, Any]], path: str, value: Any) -> None:
    section, dot, key = path.partition(".")
    if not dot:
        owners = [name for name, options in OPTIONS.items() if section in options]
        hint = f"; did you mean {owners[0]}.{section}?" if owners else "."
        raise ConfigError(f"{path!r} is not a full name of an option (section.option){hint}")
    _known(section, OPTIONS, "a section")
    sections[section][_option_named(section, key)] = value


def _option_named(section: str, key: str) -> str:
    """The option of a section that a name means, which may be another one of it; ConfigError if there is none."""
    for name, option in OPTIONS[section].items():
        if key in (name, *option.also):
            return name
    return _known(key, OPTIONS[section], f"an option of {section}", section)


def _known(name: str, names: Iterable[str], what: str, section: str = "") -> str:
    names = list(names)
    if name in names:
        return name
    owners = [other for other, options in OPTIONS.items() if name in options and other != section]
    if close := closest(name, names):
        hint = f"did you mean {close!r}?"
    elif owners:
        hint = f"it belongs to {owners[0]}."
    else:
        hint = f"the names are {', '.join(names)}."
    raise ConfigError(f"{name!r} is not {what}; {hint}")


def _parse(text: str) -> Any:
    """A Python value if the text is one, else the text itself."""
    try:
        value = ast.literal_eval(text)
        return int(value) if isinstance(value, float) and value.is_integer() and "." not in text else value  # 1e5
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)


def steps_per_collect(options: PriorZeroOptions) -> int:
    """Transitions of one collect at most: the unit in which off_policy_degree counts."""
    return min(options.policy_config.n_episode * options.env_config.max_steps, options.policy_config.replay_buffer_size)


def backend_of(options: PriorZeroOptions) -> str:
    """Where the roles of a run with these options live."""
    policy = options.policy_config
    if policy.backend != "auto":
        return policy.backend
    alone = is_synchronous(options) and not policy.async_eval and policy.learner_ranks == 1
    return "inline" if alone else "process"


def is_synchronous(options: PriorZeroOptions) -> bool:
    """Whether collect, train and evaluation run strictly in turn."""
    return options.policy_config.off_policy_degree == 0 and not options.policy_config.adaptive_degree


def plays_asynchronously(options: PriorZeroOptions) -> bool:
    """Whether the games of one role go at their own pace."""
    chosen = options.env_config.env_asynchrony
    return chosen == "on" or (chosen == "auto" and not is_synchronous(options))


def busy_roles(options: PriorZeroOptions) -> int:
    """How many roles may compute at the same time on this machine."""
    policy = options.policy_config
    if _on_other_machines(options):
        return policy.learner_ranks
    collectors = 0 if is_synchronous(options) else policy.num_collectors
    return policy.learner_ranks + trains_llm_beside(options) + collectors + policy.async_eval


def trains_llm_beside(options: PriorZeroOptions) -> bool:
    """Whether the language model's learner works while the world model's does."""
    return (
        trains_llm(options)
        and options.llm_train_config.llm_schedule == "together"
        and not (is_synchronous(options) and backend_of(options) == "inline")
    )


def _on_other_machines(options: PriorZeroOptions) -> bool:
    """Whether roles that need not be on this machine are where a cluster has room for them."""
    return options.policy_config.backend == "ray" and bool(options.policy_config.ray_address)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_share(options: PriorZeroOptions) -> int:
    """Cores for each role that computes at the same time as others; at least one."""
    return max(1, _cores() // busy_roles(options))


def threads_of(options: PriorZeroOptions, kind: str) -> int:
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
            f"to at most {count}, or device to 'cpu'."
        )
    return f"cuda:{rank}" if found == "cuda" else found


def unizero_config(options: PriorZeroOptions, features: int, device: str = "cpu") -> EasyDict:
    """LightZero's configuration of UniZero for these options, over vectors of `features` numbers, on a device."""
    from ding.utils import deep_merge_dicts
    from easydict import EasyDict
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
        collector_env_num=env.num_envs, evaluator_env_num=env.evaluator_env_num,
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
