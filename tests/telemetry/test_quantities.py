"""One name for one quantity: live view, report, TensorBoard and Prometheus show the names of one table, and for one moment of a
run the same number under each of them."""

from __future__ import annotations

import ast
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator
from lzero_async.runs.summary import read_summary
from lzero_async.telemetry.quantities import COUNTS, QUANTITIES, TROUBLES, label, quantity, rate_label, tag
from lzero_async.telemetry.scalars import values
from lzero_async.telemetry.terminal.frame import render_text
from lzero_async.telemetry.view import SECONDS, Count, View
from lzero_async.tools.report import key_metrics as numbers
from lzero_async.tools.report.inputs import read_material
from tests.telemetry.sample_view import sample_view
from tests.telemetry.test_watched_run import make
from tests.tools.report_runs import write_run
from tests.tools.test_report import report

ROOT = Path(__file__).resolve().parents[2]
HISTOGRAM = "staleness_counts"
LABELS = {one.label for one in QUANTITIES.values()}
# What an output shows besides quantities of the table: of roles, of the machine, of evaluations, of the run as a whole.
OTHER_TAGS = re.compile("async/(active|waiting|idle)/[a-z_]+")
OTHER_METRICS = re.compile("lzero_async_(run|run_seconds|left_seconds|progress_ratio|score|role_[a-z_]+)")
OTHER_MEASURES = {
    "ended by", "time", "CPU in use", "CPU time of the run", "a batch", *(f"{which} score" for which in ("best", "last")),
    *(name for name, _, _ in numbers.ROLES),
}  # fmt: skip


def metrics_of(view: View) -> dict[str, float]:
    """What Prometheus gets of a view, without labels and histograms."""
    metrics = pytest.importorskip("lzero_async.telemetry.prometheus")
    families = list(metrics.ViewCollector(lambda: view).collect())
    known = {one.metric for one in QUANTITIES.values()} | {quantity(count.name).metric for count in view.counted}
    for family in families:
        base = re.sub("_(per_second|limit)$", "", family.name)
        assert base in known or OTHER_METRICS.fullmatch(family.name), family.name
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def shown_live(view: View) -> dict[str, str]:
    """What a frame says, by name: gauges, fills and what went wrong."""
    lines = render_text(view, None, 110, 60).splitlines()
    found = {}
    for line in lines[1:]:
        if line.lstrip().startswith("█ active"):
            break
        name, rest = re.split(r" {2,}| (?=[█·])", line, maxsplit=1)
        rest = re.sub("^[█·]+ ", "", rest)
        found[name] = rest.strip()
        for more, share in re.findall(r"  (?:[█·]+ )?([a-z]+ fill) (\S+)", rest):
            found[more] = share
    troubles = next(line for line in lines if line.startswith(label("dropped")))
    found |= dict(re.findall(r"([a-z]+(?: [a-z]+)*) ([\d,]+)(?:, |$)", troubles))
    return found


def snapshot() -> View:
    """A view with every quantity known."""
    return sample_view(buffer=0.25)


def test_the_table_has_every_number_of_the_statistics_that_is_not_a_setting_or_a_mean_of_others() -> None:
    settings = {"mode", "staleness_policy", "queue_capacity", "async_eval", "collects_per_train", "oversampling"}
    derived = {"collect_avg_time", "train_avg_time", "eval_avg_time", "wall_time"}
    assert AsyncTrainingCoordinator(1).get_statistics().keys() - settings - derived <= QUANTITIES.keys()
    assert {*COUNTS, *TROUBLES} <= QUANTITIES.keys()


def test_no_two_quantities_share_a_name_in_any_output() -> None:
    for name in ("label", "tag", "metric"):
        names = [getattr(one, name) for one in QUANTITIES.values()]
        assert len(set(names)) == len(names), name
    assert (label("mean_lag"), tag("mean_lag")) == ("lag, mean", "async/lag_mean")
    assert quantity("mean_lag").metric == "lzero_async_lag_mean_batches"


def test_tensorboard_and_prometheus_tell_every_quantity_by_its_name_with_the_same_number() -> None:
    view = snapshot()
    scalars, told = values(view), metrics_of(view)
    assert view.quantities.keys() == QUANTITIES.keys()
    for key, value in view.quantities.items():
        if key != HISTOGRAM:
            one = quantity(key)
            assert scalars.pop(one.tag) == value, key
            assert told[one.metric + ("_total" if one.kind == "counter" else "")] == value, key
    for key, rate in view.rates.items():
        assert scalars.pop(f"{tag(key)}_per_second") == told[f"{quantity(key).metric}_per_second"] == rate
    assert [name for name in scalars if not OTHER_TAGS.fullmatch(name)] == []


