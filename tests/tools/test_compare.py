"""`python -m lzero_async compare`: what it asks of the applications, and every number that it shows, on runs written by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lzero_async.__main__ import main
from lzero_async.core.trace import TraceWriter
from lzero_async.runs.run_files import Run, Span, busy_seconds, load_run
from lzero_async.simulate.rounds import simulate_rounds
from lzero_async.tools.compare import command
from lzero_async.tools.compare.apps import APPS
from lzero_async.tools.compare.arguments import parse
from lzero_async.tools.compare.limit import CORES, format_limit, limit_of
from lzero_async.tools.compare.measured import Measured
from lzero_async.tools.compare.models import Pair, model_of
from lzero_async.tools.compare.numbers import format_others, format_rows, others_of, rows_of, use_of
from lzero_async.tools.compare.recommend import Plan, Times, predict, recommend, spread_of
from lzero_async.tools.compare.report import as_text, compare_runs
from lzero_async.tools.timeline import text as timeline

ROOT = Path(__file__).resolve().parents[2]
SYNC, ASYNC = Path("runs/x/sync"), Path("runs/x/async")


# -- runs written by hand ----------------------------------------------------------------------------------------------


def statistics(trains: int, wall: float, collect: float, train: float, **more: Any) -> dict[str, Any]:
    return {
        "mode": "SYNCHRONOUS", "off_policy_degree": 0, "queue_capacity": None, "train_count": trains, "replay_count": 0,
        "collect_total_time": collect, "train_total_time": train, "eval_total_time": 0.0, "wall_time": wall,
        "staleness_mean": 0.0, "staleness_max": 0, "dropped": 0, "failed": 0, "restarts": 0,
    } | more  # fmt: skip


def write_run(folder: Path, *, asynchronous: bool, trains: int = 10) -> Path:
    """MBPO with 8 environments: collects of 3 s (25 steps of 0.12 s, of which 0.1 s are a wait) and trains of 1 s; together they
    need 3 s a train, in turn 4 s and every fifth time 1 s of evaluation."""
    folder.mkdir(parents=True)
    trace = TraceWriter(folder / "trace.json")
    now = 100.0
    for number in range(trains):
        trace.span("collector 0", "collect", now, now + 3, batch=number)
        trace.span("learner", "train", now + 3, now + 4, batch=number)
        trace.span("learner", "wait train", now + 2, now + 3)
        now += 3 if asynchronous else 4
        if (number + 1) % 5 == 0:
            trace.span("evaluator" if asynchronous else "learner", "eval", now + asynchronous, now + 1 + asynchronous)
            now += 0 if asynchronous else 1
    trace.close()
    wall = 3.0 * trains + 1 if asynchronous else 4.0 * trains + trains // 5
    more = (
        {"mode": "ASYNCHRONOUS", "off_policy_degree": 2, "staleness_mean": 1.0, "staleness_max": 2}
        if asynchronous
        else {}
    )
    steps = 200 * trains
    results = {
        "counters": {"real_data": steps, "agent_updates": steps},
        "collectors": {"steps": steps},
        "busy": {"collectors": 3.0 * trains / wall, "learner": 1.0 * trains / wall} if trains else {},
        "utilisation": {"queue": 0.6 if asynchronous else None, "buffer": 0.2, "cpu": 0.25, "gpu": None},
        "coordinator": statistics(trains, wall, 3.0 * trains, 1.0 * trains, eval_total_time=trains // 5, **more),
    }
    options = {
        "trainer": "batch" if asynchronous else "sync", "num_envs": 8, "num_steps_per_env": 25, "step_seconds": 0.1,
        "num_collectors": 4, "batch_queue_size": 2, "torch_threads": 1,
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "metrics.jsonl").write_text("".join(f'{{"train": {number + 1}}}\n' for number in range(trains)))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    return tuple(load_run(write_run(tmp_path / name, asynchronous=name == "async")) for name in ("sync", "async"))


def measured(**changes: Any) -> Measured:
    return Measured(**{
        "seconds": 10.0, "collected": 1000, "trained": 1000, "updates": 100, "trains": 10, "collect_seconds": 6.0,
        "train_seconds": 3.0, "eval_seconds": 1.0, "collectors": 1, "envs": 8, "staleness_mean": 0.0, "staleness_max": 0,
        "dropped": 0, "failed": 0, "restarts": 0, "busy": {}, "utilisation": {},
    } | changes)  # fmt: skip


# -- the command line --------------------------------------------------------------------------------------------------


def words(line: str, *, asynchronous: bool) -> str:
    return " ".join(parse(line.split()).command(asynchronous=asynchronous, folder=ASYNC if asynchronous else SYNC))


def test_options_reach_the_runs_that_have_them() -> None:
    line = "--app mbpo --seconds 5 --num-envs 8 --batch-queue-size 2 --num_steps_per_env 25"
    assert words(line, asynchronous=False) == (
        "-m zoo.mbpo.train --trainer sync --max_steps 0 --num_envs 8 --num_steps_per_env 25 --max_seconds 5 "
        "--exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        "-m zoo.mbpo.train --trainer batch --max_steps 0 --num_envs 8 --batch_queue_size 2 --num_steps_per_env 25 "
        "--max_seconds 5 --exp_name runs/x/async"
    )
    line = "--app mbpo --asynchronous continuous --num_collectors 2 --num_steps_per_env 25 --max_steps 900 --seconds 0"
    assert words(line, asynchronous=False) == (
        "-m zoo.mbpo.train --trainer sync --num_steps_per_env 25 --max_steps 900 --exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        "-m zoo.mbpo.train --trainer continuous --num_collectors 2 --max_steps 900 --exp_name runs/x/async"
    )


def test_priorzero_gets_degree_0_against_the_users_and_the_same_options_otherwise() -> None:
    line = "--app priorzero --off_policy_degree 4 --set policy_config.num_collectors=2 --set policy_config.batch_size=16 --seed 3"
    own = "--set run_config.trace=True --set run_config.final_eval_modes=[] --max_env_step 0"
    assert words(line, asynchronous=False) == (
        f"-m zoo.jericho.priorzero.priorzero_entry --off_policy_degree 0 {own} --set policy_config.batch_size=16 --seed 3 "
        "--set run_config.max_seconds=60 --exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        f"-m zoo.jericho.priorzero.priorzero_entry {own} --off_policy_degree 4 --set policy_config.num_collectors=2 "
        "--set policy_config.batch_size=16 --seed 3 --set run_config.max_seconds=60 --exp_name runs/x/async"
    )
    assert "--off_policy_degree 2" in words("--app priorzero", asynchronous=True)
    assert "--max_env_step 0" not in words("--app priorzero --set run_config.max_env_step=500", asynchronous=True)


def test_episode_ppo_gets_its_two_collectors() -> None:
    line = "--app episode_ppo --n-envs 8 --off_policy_degree 3 --num-workers 4 --target_return -1e3 --seconds 2.5"
    assert words(line, asynchronous=False) == (
        "-m zoo.episode_ppo.train --collector sync --total_episodes 0 --n_envs 8 --target_return -1e3 --max_seconds 2.5 "
        "--exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        "-m zoo.episode_ppo.train --collector async --total_episodes 0 --n_envs 8 --off_policy_degree 3 --num_workers 4 "
        "--target_return -1e3 --max_seconds 2.5 --exp_name runs/x/async"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--app is missing; choose one of mbpo, priorzero, episode_ppo."),
        ("--app chess", "--app is 'chess'; choose one of"),
        ("--app mbpo --trainer sync", "--trainer cannot be given to a comparison: it is what is compared"),
        (
            "--app mbpo --exp-name runs/y",
            "--exp_name cannot be given to a comparison: it is set for each run; --out names",
        ),
        ("--app mbpo --resume", "--resume cannot be given to a comparison: both runs begin anew."),
        ("--app mbpo --max_seconds=3", "--seconds says how long both runs last."),
        ("--app mbpo --preset envs64", "--preset cannot be given to a comparison: it belongs to one trainer only"),
        ("--app priorzero --set run_config.exp_name=y", "--exp_name cannot be given to a comparison"),
        ("--app priorzero --off_policy_degree 0", "off_policy_degree is 0, which is what the synchronous run has"),
        (
            "--app priorzero --set policy_config.off_policy_degree=0",
            "off_policy_degree is 0, which is what the synchronous",
        ),
        ("--app episode_ppo --collector sync", "--collector cannot be given to a comparison: it is what is compared."),
        ("--app mbpo --asynchronous both", "--asynchronous is 'both'; choose one of batch, continuous."),
        ("--app priorzero --asynchronous batch", "priorzero has one asynchronous mode only; leave it out."),
        ("--app mbpo --seconds -1", "--seconds is -1.0; it must be between 0 and"),
        ("--app mbpo --seconds soon", "Argument --seconds: invalid float value: 'soon'; --help explains"),
        ("--app mbpo runs/x", "'runs/x' cannot be read; write options as --num_envs 64."),
        ("--app mbpo --png picture.txt", "--png is 'picture.txt'; its name must end with .png."),
        (
            "--app mbpo --out /dev/null/x",
            "The folder /dev/null/x cannot be made (Not a directory); choose another --out.",
        ),
        ("--app mbpo --sync_run nowhere", "--sync_run: nowhere holds no finished run (results.json is missing)"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *line.split()]) == 2
    shown = capsys.readouterr().err.strip()
    assert shown.startswith("error: ") and said in shown and "\n" not in shown
    assert list(tmp_path.iterdir()) == []


def test_help_and_unknown_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compare", "--help"])
    assert end.value.code == 0
    assert "python -m lzero_async compare --app mbpo --num_envs 8" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert main([]) == 2
    assert main(["compete"]) == 2
    assert "there is no program 'compete'; choose one of report, timeline, advise, compare." in capsys.readouterr().err


def test_the_tool_imports_nothing_heavy_and_nothing_of_the_applications() -> None:
    code = "import sys, lzero_async.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"zoo", "torch", "numpy", "matplotlib", "psutil", "gymnasium"} == set()


# -- the tables --------------------------------------------------------------------------------------------------------


def test_the_table_is_what_both_runs_did(runs: tuple[Run, Run]) -> None:
    sync, asynchronous = (APPS["mbpo"].measured(run) for run in runs)
    rows = {row.name: row for row in rows_of(sync, asynchronous)}
    assert rows["seconds"][1:3] == (42, 31)
    for name in ("environment steps/s collected", "effective samples/s trained", "updates/s"):
        assert rows[name][1:4] == (pytest.approx(2000 / 42), pytest.approx(2000 / 31), pytest.approx(42 / 31))
    assert rows["trains"][1:4] == (10, 10, None)
    assert (rows["staleness, mean"].asynchronous, rows["staleness, most"].asynchronous) == (1, 2)
    use = {row.name: row for row in use_of(sync, asynchronous)}
    assert use["collectors"][1:] == (pytest.approx(30 / 42), pytest.approx(30 / 31), "one > 90 %", "ok")
    assert use["learner"].verdict == "ok"  # the collectors set the pace, and they work all the time
    assert use["evaluator"][1:3] == (pytest.approx(2 / 42), pytest.approx(2 / 32))
    assert use["queue"][1:] == (None, 0.6, "50-80 %", "ok")
    assert use["cpu"].verdict == "below"
    assert "gpu" not in use


def test_a_role_that_could_work_more_is_below_its_target() -> None:
    use = use_of(None, measured(busy={"collectors": 0.5, "learner": 0.89}))
    assert [(row.name, row.sync, row.verdict) for row in use] == [
        ("collectors", None, "below"),
        ("learner", None, "below"),
    ]


def test_what_was_dropped_does_not_count() -> None:
    rows = {row.name: row for row in rows_of(measured(), measured(collected=3000, trained=1500, dropped=15))}
    assert rows["environment steps/s collected"].ratio == 3
    assert rows["effective samples/s trained"].ratio == 1.5
    assert rows["batches dropped"].asynchronous == 15


def test_a_missing_run_leaves_its_column_empty() -> None:
    assert format_rows(rows_of(measured(), None)).splitlines()[:4] == [
        "                                sync  async  ratio",
        "--------------------------------------------------",
        "environment steps/s collected  100.0      -",
        "effective samples/s trained    100.0      -",
    ]


def test_other_programs_on_the_machine_are_told() -> None:
    """10 s on two cores: 60 % of them were busy, and 4 s of CPU, which is 20 %, were the run's own."""
    noisy, quiet = (
        measured(utilisation={"cpu": 0.6, "cpu_seconds": 4.0}),
        measured(utilisation={"cpu": 0.6, "cpu_seconds": 11.0}),
    )
    assert others_of(noisy, 2) == pytest.approx(0.4)
    assert format_others(quiet, noisy, 2) == (
        "Take care: other programs used 5 % of the cores during the synchronous run and 40 % of the cores during the "
        "asynchronous run. Run it again on a quiet machine."
    )
    assert format_others(quiet, quiet, 2) == format_others(None, measured(), 2) == ""


