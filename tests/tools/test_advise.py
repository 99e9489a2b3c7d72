"""Advice: what a run in virtual time says of itself and of other settings, what is recommended, and what is refused."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from easydict import EasyDict

import lzero_async.simulate.pipeline as simulation
from lzero_async import AsyncTrainingCoordinator
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.summary import write_summary
from lzero_async.simulate.cores import Shared
from lzero_async.simulate.distributions import Distribution, lognormal
from lzero_async.simulate.pipeline import simulate
from lzero_async.simulate.rounds import simulate_rounds
from lzero_async.telemetry.utilisation import Use, use_of
from lzero_async.testing import FakeCollector, FakeLearner, VirtualClock
from lzero_async.tools.advise.arguments import parse
from lzero_async.tools.advise.calibrate import alone
from lzero_async.tools.advise.choose import recommend
from lzero_async.tools.advise.command import main
from lzero_async.tools.advise.measured import read_run
from lzero_async.tools.advise.model import Pipeline, Row, Setting, Stage
from lzero_async.tools.advise.subject import _sigma
from tests.sentences import assert_one_sentence
from zoo.episode_ppo import application as episode_ppo
from zoo.jericho.priorzero import application as priorzero
from zoo.mbpo import application as mbpo

ROOT = Path(__file__).resolve().parents[2]
HAND = ["--collect", "2.35", "--train", "1.82", "--eval", "8.67", "--collectors", "4", "--cores", "8"]
COLLECTOR_BYTES, BATCH_BYTES, STEPS = 50_000_000, 3_000_000, 40


def summary_of(coordinator: AsyncTrainingCoordinator, cores: int, cpu: dict[str, float]) -> dict[str, Any]:
    """What an application would write of this run; `cpu` is the CPU time of each stage."""
    statistics = coordinator.get_statistics()
    counts = {
        "collector": statistics["collect_count"] / coordinator.num_collectors,
        "learner": statistics["train_count"],
        "evaluator": statistics["eval_count"],
    }
    roles = [
        {
            "role": one.role, "active": one.active, "waiting": one.waiting, "idle": one.idle, "restarts": 0,
            "cpu_seconds": counts[one.role.split()[0]] * cpu[one.role.split()[0]] if cpu else None,
            "memory_bytes": COLLECTOR_BYTES if cpu else None,
        }
        for one in coordinator.get_activity()
    ]  # fmt: skip
    used = sum(row["cpu_seconds"] for row in roles) if cpu else 0.5 * sum(row["active"] for row in roles)
    return {
        "program": "loop", "title": "a loop", "seconds": statistics["wall_time"], "machine": {"cores": cores},
        "axis": "steps trained", "counts": {"steps trained": STEPS * statistics["train_count"]},
        "statistics": statistics, "roles": roles, "batch_bytes": BATCH_BYTES,
        "utilisation": {"cpu": used / (cores * statistics["wall_time"]), "cpu_seconds": used},
    }  # fmt: skip


def play(
    folder: Path,
    degree: int,
    *,
    collectors: int = 1,
    collect: Distribution = 2.0,
    train: Distribution = 1.0,
    trains: int = 60,
    evaluation: float = 0.0,
    async_eval: bool = False,
    pause: float = 0.0,
    cores: int = 8,
    cpu: dict[str, float] | None = None,
    trace: bool = True,
) -> Path:
    """A run of a user's own loop in virtual time. `pause`: what each train costs beside its stage."""
    folder.mkdir(parents=True)
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            degree, async_eval, num_collectors=collectors, clock=clock, get_weights=lambda: 0,
            trace=folder / "trace.json" if trace else None,
        )  # fmt: skip
        coordinator.run(
            FakeCollector(clock, collect), FakeLearner(clock, train),
            (lambda context: clock.sleep(evaluation) or 0.0) if evaluation else None, eval_every=10 if evaluation else 0,
            max_train=trains, after_train=(lambda: clock.sleep(pause)) if pause else None, print_statistics=False,
        )  # fmt: skip
        used = {"collector": 0.1, "learner": 0.9, "evaluator": 0.5} if cpu is None else cpu
        write_summary(folder, summary_of(coordinator, cores, used))
        coordinator.close()
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rate_of(found: dict[str, Any], degree: int, collectors: int = 1) -> float:
    rates = {(row["degree"], row["collectors"]): row["batches_per_second"] for row in found["rows"]}
    return rates[degree, collectors]


