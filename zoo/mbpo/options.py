"""Every option of MBPO: its type, default, range and meaning, and the trainers that it belongs to. Checked here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import arguments, between, device, nonempty, resources, seed, whole
from lzero_async.runs.options import (
    RAY_ADDRESS,
    Also,
    CommandLine,
    Only,
    Resources,
    Watching,
    ray_needs,
)
from lzero_async.validation import LONGEST, duration, one_of, positive_number
from zoo.mbpo.envs.guarding import STEP_TIMEOUT
from zoo.mbpo.envs.vectorised import split

SYNC, BATCH, CONTINUOUS = "sync", "batch", "continuous"
AUTOMATIC: Final = -1
KINDS: Final = ("collector", "evaluator", "learner", "dynamics", "rollouts")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment."""

    env: Annotated[str, nonempty, "gymnasium id (also module:Name-v0); --task is another name for it", Also("task")] = (
        "Pendulum-v1"
    )
    num_envs: Annotated[int, whole(1), "environments in all"] = 64
    env_args: Annotated[dict[str, Any], arguments, "arguments of the environment, as g=9.81 or as JSON"] = field(
        default_factory=dict
    )
    step_seconds: Annotated[
        float, between(0, 3600), "extra seconds that each vector step waits, as a slow simulator would"
    ] = 0.0
    step_timeout: Annotated[
        float,
        between(0.001, 1e6),
        "seconds after which an environment's step or reset is given up; counted, and its environment made again",
    ] = STEP_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run."""

    trainer: Annotated[Literal["sync", "batch", "continuous"], "sync, batch (v2, RSL-RL style) or continuous (v1)"] = (
        "batch"
    )
    exp_name: Annotated[str, nonempty, "folder for everything that the run writes"] = "runs/mbpo"
    seed: Annotated[int, seed, "seed of everything random"] = 0
    max_env_steps: Annotated[
        int, whole(0), "real environment steps trained on after which to end (0: no limit)", Also("max_steps")
    ] = 50_000
    max_seconds: Annotated[float, between(0, LONGEST), "seconds after which to end (0: no limit)"] = 0.0
    target_score: Annotated[
        float | None,
        between(-1e12, 1e12),
        "mean return that ends the run, once a second evaluation confirms it (default: none)",
        Also("target_return"),
    ] = None
    random_steps: Annotated[int, whole(0), "real steps at the start with uniform actions"] = 1_000
    eval_every: Annotated[int, whole(0), "trains (batches of real data) between evaluations (0: none)"] = 5
    eval_episodes: Annotated[int, whole(1), "episodes of an evaluation"] = 20
    checkpoint_every: Annotated[int, whole(0), "trains between checkpoints (0: only at the end)"] = 20
    log_interval: Annotated[int, whole(1), "agent updates between two log lines"] = 1_000


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where."""

    device: Annotated[str, device, "of the learner: auto, cpu, cuda or cuda:N"] = "auto"
    backend: Annotated[
        Literal["auto", "inline", "thread", "process", "ray"],
        "where the roles live; auto: inline for sync, else processes; ray: on a Ray cluster",
    ] = "auto"
    ray_address: Annotated[str, RAY_ADDRESS] = ""
    ray_resources: Annotated[Resources, resources(*KINDS), ray_needs(*KINDS)] = field(default_factory=dict)
    torch_threads: Annotated[int, whole(0), "torch threads of each role that learns (0: one, or all for sync)"] = 0
    max_restarts: Annotated[int, whole(0), "restarts in a row of a collector that fails"] = 5
    restart_backoff: Annotated[float, duration, "seconds before the first of them, doubling"] = 0.2


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pace: the same for every trainer; per real transition, fractions carry over."""

    updates_per_step: Annotated[float, between(0, 1000), "agent updates"] = 1.0
    dynamics_updates_per_step: Annotated[float, between(0, 1000), "dynamics updates"] = 0.5
    rollouts_per_step: Annotated[float, between(0, 10_000), "model rollouts begun"] = 0.7


@dataclass(frozen=True, kw_only=True)
class OneByOne:
    """Sync and batch."""

    num_steps_per_env: Annotated[int, whole(1), "steps of every environment in one batch", Only(SYNC, BATCH)] = 24
    batch_queue_size: Annotated[
        int,
        whole(1),
        "batches that may wait for training; also the staleness bound, in batches",
        Only(BATCH),
    ] = 10


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """Continuous."""

    num_collectors: Annotated[
        int, whole(1), "collectors, a process each; they share the environments", Only(CONTINUOUS)
    ] = 4
    max_queue_size: Annotated[
        int,
        whole(1),
        "real transitions that may wait in the queue; if collectors wait, at least one batch of each; to the batch trainer "
        "another name of batch_queue_size, in batches",
        Only(BATCH, CONTINUOUS),
    ] = 1_000
    collection_batch_size: Annotated[int, whole(1), "real transitions of one collect", Only(CONTINUOUS)] = 256
    when_full: Annotated[
        Literal["drop_oldest", "wait"],
        "what a full queue does: drop its oldest batch (counted), or let collectors wait",
        Only(CONTINUOUS),
    ] = "drop_oldest"
    queue_order: Annotated[
        Literal["fifo", "newest", "reward"],
        "which batch is trained first (and the opposite dropped first): fifo, that of the newest policy, or of the highest mean "
        "reward",
        Only(CONTINUOUS),
    ] = "fifo"
    off_policy_degree: Annotated[
        int,
        whole(AUTOMATIC),
        "staleness bound of real batches, in trains; -1: kept by the queue's length if collectors wait, else only reported",
        Only(CONTINUOUS),
    ] = AUTOMATIC
    max_train_ahead: Annotated[
        int, whole(0), "trains in a row on the data at hand while no batch waits", Only(CONTINUOUS)
    ] = 4
    model_queue_size: Annotated[
        int, whole(1), "batches of model data that may wait for the agent; the oldest is dropped", Only(CONTINUOUS)
    ] = 8
    adaptive_queue: Annotated[
        bool, "let the queue's length follow its use, which is kept at 50 to 80 %", Only(CONTINUOUS)
    ] = False
    adaptive_collectors: Annotated[
        bool, "let the number of active collectors follow the learner's hunger", Only(CONTINUOUS)
    ] = False
    adaptive_batch: Annotated[
        bool, "let collection_batch_size follow it, from a quarter to four times", Only(CONTINUOUS)
    ] = False


# The defaults of what learns were found on Pendulum, also with data of old policies.
@dataclass(frozen=True, kw_only=True)
class Agent:
    """Agent."""

    hidden_size: Annotated[int, whole(1), "width of actor and critics"] = 64
    hidden_layers: Annotated[int, whole(1), "hidden layers of actor and critics"] = 2
    on_bad_update: Annotated[
        Literal["skip", "stop"],
        "what an update with a loss or gradient that is not finite does: it is left out and counted (20 in a row end the run), "
        "or the run stops",
    ] = "skip"
    learning_rate: Annotated[float, positive_number, "of actor, critics and temperature"] = 3e-3
    discount: Annotated[float, between(0, 1), "per step"] = 0.99
    tau: Annotated[float, between(0, 1), "share by which the target critics follow at each update"] = 0.02
    batch_size: Annotated[int, whole(1), "transitions of an agent update"] = 256
    real_ratio: Annotated[float, between(0, 1), "share of real ones among them; 1: real data only"] = 0.1
    sampling: Annotated[Literal["uniform", "recent", "priority"], "how both buffers are sampled"] = "uniform"
    real_buffer_size: Annotated[int, whole(1), "real transitions kept"] = 100_000
    model_buffer_size: Annotated[
        int, whole(1), "model transitions kept; small, so that those of old dynamics are soon replaced"
    ] = 10_000


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """Dynamics and rollouts."""

    ensemble_size: Annotated[int, whole(1), "dynamics networks"] = 7
    num_elites: Annotated[int, whole(1), "of them, used by rollouts"] = 5
    dynamics_hidden_size: Annotated[int, whole(1), "width of a dynamics network"] = 64
    dynamics_layers: Annotated[int, whole(1), "its hidden layers"] = 3
    dynamics_learning_rate: Annotated[float, positive_number, "of the dynamics networks"] = 3e-3
    dynamics_batch_size: Annotated[int, whole(1), "transitions of an update, for each network"] = 64
    rollout_length: Annotated[int, whole(1), "steps of a model rollout"] = 5
    rollout_batch_size: Annotated[int, whole(1), "rollouts made at once"] = 1_000


@dataclass(frozen=True, kw_only=True)
class LearnerOptions(Agent, Dynamics):
    """What a Learner reads."""

    device: str = "cpu"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MbpoOptions(Environment, Run, Watching, Where, Pace, OneByOne, Continuous, LearnerOptions):
    """All options of a run."""


COMMAND: Final = CommandLine(MbpoOptions, other_flags=("preset", "resume", "headless"))
OPTIONS: Final = COMMAND.options
PRESETS: dict[str, dict[str, Any]] = {
    f"envs{num_envs}": {
        "trainer": CONTINUOUS,
        "num_envs": num_envs,
        "num_collectors": collectors,
        "max_queue_size": queue,
        "collection_batch_size": batch,
    }
    for num_envs, collectors, queue, batch in (
        (64, 8, 2_000, 512),
        (128, 16, 4_000, 1_024),
        (256, 32, 8_000, 2_048),
    )
}
# What another trainer's user most likely wants instead.
INSTEAD: dict[tuple[str, str], str] = {
    ("num_collectors", BATCH): "one collector steps all environments there; raise --num_envs",
    ("num_collectors", SYNC): "one collector steps all environments there; raise --num_envs",
    ("collection_batch_size", BATCH): "a batch is --num_steps_per_env steps of all environments",
    ("collection_batch_size", SYNC): "a batch is --num_steps_per_env steps of all environments",
    ("off_policy_degree", BATCH): "its bound is --batch_queue_size, in batches",
    ("off_policy_degree", SYNC): "nothing is stale there",
    ("num_steps_per_env", CONTINUOUS): "a batch is --collection_batch_size transitions of one collector",
    ("batch_queue_size", CONTINUOUS): "its queue is --max_queue_size, in transitions",
}
HARMLESS: Final = ("wandb-id",)  # files of a folder that do not make a run
# A resumed run keeps these; all others may change.
FIXED: Final = (
    "env", "env_args", "hidden_size", "hidden_layers", "ensemble_size", "num_elites", "dynamics_hidden_size",
    "dynamics_layers",
)  # fmt: skip


def build_options(
    changes: Mapping[str, Any], *, preset: str = "", saved: Mapping[str, Any] | None = None
) -> MbpoOptions:
    """The checked options: defaults, then those of a `saved` run or of a preset, then `changes`.

    Of a saved run that another trainer goes on with, what belongs to the old trainer is left out. The batch trainer's
    `batch_queue_size` may also be called `max_queue_size`.
    """
    values = {name: option.default for name, option in OPTIONS.items()}
    given = COMMAND.named(changes)
    by_hand = set(given)
    if preset:
        one_of("--preset", preset, PRESETS)
        if given.get("trainer", CONTINUOUS) != CONTINUOUS:
            raise ConfigError(
                f"--preset {preset} sets collectors and queue of the continuous trainer, but the trainer is "
                f"{given['trainer']!r}; use --trainer continuous, or --num_envs {PRESETS[preset]['num_envs']} alone."
            )
        given = {**PRESETS[preset], **given}
    if saved is not None:
        values |= COMMAND.named({name: value for name, value in saved.items() if COMMAND.has(name)})
    trainer = OPTIONS["trainer"].check("trainer", given.get("trainer", values["trainer"]))
    if saved is not None and "backend" not in given and (trainer == SYNC) != (values["trainer"] == SYNC):
        values["backend"] = "auto"  # what the old trainer lived in does not serve the new one
    if trainer == BATCH and "max_queue_size" in given:
        if "batch_queue_size" in given:
            raise ConfigError(
                "max_queue_size and batch_queue_size are the same to the batch trainer; give one of them."
            )
        given["batch_queue_size"] = given.pop("max_queue_size")
    for name in given:
        if not OPTIONS[name].belongs_to(trainer):
            raise ConfigError(_belongs_elsewhere(name, trainer))
    options = check_options({**values, **given})
    if trainer == CONTINUOUS and {"max_queue_size", "off_policy_degree"} <= by_hand and options.when_full == "wait":
        raise ConfigError(
            "max_queue_size and off_policy_degree both say how much may wait when collectors wait; give one of them."
        )
    return options


def check_options(values: Mapping[str, Any]) -> MbpoOptions:
    """Reject unknown names, bad values, and values that clash; return them all."""
    options = MbpoOptions(**COMMAND.check(values))
    _check_together(options)
    return options


def _check_together(options: MbpoOptions) -> None:
    if options.num_elites > options.ensemble_size:
        raise ConfigError(
            f"num_elites is {options.num_elites}, more than ensemble_size {options.ensemble_size}; lower it."
        )
    if options.real_buffer_size < options.batch_size:
        raise ConfigError(
            f"real_buffer_size is {options.real_buffer_size}, less than batch_size {options.batch_size}; enlarge it."
        )
    if options.target_score is not None and not options.eval_every:
        raise ConfigError("target_score is set, but eval_every is 0, so that it is never looked at; set eval_every.")
    if options.trainer == SYNC and options.backend not in ("auto", "inline"):
        raise ConfigError(
            f"backend is {options.backend!r}, but the sync trainer runs in turn in one process; use inline."
        )
    if options.trainer != SYNC and options.backend == "inline":
        raise ConfigError(f"backend is 'inline', but the {options.trainer} trainer needs thread, process or ray.")
    if options.trainer == CONTINUOUS:
        _check_continuous(options)


def _check_continuous(options: MbpoOptions) -> None:
    split(options.num_envs, options.num_collectors)
    if options.max_queue_size < options.collection_batch_size:
        raise ConfigError(
            f"max_queue_size is {options.max_queue_size}, less than one batch of {options.collection_batch_size} "
            "(collection_batch_size); enlarge the queue or make batches smaller."
        )
    if options.off_policy_degree == 0:
        raise ConfigError("off_policy_degree 0 is strictly in turn; use --trainer sync for that.")
    if options.when_full == "wait":
        for name in ("adaptive_queue", "adaptive_collectors", "adaptive_batch"):
            if getattr(options, name):
                raise ConfigError(f"{name} needs a queue that drops; set when_full to drop_oldest, or {name} to false.")
        if options.queue_order != "fifo":
            raise ConfigError(
                "queue_order is for a queue that drops; set when_full to drop_oldest, or queue_order to fifo."
            )


def _belongs_elsewhere(name: str, trainer: str) -> str:
    home = OPTIONS[name].only
    instead = INSTEAD.get((name, trainer), "leave it out")
    return (
        f"{name} belongs to the {' and '.join(home)} trainer, and this run's is {trainer}: {instead}, "
        f"or use --trainer {home[-1]}."
    )


def queue_batches(options: MbpoOptions) -> int:
    """Batches that the continuous trainer's queue holds: `max_queue_size` transitions, to the nearest batch."""
    return max(1, round(options.max_queue_size / options.collection_batch_size))


def backend_of(options: MbpoOptions) -> str:
    """Where the roles live."""
    if options.backend != "auto":
        return options.backend
    return "inline" if options.trainer == SYNC else "process"