# -- the timeline ------------------------------------------------------------------------------------------------------


def run_of(*spans: Span) -> Run:
    return Run(Path("x"), {}, {}, [], list(spans))


def test_the_timeline_shows_who_works_when() -> None:
    run = run_of(
        Span("collector 0", "collect", 0, 20), Span("learner", "train", 10, 12.5), Span("collector 0", "collect", 22, 25),
        Span("learner", "train", 15, 16), Span("evaluator", "eval", 0, 2), Span("learner", "train", 18, 20.25),
        Span("learner", "train", 38, 40),
    )  # fmt: skip
    run.waits.append(Span("learner", "wait train", 20.5, 25))
    assert timeline.draw(timeline.part_of(run, 10.0, 40)) == [
        f"{'':56}busy waits",
        "collector 0          [===========                        30%    0%",
        "learner      # ..................                         2%   45%",
        "evaluator                                                 0%    0%",
        "             |---------|---------|---------|---------",
        "             20.0 s    22.5 s    25.0 s    27.5 s",
    ]


def test_a_cell_shows_how_much_of_it_was_work() -> None:
    shares = (0.0, 0.01, 0.1, 0.5, 0.7, 0.9)
    spans = [Span("learner", "train", 6 + place, 6 + place + share) for place, share in enumerate(shares)]
    assert timeline.draw(timeline.part_of(run_of(*spans), 6.0, 6))[1] == "learner    +###    37%    0%"