# -- times by hand ---------------------------------------------------------------------------------------------------------


def test_the_table_and_the_reason_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*HAND, "--batch-mb", "3", "--collector-mb", "500"]) == 0
    shown = capsys.readouterr().out
    assert "Advice: times by hand, 8 core(s)" in shown
    assert "eval 8.67 s after every 10 train(s), in the learner's turn, of which it computes 8.67 s" in shown
    assert "Recommended: off_policy_degree=2, num_collectors=2" in shown
    assert "The learner sets the pace: it works 99 % of the time." in shown
    assert "2 is the smallest off_policy_degree within 2 % of the best" in shown
    assert re.search(
        r"4 would gain [01]\.\d %, and its batches would be 4.0 instead of 2.0 trains old on average.", shown
    )
    rows = [line.split() for line in shown.splitlines() if line.startswith(("0 ", "16 "))]
    assert [row[:2] for row in rows] == [["0", "1"], ["16", "1"], ["16", "2"], ["16", "4"]]
    assert rows[-1][-2:] == ["2.05", "GB"]


def test_the_json_by_hand_has_all_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, *HAND)
    assert (found["recommended"]["degree"], found["recommended"]["collectors"]) == (2, 2)
    assert found["own"] is found["check"] is None
    serial = found["rows"][0]
    assert serial["batches_per_second"] == pytest.approx(1 / (2.35 + 1.82 + 0.867), rel=0.02)
    assert serial["learner_idle"] == pytest.approx(2.35 / (2.35 + 1.82 + 0.867), rel=0.03)
    assert serial["memory_bytes"] is serial["samples_per_second"] is None
    assert all(row["staleness_mean"] <= row["staleness_worst"] <= row["degree"] for row in found["rows"])


def test_on_one_core_what_computes_is_best_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--collect", 1, "--train", 1, "--cores", 1)
    assert found["recommended"]["degree"] == 0
    assert "in turn is as fast as at once" in found["reason"]
    waits = told(capsys, "--collect", 1, "--train", 1, "--cores", 1, "--collect-cpu", 0)
    assert waits["recommended"]["degree"] > 0
    assert rate_of(waits, 16) == pytest.approx(1.0, rel=0.03)


def test_collectors_that_wait_are_added_until_the_learner_is_busy(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = ["--collect", 4, "--collect_cpu", 0.05, "--train", 1, "--cores", 2]
    found = told(capsys, *waiting, "--collectors", 8)
    assert found["recommended"]["collectors"] in (4, 8)
    few = told(capsys, *waiting, "--collectors", 2)
    assert few["recommended"]["collectors"] == 2
    assert "Collecting sets the pace: the 2 collectors work" in few["reason"]
    assert "--collectors 4 tries them" in few["reason"]


def test_background_evaluation_is_faster_where_there_are_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert rate_of(told(capsys, *HAND, "--async_eval"), 16) > 1.1 * rate_of(told(capsys, *HAND), 16)
    words = [*HAND[:-1], "2", "--async_eval"]
    assert rate_of(told(capsys, *words), 16) < rate_of(told(capsys, *HAND, "--async_eval"), 16)


def test_degrees_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--collect", 1, "--train", 1, "--cores", 4, "--degrees", "3,0", "--collectors", 3)
    assert [(row["degree"], row["collectors"]) for row in found["rows"]] == [(0, 1), (3, 1), (3, 2), (3, 3)]
    found = told(capsys, "--collect", 1, "--train", 1, "--cores", 4, "--max-degree", 4)
    assert {row["degree"] for row in found["rows"]} == {0, 1, 2, 4}


def test_nothing_is_said_of_degrees_that_were_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--collect", 2, "--train", 2, "--cores", 8, "--degrees", "0")
    assert "Only degree 0 was tried" in found["reason"]


def test_the_highest_settings_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "--collect", 2, "--train", 2, "--cores", 8, "--degrees", "1024", "--collectors", 2)
    assert [row["batches_per_second"] for row in found["rows"]] == [pytest.approx(0.5, rel=0.1)] * 2


