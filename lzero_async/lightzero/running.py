"""From a call of `train_*` to a finished run: the config compiled once, the options, the folder, the run."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lzero_async.errors import ConfigError
from lzero_async.lightzero import upstream
from lzero_async.lightzero.configs import Call, change, named_for_seed
from lzero_async.lightzero.entries import ENTRIES, Entry
from lzero_async.lightzero.listing import why
from lzero_async.lightzero.options import IN_CONFIG, LightZeroOptions, backend_of, build_options
from lzero_async.lightzero.parts import Plan
from lzero_async.lightzero.silence import quiet
from lzero_async.runs import checkpoint
from lzero_async.runs.checkpoint.packing import pack
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.program import run_program
from lzero_async.runs.run_dir import find_checkpoint, folder_of, free_folder, logging_to, say_folder

if TYPE_CHECKING:
    from lzero_async.lightzero.trainer import LightZeroRun

LOGGER: Final = "lzero_async.lightzero"
FREE: Final = ("wandb-id", "total_config", "formatted_total_config", "git")  # of a start that failed


@dataclass(frozen=True)
class Wishes:
    """What the user wants of a run besides its config: options by name, `section.key=value` words, and where modules beside
    the config are found."""

    options: Mapping[str, Any] = field(default_factory=dict)
    assignments: Sequence[str] = ()
    path: tuple[str, ...] = ()


def start(call: Call, wishes: Wishes) -> tuple[int, Any]:
    """Run what a config called; the exit code and the trained policy."""
    upstream.check(call)
    main, options = _settle(call, wishes)
    upstream.check(replace(call, main=main))  # with the user's changes
    with quiet():  # before there is a folder
        _check_sizes(_compiled(call, copy.deepcopy(main), options.seed, save=False), ENTRIES[call.entry])
    with FolderLock() as lock:
        folder = free_folder(str(main.exp_name), None, lock, FREE)
        with logging_to(folder, LOGGER):
            say_folder(folder, str(main.exp_name), None)
            plan = compile_plan(call, main, options, folder, wishes.path)
            return _run(plan, options, folder, None, {})


def resume(given: str, changes: Mapping[str, Any], *, model: Any = None) -> tuple[int, Any]:
    """Go on with a run, from its folder or a checkpoint; limits and asynchrony may change, its config stays. A network of the
    user's own is not in the checkpoint: `model` has to be given again."""
    from lzero_async.lightzero.learner import KIND

    with FolderLock() as lock:
        saved = find_checkpoint(given, str(changes.get("exp_name", given)), lock)
        assert saved is not None
        state = checkpoint.load(saved, KIND, arrays=False)
        checkpoint.check_same_run(saved, state, {}, ())
        with checkpoint.fitting(saved):
            plan = plan_of(state)
            kept, own = dict(state["options"]), bool(state["plan"]["own_model"])
        if own != (model is not None):
            wrong = (
                "has a network of your own, which a checkpoint does not hold" if own else "has the config's own network"
            )
            raise ConfigError(f"The run in {saved} {wrong}; {'pass it as model=' if own else 'leave model= out'}.")
        folder = folder_of(saved)
        name = str(changes.get("exp_name") or folder or kept["exp_name"])
        options = build_options({**kept, **changes, "exp_name": name})
        if options.seed != kept["seed"]:
            raise ConfigError(
                f"seed was {kept['seed']} in {saved} and is {options.seed} now; a resumed run cannot change it."
            )
        folder = free_folder(name, saved, lock, FREE)
        with logging_to(folder, LOGGER):
            say_folder(folder, name, saved)
            plan = Plan(**{**vars(plan), "folder": str(folder.resolve()), "model": model})
            return _run(plan, options, folder, saved, state)


def plan_of(state: Mapping[str, Any]) -> Plan:
    """The plan in a checkpoint's description."""
    plan = state["plan"]
    return Plan(
        plan["entry"], plan["config"], tuple(plan["imports"]), plan["policy"], folder="", path=tuple(plan["path"])
    )


def _run(
    plan: Plan, options: LightZeroOptions, folder: Path, saved: Path | None, state: Mapping[str, Any]
) -> tuple[int, Any]:
    from lzero_async.lightzero.trainer import LightZeroRun

    run = LightZeroRun(options, plan, folder)
    kept: list[Any] = []

    def go_on() -> str:
        assert saved is not None
        run.resume(saved, state)
        return (
            f"resumed from {saved} at {run.counts['env_steps']:,} environment steps, {run.counts['updates']:,} updates"
        )

    def report(final: Any, reason: str) -> None:
        kept.append(run.learner.call("learn_state").open())
        _report(run, reason)

    code = run_program(run, None if saved is None else go_on, None, report)
    return code, new_policy(plan, kept[0]) if kept else None


def _report(run: LightZeroRun, reason: str) -> None:
    from lzero_async.lightzero.gain import most_to_gain
    from lzero_async.runs.run_dir import say_places

    counts, statistics = run.counts, run.coordinator.get_statistics()
    print(most_to_gain(statistics, run.options))
    if counts["zero_trains"]:
        print(f"trains without an update, because data were missing: {counts['zero_trains']:,}")
    if statistics["evals_skipped"]:
        print(f"evaluations that were due and left out, because others still ran: {statistics['evals_skipped']:,}")
    if run.entry.segments:
        print(f"oldest first step of a trained segment: {counts['segment_age_max']} versions (segment_age_max)")
    best = "none" if run.best["return"] is None else f"{run.best['return']:.2f} at version {run.best['version']}"
    print(f"best evaluation: {best}; {counts['env_steps']:,} environment steps, {counts['updates']:,} updates")
    print(f"ended by: {reason}")
    say_places(run.folder)
    print(f"{'for LightZero:':17}{run.folder / 'ckpt'}/*.pth.tar")


