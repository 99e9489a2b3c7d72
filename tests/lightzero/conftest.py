"""What the tests of LightZero's configs share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """More only wait for each other, and for the tests that run beside: a test of 10 s took 100."""
    import torch

    torch.set_num_threads(1)