def test_the_smallest_degree_near_the_best_is_recommended() -> None:
    def row(degree: int, collectors: int, batches: float) -> Row:
        return Row(Setting(degree, collectors), batches, 0, 0, 0, 0, 0, 0)

    rows = [row(1, 1, 0.9), row(2, 2, 0.99), row(2, 1, 0.985), row(4, 1, 1.0)]
    chosen, best = recommend(rows)
    assert (chosen.setting, best.setting) == ((2, 1), (4, 1))
    assert recommend(rows, within=0.001)[0].setting == (4, 1)


# -- a run -----------------------------------------------------------------------------------------------------------------


def test_a_run_in_turn_says_what_at_once_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the other way round, with what the same loop then makes of it."""
    stages = {"collect": lognormal(2, 0.4), "train": lognormal(1.5, 0.3), "trains": 300}
    found = {degree: told(capsys, play(tmp_path / str(degree), degree, **stages)) for degree in (0, 1, 4)}
    made = {degree: told_by["check"]["measured"] for degree, told_by in found.items()}
    assert made[4] > 1.5 * made[0]
    for asked, told_by in found.items():
        assert told_by["check"]["simulated"] == pytest.approx(made[asked], rel=0.03)
        for degree, rate in made.items():
            assert rate_of(told_by, degree) == pytest.approx(rate, rel=0.06), (asked, degree)


def test_what_a_run_took_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = play(tmp_path / "run", 2, evaluation=3.0, pause=0.25, cores=8)
    found = told(capsys, folder)
    times = {"seconds": 2.0, "cpu_seconds": 0.1, "share": 0.05}
    assert found["stages"]["collect"] == {name: pytest.approx(value) for name, value in times.items()}
    assert found["stages"]["train"]["seconds"] == pytest.approx(1.25, rel=0.02)
    assert found["stages"]["eval"]["seconds"] == pytest.approx(3.0)
    assert (found["eval_every"], found["async_eval"], found["own"]) == (10, False, {"degree": 2, "collectors": 1})
    row = next(row for row in found["rows"] if (row["degree"], row["collectors"]) == (2, 2))
    assert row["samples_per_second"] == pytest.approx(STEPS * row["batches_per_second"])
    assert row["memory_bytes"] == pytest.approx(2 * COLLECTOR_BYTES + 2 * BATCH_BYTES)
    assert main([str(folder)]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"Check: of this run itself the simulation says 0.\d+ batches/s, measured were 0.\d+ \([+-][01] %\)\.", shown
    )
    assert "steps trained/s" in shown and "this run" in shown
    assert "Note:" not in shown


def test_other_settings_of_a_run_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu = {"collector": 2.0, "learner": 1.0, "evaluator": 3.0}
    folder = play(tmp_path / "run", 2, evaluation=3.0, cores=8, cpu=cpu)
    assert rate_of(told(capsys, folder, "--cores", 1), 16) == pytest.approx(1 / 3.3, rel=0.03)
    beside = told(capsys, folder, "--async-eval", "--eval-every", 5, "--collectors", 4)
    assert (beside["async_eval"], beside["eval_every"]) == (True, 5)
    assert rate_of(beside, 16, 4) == pytest.approx(1.0, rel=0.03)
    assert rate_of(told(capsys, folder, "--eval_every", 1, "--collectors", 4), 16, 4) == pytest.approx(0.25, rel=0.03)


def test_evaluations_beside_the_learner_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, play(tmp_path / "beside", 2, evaluation=5.0, async_eval=True))["async_eval"] is True
    assert told(capsys, play(tmp_path / "in-turn", 2, evaluation=5.0))["async_eval"] is False


def test_without_a_trace_averages_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, play(tmp_path / "run", 2, trace=False, evaluation=3.0))
    assert found["stages"]["collect"]["seconds"] == 2.0
    assert any("There is no trace.json" in note for note in found["notes"])
    assert found["check"]["simulated"] == pytest.approx(found["check"]["measured"], rel=0.15)


def test_roles_in_one_process_share_its_cpu_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, play(tmp_path / "run", 0, cpu={}))
    assert found["stages"]["collect"]["share"] == pytest.approx(0.5)
    assert found["stages"]["train"]["share"] == pytest.approx(0.5)


def test_of_a_resumed_run_the_part_with_the_trace_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its statistics are of all parts, the CPU time of its processes and its trace of the last one."""
    folder = play(tmp_path / "run", 2)
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    for name in ("collect_count", "train_count"):
        summary["statistics"][name] *= 10
    path.write_text(json.dumps(summary))
    assert told(capsys, folder)["stages"]["train"]["cpu_seconds"] == pytest.approx(0.9, rel=0.05)


