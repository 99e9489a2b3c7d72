"""Shared set-up: coordinators that are closed, no thread left behind by any test, and what of the documentation is not run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

GROUPS: Final = {
    "timing": ("test_backends", "test_coordinator", "test_loop", "test_machines", "test_regressions"),
    "ray": ("test_ray_",),
    "docs": ("test_docs", "test_packaging"),
}


def group_of(nodeid: str) -> str:
    """What runs in one process, in order: each of the groups above, and otherwise a file, whose fixtures are expensive."""
    name = Path(nodeid.partition("::")[0]).stem
    return next((group for group, starts in GROUPS.items() if name.startswith(starts)), name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out groups, not tests. Marks of pytest-xdist's own groups are lost with this version of pytest."""
    from xdist.scheduler import LoadScopeScheduling

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