def test_many_collectors_share_a_row_and_are_in_the_order_of_their_numbers() -> None:
    run = run_of(
        *(Span(f"collector {number}", "collect", 0, 1 + number) for number in range(12)),
        Span("learner", "train", 0, 12),
    )
    part = timeline.part_of(run, 6.0, 6)  # from 6 s to 12 s
    assert [name for name, _ in part.rows()] == [*(f"collector {number}" for number in range(8)), "4 more", "learner"]
    # three quarters of them work in the fourth second, half in the fifth, a quarter in the last
    assert timeline.draw(part)[9] == "4 more       =====-    75%    0%"


def test_time_is_counted_once_where_spans_overlap() -> None:
    spans = [Span("x", "a", 0, 4), Span("x", "b", 1, 2), Span("x", "c", 3, 6), Span("x", "d", 8, 20)]
    assert busy_seconds(spans, 1, 10) == 7


def test_waits_are_no_work_and_an_evaluation_is_the_evaluators(runs: tuple[Run, Run]) -> None:
    sync, asynchronous = runs
    assert {span.role for span in sync.spans} == {"collector 0", "learner", "evaluator"}
    assert {span.name for span in sync.spans} == {"collect", "train", "eval"}
    assert sync.spans[0] == Span("collector 0", "collect", 0, 3)
    assert (sync.seconds, len(sync.of("train")), asynchronous.seconds) == (42, 10, 32)