def test_of_a_run_that_was_killed_what_came_before_its_last_summary_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of its CPU time is known, of half of its trains."""
    folder = play(tmp_path / "run", 2)
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    before = told(capsys, folder)["stages"]["train"]["cpu_seconds"]
    summary |= {"ended_by": None, "seconds": summary["seconds"] / 2}
    for row in summary["roles"]:
        row["cpu_seconds"] = None if row["cpu_seconds"] is None else row["cpu_seconds"] / 2
    path.write_text(json.dumps(summary))
    assert told(capsys, folder)["stages"]["train"]["cpu_seconds"] == pytest.approx(before, rel=0.1)


def test_other_programs_are_taken_out_of_the_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One core was left for two stages that want one each: they took twice as long as alone."""
    folder = play(tmp_path / "run", 1, collect=2.0, train=2.0, cores=2, cpu={"collector": 1.0, "learner": 1.0})
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["utilisation"]["cpu"] = 1.0
    path.write_text(json.dumps(summary))
    found = told(capsys, folder)
    assert found["stages"]["train"]["seconds"] == pytest.approx(1.0, rel=0.1)
    assert re.search(r"Other programs had (49|50|51) % of the machine's cores", " ".join(found["notes"]))


# -- stages that share cores -------------------------------------------------------------------------------------------------


def as_measured(pipeline: Pipeline, setting: Setting) -> Pipeline:
    """What a run of this pipeline would show: each stage as long as it took among the others."""
    seconds = pipeline.simulate(setting).seconds
    stages = pipeline.stages(setting.collectors)
    return pipeline.with_stages({role: replace(stage, seconds=seconds[role]) for role, stage in stages.items()})


@pytest.mark.parametrize(
    ("collect", "train", "collectors", "cores"),
    [
        (Stage(1.0, 1.0), Stage(0.4, 0.4), 4, 2),  # all compute: five stages on two cores
        (Stage(1.0, 0.02, 0.3), Stage(0.3, 0.25, 0.2), 4, 2),
        (Stage(1.0, 1.0, 0.2), Stage(1.0, 1.0, 0.2), 1, 2),
    ],
)
def test_times_alone_are_found_from_times_among_others(
    collect: Stage, train: Stage, collectors: int, cores: int
) -> None:
    true = Pipeline(collect, train, cores)
    setting = Setting(4, collectors)
    found = alone(as_measured(true, setting), setting)
    assert found.simulate(setting).throughput == pytest.approx(true.simulate(setting).throughput, rel=0.03)
    for other in (Setting(0, 1), Setting(8, 2), Setting(16, 8)):
        assert found.predict(other).batches == pytest.approx(true.predict(other).batches, rel=0.1), other


def test_a_little_more_on_full_cores_is_no_wait_of_its_own() -> None:
    """Times on full cores are never exact, and no wait that is added there makes the simulated ones longer."""
    true, setting = Pipeline(Stage(1.0, 1.0), Stage(0.4, 0.4), 2), Setting(4, 4)
    seen = as_measured(true, setting)
    slower = seen.with_stages(
        {role: replace(stage, seconds=1.06 * stage.seconds) for role, stage in seen.stages(4).items()}
    )
    assert seen.collect.seconds > 1.7
    assert alone(slower, setting).collect.seconds == pytest.approx(1.0)


