"""The scalars under async/ that every run records, made from its View: lag, staleness, waits, shares of the roles' time,
fill, counts of what went wrong. Sums and counts are of the whole run, shares are of the time since the last record. Names come
from `quantities`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from lzero_async.core.activity import RoleActivity
from lzero_async.telemetry.quantities import TAGS, tag
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.view import View

EVERY: Final = 5.0  # seconds between two records
STALENESS: Final = "staleness_counts"  # the histogram
STATES: Final = ("active", "waiting", "idle")


def values(view: View, before: View | None = None) -> dict[str, float]:
    """The scalars by name; `before` is the view of the last record, if there was one."""
    found = {tag(key): value for key, value in view.quantities.items() if key != STALENESS}
    found |= {f"{tag(key)}_per_second": rate for key, rate in view.rates.items()}
    shares = role_shares(view.roles, () if before is None else before.roles)
    found |= {TAGS + name: share for name, share in shares.items()}
    return {name: float(value) for name, value in found.items()}


def role_kind(role: str) -> str:
    """The role without its number: "collector" for "collector 3"."""
    word, _, number = role.rpartition(" ")
    return word.replace(" ", "_") if word and number.isdigit() else role.replace(" ", "_")


def role_shares(roles: tuple[RoleActivity, ...], before: tuple[RoleActivity, ...]) -> dict[str, float]:
    """By state and kind, "idle/collector": the share of the kind's time since `before` that it was in that state. A kind
    that had no time is left out."""
    known = {role.role: role for role in before}
    seconds: dict[str, dict[str, float]] = {}
    for role in roles:
        earlier = known.get(role.role)
        if earlier is not None and _whole(earlier) > _whole(role):
            earlier = None  # the counters were set to zero in between
        sums = seconds.setdefault(role_kind(role.role), dict.fromkeys(STATES, 0.0))
        for state in STATES:
            # What a role does is counted on when it ends, so that a sum may fall by a moment.
            gained = getattr(role, state) - (0.0 if earlier is None else getattr(earlier, state))
            sums[state] += max(0.0, gained)
    return {
        f"{state}/{kind}": sums[state] / whole
        for kind, sums in seconds.items()
        if (whole := sum(sums.values())) > 0
        for state in STATES
    }


def _whole(role: RoleActivity) -> float:
    return role.active + role.waiting + role.idle


def staleness_since(view: View, before: View | None) -> dict[int, int]:
    """Batches by staleness that were trained since `before`; those of the whole run if the counters began anew."""
    now: dict[int, int] = view.statistics[STALENESS]
    then: dict[int, int] = {} if before is None else before.statistics[STALENESS]
    gained = {key: count - then.get(key, 0) for key, count in now.items()}
    if any(count < 0 for count in gained.values()) or then.keys() - now.keys():
        gained = now
    return {key: count for key, count in gained.items() if count}


class AsyncScalars:
    """Records the scalars, `more()` beside them, and the histogram of staleness at most every `every` seconds, and when it is
    told to."""

    def __init__(
        self,
        records: Records,
        view: Callable[[], View],
        more: Callable[[], Mapping[str, float]] = dict,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records, self._view, self._more, self._every, self._clock = records, view, more, every, clock
        self._due = float("-inf")
        self._before: View | None = None
        self._lock = threading.Lock()

    def record(self, *, now: bool = False) -> bool:
        """Record if it is time to, or `now`; cheap when it is not. Returns whether it did. Raises OSError when the records
        cannot be written."""
        moment = self._clock()
        with self._lock:
            if not now and moment < self._due:
                return False
            self._due = moment + self._every
            view, before = self._view(), self._before
            self._before = view
            step = int(view.counts[0].value)
            self._records.scalars({**values(view, before), **self._more()}, step)
            if trained := staleness_since(view, before):
                self._records.histogram(tag(STALENESS), trained, step)
        return True
