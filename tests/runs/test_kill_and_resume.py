"""kill -9 of whole runs at random moments, each resumed at once: nothing is lost, nothing is trained twice, checksums are right.

Run as a program it trains in a folder for ever, with the folder's lock and real checkpoints, and says everything that begins.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lzero_async import Parcel
from lzero_async.runs import checkpoint
from lzero_async.runs.folder_lock import FolderLock, holder
from lzero_async.runs.run_dir import LAST_CHECKPOINT, find_checkpoint, free_folder
from lzero_async.testing.fakes import Block
from tests.process_tools import ended
from tests.workers import test_chaos
from tests.workers.roles import LearnerRole, check_uniform
from tests.workers.test_chaos import Training, audit

ROOT = Path(__file__).resolve().parents[2]
KIND = checkpoint.CheckpointKind("lzero-async.killed", 1, "Killed")
COLLECTORS, DEGREE = 2, 3
BURN = "import os\nos.nice(19)\nwhile os.getppid() == int(__import__('sys').argv[1]): sum(range(10_000))"


class Saving(LearnerRole):
    """Saves itself in a checkpoint of the kind that the applications write."""

    def save(self, path: str, state: Any) -> None:
        """Write it; says when that begins and when it is done."""
        batches = [[np.frombuffer(bytes(parcel.open()), np.uint8), parcel.meta] for parcel in state["batches"]]
        weights = np.frombuffer(bytes(self._weights), np.uint8)
        whole = {
            "version": self.version,
            "trained": self.trained,
            "weights": weights,
            "state": {**state, "batches": batches},
        }
        self._emit("save")
        checkpoint.save(Path(path), whole, KIND)
        self._emit("saved")

    def load(self, path: str) -> Any:
        """Go back to it; whatever was not as it was written would raise."""
        saved = checkpoint.load(Path(path), KIND)
        self.version, self.trained = saved["version"], saved["trained"]
        self._weights[:] = saved["weights"].tobytes()
        batches = [Parcel(Block(bytearray(data.tobytes())), meta) for data, meta in saved["state"]["batches"]]
        return {**saved["state"], "batches": batches}


class Killed(Training):
    """Says what begins, a line each, and saves into the folder's place for checkpoints."""

    def __init__(self, folder: Path) -> None:
        test_chaos.LearnerRole = Saving  # type: ignore[misc]
        (folder / LAST_CHECKPOINT).parent.mkdir(exist_ok=True)
        (folder / "checkpoint").unlink(missing_ok=True)
        (folder / "checkpoint").symlink_to(LAST_CHECKPOINT)
        super().__init__(folder, DEGREE, COLLECTORS, [])
        self.path = str(folder / LAST_CHECKPOINT)

    def _began(self, name: str) -> None:
        os.write(1, f"{name}\n".encode())

    def checkpoint(self) -> None:
        assert self.coordinator is not None
        self.learner.call("save", self.path, self.coordinator.state_dict(with_batches=True))


def program(folder: str, more: int) -> None:
    """Go on with the run in this folder, or begin one; `more` trains, 0: for ever."""
    with FolderLock() as lock:
        begun = (Path(folder) / LAST_CHECKPOINT).is_file()
        saved = find_checkpoint(folder if begun else None, "", lock)
        assert free_folder(folder, saved, lock) == Path(folder)
        training = Killed(Path(folder))
        try:
            assert training.coordinator is not None
            training.checkpoint()
            os.write(1, (" ".join(str(worker.pid) for worker in training.workers.values()) + "\n").encode())
            limit = training.coordinator.train_count + more if more else sys.maxsize
            training.run(max_train=limit)
            audit(training, limit)
            training.checkpoint()
        finally:
            training.close()


def accounts(folder: Path, before: dict[str, Any] | None) -> dict[str, Any]:
    """What the last checkpoint holds, which is whole, right in itself, and the one before and more."""
    saved = checkpoint.load(folder / LAST_CHECKPOINT, KIND)  # every checksum is compared
    gate, history = saved["state"]["gate"], saved["trained"]
    done = gate["trained"] + gate["failed"] + gate["dropped"] + gate["abandoned"]
    assert gate["admitted"] == done + len(gate["waiting"]) + len(gate["tickets"])
    assert gate["trained"] == len(history) == saved["version"]
    check_uniform(saved["weights"].tobytes(), saved["version"])
    waiting = [meta for _, meta in saved["state"]["batches"]]
    for data, meta in saved["state"]["batches"]:
        check_uniform(data.tobytes(), meta[-1])
    tags = [tag[:3] for _, tag in history]
    assert len({batch for batch, _ in history}) == len(set(tags)) == len(history)  # nothing twice
    assert not {meta[:3] for meta in waiting} & set(tags)
    if before is not None:
        assert history[: len(before["trained"])] == before["trained"]  # nothing lost that was trained,
        kept = {meta[:3] for _, meta in before["state"]["batches"]}
        assert kept <= {*tags, *(meta[:3] for meta in waiting)}  # nor what waited
    return saved


def kill_again_and_again(folder: Path, kills: int, seed: int) -> int:
    """Kill the run that often, each time at a random one of the moments that it tells; return how many trains were kept."""
    stream, before, words = random.Random(seed), None, [sys.executable, str(Path(__file__).resolve()), str(folder)]
    for _ in range(kills):
        with subprocess.Popen([*words, "0"], cwd=ROOT, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                workers: list[int] = []
                left = stream.randint(0, 120)
                for line in process.stdout:
                    if line[:1].isdigit():
                        workers = [int(pid) for pid in line.split()]
                        assert holder(folder) == f"pid {process.pid}"
                    left -= bool(workers)
                    if workers and left < 0:
                        break
                assert workers
            finally:
                process.kill()
        assert holder(folder) is None  # at once, whatever of it is still about to end
        assert ended(workers, 60.0)
        before = accounts(folder, before)
    done = subprocess.run([*words, "7"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    return len(accounts(folder, before)["trained"])


def test_a_run_that_is_killed_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, 3, 0) >= 7


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_two_hundred_kills_under_load(tmp_path: Path) -> None:
    burning = [subprocess.Popen([sys.executable, "-c", BURN, str(os.getpid())]) for _ in range(2)]
    try:
        assert kill_again_and_again(tmp_path, 200, 1) > 200
    finally:
        for process in burning:
            process.kill()
            process.wait()


if __name__ == "__main__":
    program(sys.argv[1], int(sys.argv[2]))