# -- the limit ---------------------------------------------------------------------------------------------------------


def test_the_limit_is_all_stages_over_the_longest() -> None:
    sync, asynchronous = (
        measured(),
        measured(seconds=6.25, collected=5000),
    )  # most of it was dropped, and does not count
    limit = limit_of(sync, asynchronous, {"collect": 0.006, "train": 0.003}, {}, cores=2)
    assert (limit.in_turn, limit.bound) == (pytest.approx(0.010), "collect")
    assert (limit.limit, limit.speed_up, limit.share) == (
        pytest.approx(10 / 6),
        pytest.approx(1.6),
        pytest.approx(0.96),
    )
    three = limit_of(sync, asynchronous, {"collect": 0.006 / 3, "train": 0.003}, {}, cores=2)
    assert (three.limit, three.bound) == (pytest.approx(10 / 3), "train")


def test_a_speed_up_above_the_limit_is_explained_only_by_what_was_measured() -> None:
    def told(**own: float) -> str:
        return format_limit(
            limit_of(measured(), measured(seconds=4.0), {"collect": 0.006, "train": 0.003}, own, cores=2), 1, 2
        )

    assert "and collect took less time here than in the synchronous run" in told(collect=0.004, train=0.003)
    assert "though no stage was shorter, so the two runs are not alike" in told(collect=0.006, train=0.004)


def test_cores_limit_work_that_computes() -> None:
    """10 s with one of two cores busy: 10 ms of CPU a sample; two cores make it in 5 ms, however the stages overlap."""
    sync, asynchronous = measured(utilisation={"cpu": 0.5}), measured(seconds=5.0, utilisation={"cpu": 1.0})
    stages = {"collect": 0.001, "train": 0.003}
    limit = limit_of(sync, asynchronous, stages, {}, cores=2)
    assert (limit.bound, limit.limit, limit.overlap) == (CORES, pytest.approx(2), pytest.approx(10 / 3))
    spinning = limit_of(sync, measured(seconds=5.0, utilisation={"cpu": 0.5}), stages, {}, cores=2)
    assert spinning.bound == "train"  # 5 ms of CPU are enough, as the asynchronous run shows
    own = limit_of(measured(utilisation={"cpu": 1.0, "cpu_seconds": 10.0}), asynchronous, stages, {}, cores=2)
    assert own.cores == pytest.approx(0.005)  # what others used of the machine does not count
    assert (
        "10.000 CPU seconds (what else ran on this machine included): 10.000 / 5.000 = 2.00; the cores are the bound here"
        in (format_limit(limit, 1000, 2))
    )
    assert not own.own_cpu


