"""MBPO's three trainers on the same work per real transition, with environments that wait and with ones that compute.

The environments are made to take as long as learning: a short run in turn, with environments that cost next to nothing, says what
learning costs per transition (U) and what is left of collecting, and the wait of a step, or its number of substeps, is chosen to
make collecting cost the same (C = U). What C and U then were in the measured run in turn is in the table. Speed is the rate of
effective samples, real transitions that were trained on, from the end of a train after the warm-up to the end of the last one.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks import _busy_env
from benchmarks._mbpo_runs import FOLDER, Run, Steady, TooFewTrains, lengths, limit, play, steady
from benchmarks.harness import Bar

# A batch of sync and batch (8 steps of 64 environments) is about a second of learning; the four collectors of continuous, with 16
# environments each, make the same 8 steps a collect, and all four together as many transitions.
WORK = {
    "num_envs": 64, "batch_size": 128, "updates_per_step": 1.0, "dynamics_updates_per_step": 0.05, "rollouts_per_step": 1.0,
    "max_steps": 0, "eval_every": 0, "checkpoint_every": 0, "wandb": "off", "device": "cpu", "seed": 0,
}  # fmt: skip
SYNC = {"trainer": "sync", "num_steps_per_env": 8}
BATCH = {"trainer": "batch", "num_steps_per_env": 8, "batch_queue_size": 10}
CONTINUOUS = {
    "trainer": "continuous", "num_collectors": 4, "collection_batch_size": 128, "max_queue_size": 1_000, "torch_threads": 1,
}  # fmt: skip
# Where collectors and learners share the cores, a train without new data takes time from both, and so does a batch that is
# collected to be dropped; the defaults, which do both, are measured beside it.
SAME_WORK = {**CONTINUOUS, "max_train_ahead": 0, "when_full": "wait"}
CORES = 2


@dataclass(frozen=True)
class Costs:
    """Seconds per transition with environments that cost next to nothing."""

    collect: float
    learn: float
    threads: int  # of torch


@dataclass(frozen=True)
class Measured:
    """A run and its steady part."""

    run: Run
    steady: Steady


def calibrate(name: str, threads: tuple[int, ...], **options: Any) -> Costs:
    """What collecting and learning cost in turn, with the number of torch threads that is the quickest."""
    costs = []
    for number in threads:
        settings = {**WORK, **SYNC, **options, "torch_threads": number, "max_seconds": lengths.calibration}
        run = play(FOLDER / f"{name}-calibration-{number}", settings)
        try:
            found = steady(run, lengths.calibration / 3)
        except TooFewTrains:
            if not costs:
                raise
            continue
        costs.append(Costs(found.collect, found.learn, number))
    return min(costs, key=lambda cost: cost.learn)


def measure(name: str, *options: dict[str, Any]) -> Measured:
    """Play one run and take its steady part."""
    settings: dict[str, Any] = dict(WORK)
    for more in options:
        settings |= more
    # The first train comes after a collect; that is not warm-up, so a little is added for it.
    settings["max_seconds"] = lengths.warm + lengths.measured + 3
    run = play(FOLDER / name.replace(" ", "-").replace(",", ""), settings)
    found = Measured(run, steady(run, lengths.warm))
    print(f"  {name}: {_said(found.steady)}", flush=True)
    return found


def measure_in_turn(name: str, environment: dict[str, Any]) -> Measured:
    """Sync with the number of torch threads, one or two, that suits it better."""
    one = measure(f"{name}, 1 thread", SYNC, environment, {"torch_threads": 1})
    try:
        two = measure(f"{name}, 2 threads", SYNC, environment, {"torch_threads": 2})
    except TooFewTrains as slow:  # two threads that wait for each other on cores that others use
        print(f"  {name}, 2 threads: {slow}", flush=True)
        return one
    return max(one, two, key=lambda measured: measured.steady.rate)


def _said(found: Steady) -> str:
    shares = ", ".join(f"{role} {share:.1%}" for role, share in found.busy.items())
    return (
        f"{found.rate:.1f} trained/s ({found.collected / (found.end - found.start):.1f} collected/s) in "
        f"{found.end - found.start:.1f} s, C {found.collect * 1e3:.3f} ms, U {found.learn * 1e3:.3f} ms, "
        f"{found.updates:.3f} updates per transition; busy: {shares}"
    )


@lru_cache(maxsize=1)
def waiting() -> dict[str, Measured]:
    """All three trainers on environments that wait, each with one torch thread, so that learning takes equally long in each;
    and sync with a second thread on the core that it leaves free."""
    costs = calibrate("waiting", (1,))
    wait = {"step_seconds": round(max(1e-4, WORK["num_envs"] * (costs.learn - costs.collect)), 6)}
    print(f"  waiting environments: {wait['step_seconds'] * 1e3:.1f} ms a step", flush=True)
    return {
        "sync": measure("waiting sync, 1 thread", SYNC, wait, {"torch_threads": 1}),
        "batch": measure("waiting batch", BATCH, wait, {"torch_threads": 1}),
        "continuous": measure("waiting continuous", CONTINUOUS, wait),
        "sync, 2 threads": measure("waiting sync, 2 threads", SYNC, wait, {"torch_threads": 2}),
    }


@lru_cache(maxsize=1)
def computing() -> dict[str, Measured]:
    """All three trainers on environments that compute."""
    cheap = calibrate("computing", (1,), env=_busy_env.ID, env_args={"substeps": 1})
    speed = _busy_env.substeps_per_second(lengths.calibration / 5)
    substeps = max(1, round((cheap.learn - cheap.collect) * speed))
    busy = {"env": _busy_env.ID, "env_args": {"substeps": substeps}}
    print(f"  environments that compute: {substeps} substeps a step", flush=True)
    return {
        "sync": measure_in_turn("computing sync", busy),
        "batch": measure("computing batch", BATCH, busy, {"torch_threads": 1}),
        "continuous": measure("computing continuous", SAME_WORK, busy),
        "continuous, defaults": measure("computing continuous, defaults", CONTINUOUS, busy),
    }


def _ratio(found: dict[str, Measured], name: str, to: str = "sync") -> float:
    return found[name].steady.rate / found[to].steady.rate


def _dropped(measured: Measured) -> float:
    coordinator = measured.run.results["statistics"]
    return coordinator["dropped"] / max(1, coordinator["collect_count"])


def waiting_bars() -> list[Bar]:
    """Speed-ups and their limit, who was busy, and the rates themselves."""
    return [
        Bar("v1 (continuous) / sync, effective samples/s", 1.9, True, lambda: _ratio(waiting(), "continuous"), 1),
        Bar("v2 (batch) / sync, effective samples/s", 1.8, True, lambda: _ratio(waiting(), "batch"), 1),
        Bar("the limit, (C+U)/max(C,U) of sync", None, True, lambda: limit(waiting()["sync"].steady), 1),
        Bar(
            "v1 / sync with two torch threads",
            None,
            True,
            lambda: _ratio(waiting(), "continuous", "sync, 2 threads"),
            1,
        ),
        Bar("v2 / sync with two torch threads", None, True, lambda: _ratio(waiting(), "batch", "sync, 2 threads"), 1),
        _part(waiting, "v1: collectors busy", "continuous", "collectors_busy", 0.95),
        _part(waiting, "v1: learner busy", "continuous", "learner_busy", 0.95),
        _part(waiting, "v1: learner busy with new data", "continuous", "new_data_busy"),
        Bar("v1: dynamics busy", None, True, lambda: waiting()["continuous"].steady.busy["dynamics"], 1),
        Bar("v1: rollouts busy", None, True, lambda: waiting()["continuous"].steady.busy["rollouts"], 1),
        _part(waiting, "v2: collector busy", "batch", "collectors_busy", 0.9),
        _part(waiting, "v2: learner busy", "batch", "learner_busy", 0.9),
        *_rates(waiting, ("continuous", "batch")),
    ]


def computing_bars() -> list[Bar]:
    """The same without a threshold, and what this machine makes of two busy processes."""
    return [
        Bar("v2 (batch) / sync, effective samples/s", None, True, lambda: _ratio(computing(), "batch"), 1),
        Bar("v1 (continuous), same work / sync", None, True, lambda: _ratio(computing(), "continuous"), 1),
        Bar("v1 (continuous), defaults / sync", None, True, lambda: _ratio(computing(), "continuous, defaults"), 1),
        Bar(
            "the limit, (C+U)/max(C,U,(C+U)/2) of sync", None, True, lambda: limit(computing()["sync"].steady, CORES), 1
        ),
        Bar("this machine: two busy processes / one", None, True, two_at_once, 1),
        _part(computing, "v1: collectors busy", "continuous", "collectors_busy"),
        _part(computing, "v1: learner busy", "continuous", "learner_busy"),
        _part(computing, "v2: collector busy", "batch", "collectors_busy"),
        _part(computing, "v2: learner busy", "batch", "learner_busy"),
        *_rates(computing, ("continuous", "continuous, defaults", "batch")),
    ]


def _part(found: Any, name: str, trainer: str, what: str, least: float | None = None) -> Bar:
    return Bar(name, least, True, lambda: getattr(found()[trainer].steady, what), 1)


def _rates(found: Any, trainers: tuple[str, ...]) -> list[Bar]:
    names = {"continuous": "v1", "continuous, defaults": "v1, defaults", "batch": "v2"}
    rates = [_part(found, f"{names[trainer]}: effective samples/s", trainer, "rate") for trainer in trainers]
    lost = [
        Bar(f"{names[trainer]}: share of the batches dropped", None, True, lambda t=trainer: _dropped(found()[t]), 1)
        for trainer in trainers
        if trainer != "batch"
    ]
    updates = [
        _part(found, f"{names[trainer]}: agent updates per transition", trainer, "updates") for trainer in trainers
    ]
    return [
        Bar("sync: effective samples/s", None, True, lambda: found()["sync"].steady.rate, 1),
        *rates,
        Bar("sync: C, ms per transition", None, True, lambda: found()["sync"].steady.collect * 1e3, 1),
        Bar("sync: U, ms per transition", None, True, lambda: found()["sync"].steady.learn * 1e3, 1),
        Bar("sync: agent updates per transition", None, True, lambda: found()["sync"].steady.updates, 1),
        *updates,
        *lost,
    ]


def two_at_once() -> float:
    """How much of the environments' work two processes do at once, in units of what one does alone."""
    seconds = lengths.calibration / 5
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        alone = pool.apply(_busy_env.substeps_per_second, (seconds,))
        both = pool.map(_busy_env.substeps_per_second, [seconds] * CORES, chunksize=1)
    return sum(both) / alone
