"""The numbers of a run: TensorBoard, metrics.jsonl, and Weights & Biases offline, for real and without a network."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import ConfigError
from lzero_async.telemetry.sinks import Records

ROOT = Path(__file__).resolve().parents[2]
TWO_RUNS = """
import sys
from pathlib import Path
from lzero_async.telemetry.sinks import Records

for life in range(2):
    records = Records(Path(sys.argv[1]), wandb="offline", project="tests", config={"life": life})
    records.prepare()
    records.scalars({"learner/loss": 0.5}, 100 + life)
    records.scalars({"evaluator/score": 7.0}, 50)
    records.histogram("async/staleness", {0: 4, 3: 1}, 100)
    records.close()
import wandb
assert wandb.run is None
"""


def logged(path: Path) -> list[dict[str, Any]]:
    """What a run logged, from the file that W&B wrote."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store, rows = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    store.close()
    return rows


def test_wandb_offline_has_the_same_scalars_in_the_run_s_folder_and_says_nothing(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "HOME": str(home), "WANDB_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_RUNS, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    identity = (folder / "wandb-id.txt").read_text().strip()
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{identity}.wandb"] * 2
    for life, file in enumerate(files):
        rows = [{key: row[key] for key in row if not key.startswith("_")} for row in logged(file)]
        assert rows == [
            {"learner/loss": 0.5, "env_steps": 100 + life},
            {"evaluator/score": 7.0, "env_steps": 50},
            {
                "async/staleness/_type": "histogram",
                "async/staleness/values": [4, 0, 1],
                "async/staleness/bins": [-0.5, 0.5, 2.5, 3.5],
                "env_steps": 100,
            },
        ]


def test_without_wandb_it_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom lzero_async.telemetry.sinks import Records\n"
        "records = Records(Path(sys.argv[1]))\nrecords.scalars({'a': 1.0}, 1)\nrecords.train({'train': 1})\n"
        "records.close()\nassert 'wandb' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    assert list((tmp_path / "log").iterdir())
    assert (tmp_path / "metrics.jsonl").read_text() == '{"train": 1}\n'


def fake_wandb(monkeypatch: pytest.MonkeyPatch, **names: Any) -> types.SimpleNamespace:
    settings = types.SimpleNamespace(base_url="http://127.0.0.1:9")
    fake = types.SimpleNamespace(
        run=None,
        api=types.SimpleNamespace(api_key="k"),
        Settings=dict,
        setup=lambda settings_=None, **_: types.SimpleNamespace(settings=settings),
        teardown=lambda: None,
    )
    for name, value in names.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def fails(*args: object, **kwargs: object) -> None:
    raise RuntimeError("the disk is full\nand more")


@pytest.mark.parametrize(
    ("mode", "names", "words"),
    [
        ("offline", {"init": fails}, r"cannot be started \(the disk is full\); set wandb to 'off'"),
        ("offline", {"run": types.SimpleNamespace(id="abc")}, r"has a W&B run open already \(abc\)"),
        ("online", {"api": types.SimpleNamespace(api_key=None)}, "no account is logged in"),
        ("online", {}, r"http://127.0.0.1:9 cannot be reached .* set wandb to 'offline'"),
    ],
)
def test_a_failed_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, names: dict[str, Any], words: str
) -> None:
    fake_wandb(monkeypatch, **names)
    records = Records(tmp_path, wandb=mode)
    with pytest.raises(ConfigError, match=words) as caught:
        records.prepare()
    assert "\n" not in str(caught.value)
    records.close()


def test_a_missing_package_and_a_wrong_word_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install"):
        Records(tmp_path, wandb="offline").prepare()
    with pytest.raises(ConfigError, match="wandb is 'on'; choose one of off, offline, online"):
        Records(tmp_path, wandb="on")


class FakeRun:
    id = "x"

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.finished = 0

    def define_metric(self, *args: object, **kwargs: object) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        if len(self.rows) == 2:
            raise BrokenPipeError("gone")
        self.rows.append(row)

    def finish(self, quiet: bool) -> None:
        self.finished += 1


def test_when_it_fails_in_the_middle_the_other_records_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = FakeRun()
    asked: list[dict[str, Any]] = []
    fake_wandb(monkeypatch, init=lambda **options: asked.append(options) or run)
    records = Records(tmp_path, wandb="offline", run_name="mine", config={"seed": 3})
    for step in range(5):
        records.scalars({"a": 1.0}, step)
    records.close()
    records.close()
    assert run.rows == [{"a": 1.0, "env_steps": 0}, {"a": 1.0, "env_steps": 1}]
    assert [record.levelno for record in caplog.records if "Weights & Biases" in record.message] == [logging.ERROR]
    assert run.finished == 1
    (options,) = asked
    assert (options["name"], options["config"], options["mode"]) == ("mine", {"seed": 3}, "offline")


def test_a_histogram_that_w_and_b_does_not_take_is_in_tensorboard_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = FakeRun()
    run.rows = [{}, {}]  # it takes two
    fake_wandb(monkeypatch, init=lambda **options: run, Histogram=lambda np_histogram: np_histogram)
    records = Records(tmp_path, wandb="offline")
    records.histogram("async/staleness", {1: 2}, 10)
    records.scalars({"a": 1.0}, 10)
    records.close()
    assert ["Weights & Biases" in record.message for record in caplog.records] == [True]
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    assert [event.histogram_value.num for event in events.Histograms("async/staleness")] == [2]
    assert [event.value for event in events.Scalars("a")] == [1.0]


def test_threads_share_one_file(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    records, start = Records(tmp_path), threading.Barrier(4)
    records.prepare()

    def write(number: int) -> None:
        start.wait()
        for step in range(50):
            records.scalars({f"learner/loss_{number}": step, "async/lag": number}, step)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records.close()
    (file,) = (tmp_path / "log").iterdir()
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    assert {name: len(events.Scalars(name)) for name in events.Tags()["scalars"]} == {
        "async/lag": 200, **{f"learner/loss_{number}": 50 for number in range(4)}
    }  # fmt: skip


def test_what_came_after_the_last_checkpoint_is_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"train": 1}\n{"train": 2}\n{"train": 3}\n{"tra')
    Records(tmp_path).resume(2, 100)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"train": 1}\n{"train": 2}\n'
    assert len(caplog.records) == 1