def test_the_limit_of_the_runs(runs: tuple[Run, Run]) -> None:
    found = compare_runs(APPS["mbpo"], *runs)
    assert found.limit is not None
    assert found.limit.limit == pytest.approx(4.2 / 3)
    assert found.limit.share == pytest.approx((42 / 31) / (4.2 / 3))
    text = as_text(found)
    assert "  in turn: collect 3.000, train 1.000, evaluate 0.200\n" in text
    assert "limit of overlapping: 4.200 / 3.000 = 1.40\n" in text
    assert "speed-up (effective samples/s): 1.35, 97 % of the limit 1.40 (set by: collect)\n" in text


# -- sizes -------------------------------------------------------------------------------------------------------------

PLANS = [Plan(number, queue, steps) for number in (1, 2, 4, 8) for queue in (1, 2, 4, 8, 16) for steps in (8, 16)]


def times(**changes: Any) -> Times:
    return Times(**{
        "wait": 0.0, "compute": 0.004, "update": 0.001, "fixed": 0.0, "collect_spread": (), "train_spread": (), "cores": 64,
    } | changes)  # fmt: skip


def test_collects_of_four_times_a_train_want_four_collectors() -> None:
    choice = recommend(times(), 64, PLANS)
    assert (choice.plan.collectors, choice.cores_bind) == (4, False)
    assert choice.plan.queue == 4  # a collect runs only where its batch will have room
    assert choice.rate == pytest.approx(1000, rel=0.01)
    assert choice.plan.steps == 8
    assert recommend(times(compute=0.001), 64, PLANS).plan == Plan(1, 1, 8)


def test_environments_that_wait_need_no_second_collector() -> None:
    """A step of 64 environments takes 10 ms of waiting, and the learner 64 ms: with one collector it never starves."""
    assert recommend(times(wait=0.01, compute=0.0), 64, PLANS).plan == Plan(1, 1, 8)


def test_uneven_times_want_a_longer_queue() -> None:
    even, uneven = times(compute=0.001), times(compute=0.001, collect_spread=(0.1, 0.1, 2.8), train_spread=(0.1, 1.9))
    assert recommend(even, 64, PLANS).plan.queue == 1
    assert recommend(uneven, 64, [Plan(1, queue, 8) for queue in (1, 2, 4, 8, 16)]).plan.queue >= 4


def test_fixed_costs_of_a_train_want_larger_batches() -> None:
    assert recommend(times(compute=0.0005, fixed=0.1), 64, PLANS).plan.steps == 16


def test_a_gain_of_less_than_two_percent_is_not_worth_larger_sizes() -> None:
    """Batches of 512 samples train 980.8 samples/s, those of 1,024 samples 990.3."""
    slow = times(compute=0.0005, fixed=0.01)
    assert recommend(slow, 64, PLANS).plan.steps == 8
    assert recommend(slow, 64, PLANS, within=0.0).plan.steps == 16


def test_cores_are_the_ceiling() -> None:
    choice = recommend(times(cores=2), 64, PLANS)
    assert (choice.rate, choice.cores_bind) == (pytest.approx(2 / 0.005), True)
    assert choice.plan.collectors == 2


def test_a_queue_that_drops_leaves_the_learner_its_pace() -> None:
    choice = predict(times(compute=0.0001, drops=True), 64, Plan(4, 2, 8))
    assert choice.rate == pytest.approx(1000, rel=0.01)
    assert choice.staleness <= 1


def test_the_first_duration_warms_up() -> None:
    assert spread_of([9.0, 1.0, 2.0, 3.0]) == (0.5, 1.0, 1.5)
    assert spread_of([]) == ()


def test_rounds_of_equal_episodes_follow_each_other() -> None:
    """Two environments, two episodes of 1 s a round, trains of 0.5 s: a train a second, all but the first on data one old."""
    found = simulate_rounds(2, 2, 1.0, 0.5, 1, trains=40)
    assert found.rate == pytest.approx(1)
    assert found.staleness == pytest.approx(39 / 40)
    assert simulate_rounds(2, 2, 1.0, 4.0, 1, trains=40).rate == pytest.approx(0.25)


