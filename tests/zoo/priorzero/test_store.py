"""The file of answers that the processes of a run share, and the text encoder on top of it."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from zoo.jericho.priorzero.play.text_encoder import TextEncoder, _folder
from zoo.jericho.priorzero.sqlite_cache import SharedStore

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.sqlite"


def warnings(caplog, words):
    return sum(words in record.message for record in caplog.records)


def test_what_was_put_is_found_and_the_first_one_stays(path):
    store = SharedStore(path)
    store.put_many({b"a": b"1", b"b": b"\x00\xff", b"empty": b""})
    store.put_many({b"a": b"2", b"c": b"3"})
    assert store.get_many([b"a", b"b", b"none", b"c", b"a", b"empty"]) == {
        b"a": b"1",
        b"b": b"\x00\xff",
        b"c": b"3",
        b"empty": b"",
    }
    assert store.get_many([]) == {}
    store.put_many({})
    store.close()
    assert store.get_many([b"a"]) == {} and not store.usable
    later = SharedStore(path)
    assert later.get_many([b"a"]) == {b"a": b"1"}
    later.close()


def test_more_keys_than_one_query_takes(path):
    store = SharedStore(path)
    items = {b"%d" % number: b"value %d" % number for number in range(2_501)}
    store.put_many(items)
    assert store.get_many([*items, b"none"]) == items
    store.close()


def test_it_is_bounded_and_forgets_the_oldest(path):
    store = SharedStore(path, max_rows=50)
    for start in range(0, 200, 20):
        store.put_many({b"%d" % number: b"" for number in range(start, start + 20)})
    assert list(store.get_many([b"%d" % number for number in range(200)])) == [b"%d" % n for n in range(150, 200)]
    store.close()


@pytest.mark.parametrize("nowhere", ["", None])
def test_no_path_means_no_store(nowhere, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SharedStore(nowhere)
    store.put_many({b"a": b"1"})
    assert not store.usable and store.get_many([b"a"]) == {} and not list(tmp_path.iterdir())
    store.close()


def test_processes_put_and_get_at_once(path):
    """Each says when all its rows are put, and then must see those of the others."""
    code = """
import sys
from zoo.jericho.priorzero.sqlite_cache import SharedStore
name, others = sys.argv[2].encode(), [other.encode() for other in sys.argv[3:]]
print("ready", flush=True), sys.stdin.readline()
store = SharedStore(sys.argv[1], 60.0)
for number in range(150):
    store.put_many({b"shared %d" % number: b"%d" % number, name + b" %d" % number: name})
    assert store.get_many([b"shared %d" % number, name + b" %d" % number]) == {
        b"shared %d" % number: b"%d" % number, name + b" %d" % number: name
    }
print("put", flush=True), sys.stdin.readline()
for other in others:
    assert len(store.get_many([other + b" %d" % number for number in range(150)])) == 150, other