def test_what_roles_waited_for_cores_is_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Known waits need no guess: of 2 s a collect computed 0.5, queued for 0.7 and waited by itself for the rest."""
    folder = play(tmp_path / "run", 2, cores=2, cpu={"collector": 0.5, "learner": 0.6})
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    collects, trains = summary["statistics"]["collect_count"], summary["statistics"]["train_count"]
    for row in summary["roles"]:
        row["queued_seconds"] = 0.7 * collects if row["role"] == "collector 0" else 0.4 * trains
    path.write_text(json.dumps(summary))
    found = told(capsys, folder)
    assert found["stages"]["collect"]["seconds"] == pytest.approx(1.3)
    assert found["stages"]["train"]["seconds"] == pytest.approx(0.6)
    assert rate_of(found, 0) == pytest.approx(1 / 1.9, rel=0.01)


def test_a_process_that_wants_more_cores_than_it_gets_is_seen_to_queue() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    mine = {next(iter(os.sched_getaffinity(0)))}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    preexec_fn=lambda: os.sched_setaffinity(0, mine),
                )
            )
            for _ in range(2)
        ]  # fmt: skip
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        used = use_of({str(place): process.pid for place, process in enumerate(started)})
        for process in started:
            process.communicate(b"\n")
    before = Use(0.1, 5, 0.02)
    for use in used.values():
        assert use.cpu_seconds >= 0.25
        assert use.queued_seconds is not None
        assert use.since(before) == (
            use.cpu_seconds - 0.1,
            use.memory,
            pytest.approx(max(0.0, use.queued_seconds - 0.02)),
        )
    assert max(use.queued_seconds for use in used.values()) > 0.15
    assert use.since(Use(0.0, 0, None)).queued_seconds is None


class Recorded(Shared):
    """The simulation's stages, with what ended when."""

    log: list[tuple[str, int, float, float]]

    def next(self) -> Any:
        ended = super().next()
        worker = ended.payload[0] if ended.role == "collect" else 0
        self.log.append((ended.role, worker, self.now - ended.seconds, self.now))
        return ended


def test_a_run_on_full_cores_is_advised_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four collectors and a learner that compute, on two cores: a collect takes 2.5 times as long as alone."""
    log: list[tuple[str, int, float, float]] = []

    def record(cores: float, cpu: Any, roles: Sequence[str]) -> Shared:
        stages = Recorded(cores, dict.fromkeys(roles, 1.0))
        stages.log = log
        return stages

    collect, train = lognormal(1.0, 0.2), lognormal(0.3, 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(simulation, "make_stages", record)
        run = simulate(collect, train, num_collectors=4, off_policy_degree=4, trains=300, cores=2)
    folder = play(tmp_path / "run", 4, collectors=4, cores=2, cpu={"collector": 1.0, "learner": 0.3})
    tracks = {"collect": 1, "train": 100, "wait commit": 1, "wait train": 100}
    events = [{"name": "thread_name", "ph": "M", "pid": 1, "tid": 100, "args": {"name": "learner"}}]
    events += [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1 + n, "args": {"name": f"collector {n}"}} for n in range(4)
    ]
    for worker in range(4):
        own = [(start, end) for role, number, start, end in log if (role, number) == ("collect", worker)]
        log += [("wait commit", worker, end, start) for (_, end), (start, _) in pairwise(own)]
    own = [(start, end) for role, _, start, end in log if role == "train"]
    log += [("wait train", 0, end, start) for (_, end), (start, _) in pairwise(own)]
    events += [
        {"name": role, "ph": "X", "pid": 1, "tid": tracks[role] + worker, "ts": start * 1e6, "dur": (end - start) * 1e6,
         "args": {}}
        for role, worker, start, end in log
    ]  # fmt: skip
    (folder / "trace.json").write_text("[" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    summary = json.loads((folder / "summary.json").read_text())
    summary["utilisation"] |= {"cpu": 1.0, "cpu_seconds": 2 * summary["seconds"]}
    for row in summary["roles"]:
        stage = 0.3 if row["role"] == "learner" else 1.0 / 4
        row["cpu_seconds"] = stage * sum(role == ("train" if stage == 0.3 else "collect") for role, *_ in log)
    (folder / "summary.json").write_text(json.dumps(summary))
    assert read_run(folder).seconds["collect"] > 2
    found = told(capsys, folder)
    assert found["stages"]["collect"]["seconds"] == pytest.approx(1.0, rel=0.1)
    assert found["check"]["simulated"] == pytest.approx(run.throughput, rel=0.05)
    serial = simulate(collect, train, off_policy_degree=0, trains=300).throughput
    assert rate_of(found, 0) == pytest.approx(serial, rel=0.1)
    assert "The cores set the pace" in found["reason"]


# -- applications ------------------------------------------------------------------------------------------------------------


def of_application(folder: Path, pipeline: PipelineDescription, **changes: Any) -> Path:
    """Make a run's folder that of an application."""
    summary = json.loads((folder / "summary.json").read_text())
    summary["pipeline"] = asdict(pipeline)
    summary["statistics"] |= changes
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_priorzero_gets_both_axes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = EasyDict(
        policy_config={"off_policy_degree": 2, "num_collectors": 2, "n_episode": 8},
        env_config={"env_asynchrony": "auto", "num_envs": 4},
    )
    run = play(tmp_path / "run", 2, collectors=2, evaluation=2.0)
    found = told(capsys, of_application(run, priorzero.describe(options)), "--envs", "16")
    flags = found["recommended"]["flags"]
    assert (
        flags
        == f"--off_policy_degree {found['recommended']['degree']} --num_collectors {found['recommended']['collectors']}"
    )
    assert {row["collectors"] for row in found["rows"]} >= {1, 2, 4}
    assert any("what a run with the one says of the other is less sure" in note for note in found["notes"])
    # With twice as many games each, the collectors compute for twice as long, and so does the learner; nobody waits longer.
    sized = found["sizes"][0]
    games, episodes = 16 // sized["collectors"], 8 * 16 // (4 * sized["collectors"])
    assert sized["flags"].endswith(f"--num_envs {games} --n_episode {episodes}")
    grown = games / 4
    assert sized["batches_per_second"] == pytest.approx(1 / grown, rel=0.1)
    assert sized["samples_per_second"] == pytest.approx(grown * STEPS * sized["batches_per_second"])