def test_uneven_episodes_want_a_second_round_to_play_meanwhile() -> None:
    def rate(degree: int) -> float:
        return simulate_rounds(8, 8, lambda generator, index: generator.expovariate(1), 0.01, degree, trains=400).rate

    # The last of 8 exponential episodes ends after 1 + 1/2 + ... + 1/8 = 2.72 of them; with more rounds open nobody waits.
    assert rate(1) == pytest.approx(1 / 2.72, rel=0.05)
    assert rate(8) == pytest.approx(1, rel=0.05)
    assert rate(1) < rate(2) < rate(8)
    whole = times(wait=0.01, compute=1e-6, update=1e-6, episode=50.0, cores=2)
    plans = [Plan(number, queue, 50.0) for number in (1, 2) for queue in (1, 2, 4, 8)]
    choice = recommend(whole, 64, plans)
    assert choice.plan.collectors == 1 and choice.plan.queue > 1
    computing = recommend(times(wait=0.0, compute=0.001, update=1e-6, episode=50.0, cores=2), 64, plans)
    assert (computing.plan.collectors, computing.cores_bind) == (2, True)


def test_the_model_of_mbpo_takes_the_wait_out_of_a_step(runs: tuple[Run, Run]) -> None:
    app = APPS["mbpo"]
    pair = Pair(app, *runs, *(app.measured(run) for run in runs), cores=2)
    model = model_of(pair)
    assert model.times.wait == 0.1
    assert model.times.compute == pytest.approx((0.12 - 0.1) / 8)
    assert model.times.update == pytest.approx(1 / 200)
    assert model.measured == Plan(1, 2, 25)
    check = predict(model.times, 8, model.measured)
    assert check.rate == pytest.approx(200 / 3)
    assert model.flags(check) == "--trainer batch --num_envs 8 --num_steps_per_env 25 --batch_queue_size 2"
    assert {plan.collectors for plan in model.plans} == {1}  # the batch trainer has one


def test_the_continuous_trainer_has_more_stages_and_collectors(runs: tuple[Run, Run]) -> None:
    app = APPS["mbpo"]
    parts = {"agent": 0.7, "take": 0.1, "dynamics": 0.15, "rollout": 0.05}
    row = {f"learner/{name}_seconds": seconds for name, seconds in parts.items()}
    sync = replace(runs[0], rows=[row] * 10)
    assert model_of(Pair(app, *runs, *map(app.measured, runs), cores=2)).note == ""
    runs[0].options["torch_threads"] = 0
    options = {**runs[1].options, "trainer": "continuous", "num_collectors": 2, "collection_batch_size": 100}
    numbers = {**runs[1].results["coordinator"], "queue_capacity": 3, "collect_total_time": 60.0}
    asynchronous = replace(runs[1], options=options, results={**runs[1].results, "coordinator": numbers})
    model = model_of(Pair(app, sync, asynchronous, app.measured(sync), app.measured(asynchronous), cores=2))
    per_train = {name: 200 * seconds for name, seconds in model.stages.items()}
    assert per_train == pytest.approx({"collect": 3.0, "agent": 0.8, "dynamics": 0.15, "rollouts": 0.05})
    assert (model.measured, model.times.drops) == (Plan(2, 3, 25), True)
    assert model.times.others == pytest.approx(0.2 / 200)
    assert (
        "what its steps took in the asynchronous run" in model.note
        and "--torch_threads 1 makes them alike" in model.note
    )
    assert model.flags(predict(model.times, 64, Plan(8, 4, 16))) == (
        "--trainer continuous --num_envs 64 --num_collectors 8 --collection_batch_size 128 --max_queue_size 512"
    )


def test_priorzero_counts_games_of_all_collectors_and_episodes(runs: tuple[Run, Run]) -> None:
    app, found = APPS["priorzero"], []
    for run, collectors in zip(runs, (1, 2), strict=True):
        options = {
            "policy_config": {"num_collectors": collectors, "n_episode": 8, "enable_async_eval": False},
            "env_config": {"collector_env_num": 8},
        }
        results = {"env_steps": 4000, "collected_steps": 4500, "updates": 100, "statistics": run.results["coordinator"]}
        found.append(replace(run, options=options, results=results))
    sync, asynchronous = (app.measured(run) for run in found)
    assert (asynchronous.collected, asynchronous.trained, asynchronous.envs) == (4500, 4000, 16)
    assert asynchronous.busy["collectors"] == pytest.approx(30 / 32)  # from the trace
    model = model_of(Pair(app, *found, sync, asynchronous, cores=2))
    assert model.stages == pytest.approx({"collect": 30 / 4500 / 2, "train": 10 / 4000 + 2 / 4000})
    assert model.measured == Plan(2, 2, 50)  # 4,000 steps are 80 episodes of 50
    assert model.flags(predict(model.times, 64, Plan(4, 8, 100))) == (
        "--num_collectors 4 --off_policy_degree 8 --set env_config.collector_env_num=16 --set policy_config.n_episode=32"
    )


