"""Breaks one line at a time and asks the tests: `make mutants`.

    .venv/bin/python -m tests.mutants [--rev REVISION] [--only WORDS] [--survivors] [--list]

25 faults written by hand and 150 drawn by our own 150 lines (the tools on PyPI know a mutant by its place in a file, so that
it gets lost when code moves between two revisions). Each runs in a copy of the tree against the tests of its area, those first
that are quick and kill most. What was found is in benchmarks/results/mutants.json, or mutants-REVISION.json of the tests and
the source of another revision; it is written after every mutant, and one that is there already is not run again while the tree
is the same. Fails if a fault survives, or a mutant that was killed at another revision.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from tests.mutants.drawing import Mutant, candidates, draw
from tests.mutants.faults import EQUIVALENT, FAULTS, FaultGone, locate

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
DRAWN: Final = 150
HANGS: Final = 20.0  # seconds at least until a test is taken to hang, which means that it has noticed
RENAMED: Final = {"test_ordering": "test_lines", "priorzero/test_": "test_priorzero_"}  # now: at an older revision


class Area(NamedTuple):
    """Where a kind of fault is looked for, and the tests that must find it; modules to draw from, under all their names."""

    package: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


_CORE: Final = (
    "test_gate", "test_coordinator", "test_rejected", "test_own_loop", "test_batches",
    "test_runs_apart", "test_failures_seen", "test_queue_use", "test_loop", "test_limits",
    "test_regressions", "test_statistics_and_trace", "test_activity", "test_weights", "test_hostile_states", "test_ordering",
    "test_collects_per_train", "test_pausing", "test_run_async", "test_adaptive", "test_state_machine", "test_gate_walk",
    "test_interrupts",
)  # fmt: skip
AREAS: Final = {
    "gate": Area("lzero_async", ("/gate.py", "/core/account.py"), _CORE),
    "gatekeeper": Area(
        "lzero_async",
        (
            "/gatekeeper.py",
            "/core/keeping/serving.py",
            "/core/keeping/mending.py",
            "/core/keeping/parked.py",
            "/core/keeping/stopping.py",
            "/shell.py",
        ),
        _CORE,
    ),
    "loop": Area("lzero_async", ("/loop.py", "/core/running/session.py", "/core/running/collectors.py"), _CORE),
    "resume": Area("lzero_async", ("/resume.py",), _CORE),
    "parcels": Area(
        "lzero_async",
        ("/parcels.py", "/workers/regions.py"),
        ("test_parcels", "test_weights", "test_backends", "test_parcel_stress"),
    ),
    "search": Area("zoo/jericho/priorzero", (), ("priorzero/test_search",)),
    "replay": Area("zoo/jericho/priorzero", (), ("priorzero/test_learner",)),
    "prior": Area("zoo/jericho/priorzero", (), ("priorzero/test_prior",)),
}


def main() -> int:
    """Run what the command line asks for; return 1 if something survives that must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Break one line at a time.")
    parser.add_argument("--rev", help="the source and the tests of this revision")
    parser.add_argument("--only", default="", help="mutants whose area and name contain this")
    parser.add_argument(
        "--survivors", action="store_true", help="only those that survived here the last time; the others stay killed"
    )
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [_tree(Path(folder) / str(number), options.rev) for number in range(options.processes)]
        try:
            chosen = choose(trees[0], must_exist=options.rev is None)
        except FaultGone as gone:
            print(gone, file=sys.stderr)
            return 2
        chosen = [mutant for mutant in chosen if options.only in f"{mutant.area} {mutant.name}"]
        if options.list:
            print("\n".join(f"{mutant.area}: {mutant.name}" for mutant in chosen))
            return 0
        results = Results(options.rev, trees[0], keep=options.survivors)
        if options.survivors:
            here = json.loads((RESULTS / "mutants.json").read_text())["mutants"]
            chosen = [mutant for mutant in chosen if not here.get(_known_as(mutant), {"killed": False})["killed"]]
            if options.rev is None:
                results.forget(chosen)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # which a job in the background would ignore, and its tests with it
            signal.signal(number, signal.default_int_handler)
        run(chosen, trees, results)
    return verdict(results)


