"""MBPO as an application of lzero-async: its entry point names this, and the tools know of it what is said here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lzero_async.runs.applications import ApplicationEntry, Comparison, PipelineDescription

if TYPE_CHECKING:
    from zoo.mbpo.options import MbpoOptions

APPLICATION = ApplicationEntry(
    name="mbpo",
    help="MBPO: SAC with a learned model, on vectorised simulators",
    train="zoo.mbpo.train:main",
    policy="zoo.mbpo.collect.policy:load",
    comparison=Comparison(
        sync=("--trainer", "sync"),
        ways={"batch": ("--trainer", "batch"), "continuous": ("--trainer", "continuous")},
        limits={"max_env_steps": ("--max_env_steps", "0")},
        async_defaults={},
        async_only=frozenset((
            "batch_queue_size", "num_collectors", "max_queue_size", "collection_batch_size", "when_full", "queue_order",
            "off_policy_degree", "max_train_ahead", "model_queue_size", "adaptive_queue", "adaptive_collectors",
            "adaptive_batch",
        )),
        sync_only={"continuous": frozenset(["num_steps_per_env"])},
        refused={
            "trainer": "it is what is compared; --asynchronous batch or continuous chooses the asynchronous one",
            "preset": "it belongs to one trainer only; give --num_envs, --num_collectors and the others by themselves",
        },
    ),
)  # fmt: skip


def describe(options: MbpoOptions) -> PipelineDescription:
    """The pipeline of a run with these options."""
    return _continuous(options) if options.trainer == "continuous" else _batch(options)


def _batch(options: MbpoOptions) -> PipelineDescription:
    threads = (
        "The synchronous learner has a thread for each core, the other one has one; --torch_threads 1 makes them alike."
    )
    return PipelineDescription(
        sample="a real transition",
        environments=options.num_envs,
        degree="batch_queue_size",
        flags="--trainer batch --batch_queue_size {degree}",
        flags_in_turn="--trainer sync",
        size_flags="--num_envs {environments}",
        one_collector="one collector steps all environments here; --num_envs makes its batches larger, and --trainer continuous "
        "has several collectors",
        notes=(threads,) if options.trainer == "sync" and not options.torch_threads else (),
    )


def _continuous(options: MbpoOptions) -> PipelineDescription:
    waits = options.when_full == "wait"
    degree = "--off_policy_degree {degree}" if waits else "--max_queue_size {queued}"
    return PipelineDescription(
        sample="a real transition",
        collectors=options.num_collectors,
        environments=options.num_envs,
        degree="off_policy_degree" if waits else "queue",
        degree_unit=options.collection_batch_size,
        least_degree=1,
        flags="--trainer continuous --num_collectors {collectors} " + degree,
        size_flags="--num_envs {environments} --collection_batch_size {batch}",
        amounts={"batch": options.collection_batch_size},
        shared=True,
        max_train_ahead=options.max_train_ahead,
        train_parts={
            "agent": ("learner/agent_seconds", "learner/take_seconds"),
            "dynamics": ("learner/dynamics_seconds",),
            "rollouts": ("learner/rollout_seconds",),
        },
        notes=(
            "The collectors share the environments: with n times as many, each makes n times as many steps for a batch.",
        ),
    )
