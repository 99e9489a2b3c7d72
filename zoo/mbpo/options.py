"""Every option of MBPO: its default, what it may be, its meaning, and the trainers that it belongs to. Checked here, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from easydict import EasyDict

from lzero_async.errors import ConfigError
from lzero_async.runs.options import (
    WATCHING,
    Option,
    OptionTable,
    arguments,
    between,
    device,
    flag,
    nonempty,
    optional,
    ray_options,
    seed,
    whole,
    words,
)
from lzero_async.validation import LONGEST, duration, one_of, positive_number
from zoo.mbpo.envs.guarding import STEP_TIMEOUT
from zoo.mbpo.envs.vectorised import split
from zoo.mbpo.learn.learner_options import LearnerOptions

SYNC, BATCH, CONTINUOUS = "sync", "batch", "continuous"
TRAINERS: Final = (SYNC, BATCH, CONTINUOUS)
AUTOMATIC: Final = -1
LEARNER: Final = LearnerOptions()
ONE_BY_ONE = (SYNC, BATCH)
GROUPS: dict[str, dict[str, Option]] = {
    "environment": {
        "env": Option("Pendulum-v1", nonempty, "gymnasium id (also module:Name-v0); --task is another name for it"),
        "num_envs": Option(64, whole(1), "environments in all"),
        "env_args": Option({}, arguments, "arguments of the environment, as g=9.81 or as JSON"),
        "step_seconds": Option(
            0.0, between(0, 3600), "extra seconds that each vector step waits, as a slow simulator would"
        ),
        "step_timeout": Option(
            STEP_TIMEOUT, between(0.001, 1e6),
            "seconds after which an environment's step or reset is given up; counted, and its environment made anew",
        ),
    },
    "run": {
        "trainer": Option(BATCH, words(*TRAINERS), "sync, batch (v2, RSL-RL style) or continuous (v1)"),
        "exp_name": Option("runs/mbpo", nonempty, "folder for everything that the run writes"),
        "seed": Option(0, seed, "seed of everything random"),
        "max_steps": Option(50_000, whole(0), "real environment steps trained on after which to end (0: no limit)"),
        "max_seconds": Option(0.0, between(0, LONGEST), "seconds after which to end (0: no limit)"),
        "target_return": Option(
            None, optional(between(-1e12, 1e12)), "evaluation return that ends the run (default: none)", kind=float
        ),
        "random_steps": Option(1_000, whole(0), "real steps at the start with uniform actions"),
        "eval_every": Option(5, whole(0), "trains (batches of real data) between evaluations (0: none)"),
        "eval_episodes": Option(20, whole(1), "episodes of an evaluation"),
        "checkpoint_every": Option(20, whole(0), "trains between checkpoints (0: only at the end)"),
        "log_interval": Option(1_000, whole(1), "agent updates between two log lines"),
    },
    "watching": dict(WATCHING),
    "where": {
        "device": Option("auto", device, "of the learner: auto, cpu, cuda or cuda:N"),
        "backend": Option(
            "auto", words("auto", "inline", "thread", "process", "ray"),
            "where the roles live; auto: inline for sync, else processes; ray: on a Ray cluster",
        ),
        **ray_options("collector", "evaluator", "learner", "dynamics", "rollouts"),
        "torch_threads": Option(0, whole(0), "torch threads of each role that learns (0: one, or all for sync)"),
        "max_restarts": Option(5, whole(0), "restarts in a row of a collector that fails"),
        "restart_backoff": Option(0.2, duration, "seconds before the first of them, doubling"),
    },
    "pace: the same for every trainer; per real transition, fractions carry over": {
        "updates_per_step": Option(1.0, between(0, 1000), "agent updates"),
        "dynamics_updates_per_step": Option(0.5, between(0, 1000), "dynamics updates"),
        "rollouts_per_step": Option(0.7, between(0, 10_000), "model rollouts begun"),
    },
    "sync and batch": {
        "num_steps_per_env": Option(24, whole(1), "steps of every environment in one batch", ONE_BY_ONE),
        "batch_queue_size": Option(
            10, whole(1), "batches that may wait for training; also the staleness bound, in batches", (BATCH,)
        ),
    },
    "continuous": {
        "num_collectors": Option(4, whole(1), "collectors, a process each; they share the environments", (CONTINUOUS,)),
        "max_queue_size": Option(
            1_000, whole(1),
            "real transitions that may wait in the queue; if collectors wait, at least one batch of each", (CONTINUOUS,),
        ),
        "collection_batch_size": Option(256, whole(1), "real transitions of one collect", (CONTINUOUS,)),
        "when_full": Option(
            "drop_oldest", words("drop_oldest", "wait"),
            "what a full queue does: drop its oldest batch (counted), or let collectors wait", (CONTINUOUS,),
        ),
        "queue_order": Option(
            "fifo", words("fifo", "newest", "reward"),
            "which batch is trained first (and the opposite dropped first): fifo, that of the newest policy, or of the highest "
            "mean reward", (CONTINUOUS,),
        ),
        "off_policy_degree": Option(
            AUTOMATIC, whole(AUTOMATIC),
            "staleness bound of real batches, in trains; -1: kept by the queue's length if collectors wait, else only reported",
            (CONTINUOUS,),
        ),
        "max_train_ahead": Option(
            4, whole(0), "trains in a row on the data at hand while no batch waits", (CONTINUOUS,)
        ),
        "model_queue_size": Option(
            8, whole(1), "batches of model data that may wait for the agent; the oldest is dropped", (CONTINUOUS,)
        ),
        "adaptive_queue": Option(
            False, flag, "let the queue's length follow its use, which is kept at 50 to 80 %", (CONTINUOUS,)
        ),
        "adaptive_collectors": Option(
            False, flag, "let the number of active collectors follow the learner's hunger", (CONTINUOUS,)
        ),
        "adaptive_batch": Option(
            False, flag, "let collection_batch_size follow it, from a quarter to four times", (CONTINUOUS,)
        ),
    },
    "agent": {
        "hidden_size": Option(LEARNER.hidden_size, whole(1), "width of actor and critics"),
        "hidden_layers": Option(LEARNER.hidden_layers, whole(1), "hidden layers of actor and critics"),
        "on_bad_update": Option(
            LEARNER.on_bad_update, words("skip", "stop"),
            "what an update with a loss or gradient that is not finite does: it is left out and counted (20 in a row end the "
            "run), or the run stops",
        ),
        "learning_rate": Option(LEARNER.learning_rate, positive_number, "of actor, critics and temperature"),
        "discount": Option(LEARNER.discount, between(0, 1), "per step"),
        "tau": Option(LEARNER.tau, between(0, 1), "share by which the target critics follow at each update"),
        "batch_size": Option(LEARNER.batch_size, whole(1), "transitions of an agent update"),
        "real_ratio": Option(LEARNER.real_ratio, between(0, 1), "share of real ones among them; 1: real data only"),
        "sampling": Option(LEARNER.sampling, words("uniform", "recent", "priority"), "how both buffers are sampled"),
        "real_buffer_size": Option(LEARNER.real_buffer_size, whole(1), "real transitions kept"),
        "model_buffer_size": Option(LEARNER.model_buffer_size, whole(1), "model transitions kept"),
    },
    "dynamics and rollouts": {
        "ensemble_size": Option(LEARNER.ensemble_size, whole(1), "dynamics networks"),
        "num_elites": Option(LEARNER.num_elites, whole(1), "of them, used by rollouts"),
        "dynamics_hidden_size": Option(LEARNER.dynamics_hidden_size, whole(1), "width of a dynamics network"),
        "dynamics_layers": Option(LEARNER.dynamics_layers, whole(1), "its hidden layers"),
        "dynamics_learning_rate": Option(LEARNER.dynamics_learning_rate, positive_number, "of the dynamics networks"),
        "dynamics_batch_size": Option(LEARNER.dynamics_batch_size, whole(1), "transitions of an update, for each network"),
        "rollout_length": Option(LEARNER.rollout_length, whole(1), "steps of a model rollout"),
        "rollout_batch_size": Option(LEARNER.rollout_batch_size, whole(1), "rollouts made at once"),
    },
}  # fmt: skip
TABLE: Final = OptionTable(GROUPS, other_flags=("preset", "resume", "headless", "task"))
OPTIONS: Final = TABLE.options
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
    ("max_queue_size", BATCH): "its queue is --batch_queue_size, in batches",
    ("collection_batch_size", BATCH): "a batch is --num_steps_per_env steps of all environments",
    ("collection_batch_size", SYNC): "a batch is --num_steps_per_env steps of all environments",
    ("off_policy_degree", BATCH): "its bound is --batch_queue_size, in batches",
    ("off_policy_degree", SYNC): "nothing is stale there",
    ("num_steps_per_env", CONTINUOUS): "a batch is --collection_batch_size transitions of one collector",
    ("batch_queue_size", CONTINUOUS): "its queue is --max_queue_size, in transitions",
}
# A resumed run keeps these; all others may change.
FIXED: Final = (
    "env", "env_args", "hidden_size", "hidden_layers", "ensemble_size", "num_elites", "dynamics_hidden_size",
    "dynamics_layers",
)  # fmt: skip


def build_options(changes: Mapping[str, Any], *, preset: str = "", saved: Mapping[str, Any] | None = None) -> EasyDict:
    """The checked options: defaults, then those of a `saved` run or of a preset, then `changes`.

    Of a saved run that another trainer goes on with, what belongs to the old trainer is left out.
    """
    for name in changes:
        TABLE.check_known(name)
    values = {name: option.default for name, option in OPTIONS.items()}
    given = dict(changes)
    if preset:
        one_of("--preset", preset, PRESETS)
        if given.get("trainer", CONTINUOUS) != CONTINUOUS:
            raise ConfigError(
                f"--preset {preset} sets collectors and queue of the continuous trainer, but the trainer is "
                f"{given['trainer']!r}; use --trainer continuous, or --num_envs {PRESETS[preset]['num_envs']} alone."
            )
        given = {**PRESETS[preset], **given}
    if saved is not None:
        values |= {name: value for name, value in saved.items() if name in OPTIONS}
    trainer = OPTIONS["trainer"].check("trainer", given.get("trainer", values["trainer"]))
    if saved is not None and "backend" not in given and (trainer == SYNC) != (values["trainer"] == SYNC):
        values["backend"] = "auto"  # what the old trainer lived in does not serve the new one
    for name in given:
        if not OPTIONS[name].belongs_to(trainer):
            raise ConfigError(_belongs_elsewhere(name, trainer))
    options = check_options({**values, **given})
    if (
        trainer == CONTINUOUS
        and {"max_queue_size", "off_policy_degree"} <= set(changes)
        and options.when_full == "wait"
    ):
        raise ConfigError(
            "max_queue_size and off_policy_degree both say how much may wait when collectors wait; give one of them."
        )
    return options


def check_options(values: Mapping[str, Any]) -> EasyDict:
    """Reject unknown names, bad values, and values that clash; return an EasyDict of them all."""
    options = EasyDict(TABLE.check(values))
    options.env_args = dict(options.env_args)
    _check_together(options)
    return options


def _check_together(options: EasyDict) -> None:
    if options.num_elites > options.ensemble_size:
        raise ConfigError(
            f"num_elites is {options.num_elites}, more than ensemble_size {options.ensemble_size}; lower it."
        )
    if options.real_buffer_size < options.batch_size:
        raise ConfigError(
            f"real_buffer_size is {options.real_buffer_size}, less than batch_size {options.batch_size}; enlarge it."
        )
    if options.target_return is not None and not options.eval_every:
        raise ConfigError("target_return is set, but eval_every is 0, so that it is never looked at; set eval_every.")
    if options.trainer == SYNC and options.backend not in ("auto", "inline"):
        raise ConfigError(
            f"backend is {options.backend!r}, but the sync trainer runs in turn in one process; use inline."
        )
    if options.trainer != SYNC and options.backend == "inline":
        raise ConfigError(f"backend is 'inline', but the {options.trainer} trainer needs thread, process or ray.")
    if options.trainer == CONTINUOUS:
        _check_continuous(options)


def _check_continuous(options: EasyDict) -> None:
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
            if options[name]:
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


def queue_batches(options: EasyDict) -> int:
    """Batches that the continuous trainer's queue holds: `max_queue_size` transitions, to the nearest batch."""
    return max(1, round(options.max_queue_size / options.collection_batch_size))


def backend_of(options: EasyDict) -> str:
    """Where the roles live."""
    if options.backend != "auto":
        return str(options.backend)
    return "inline" if options.trainer == SYNC else "process"