def test_whole_episodes_are_limited_by_what_their_environments_do(runs: tuple[Run, Run]) -> None:
    """8 environments play 1,000 steps each in 20 s; in lockstep they need the 30 s of the synchronous run."""
    app, found = APPS["episode_ppo"], []
    for run, collector in zip(runs, ("sync", "async"), strict=True):
        options = {
            "collector": collector, "n_envs": 8, "num_workers": 0, "step_seconds": 0.015, "episodes_per_update": 16,
        }  # fmt: skip
        results = {
            "counters": {"steps": 8000, "updates": 60, "episodes": 160}, "busy": {"environments": 0.1, "learner": 0.3},
            "environments": {"steps": 8000, "busy_seconds": 160.0, "at_once": 8}, "coordinator": run.results["coordinator"],
        }  # fmt: skip
        found.append(replace(run, options=options, results=results))
    sync, asynchronous = (app.measured(run) for run in found)
    assert (asynchronous.trained, asynchronous.collected) == (8000, 8000)
    assert asynchronous.busy["collectors"] == pytest.approx(20 / 31)
    model = model_of(Pair(app, *found, sync, asynchronous, cores=2))
    assert model.stages == pytest.approx({"collect": 20 / 8000, "train": 10 / 8000})
    assert "collecting takes 1.50 times as long" in model.note
    assert (model.times.wait, model.times.compute) == (pytest.approx(0.015), pytest.approx(0.005))
    quiet = replace(asynchronous, utilisation={"cpu_seconds": 16.0})
    assert model_of(Pair(app, *found, sync, quiet, cores=2)).times.compute == pytest.approx((16 - 10) / 8000)
    assert model.measured == Plan(2, 2, 100)
    assert model.flags(predict(model.times, 8, model.measured)) == (
        "--n_envs 8 --num_workers 2 --episodes_per_update 16 --off_policy_degree 2"
    )


# -- the program -------------------------------------------------------------------------------------------------------


def test_finished_runs_are_compared_as_text_numbers_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    sync, asynchronous = (write_run(tmp_path / name, asynchronous=name == "a") for name in ("s", "a"))
    out = tmp_path / "out"
    line = ["compare", "--app", "mbpo", "--sync-run", str(sync), "--async-run", str(asynchronous), "--out", str(out)]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert (out / "compare.txt").read_text().strip() in shown
    numbers = json.loads((out / "compare.json").read_text())
    assert numbers["limit"]["limit"] == pytest.approx(1.4)
    assert numbers["limit"]["bound"] == "collect"
    assert [choice["envs"] for choice in numbers["recommended"]] == [64, 128, 256]
    for choice in numbers["recommended"]:
        assert choice["by"] == "simulated" and choice["flags"] in shown
    assert numbers["async"]["trained"] == 2000
    assert (out / "compare.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert main(line) == 0  # nothing is written over
    assert (tmp_path / "out-2" / "compare.json").is_file()


def test_runs_of_the_wrong_kind_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(tmp_path / "a", asynchronous=True))
    assert main(["compare", "--app", "mbpo", "--sync_run", folder]) == 2
    assert f"--sync_run: {folder} is not a synchronous run; give another one." in capsys.readouterr().err
    assert main(["compare", "--app", "priorzero", "--async_run", folder]) == 2
    assert "is no run of priorzero ('statistics' is missing); check --app." in capsys.readouterr().err
    for file, text in (("metrics.jsonl", "{"), ("results.json", "[1]")):
        (tmp_path / "a" / file).write_text(text)
        assert main(["compare", "--app", "mbpo", "--async_run", folder]) == 2
        assert f"{file} cannot be read" in capsys.readouterr().err


def test_runs_that_did_not_do_the_same_work_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {name: write_run(tmp_path / name, asynchronous=name == "async") for name in ("sync", "async")}
    line = ["compare", "--app", "mbpo", "--out", str(tmp_path / "out")]
    line += [word for name, folder in folders.items() for word in (f"--{name}_run", str(folder))]
    assert main(line) == 0
    assert "did not do the same work" not in capsys.readouterr().out
    options = json.loads((folders["sync"] / "options.json").read_text())
    changed = {**options, "num_envs": 16, "batch_queue_size": 9, "exp_name": "x", "env_args": {"g": 9.81}}
    (folders["sync"] / "options.json").write_text(json.dumps(changed))
    assert main(line) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the runs did not do the same work: num_envs was 16 and 8, env_args.g was 9.81 and None." in shown


