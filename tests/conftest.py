"""Shared set-up: coordinators that are closed, and no thread left behind by any test."""

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