assert store.usable
"""
    names = ["w0", "w1", "w2"]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), name, *names],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for word in ("ready\n", "put\n"):
        assert [worker.stdout.readline() for worker in workers] == [word] * len(workers)
        for worker in workers:
            worker.stdin.write("go on\n")
            worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0 and not errors, errors
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM answers").fetchone() == (150 + 3 * 150,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_only_one_process_at_a_time_opens_a_file(path):
    tried = []

    class Watched(SharedStore):
        def _open(self):
            with path.with_name(path.name + ".lock").open() as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            tried.append(path)
            super()._open()

    Watched(path).close()
    assert tried


def test_threads_may_share_a_store(path):
    store = SharedStore(path)

    def work(name):
        for number in range(50):
            store.put_many({b"%d %d" % (name, number): b"x"})
            store.get_many([b"%d %d" % (name, number) for name in range(4)])

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.usable and len(store.get_many([b"%d %d" % (n, i) for n in range(4) for i in range(50)])) == 200
    store.close()


def test_a_damaged_file_is_moved_aside(path, caplog):
    path.write_bytes(b"this is no database" * 400)
    with caplog.at_level(logging.WARNING):
        store = SharedStore(path)
    store.put_many({b"a": b"1"})
    assert store.usable and store.get_many([b"a"]) == {b"a": b"1"}
    store.close()
    assert len(list(path.parent.glob("*.damaged-*"))) == 1 and warnings(caplog, "damaged") == len(caplog.records) == 1


def unusable_folder(path):
    path.parent.joinpath("file").write_text("not a folder")
    return SharedStore(path.parent / "file" / "answers.sqlite")


def read_only(path):
    store = SharedStore(path)
    store._run("PRAGMA query_only=ON")
    return store


def full_disk(path):
    store = SharedStore(path)
    store._run("PRAGMA max_page_count=8")
    return store


def locked(path):
    store = SharedStore(path, busy_seconds=0.01)
    writer = sqlite3.connect(path)
    writer.execute("BEGIN IMMEDIATE")
    store._writer = writer  # holds the lock for as long as the store is there
    return store


@pytest.mark.parametrize("broken", [unusable_folder, read_only, full_disk, locked])
def test_what_cannot_be_used_warns_once_and_does_nothing_any_more(broken, path, caplog):
    with caplog.at_level(logging.WARNING):
        store = broken(path)
        for number in range(40):
            store.put_many({b"%d" % number: b"long " * 400})
    assert not store.usable and store.get_many([b"0"]) == {}
    assert warnings(caplog, "not kept on disk") == len(caplog.records) == 1
    if hasattr(store, "_writer"):
        store._writer.close()
    store.close()


# -- the text encoder -------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_encoders(tmp_path_factory):
    """Two folders with models that differ in their weights alone."""
    import torch
    from transformers import BertConfig, BertModel

    folders = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp("encoder")
        for file in Path(_folder("")).glob("*"):
            if file.name.startswith(("tokenizer", "vocab", "special")):
                shutil.copy(file, folder)
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertModel(BertConfig(**sizes)).save_pretrained(folder)
        folders.append(str(folder))
    return folders


def test_each_text_is_encoded_by_one_process_only(tiny_encoders, path):
    stores = [SharedStore(path), SharedStore(path)]
    first, second = (TextEncoder(tiny_encoders[0], store=store) for store in stores)
    texts = [("a dark room", "a lamp"), ("", "a rope")]
    rows = first(texts)
    assert second(texts).tobytes() == rows.tobytes()
    assert (first.encoded, first.from_store, second.encoded, second.from_store) == (4, 0, 0, 4)
    second([("a lamp", "a sword")])
    first([("a sword", "a lamp")])
    assert (first.encoded, first.from_store, second.encoded, second.from_store) == (4, 1, 1, 4)
    assert second.statistics()["encoder_from_store"] == 4 and second.statistics()["encoder_encoded"] == 1
    alone = TextEncoder(tiny_encoders[0])
    np.testing.assert_array_equal(alone(texts), rows)
    assert alone.statistics()["encoder_from_store"] == 0
    for store in stores:
        store.close()


def test_other_encoders_do_not_share(tiny_encoders, path):
    store = SharedStore(path)
    first = TextEncoder(tiny_encoders[0], store=store)([("a dark room",)])
    other = TextEncoder(tiny_encoders[1], store=store)
    assert not np.array_equal(other([("a dark room",)]), first) and other.encoded == 1
    shorter = TextEncoder(tiny_encoders[0], max_tokens=3, store=store)
    assert not np.array_equal(shorter([("a dark room",)]), first) and shorter.encoded == 1
    store.close()


def test_an_encoder_goes_on_without_its_store(tiny_encoders, path, caplog):
    encoder = TextEncoder(tiny_encoders[0], store=full_disk(path))
    rows = encoder([(f"room {number} " * 20,) for number in range(200)])
    assert rows.shape == (200, 16) and encoder.encoded == 200
    assert warnings(caplog, "not kept on disk") == 1