def test_what_was_measured_is_shown_when_the_other_run_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_program(words: list[str]) -> int:
        folder = Path(words[-1])
        if folder.name == "async":
            return 3
        write_run(folder, asynchronous=False)
        return 0

    monkeypatch.setattr(command, "run_program", run_program)
    out = tmp_path / "out"
    assert main(["compare", "--app", "mbpo", "--out", str(out), "--num_envs", "8"]) == 3
    shown = capsys.readouterr()
    assert "1/2 synchronous, 60 s: python -m zoo.mbpo.train --trainer sync" in shown.err
    assert "2/2 asynchronous, 60 s: python -m zoo.mbpo.train --trainer batch" in shown.err
    assert "error: The asynchronous run ended with code 3; its own words are above." in shown.err
    assert f"with --sync_run {out / 'sync'} runs only the other one." in shown.err
    assert "effective samples/s trained     47.6      -" in shown.out
    assert json.loads((out / "compare.json").read_text())["sync"]["trained"] == 2000

    def interrupted(words: list[str]) -> int:
        write_run(Path(words[-1]), asynchronous=False)
        return 130

    monkeypatch.setattr(command, "run_program", interrupted)
    assert main(["compare", "--app", "mbpo", "--out", str(out)]) == 130
    folder = tmp_path / "out-2" / "sync"
    assert f"is kept: --sync_run {folder} takes it instead of a new run." in capsys.readouterr().err

    monkeypatch.setattr(command, "run_program", lambda words: 4)
    assert main(["compare", "--app", "mbpo", "--out", str(out)]) == 4
    shown = capsys.readouterr()
    assert "2/2" not in shown.err and not shown.out


def test_a_run_that_ends_before_its_first_train_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "run_program", lambda words: write_run(Path(words[-1]), asynchronous=False, trains=0) and 0
    )
    assert main(["compare", "--app", "mbpo", "--out", str(tmp_path / "out")]) == 2
    assert "ended before its first train; give it more --seconds." in capsys.readouterr().err


PATIENT = """
import signal, sys, time
def end(number, frame):
    print("ending", signal.Signals(number).name, flush=True)
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_the_run_once_and_its_code_comes_back(number: signal.Signals) -> None:
    code = f"import sys; from lzero_async.tools.compare.running import run_program; sys.exit(run_program(['-c', {PATIENT!r}]))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True) as tool:
        assert tool.stderr is not None
        assert tool.stderr.readline() == "ready\n"
        tool.send_signal(number)
        assert tool.stderr.read() == f"ending {number.name}\n"
        assert tool.wait(10) == 7


MBPO_LINE = (
    "--num-envs 4 --num_steps_per_env 10 --batch_queue_size 2 --step_seconds 0.005 --eval_every 0 --hidden_size 8 "
    "--dynamics_hidden_size 8 --batch_size 32 --torch_threads 1"
)
PPO_LINE = (
    "--n-envs 4 --episodes_per_update 8 --off-policy-degree 2 --step_seconds 0.005 --eval_every 0 --hidden_size 8"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "line", "same"),
    [
        pytest.param(  # a test of docs/compare.md compares these, too
            "mbpo", MBPO_LINE, {"num_envs": 4, "seed": 0, "step_seconds": 0.005}, marks=pytest.mark.soak
        ),
        ("episode_ppo", PPO_LINE, {"n_envs": 4, "seed": 0, "step_seconds": 0.005, "episodes_per_update": 8}),
    ],
)
def test_an_application_is_run_twice_and_compared(app: str, line: str, same: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "lzero_async", *f"compare --app {app} --seconds 3 --out {out} {line}".split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "1/2 synchronous, 3 s" in done.stderr and "2/2 asynchronous, 3 s" in done.stderr
    numbers = json.loads((out / "compare.json").read_text())
    for name in ("sync", "async"):
        assert numbers[name]["trained"] > 0
        assert numbers[name]["seconds"] == pytest.approx(3, abs=2)
        options = json.loads((out / name / "options.json").read_text())
        assert {key: options[key] for key in same} == same
    assert numbers["limit"]["limit"] > 1
    assert numbers["different"] == {}
    assert 0 < numbers["async"]["busy"]["collectors"] <= 1
    assert done.stdout.count("collector 0  ") == 2
