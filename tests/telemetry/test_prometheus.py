"""The Prometheus endpoint: what a scrape says, that promtool accepts it, that it ends, and that the dashboard fits it."""

from __future__ import annotations

import gc
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest

from lzero_async.errors import ConfigError
from lzero_async.telemetry.prometheus_server import MetricsServer, _Server
from lzero_async.telemetry.view import View
from tests.telemetry.sample_view import sample_view

pytest.importorskip("prometheus_client")
DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana-dashboard.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def scrape(server: MetricsServer) -> str:
    with urllib.request.urlopen(server.address, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.fixture
def text() -> Iterator[str]:
    import os

    server = MetricsServer(0, sample_view, pids=lambda: {"learner": os.getpid()})
    yield scrape(server)
    server.close()


def test_a_scrape_tells_the_view(text: str) -> None:
    lines = text.splitlines()
    for line in (
        'lzero_async_run_info{title="PriorZero: a game"} 1.0',
        "lzero_async_run_seconds 10.0",
        "lzero_async_left_seconds 5.0",
        "lzero_async_steps_trained_total 1234.0",
        "lzero_async_steps_trained_limit 20000.0",
        "lzero_async_steps_trained_per_second 123.4",
        "lzero_async_steps_played_total 1500.0",
        "lzero_async_updates_per_second 3.5",
        'lzero_async_progress_ratio{count="steps trained"} 0.0617',
        "lzero_async_queue_fill_ratio 0.5",
        'lzero_async_score{kind="best"} 4.0',
        'lzero_async_role_seconds_total{role="collector 1",state="waiting"} 5.0',
        'lzero_async_role_state{role="collector 1",state="waiting"} 1.0',
        'lzero_async_role_state{role="collector 1",state="active"} 0.0',
        'lzero_async_role_state_seconds{role="learner"} 0.25',
        "lzero_async_lag_batches 1.0",
        "lzero_async_lag_bound_batches 4.0",
        "lzero_async_degree_versions 4.0",
        "lzero_async_dropped_batches_total 6.0",
        "lzero_async_restarts_total 9.0",
        "lzero_async_collect_wait_seconds_total 7.0",
        "lzero_async_train_seconds_total 15.0",
        "lzero_async_sample_age_max_versions 30.0",
    ):
        assert line in lines, line
    assert not [line for line in lines if "buffer_fill" in line or 'kind="highest"' in line]  # they are unknown
    assert re.search(r'^lzero_async_role_cpu_seconds_total{role="learner"} [\d.]+$', text, re.MULTILINE)


def test_staleness_is_a_histogram(text: str) -> None:
    found = re.findall(r'staleness_versions_bucket{le="([^"]+)"} (\S+)', text)
    assert found[:5] == [("0.0", "2.0"), ("1.0", "6.0"), ("2.0", "9.0"), ("3.0", "10.0"), ("4.0", "10.0")]
    assert found[-1] == ("+Inf", "10.0")
    assert "lzero_async_staleness_versions_count 10.0" in text
    assert "lzero_async_staleness_versions_sum 15.0" in text


def test_what_is_counted_by_powers_of_two_is_in_the_bucket_of_the_largest() -> None:
    server = MetricsServer(0, lambda: sample_view(staleness_counts={127: 1, 128: 2, 4096: 1}))
    try:
        found = dict(re.findall(r'staleness_versions_bucket{le="([^"]+)"} (\S+)', scrape(server)))
    finally:
        server.close()
    assert [found[bound] for bound in ("64.0", "127.0", "255.0", "1023.0", "+Inf")] == [
        "0.0",
        "1.0",
        "3.0",
        "3.0",
        "4.0",
    ]


@needs_promtool
def test_promtool_has_nothing_to_say(text: str) -> None:
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_read_between_scrapes_and_each_sees_the_present() -> None:
    asked: list[int] = []

    def view() -> View:
        asked.append(len(asked))
        return sample_view(steps=len(asked))

    server = MetricsServer(0, view)
    try:
        assert asked == []
        for number in (1, 2):
            assert f"lzero_async_steps_trained_total {number}.0\n" in scrape(server)
        assert len(asked) == 2
    finally:
        server.close()


def test_closing_leaves_no_thread_and_no_socket() -> None:
    before = set(threading.enumerate())
    server = MetricsServer(0, sample_view)
    port = int(server.address.rsplit(":", 1)[1].split("/")[0])
    assert set(threading.enumerate()) > before
    scrape(server)
    server.close()
    server.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    again = MetricsServer(port, sample_view)  # at once
    scrape(again)
    again.close()
    del server, again
    gc.collect()  # a socket that was left open would warn, and a warning is an error here


def test_a_client_that_says_nothing_does_not_hold_up_the_end() -> None:
    server = MetricsServer(0, sample_view)
    port = int(server.address.rsplit(":", 1)[1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /metrics HT")
        ended = threading.Thread(target=server.close)
        ended.start()
        ended.join(4.0)  # the server's patience with a client is longer
        assert not ended.is_alive()


def test_a_client_that_is_taken_in_while_the_server_ends_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taking, cut_off = threading.Event(), threading.Event()
    take, cut = WSGIServer.get_request, _Server.cut_off

    def late(self: Any) -> Any:
        taking.set()
        assert cut_off.wait(10)
        return take(self)

    def cutting(self: Any) -> None:
        cut(self)
        cut_off.set()

    monkeypatch.setattr(WSGIServer, "get_request", late)
    monkeypatch.setattr(_Server, "cut_off", cutting)
    server = MetricsServer(0, sample_view)
    port = int(server.address.rsplit(":", 1)[1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /metrics HT")
        assert taking.wait(10)
        ended = threading.Thread(target=server.close)
        ended.start()
        ended.join(4.0)
        assert not ended.is_alive()


def test_a_view_that_fails_is_an_answer_and_the_next_scrape_is_served(caplog: pytest.LogCaptureFixture) -> None:
    views = iter([RuntimeError("not now"), sample_view()])

    def view() -> View:
        one = next(views)
        if isinstance(one, Exception):
            raise one
        return one

    server = MetricsServer(0, view)
    try:
        with pytest.raises(urllib.error.HTTPError, match="500") as caught:
            scrape(server)
        assert b"not now" in caught.value.read()
        caught.value.close()
        assert "lzero_async_lag_batches" in scrape(server)
    finally:
        server.close()
    assert [record.message for record in caplog.records] == ["the metrics cannot be told: RuntimeError('not now')"]


def test_it_listens_on_loopback() -> None:
    server = MetricsServer(0, sample_view)
    assert server.address.startswith("http://127.0.0.1:")
    server.close()


def test_a_port_that_is_taken_or_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics_port is {port}, .*in use.*choose another port") as taken:
            MetricsServer(port, sample_view)
    with pytest.raises(ConfigError, match="metrics_port is 65536; use a number from 1 to 65535") as large:
        MetricsServer(65536, sample_view)
    with pytest.raises(ConfigError, match="metrics_port is -1") as small:
        MetricsServer(-1, sample_view)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'lzero-async\[metrics\]'") as missing:
        MetricsServer(0, sample_view)
    for caught in (taken, large, small, missing):
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_without_the_option_the_package_is_not_imported() -> None:
    code = "import sys, lzero_async.runs.application; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DASHBOARD.parent.parent)


def expressions() -> list[tuple[str, str]]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_every_metric_of_the_dashboard_is_told(text: str) -> None:
    text += "\nlzero_async_buffer_fill_ratio 0\n"  # of runs with a buffer
    told = set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE)) | set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    asked = {
        name for _, expression in expressions() for name in re.findall(r"\b(?:lzero_async|process)_\w+", expression)
    }
    assert asked <= told
    assert len(asked) >= 15
    for label, value in re.findall(r'(\w+)="([^"$]+)"', " ".join(expression for _, expression in expressions())):
        assert f'{label}="{value}"' in text


def test_every_panel_has_a_place_a_source_and_a_query() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert [variable["type"] for variable in dashboard["templating"]["list"]][:1] == ["datasource"]
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
        if panel["type"] != "row":
            assert panel["targets"] and panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@needs_promtool
def test_every_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    known = {"$__rate_interval": "1m", "$job": "lzero_async", "$instance": ".+"}
    rules = []
    for number, (_, expression) in enumerate(expressions()):
        for name, value in known.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        rules.append({"record": f"rule:{number}", "expr": expression})
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([str(PROMTOOL), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules)} rules found" in done.stdout
