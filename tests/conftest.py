"""Shared set-up: coordinators that are closed, no thread left behind by any test, and what of the documentation is not run."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("lzero")]
    assert not left, f"threads left behind: {left}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After the documentation's tests, say what they did not run."""
    ran = (
        report.nodeid for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "nodeid")
    )
    if any(node.startswith("tests/test_docs.py") for node in ran):
        from tests.docs_blocks import summary

        terminalreporter.section("documentation")
        terminalreporter.write("\n".join(summary()) + "\n")
