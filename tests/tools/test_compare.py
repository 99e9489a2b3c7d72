"""`lzero-async compare`: what it asks of the applications, and every number that it shows, on runs written by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from easydict import EasyDict

from lzero_async.__main__ import main
from lzero_async.core.trace import TraceWriter
from lzero_async.errors import ConfigError
from lzero_async.runs.applications import PipelineDescription, find_application
from lzero_async.runs.summary import write_summary
from lzero_async.simulate.rounds import simulate_rounds
from lzero_async.tools.compare import command
from lzero_async.tools.compare.arguments import parse
from lzero_async.tools.compare.limit import CORES, format_limit, limit_of
from lzero_async.tools.compare.measured import Run, load_run
from lzero_async.tools.compare.numbers import format_others, format_rows, others_of, rows_of, use_of
from lzero_async.tools.compare.show import as_text, compare_runs
from lzero_async.tools.timeline import text as timeline
from lzero_async.tools.timeline.stretch import Stretch
from lzero_async.tools.traces import Span, busy_seconds
from zoo.episode_ppo import application as episode_ppo
from zoo.mbpo import application as mbpo

ROOT = Path(__file__).resolve().parents[2]
SYNC, ASYNC = Path("runs/x/sync"), Path("runs/x/async")
PIPELINE = mbpo.describe(EasyDict(trainer="batch", num_envs=8, torch_threads=1))


# -- runs written by hand ----------------------------------------------------------------------------------------------


def statistics(trains: int, wall: float, collect: float, train: float, **more: Any) -> dict[str, Any]:
    return {
        "mode": "SYNCHRONOUS", "off_policy_degree": 0, "queue_capacity": None, "train_count": trains, "replay_count": 0,
        "collect_total_time": collect, "train_total_time": train, "eval_total_time": 0.0, "wall_time": wall,
        "staleness_mean": 0.0, "staleness_max": 0, "dropped": 0, "failed": 0, "restarts": 0, "degree_changes": 0,
        "async_eval": False, "eval_count": 0,
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
        trace.span("learner", "wait train", now + (1 if asynchronous else 2), now + 3)
        now += 3 if asynchronous else 4
        if (number + 1) % 5 == 0:
            trace.span("evaluator" if asynchronous else "learner", "eval", now + asynchronous, now + 1 + asynchronous)
            now += 0 if asynchronous else 1
    trace.close()
    wall = 3.0 * trains + 1 if asynchronous else 4.0 * trains + trains // 5
    more = (
        {"mode": "ASYNCHRONOUS", "off_policy_degree": 2, "async_eval": True, "staleness_mean": 1.0, "staleness_max": 2}
        if asynchronous
        else {}
    )
    steps, collect, train = 200 * trains, 3.0 * trains, 1.0 * trains
    options = {
        "trainer": "batch" if asynchronous else "sync", "num_envs": 8, "num_steps_per_env": 25, "step_seconds": 0.1,
        "num_collectors": 4, "batch_queue_size": 2, "torch_threads": 1,
    }  # fmt: skip
    counted = {"collected": steps, "trained": steps, "updates": steps, "eval_every": 5}
    roles = {"collector 0": collect, "learner": train, "evaluator": trains // 5}
    summary = {
        "program": "mbpo", "title": "MBPO", "ended_by": "max_seconds", "axis": "steps trained", "seconds": wall,
        "machine": {"cores": 4}, "counts": {"steps trained": steps}, "pipeline": asdict(replace(PIPELINE, **counted)),
        "statistics": statistics(
            trains, wall, collect, train, eval_total_time=trains // 5, eval_count=trains // 5, **more
        ),
        "utilisation": {"queue": 0.6 if asynchronous else None, "buffer": 0.2, "cpu": 0.25, "gpu": None},
        "roles": [
            {"role": role, "active": active, "waiting": 0.0, "idle": wall - active, "cpu_seconds": 0.1 * active,
             "memory_bytes": None}
            for role, active in roles.items()
        ],
    }  # fmt: skip
    write_summary(folder, summary)
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "metrics.jsonl").write_text("".join(f'{{"train": {number + 1}}}\n' for number in range(trains)))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    return tuple(
        load_run(write_run(tmp_path / name, asynchronous=name == "async"), "mbpo") for name in ("sync", "async")
    )


def measured(**changes: Any) -> Run:
    return Run(**{
        "folder": Path("x"), "pipeline": PipelineDescription(), "options": {}, "synchronous": False, "async_eval": True,
        "seconds": 10.0, "collected": 1000, "trained": 1000, "updates": 100, "trains": 10, "collect_seconds": 6.0,
        "train_seconds": 3.0, "eval_seconds": 1.0, "collectors": 1, "environments": 8, "staleness_mean": 0.0,
        "staleness_max": 0, "dropped": 0, "failed": 0, "restarts": 0, "busy": {}, "utilisation": {},
    } | changes)  # fmt: skip


# -- the command line --------------------------------------------------------------------------------------------------


def words(line: str, *, asynchronous: bool) -> str:
    return " ".join(parse(line.split()).command(asynchronous=asynchronous, folder=ASYNC if asynchronous else SYNC))


def test_options_reach_the_runs_that_have_them() -> None:
    line = "--app mbpo --seconds 5 --num-envs 8 --batch-queue-size 2 --num_steps_per_env 25"
    assert words(line, asynchronous=False) == (
        "train mbpo --trainer sync --max_env_steps 0 --num_envs 8 --num_steps_per_env 25 --max_seconds 5 "
        "--exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        "train mbpo --trainer batch --max_env_steps 0 --num_envs 8 --batch_queue_size 2 --num_steps_per_env 25 "
        "--max_seconds 5 --exp_name runs/x/async"
    )
    line = "--app mbpo --asynchronous continuous --num_collectors 2 --num_steps_per_env 25 --max_steps 900 --seconds 0"
    assert words(line, asynchronous=False) == (
        "train mbpo --trainer sync --num_steps_per_env 25 --max_steps 900 --exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        "train mbpo --trainer continuous --num_collectors 2 --max_steps 900 --exp_name runs/x/async"
    )


def test_priorzero_gets_degree_0_against_the_users_and_the_same_options_otherwise() -> None:
    line = "--app priorzero --off_policy_degree 4 --set policy_config.num_collectors=2 --set policy_config.batch_size=16 --seed 3"
    own = "--trace true --final_eval_modes [] --max_env_steps 0"
    assert words(line, asynchronous=False) == (
        f"train priorzero --off_policy_degree 0 {own} --set policy_config.batch_size=16 --seed 3 "
        "--max_seconds 60 --exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        f"train priorzero {own} --off_policy_degree 4 --set policy_config.num_collectors=2 "
        "--set policy_config.batch_size=16 --seed 3 --max_seconds 60 --exp_name runs/x/async"
    )
    assert "--off_policy_degree 2" in words("--app priorzero", asynchronous=True)
    assert "--max_env_steps 0" not in words("--app priorzero --set run_config.max_env_steps=500", asynchronous=True)


def test_episode_ppo_gets_its_two_collectors() -> None:
    line = "--app episode_ppo --n-envs 8 --off_policy_degree 3 --num-workers 4 --target_return -1e3 --seconds 2.5"
    assert words(line, asynchronous=False) == (
        "train episode_ppo --collector sync --total_episodes 0 --n_envs 8 --target_return -1e3 --max_seconds 2.5 "
        "--exp_name runs/x/sync"
    )
    assert words(line, asynchronous=True) == (
        "train episode_ppo --collector async --total_episodes 0 --n_envs 8 --off_policy_degree 3 --num_workers 4 "
        "--target_return -1e3 --max_seconds 2.5 --exp_name runs/x/async"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--app is missing; installed are episode_ppo, lightzero, mbpo, priorzero."),
        ("--app chess", "There is no application 'chess'; installed are episode_ppo, lightzero, mbpo, priorzero."),
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
        ("--app mbpo --sync_run nowhere", "--sync_run: nowhere holds no run (summary.json is missing)"),
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
    assert "lzero-async compare --app NAME --seconds 120" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert main([]) == 2
    assert main(["compete"]) == 2
    assert "There is no command 'compete'; did you mean compare?" in capsys.readouterr().err


def test_the_tool_imports_nothing_heavy_and_nothing_of_the_applications() -> None:
    code = "import sys, lzero_async.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"zoo", "torch", "numpy", "matplotlib", "psutil", "gymnasium"} == set()


# -- the tables --------------------------------------------------------------------------------------------------------


def test_the_table_is_what_both_runs_did(runs: tuple[Run, Run]) -> None:
    sync, asynchronous = runs
    rows = {row.name: row for row in rows_of(sync, asynchronous)}
    assert rows["seconds"][1:3] == (42, 31)
    for name in ("environment steps/s collected", "effective samples/s trained", "updates/s"):
        assert rows[name][1:4] == (pytest.approx(2000 / 42), pytest.approx(2000 / 31), pytest.approx(42 / 31))
    assert rows["trains"][1:4] == (10, 10, None)
    assert (rows["staleness, mean"].asynchronous, rows["staleness, most"].asynchronous) == (1, 2)
    use = {row.name: row for row in use_of(sync, asynchronous)}
    assert use["collectors"][1:] == (pytest.approx(30 / 42), pytest.approx(30 / 31), "one > 90 %", "ok")
    assert use["learner"].verdict == "ok"  # the collectors set the pace, and they work all the time
    assert use["evaluator"][1:3] == (pytest.approx(2 / 42), pytest.approx(2 / 31))
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


def part_of(spans: list[Span], seconds: float, width: int) -> Stretch:
    """So many seconds from the middle of a run that did this."""
    start = timeline.start_of(max(span.end for span in spans), seconds)
    found = Stretch(start, start + seconds, width)
    for span in spans:
        found.meet(span.role)
        found.add(span)
    return found


def test_the_timeline_shows_who_works_when() -> None:
    spans = [
        Span("collector 0", "collect", 0, 20), Span("learner", "train", 10, 12.5), Span("collector 0", "collect", 22, 25),
        Span("learner", "train", 15, 16), Span("evaluator", "eval", 0, 2), Span("learner", "train", 18, 20.25),
        Span("learner", "train", 38, 40), Span("learner", "wait train", 20.5, 25),
    ]  # fmt: skip
    assert timeline.draw(part_of(spans, 10.0, 40)) == [
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
    assert timeline.draw(part_of(spans, 6.0, 6))[1] == "learner    +###    37%    0%"


def test_many_collectors_share_a_row_and_are_in_the_order_of_their_numbers() -> None:
    spans = [Span(f"collector {number}", "collect", 0, 1 + number) for number in range(12)]
    part = part_of([*spans, Span("learner", "train", 0, 12)], 6.0, 6)  # from 6 s to 12 s
    assert [name for name, _ in part.rows()] == [*(f"collector {number}" for number in range(8)), "4 more", "learner"]
    # three quarters of them work in the fourth second, half in the fifth, a quarter in the last
    assert timeline.draw(part)[9] == "4 more       =====-    75%    0%"


def test_time_is_counted_once_where_spans_overlap() -> None:
    spans = [Span("x", "a", 0, 4), Span("x", "b", 1, 2), Span("x", "c", 3, 6), Span("x", "d", 8, 20)]
    assert busy_seconds(spans, 1, 10) == 7


# -- the limit ---------------------------------------------------------------------------------------------------------


def test_the_limit_is_all_stages_over_the_longest() -> None:
    sync, asynchronous = (
        measured(),
        measured(seconds=6.25, collected=5000),
    )  # most of it was dropped, and does not count
    limit = limit_of(sync, asynchronous, cores=2)
    assert (limit.in_turn, limit.bound) == (pytest.approx(0.010), "collect")
    assert (limit.limit, limit.speed_up, limit.share) == (
        pytest.approx(10 / 6),
        pytest.approx(1.6),
        pytest.approx(0.96),
    )
    three = limit_of(sync, replace(asynchronous, collectors=3), cores=2)
    assert (three.limit, three.bound) == (pytest.approx(10 / 3), "train")
    in_turn = limit_of(sync, replace(asynchronous, collectors=3, async_eval=False), cores=2)
    assert in_turn.limit == pytest.approx(10 / 4)  # evaluations take the learner's turn
    assert "Evaluations take the learner's turn in the asynchronous run, too." in in_turn.notes


def test_a_speed_up_above_the_limit_is_explained_only_by_what_was_measured() -> None:
    def told(**own: float) -> str:
        fast = measured(seconds=4.0, **own)
        return format_limit(limit_of(measured(), fast, cores=2), 1, 2)

    assert "and collect took less time here than in the synchronous run" in told(collect_seconds=4.0)
    assert "though no stage was shorter, so the two runs are not alike" in told(train_seconds=4.0)


def test_cores_limit_work_that_computes() -> None:
    """10 s with one of two cores busy: 10 ms of CPU a sample; two cores make it in 5 ms, however the stages overlap."""
    sync = measured(utilisation={"cpu": 0.5}, collect_seconds=7.0, train_seconds=2.0)
    asynchronous = measured(seconds=5.0, utilisation={"cpu": 1.0}, collectors=7)
    limit = limit_of(sync, asynchronous, cores=2)
    assert (limit.bound, limit.limit, limit.overlap) == (CORES, pytest.approx(2), pytest.approx(10 / 2))
    spinning = limit_of(sync, replace(asynchronous, utilisation={"cpu": 0.1}), cores=2)
    assert spinning.bound == "train"  # 1 ms of CPU is enough, as the asynchronous run shows
    own = limit_of(measured(utilisation={"cpu": 1.0, "cpu_seconds": 10.0}), asynchronous, cores=2)
    assert own.cores == pytest.approx(0.005)  # what others used of the machine does not count
    assert (
        "10.000 CPU seconds (what else ran on this machine included): 10.000 / 5.000 = 2.00; the cores are the bound here"
        in (format_limit(limit, 1000, 2))
    )
    assert not own.own_cpu


def test_the_limit_of_the_runs(runs: tuple[Run, Run]) -> None:
    found = compare_runs(find_application("mbpo"), *runs)
    assert found.limit is not None
    assert found.limit.limit == pytest.approx(4.2 / 3)
    assert found.limit.share == pytest.approx((42 / 31) / (4.2 / 3))
    text = as_text(found)
    assert "  in turn: collect 3.000, train 1.000, evaluate 0.200\n" in text
    assert "limit of overlapping: 4.200 / 3.000 = 1.40\n" in text
    assert "speed-up (effective samples/s): 1.35, 97 % of the limit 1.40 (set by: collect)\n" in text


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


def test_roles_that_share_a_train_are_stages_of_their_own(runs: tuple[Run, Run]) -> None:
    """And collectors that share environments count with what their own steps took."""
    sync, asynchronous = runs
    parts = {"agent": 0.7, "take": 0.1, "dynamics": 0.15, "rollout": 0.05}
    row = {f"learner/{name}_seconds": seconds for name, seconds in parts.items()}
    (sync.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(10)))
    assert limit_of(sync, asynchronous, cores=2).notes == ()
    options = EasyDict(
        num_envs=8, num_collectors=2, collection_batch_size=100, when_full="drop_oldest", max_train_ahead=4
    )
    continuous = mbpo.describe(EasyDict(options, trainer="continuous"))
    limit = limit_of(sync, replace(asynchronous, pipeline=continuous, collectors=2, collect_seconds=60.0), cores=2)
    per_train = {name: 200 * seconds for name, seconds in limit.stages.items()}
    assert per_train == pytest.approx({"collect": 3.0, "agent": 0.8, "dynamics": 0.15, "rollouts": 0.05})
    threads = mbpo.describe(EasyDict(options, trainer="sync", torch_threads=0))
    said = limit_of(replace(sync, pipeline=threads), replace(asynchronous, pipeline=continuous), cores=2).notes
    assert "The collectors share the environments" in said[0] and "--torch_threads 1 makes them alike" in said[1]


def test_whole_episodes_are_limited_by_what_their_environments_do(runs: tuple[Run, Run]) -> None:
    """8 environments play 1,000 steps each in 20 s; in lockstep they need the 30 s of the synchronous run."""
    played = SimpleNamespace(steps=8000, busy_seconds=160.0, at_once=8, complete=160)
    options = EasyDict(collector="async", num_envs=8, episodes_per_update=16)
    sync, asynchronous = (replace(run, trained=8000, collected=8000) for run in runs)
    limit = limit_of(sync, replace(asynchronous, pipeline=episode_ppo.describe(options, played)), cores=2)
    assert limit.stages == pytest.approx({"collect": 20 / 8000, "train": 10 / 8000})
    assert "collecting takes 1.50 times as long" in limit.notes[-1]


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
    advice = numbers["advice"]
    assert (
        advice["recommended"]["flags"] == "--trainer batch --batch_queue_size 1"
    )  # a train never takes as long as a collect
    assert advice["check"]["simulated"] == pytest.approx(1 / 3, rel=0.02)
    assert [size["environments"] for size in advice["sizes"]] == [64, 128, 256]
    for size in advice["sizes"]:
        assert f"--num_envs {size['environments']}" in size["flags"] and size["flags"] in shown
    rates = [size["samples_per_second"] for size in advice["sizes"]]
    assert rates == pytest.approx([200.0] * 3, rel=0.05)  # the learner, which takes 5 ms a sample, sets the pace
    assert numbers["async"]["trained"] == 2000
    assert (out / "compare.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert main(line) == 0  # nothing is written over
    assert (tmp_path / "out-2" / "compare.json").is_file()


def test_runs_of_the_wrong_kind_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(tmp_path / "a", asynchronous=True))
    assert main(["compare", "--app", "mbpo", "--sync_run", folder]) == 2
    assert f"--sync_run: {folder} is not a synchronous run; give another one." in capsys.readouterr().err
    assert main(["compare", "--app", "priorzero", "--async_run", folder]) == 2
    assert f"--async_run: {folder} holds a run of mbpo, not of priorzero; check --app." in capsys.readouterr().err
    path = tmp_path / "a" / "summary.json"
    whole = path.read_text()
    for text, said in (
        (whole.replace('"max_seconds"', "null"), "holds no finished run"),
        (whole.replace("wall_time", "wall"), "holds a summary without 'wall_time'"),
        ("[1]", "summary.json cannot be read"),
    ):
        path.write_text(text)
        assert main(["compare", "--app", "mbpo", "--async_run", folder]) == 2
        assert said in capsys.readouterr().err


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
    assert "1/2 synchronous, 60 s: lzero-async train mbpo --trainer sync" in shown.err
    assert "2/2 asynchronous, 60 s: lzero-async train mbpo --trainer batch" in shown.err
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
        ("episode_ppo", PPO_LINE, {"num_envs": 4, "seed": 0, "step_seconds": 0.005, "episodes_per_update": 8}),
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


def test_an_application_may_want_a_word_before_its_options() -> None:
    request = parse(["--app", "lightzero", "cartpole_muzero", "--num_collectors", "2"])
    together, in_turn = (request.command(asynchronous=way, folder=SYNC) for way in (True, False))
    assert together[:3] == in_turn[:3] == ["train", "lightzero", "cartpole_muzero"]
    assert "--num_collectors" in together and "--num_collectors" not in in_turn
    with pytest.raises(ConfigError, match="CONFIG is missing"):
        parse(["--app", "lightzero", "--num_collectors", "2"])
    with pytest.raises(ConfigError, match="cannot be read"):
        parse(["--app", "mbpo", "cartpole_muzero"])
