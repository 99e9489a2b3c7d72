"""Where roles live: the promises of every backend, and those of processes."""

from __future__ import annotations

from functools import partial

import pytest

from lzero_async import make_backend
from lzero_async.backends import BACKENDS
from lzero_async.testing import conformance

CASES = [(kind, check) for kind in BACKENDS for check in conformance.applicable(kind)]


@pytest.mark.parametrize(("kind", "check"), CASES, ids=[f"{kind}-{check.__name__}" for kind, check in CASES])
def test_every_backend_keeps_its_promises(kind: str, check: conformance.Check) -> None:
    conformance.run_check(check, partial(make_backend, kind))


def test_what_a_backend_is_exempt_from_is_a_check() -> None:
    names = {check.__name__ for check in conformance.CHECKS}
    assert len(names) == len(conformance.CHECKS)
    assert {name for name, _ in conformance.EXEMPT} <= names
    assert {kind for _, kind in conformance.EXEMPT} <= set(BACKENDS)
    assert all(check.__doc__ for check in conformance.CHECKS)
