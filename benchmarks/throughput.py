"""The real agent, degree 2 against degree 0: environment steps and learner steps per second, same cores, seed and work.

Every number comes from the traces of real runs of priorzero_entry.py on the shipped game with the shipped preset. Rates are
taken over a window that begins when the first train ends and ends with the last train that still had a collect beside it, so
neither the start of the processes nor the last trains, which have no collect left to overlap with, count for either side.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks._runs import Run, Span, overlap_share, play
from benchmarks.harness import Bar

FOLDER = Path("runs/throughput")
TRAINS = 9
COUNTED = 7  # the last trains have no collect beside them
COMMON = (
    "run_config.eval_every=0", "run_config.final_eval_modes=[]", "run_config.max_env_step=0",
    "run_config.checkpoint_every=0", f"run_config.max_iter={TRAINS}", "env_config.env_asynchrony=off",
)  # fmt: skip
# Fixed beforehand, so that a train takes about as long as a collect.
AGENTS = {
    "world model only": (
        "llm_config.root_policy=wm_logits", "run_config.eval_modes=['world_model']", "policy_config.update_per_collect=150",
    ),
    "with the LLM prior": ("policy_config.update_per_collect=220",),
}  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """Per second of the window; `collect` and `train` are the mean seconds of a stage in it."""

    env_steps: float
    updates: float
    collect: float
    train: float

    @property
    def both(self) -> float:
        """Environment steps and learner steps together."""
        return self.env_steps + self.updates


def rates(run: Run) -> Rates:
    """The rates of a run; a stage that lies partly in the window counts by that part."""
    trains, collects = run.of("train"), run.of("collect")
    start, end = trains[0].end, trains[COUNTED - 1].end
    total = 0
    steps: dict[int, int] = {}
    for row in run.rows:
        steps[row["batch/id"]] = row["collector/env_steps"] - total
        total = row["collector/env_steps"]
    updates = run.results["updates"] / len(run.rows)
    seconds = end - start
    collected = sum(steps.get(span.batch, 0) * span.share_in(start, end) for span in collects)
    return Rates(
        collected / seconds,
        sum(updates * span.share_in(start, end) for span in trains) / seconds,
        _mean(collects, start, end),
        _mean(trains, start, end),
    )


def _mean(spans: list[Span], start: float, end: float) -> float:
    shares = [(span.share_in(start, end), span.end - span.start) for span in spans]
    return sum(share * seconds for share, seconds in shares) / sum(share for share, _ in shares)


@lru_cache(maxsize=1)
def runs() -> dict[str, dict[str, Run]]:
    """Every agent at degree 0 with one and with two torch threads, and at degree 2.

    All three start from the same files of valid actions and of priors, made by a run of four trains before them: those of
    the first states cost more than everything else, and would make the first collects unlike the later ones.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    found: dict[str, dict[str, Run]] = {}
    for agent, settings in AGENTS.items():
        place = FOLDER / agent.replace(" ", "-")
        warm = place / "warm"
        actions = place / "warm-actions.sqlite"
        fewer = ("run_config.max_iter=4", "policy_config.update_per_collect=50")
        play(warm, [], [*COMMON, *settings, *fewer, f"env_config.valid_action_store={actions.absolute()}"])
        schedules = {"degree 0, 1 thread": (0, 1), "degree 0, 2 threads": (0, 2), "degree 2": (2, 1)}
        for name, (degree, threads) in schedules.items():
            folder = place / name.replace(" ", "-").replace(",", "")
            folder.mkdir(parents=True)
            shutil.copy(warm / "cache.sqlite", folder / "cache.sqlite")
            own = shutil.copy(actions, folder.with_name(folder.name + "-actions.sqlite"))
            more = [f"policy_config.off_policy_degree={degree}", f"policy_config.torch_threads={threads}"]
            more.append(f"env_config.valid_action_store={Path(own).absolute()}")
            found.setdefault(agent, {})[name] = play(folder, [], [*COMMON, *settings, *more])
    return found


def baseline(agent: str) -> Rates:
    """Degree 0 with the number of threads that suits it better."""
    found = runs()[agent]
    return max((rates(found[f"degree 0, {threads}"]) for threads in ("1 thread", "2 threads")), key=lambda r: r.both)


def bars() -> list[Bar]:
    """Speed-up, its limit, and the share of the run in which collect and train really overlap."""
    found: list[Bar] = []
    for agent in AGENTS:
        found += [
            Bar(f"{agent}: learner steps/s, degree 2 / degree 0", 1.7, True, lambda a=agent: _part(a, "updates"), 1),
            Bar(f"{agent}: attainable, (C+T)/max(C,T)", None, True, lambda a=agent: _attainable(a), 1),
            Bar(
                f"{agent}: share of the attainable", 0.85, True, lambda a=agent: _part(a, "updates") / _attainable(a), 1
            ),
            Bar(f"{agent}: env steps/s, degree 2 / degree 0", None, True, lambda a=agent: _part(a, "env_steps"), 1),
            Bar(
                f"{agent}: steps of both kinds/s, degree 2 / degree 0", None, True, lambda a=agent: _part(a, "both"), 1
            ),
            Bar(f"{agent}: collect / train, seconds at degree 0", None, True, lambda a=agent: _balance(a), 1),
            Bar(
                f"{agent}: wall time with collect and train at once",
                0.7,
                True,
                lambda a=agent: overlap_share(runs()[a]["degree 2"]),
                1,
            ),
            Bar(f"{agent}: CPU seconds, degree 2 / degree 0", None, False, lambda a=agent: _cpu(a), 1),
        ]
    return found


def _part(agent: str, name: str) -> float:
    return getattr(rates(runs()[agent]["degree 2"]), name) / getattr(baseline(agent), name)


def _attainable(agent: str) -> float:
    base = baseline(agent)
    return (base.collect + base.train) / max(base.collect, base.train)


def _balance(agent: str) -> float:
    base = baseline(agent)
    return base.collect / base.train


def _cpu(agent: str) -> float:
    found = runs()[agent]
    return found["degree 2"].cpu / min(found[f"degree 0, {threads}"].cpu for threads in ("1 thread", "2 threads"))