@pytest.mark.parametrize(("degree", "trainer"), [(0, "sync"), (2, "batch")])
def test_mbpo_batch_has_one_collector(
    degree: int, trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = EasyDict(trainer=trainer, num_envs=8, torch_threads=1)
    folder = of_application(play(tmp_path / "run", degree), mbpo.describe(options))
    assert main([str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "The number of collectors is not tried: one collector steps all environments here" in shown
    assert "Recommended: --trainer batch --batch_queue_size 1" in shown
    assert "collectors  " not in shown.split("batch_queue_size", 1)[1].splitlines()[0].replace("collectors idle", "")
    alone = told(capsys, folder, "--degrees", "0")
    if degree == 0:
        assert alone["recommended"]["flags"] == "--trainer sync"


def test_mbpo_continuous_shares_its_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = EasyDict(
        trainer="continuous", num_envs=8, num_collectors=2, when_full="drop_oldest", max_train_ahead=4,
        collection_batch_size=128,
    )  # fmt: skip
    folder = play(tmp_path / "run", 4, collectors=2, collect=1.0, train=0.1, cpu={"collector": 0.0, "learner": 0.1})
    found = told(capsys, of_application(folder, mbpo.describe(options), queue_capacity=4, staleness_policy="allow"))
    # Twice as many collectors with half the environments each wait twice as long for a batch of the same size.
    assert rate_of(found, 4, 4) == pytest.approx(rate_of(found, 4, 2), rel=0.05)
    assert rate_of(found, 4, 1) == pytest.approx(rate_of(found, 4, 2), rel=0.05)
    assert found["degree"] == "queue"
    assert "Collecting sets the pace: the collector works 100 % of the time" in found["reason"]
    assert "of its trains are on old data" in found["reason"]
    assert found["recommended"]["flags"] == "--trainer continuous --num_collectors 1 --max_queue_size 128"


def test_whole_episodes_are_advised_in_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = EasyDict(collector="async", episodes_per_update=16, num_envs=8)
    played = SimpleNamespace(busy_seconds=640.0, complete=640, at_once=8, steps=6400)
    folder = play(tmp_path / "run", 2, collectors=2, train=0.1, trains=40)
    of_application(folder, episode_ppo.describe(options, played), off_policy_degree=2)
    summary = json.loads((folder / "summary.json").read_text())
    times = {"active": None, "waiting": None, "idle": None, "memory_bytes": 1, "restarts": 0}
    summary["roles"].append({"role": "environments 0", **times, "cpu_seconds": 6.4})
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [{"learner/mean_length": 20.0, "learner/max_length": 60}] * 3
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = told(capsys, folder)
    assert found["stages"]["episode"] == {
        "seconds": 1.0,
        "cpu_seconds": pytest.approx(0.01),
        "share": pytest.approx(0.01),
    }
    assert [row["degree"] for row in found["rows"]] == [1, 2, 4, 8, 16]
    assert rate_of(found, 16) == pytest.approx(8 / 16, rel=0.08)
    assert rate_of(found, 1) < 0.85 * rate_of(found, 16)
    assert found["recommended"]["flags"] == f"--off_policy_degree {found['recommended']['degree']}"
    assert "Collecting sets the pace: the environments work" in found["reason"]
    assert "--num_envs 32 --episodes_per_update 64" in told(capsys, folder, "--envs", "32")["sizes"][0]["flags"]
    of_application(folder, episode_ppo.describe(EasyDict(options, collector="sync"), played))
    assert main([str(folder)]) == 2
    assert_one_sentence(capsys.readouterr().err, ["--collector sync", "give a run with --collector async"])


def test_the_spread_of_episodes_follows_from_the_longest() -> None:
    generator = random.Random(0)
    for sigma in (0.2, 0.6, 1.0):
        rounds = [[generator.lognormvariate(0, sigma) for _ in range(32)] for _ in range(400)]
        assert _sigma((max(one) / (sum(one) / 32) for one in rounds), 32) == pytest.approx(sigma, rel=0.15)
    assert _sigma([1.0, 1.0], 32) == 0.0
    assert _sigma([], 32) == 0.0
    assert simulate_rounds(2, 2, 1.0, 0.5, 2, trains=40).worst <= 2


# -- what is refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["--collect is missing", "give the folder of a run"]),
        (["--collect", "1"], ["--train is missing"]),
        (["--collect", "0", "--train", "1"], ["collect is 0"]),
        (["--collect", "1e-320", "--train", "1"], ["collect is 1e-320"]),
        (["--collect", "1", "--train", "1", "--degrees", "2999"], ["degrees is '2999'", "up to 1024"]),
        (["--collect", "1", "--train", "1", "--degrees", "²"], ["degrees is '²'"]),
        (["--collect", "1", "--train", "1", "--max_degree", "100000000"], ["max_degree is 100000000", "1024"]),
        (["--collect", "1", "--train", "1", "--collectors", "5000"], ["collectors is 5000", "1024"]),
        (["--collect", "1", "--train", "1", "--cores", "-1"], ["cores is -1"]),
        (["--collect", "1", "--train", "1", "--degrees", "1,x"], ["degrees is '1,x'", "1,2,4"]),
        (["--collect", "1", "--train", "1", "--async_eval"], ["--async_eval is given", "--eval"]),
        (["--collect", "1", "--train", "1", "--envs", "64"], ["--envs is given", "cannot be chosen"]),
        (["--collect", "1", "--train", "1", "--eval-evry", "5"], ["did you mean eval_every?"]),
        (["nowhere"], ["nowhere holds no run", "summary.json is missing"]),
        (["nowhere", "--collect", "1"], ["--collect is given by hand", "leave one of them out"]),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert_one_sentence(capsys.readouterr().err, said)


def _without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        summary = json.loads((folder / "summary.json").read_text())
        del summary[name]
        (folder / "summary.json").write_text(json.dumps(summary))

    return change


@pytest.mark.parametrize(
    ("trains", "change", "words", "said"),
    [
        (9, lambda folder: None, [], ["has 9 train(s), too few", "at least 10"]),
        (20, _without("statistics"), [], ["'statistics'", "another run"]),
        (20, lambda folder: None, ["--async_eval"], ["--async_eval is given", "no evaluations"]),
        (20, lambda folder: (folder / "trace.json").write_text("x\ny\n"), [], ["is not a trace of ours"]),
    ],
)
def test_runs_that_cannot_be_advised_on_are_refused(
    trains: int,
    change: Callable[[Path], Any],
    words: list[str],
    said: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = play(tmp_path / "run", 1, trains=trains)
    change(folder)
    assert main([str(folder), *words]) == 2
    assert_one_sentence(capsys.readouterr().err, said)


def test_hyphens_and_underscores_are_the_same() -> None:
    both = [parse(["--collect", "1", "--train", "1", flag, "0.5"]) for flag in ("--collect-cpu", "--collect_cpu")]
    assert both[0] == both[1]
    assert both[0].collect_cpu == 0.5


def test_whoever_reads_may_close_the_pipe_early() -> None:
    command = f"{sys.executable} -m lzero_async advise --collect 1 --train 1 --cores 2 --degrees 0,1 | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