def _settle(call: Call, wishes: Wishes) -> tuple[Any, LightZeroOptions]:
    """The main config with the user's changes, and the options: the user's, then those of the config's policy section."""
    main = copy.deepcopy(call.main)
    of_config = {name: main.policy.pop(name) for name in IN_CONFIG if name in main.policy}
    given = dict(wishes.options)
    if wishes.assignments:
        with quiet():
            known = _compiled(call, copy.deepcopy(main), call.seed, save=False)
        change(main, wishes.assignments, known)
    if main.policy.get("eval_offline") and ENTRIES[call.entry].evaluates_offline:
        of_config["async_eval"] = True  # what it is for: evaluations do not hold training up
    if main.policy.get("use_wandb") and given.get("wandb", "off") == "off":
        print("note: the config has use_wandb; give --wandb online (or offline) for that.")
    of_call = {"seed": call.seed, "max_env_step": int(call.max_env_step), "max_train_iter": int(call.max_train_iter)}
    name = str(main.get("exp_name", "default_experiment"))
    name = named_for_seed(name, int(given["seed"])) if "seed" in given else name
    options = build_options({**of_call, "exp_name": name, **of_config, **call.options, **given})
    main.exp_name = options.exp_name
    return main, options


def compile_plan(call: Call, main: Any, options: LightZeroOptions, folder: Path, path: tuple[str, ...] = ()) -> Plan:
    """Compile the config as the entry does, once; its two files are written into the folder."""
    entry, policy = ENTRIES[call.entry], call.create.policy.type
    if entry.policies and policy not in entry.policies:
        raise ConfigError(
            f"{call.entry} does not take the policy {policy!r}; LightZero's takes {', '.join(entry.policies)}."
        )
    main = copy.deepcopy(main)
    main.exp_name = os.path.relpath(folder)
    with quiet():
        compiled = _compiled(call, main, options.seed, save=True)
    if compiled.policy.get("multi_gpu"):
        raise ConfigError(
            "policy.multi_gpu is set; a LightZero run here has one learner: --set policy.multi_gpu=false."
        )
    if compiled.policy.get("eval_offline") and entry.evaluates_offline:
        compiled.policy.learn.learner.hook.save_ckpt_after_iter = compiled.policy.eval_freq
    _check_travels(compiled, call, options)
    names = [name for part in call.create.values() for name in part.get("import_names", ())]
    return Plan(
        call.entry,
        plain(compiled),
        tuple(dict.fromkeys(names)),
        policy,
        str(folder.resolve()),
        call.model,
        call.model_path,
        path,
    )


def _check_travels(compiled: Any, call: Call, options: LightZeroOptions) -> None:
    """ConfigError for what a role in another process, or a checkpoint, could not have."""
    from ding.envs import get_env_cls
    from ding.policy import get_policy_cls

    pack({"config": plain(compiled)})
    if backend_of(options) == "inline" or ENTRIES[call.entry].gym_envs:
        return
    for what, found in (("environment", get_env_cls(compiled.env)), ("policy", get_policy_cls(compiled.policy))):
        if found.__module__ == "__main__":
            raise ConfigError(
                f"The {what} {found.__name__} is defined in the program itself, where roles in other processes do not find it; "
                "put it into a module of its own and name that in the create config's import_names, or use off_policy_degree 0."
            )


def _check_sizes(compiled: Any, entry: Entry) -> None:
    """ConfigError for what LightZero's collectors only assert."""
    name, envs = "num_segments" if entry.segments else "n_episode", int(compiled.env.collector_env_num)
    count = compiled.policy.get(name)
    if count is not None and count < envs:
        raise ConfigError(
            f"policy.{name} is {count}, but env.collector_env_num is {envs}, and each environment plays at least one; raise "
            f"policy.{name} or lower env.collector_env_num."
        )


def _compiled(call: Call, main: Any, seed: int, *, save: bool) -> Any:
    try:
        return _compile(call, main, seed, save=save)
    except ConfigError:
        raise
    except Exception as error:  # a package that is missing, a name that is not registered, a value of a wrong kind
        raise ConfigError(f"DI-engine cannot compile this config: {why(error)}.") from error


def _compile(call: Call, main: Any, seed: int, *, save: bool) -> Any:
    import torch
    from ding.config import compile_config

    if ENTRIES[call.entry].world_model:
        main.policy.device = main.policy.model.world_model_cfg.device if torch.cuda.is_available() else "cpu"
    else:
        main.policy.device = "cuda" if main.policy.cuda and torch.cuda.is_available() else "cpu"
    create = copy.deepcopy(call.create)
    return compile_config(main, seed=seed, env=None, auto=True, create_cfg=create, save_cfg=save, renew_dir=False)


def plain(value: Any) -> Any:
    """A config without EasyDict, so that it travels and is saved as data."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(part) for part in value)
    return value


def new_policy(plan: Plan, state: Mapping[str, Any]) -> Any:
    """LightZero's policy with what was learned, as its entries return it."""
    from ding.policy import create_policy

    with quiet():
        policy = create_policy(plan.easy().policy, model=plan.model, enable_field=["learn", "collect", "eval"])
    policy.learn_mode.load_state_dict(state)
    return policy
