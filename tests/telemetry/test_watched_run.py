"""A whole small run with everything switched on that others look at: TensorBoard's scalars, and Prometheus asking meanwhile."""

from __future__ import annotations

import io
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import ConfigError
from lzero_async.telemetry.terminal.progress import Progress
from tests.zoo.episode_ppo.envs import SPEC, watch
from zoo.episode_ppo.envs.factories import describe
from zoo.episode_ppo.options import build_options
from zoo.episode_ppo.trainer import Trainer

UPDATES = 6
SMALL: dict[str, Any] = {
    "env": SPEC, "n_envs": 4, "num_workers": 2, "episodes_per_update": 6, "total_episodes": 6 * UPDATES, "hidden_size": 8,
    "hidden_layers": 1, "epochs": 2, "minibatch_size": 16, "eval_every": 2, "eval_episodes": 3, "device": "cpu",
    "backend": "thread", "off_policy_degree": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    watch.clear()
    yield
    watch.clear()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def make(folder: Path, said: io.StringIO, **more: Any) -> Trainer:
    folder.mkdir()
    options = build_options({**SMALL, "exp_name": str(folder), **more})
    return Trainer(options, folder, describe(options.env, options.env_args), progress=Progress(said))


def number(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_prometheus_asks_during_a_run_and_tensorboard_reads_it_afterwards(tmp_path: Path, port: int) -> None:
    pytest.importorskip("prometheus_client")
    said = io.StringIO()
    trainer = make(tmp_path / "run", said, metrics_port=port)
    trained, scraped = trainer._trained, []

    def ask() -> None:
        trained()
        scraped.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode())

    trainer._trained = ask  # type: ignore[method-assign]
    try:
        trainer.run()
    finally:
        trainer.close()
    assert [number(text, "lzero_async_trains_total") for text in scraped] == list(range(1, UPDATES + 1))
    assert [number(text, "lzero_async_episodes_trained_total") for text in scraped] == [6, 12, 18, 24, 30, 36]
    assert number(scraped[-1], "lzero_async_staleness_versions_count") == UPDATES
    assert number(scraped[-1], 'lzero_async_role_seconds_total{role="learner",state="active"}') > 0
    assert said.getvalue().count(f"metrics for Prometheus: http://127.0.0.1:{port}/metrics\n") == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    check_board(tmp_path / "run")


def check_board(folder: Path) -> None:
    """The scalars of the whole run, written after the first train and at the end, and no second names for them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events: Any = accumulator.EventAccumulator(str(folder / "log"), size_guidance={"histograms": 0})
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert {name.split("/")[0] for name in names} == {"async", "busy", "data", "evaluator", "learner"}
    assert {"async/lag", "async/active/learner", "async/idle/collector", "async/queue_fill"} <= names
    points = [(event.step, event.value) for event in events.Scalars("async/trains")]
    assert points[0] == (6, 1.0)
    assert points[-1] == (36, float(UPDATES))
    assert len(points) < UPDATES  # a run of a second is not recorded at every train
    counted = [event.histogram_value.num for event in events.Histograms("async/staleness")]
    assert sum(counted) == UPDATES
    assert events.Tags()["tensors"] == ["custom_scalars__config__"]


def test_a_taken_port_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        trainer = make(tmp_path / "run", io.StringIO(), metrics_port=taken)
        try:
            with pytest.raises(ConfigError, match=f"metrics_port is {taken}"):
                trainer.run()
        finally:
            trainer.close()
    assert not trainer.last_checkpoint.is_file()