def test_the_live_view_shows_names_of_the_table_with_the_same_numbers() -> None:
    calm = dict.fromkeys((*TROUBLES, "degree_changes"), 0)
    view = snapshot()
    found = shown_live(replace(view, statistics={**view.statistics, **calm}))
    assert found.keys() <= LABELS
    for count in view.counted:
        limit = f" of {count.limit:,.0f}" if count.limit else ""
        rate = float(re.fullmatch(rf"{count.value:,.0f}{limit}  ([\d,.]+)/s", found[label(count.name)])[1])  # type: ignore[index]
        assert rate == pytest.approx(view.rates[count.name], rel=0.01)
    for key in (*TROUBLES, "degree_changes"):
        alone = calm | {key: view.statistics[key]}  # a line has no room for all of them
        assert shown_live(sample_view(**alone))[label(key)] == f"{view.statistics[key]:,}", key
    assert (found["queue fill"].split()[0], found["buffer fill"]) == ("50%", "25%")
    assert found["lag"] == "1 now, mean 1.2, max 3; degree 4" and found["staleness"] == "mean 1.5, max 3; degree 4"


def summary_of(view: View) -> dict[str, Any]:
    """The parts of summary.json that come from the view."""
    return {
        "seconds": view.elapsed, "statistics": dict(view.statistics), "score": {"name": "score"},
        "counts": {label(count.name): count.value for count in view.counted},
        "rates": {rate_label(key): rate for key, rate in view.rates.items()},
    }  # fmt: skip


def test_the_report_shows_names_of_the_table_with_the_same_numbers(tmp_path: Path) -> None:
    view = snapshot()
    run = write_run(tmp_path / "one", **summary_of(view))
    measures = {name: values[0] for name, _, values in numbers._measures([read_material(run)])}
    rates = {rate_label(key) for key in view.rates}
    assert measures.keys() - OTHER_MEASURES <= LABELS | rates
    for key, value in view.quantities.items():
        assert measures.get(label(key), value) == value, key
    for key, rate in view.rates.items():
        assert measures[rate_label(key)] == rate
    text = report(run, out=tmp_path / "page.html").text
    for key in (*TROUBLES, "degree_changes"):
        assert f"{label(key)} {view.statistics[key]:,}" in text, key
    for words in ("steps trained 1,234 123 per second", "steps played 1,500 150 per second", "trains 11 12 collects",
                  "staleness, mean 1.5 max 3, degree 4", "6 dropped batches"):  # fmt: skip
        assert words in text, words


def test_what_was_played_and_what_was_trained_are_told_apart_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """One moment of a real run in which more was played than trained: the same numbers in all four outputs."""
    trainer = make(tmp_path / "run", io.StringIO())
    seen: list[View] = []
    train = trainer.train

    def look(batch: Any) -> Any:
        seen.append(trainer.view())  # this batch has been played
        return train(batch)

    trainer.train = look  # type: ignore[method-assign]
    try:
        trainer.run()
        trainer.observer.view = lambda: seen[1]  # type: ignore[method-assign]
        trainer.observer.write_summary()
    finally:
        trainer.close()
    view = seen[1]
    found, scalars, told, live = read_summary(tmp_path / "run"), values(view), metrics_of(view), shown_live(view)
    for count in view.counted:
        name, rate = label(count.name), view.rates[count.name]
        metric = quantity(count.name).metric
        assert found["counts"][name] == scalars[tag(count.name)] == told[f"{metric}_total"] == count.value
        assert found["rates"][rate_label(count.name)] == pytest.approx(rate)
        assert scalars[f"{tag(count.name)}_per_second"] == told[f"{metric}_per_second"] == rate
        assert live[name].startswith(f"{count.value:,.0f}")
    assert found["rates"]["steps played/s"] > found["rates"]["steps trained/s"]


def test_an_application_s_own_count_has_one_name_everywhere() -> None:
    view = replace(sample_view(), counts=(Count("games_won", 7, 70),))
    assert values(view)["async/games_won"] == metrics_of(view)["lzero_async_games_won_total"] == 7
    assert shown_live(view)["games won"].startswith("7 of 70")


def test_every_count_of_the_applications_is_in_the_table() -> None:
    """So that none of them makes a second name for a quantity."""
    names = []
    for path in (ROOT / "zoo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Count":
                first = node.args[0]
                names.append(SECONDS if isinstance(first, ast.Name) else ast.literal_eval(first))
    assert len(names) >= 10
    assert set(names) - {SECONDS} <= QUANTITIES.keys()


def test_the_dashboard_calls_quantities_by_their_names() -> None:
    panels = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())["panels"]
    metrics = {one.metric + ("_total" if one.kind == "counter" else ""): one.label for one in QUANTITIES.values()}
    for panel in panels:
        for target in panel.get("targets", []):
            asked = [metrics[name] for name in re.findall(r"lzero_async_\w+", target["expr"]) if name in metrics]
            if len(asked) == 1 and "{{" not in target["legendFormat"]:
                assert target["legendFormat"] == asked[0], panel["title"]
