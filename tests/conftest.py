"""Shared set-up: coordinators that are closed, no thread left behind by any test, and what of the documentation is not run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

GROUPS: Final = {
    "timing": ("test_backends", "test_coordinator", "test_loop", "test_liveness", "test_regressions"),
    "ray": ("test_ray_",),
    "docs": ("test_docs", "test_packaging"),
}
LONGEST: Final = ("docs", "ray", "tests/lightzero/test_runs.py", "tests/zoo/priorzero/test_run.py",
    "tests/zoo/episode_ppo/test_bad_data.py",
    "tests/zoo/episode_ppo/test_run.py", "tests/zoo/episode_ppo/test_chaos.py", "tests/zoo/priorzero/test_data_parallel.py",
    "tests/zoo/test_poisoned.py", "tests/zoo/priorzero/test_reanalyze.py", "tests/zoo/mbpo/test_bad_data.py",
    "tests/lightzero/test_learner.py", "tests/lightzero/test_chaos.py",
    "tests/zoo/mbpo/test_run.py", "tests/zoo/mbpo/test_evaluations.py", "tests/workers/test_parcels.py",
    "tests/zoo/mbpo/test_chaos.py", "tests/zoo/episode_ppo/test_nasim.py",
    "tests/zoo/priorzero/test_soundness.py", "tests/workers/test_chaos.py", "tests/zoo/priorzero/test_vllm.py",
    "tests/zoo/priorzero/test_vllm_pool.py",
)  # fmt: skip
"""Groups by the seconds that they take, measured (`make test` prints the durations)."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in a shell's background, and so in what it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)


def group_of(nodeid: str) -> str:
    """What runs in one process, in order: each of the groups above, and otherwise a file, whose fixtures are expensive."""
    path = nodeid.partition("::")[0]
    return next((group for group, starts in GROUPS.items() if Path(path).stem.startswith(starts)), path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest is `slow`, but for the documentation, which has quick tests, too. With several processes it comes
    first, so that they end together."""
    rank = {group: place for place, group in enumerate(LONGEST)}
    for item in items:
        if group_of(item.nodeid) in LONGEST[1:]:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank.get(group_of(item.nodeid), len(rank)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out groups, not tests. Marks of pytest-xdist's own groups are lost with this version of pytest."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # they are in order

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and t.name.startswith("lzero")]
    for thread in left:
        thread._started.wait(2.0)  # type: ignore[attr-defined]  # an interrupt may have left it before its first line
        thread.join(2.0)  # one that is at its last line has ended
    alive = [t.name for t in left if t.is_alive()]
    assert not alive, f"threads left behind: {alive}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After the documentation's tests, say what they did not run."""
    ran = (
        report.nodeid for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "nodeid")
    )
    if any(node.startswith("tests/project/test_docs.py") for node in ran):
        from tests.project.docs_blocks import summary

        terminalreporter.section("documentation")
        terminalreporter.write("\n".join(summary()) + "\n")