def choose(tree: Path, *, must_exist: bool) -> list[Mutant]:
    """The faults, and the mutants drawn from the source as it is now; of another revision, those whose lines are there."""
    chosen = []
    for fault in FAULTS:
        try:
            chosen.append(locate(tree, AREAS[fault.area].package, fault))
        except FaultGone:
            if must_exist:
                raise
    there = {_known_as(mutant): mutant for mutant in _candidates(tree)}
    by_hand = {f"{fault.function}: {fault.line} -> {fault.broken}" for fault in FAULTS}
    drawn = draw([mutant for mutant in _candidates(ROOT) if mutant.name not in by_hand], DRAWN)
    return chosen + [there[_known_as(mutant)] for mutant in drawn if _known_as(mutant) in there]


def _known_as(mutant: Mutant) -> str:
    """Its name, whatever things are called at that revision."""
    name = re.sub(r"\.(?:bound|recovery|adaptation)(?=\.)", "", mutant.name)
    return re.sub(r"\b_?(?:shell|keeper|signal)(?:\.signal)?\b", "gatekeeper", name)


def _candidates(root: Path) -> list[Mutant]:
    found = []
    for area, (package, modules, _) in AREAS.items():
        for path in sorted((root / package).rglob("*.py")):
            if str(path).endswith(modules):
                found += candidates(root, area, str(path.relative_to(root)))
    return found


def _tree(folder: Path, revision: str | None) -> Path:
    """A copy of what git tracks, as it is here or as it was at a revision."""
    if revision is not None:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return folder
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


class Results:
    """What is known of every mutant, on disk after each."""

    def __init__(self, revision: str | None, tree: Path, *, keep: bool) -> None:
        self.path = RESULTS / (f"mutants-{revision}.json" if revision else "mutants.json")
        self.digest = _digest(tree)
        self._lock = threading.Lock()
        known = json.loads(self.path.read_text()) if self.path.is_file() else {}
        self.mutants: dict[str, dict[str, Any]] = (
            known.get("mutants", {}) if keep or known.get("tree") == self.digest else {}
        )

    def forget(self, mutants: list[Mutant]) -> None:
        """These are to be run again."""
        for mutant in mutants:
            self.mutants.pop(_known_as(mutant), None)

    def add(self, mutant: Mutant, killer: str, seconds: float) -> None:
        """Note who killed it; nobody if that is empty."""
        with self._lock:
            self.mutants[_known_as(mutant)] = {
                "area": mutant.area, "killed": bool(killer), "by": killer, "seconds": round(seconds, 1),
            }  # fmt: skip
            text = json.dumps({"tree": self.digest, "mutants": dict(sorted(self.mutants.items()))}, indent=1)
            self.path.write_text(text + "\n")


def _digest(tree: Path) -> str:
    paths = sorted(
        path
        for folder in ("lzero_async", "zoo", "tests")
        for path in (tree / folder).rglob("*.py")
        if path.parent.name != "mutants"
    )
    return hashlib.sha256(
        b"".join(str(path.relative_to(tree)).encode() + path.read_bytes() for path in paths)
    ).hexdigest()


def run(chosen: list[Mutant], trees: list[Path], results: Results) -> None:
    """Run those that are not known yet, first the tests as they are: what fails without a fault says nothing."""
    todo = [mutant for mutant in chosen if _known_as(mutant) not in results.mutants]
    print(f"{len(chosen)} mutants, {len(chosen) - len(todo)} of them known", flush=True)
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)
    sets = sorted({AREAS[mutant.area].tests for mutant in todo})
    with ThreadPoolExecutor(len(trees)) as pool, _ended_with(pool):
        limits = dict(zip(sets, pool.map(lambda tests: _limits(tests, free), sets), strict=True))

        def one(mutant: Mutant) -> None:
            tree, start = free.get(), time.monotonic()
            try:
                killer = _try(mutant, tree, *limits[AREAS[mutant.area].tests])
            finally:
                free.put(tree)
            if _stopping.is_set():
                return
            seconds = time.monotonic() - start
            results.add(mutant, killer, seconds)
            print(f"{seconds:6.1f} s  {killer or 'SURVIVED'}  {mutant.area}: {mutant.name}", flush=True)

        list(pool.map(one, todo))


def _limits(tests: tuple[str, ...], free: SimpleQueue[Path]) -> tuple[float, float]:
    """How many seconds one of these tests and all of them may take, from how long they do."""
    tree, start = free.get(), time.monotonic()
    try:
        code, output = _pytest(tree, tests, 300.0, 900.0, "--durations=1")
    finally:
        free.put(tree)
    if code:
        raise SystemExit(f"{_killer(code, output)} fails without a fault")
    slowest = re.search(r"([\d.]+)s (?:call|setup)", output)
    return max(HANGS, 4 * float(slowest[1]) if slowest else 0.0), 60.0 + 2 * (time.monotonic() - start)


def _try(mutant: Mutant, tree: Path, one_test: float, all_tests: float) -> str:
    """Who kills it; empty if nobody does."""
    path = tree / mutant.path
    source = path.read_bytes()
    try:
        _write(path, mutant.apply(tree))
        return _killer(*_pytest(tree, AREAS[mutant.area].tests, one_test, all_tests))
    finally:
        _write(path, source)


def _write(path: Path, source: bytes) -> None:
    """Change a module; its compiled form might look as old as the new source."""
    Path(cache_from_source(str(path))).unlink(missing_ok=True)
    path.write_bytes(source)


_running: set[subprocess.Popen[str]] = set()
_stopping = threading.Event()


@contextmanager
def _ended_with(pool: ThreadPoolExecutor) -> Iterator[None]:
    """On Ctrl+C and SIGTERM, nothing goes on running; a killed run of the tests says nothing."""
    try:
        yield
    except BaseException:
        _stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(_running):
            _end(process)
        raise


def _pytest(tree: Path, tests: tuple[str, ...], one_test: float, all_tests: float, *more: str) -> tuple[int, str]:
    """The exit code and the output of these tests; -1 if they do not end in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "pytest_timeout", f"--timeout={one_test}"]
    # other plugins take four times as long to start as a quick test that kills
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "400", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.Popen(
        [*command, *more, *files(tree, tests)], cwd=tree, env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=all_tests)
    except subprocess.TimeoutExpired:
        return -1, ""
    finally:
        _end(process)
        _running.discard(process)
    return process.returncode, output


def _killer(code: int, output: str) -> str:
    """The first test that failed, if one did."""
    if code == 0:
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
    late = " (time-out)" if "Timeout (>" in output else ""
    return named[1] + late if named else "time-out" if code == -1 else f"exit {code}: {output.strip()[-200:]}"


def _end(process: subprocess.Popen[str]) -> None:
    """End a run of the tests with everything that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def files(tree: Path, tests: tuple[str, ...]) -> list[str]:
    """The paths of test files that there are at this revision, by the names that they have there."""
    found = []
    for name in tests:
        older = next((name.replace(new, old) for new, old in RENAMED.items() if name.startswith(new)), name)
        paths = [path for one in (name, older) for path in tree.glob(f"tests/**/{one}.py")]
        found += [str(path.relative_to(tree)) for path in paths[:1]]
    return found


def verdict(results: Results) -> int:
    """Say what survived; 1 if that is a fault, or something that the tests of another revision kill."""
    survived = {name: one for name, one in results.mutants.items() if not one["killed"]}
    print(
        f"\n{len(results.mutants) - len(survived)} of {len(results.mutants)} killed; written to {results.path.relative_to(ROOT)}"
    )
    bad = [
        f"a fault survives: {name}"
        for name in survived
        if name in {f"{f.function}: {f.line} -> {f.broken}" for f in FAULTS}
    ]
    for path in sorted(RESULTS.glob("mutants-*.json")):
        if path != results.path:
            earlier = json.loads(path.read_text())["mutants"]
            bad += [
                f"killed in {path.name} by {earlier[name]['by']}: {name}"
                for name in survived
                if earlier.get(name, {}).get("killed")
            ]
    for name, one in survived.items():
        print(f"survived, {EQUIVALENT.get(name, 'no test notices')}: {one['area']}: {name}")
    print("\n".join(bad))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
