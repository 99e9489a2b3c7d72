"""What each role does at this moment, and for how long it has worked and waited. Running sums; nothing grows with a run."""

from __future__ import annotations

from typing import Final, NamedTuple

ACTIVE: Final = "active"
WAITING: Final = "waiting"
IDLE: Final = "idle"


class RoleActivity(NamedTuple):
    """One role: its state now (`active`, `waiting` for the gate, or `idle`), what it does and for how many seconds already,
    and its seconds in each state since the run began."""

    role: str
    state: str
    doing: str
    since: float
    active: float
    waiting: float
    idle: float


class _Track:
    __slots__ = ("active", "begun", "doing", "state", "waiting")

    def __init__(self, now: float) -> None:
        self.state, self.doing, self.begun = IDLE, "", now
        self.active = self.waiting = 0.0


class Activity:
    """Keeps the roles' states. Each role is told of by its own thread; anybody may take a snapshot meanwhile, without a lock:
    it may be a moment old, never torn by more than that."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}
        self._first: float | None = None
        self._last = 0.0

    def enter(self, role: str, doing: str, now: float, state: str = ACTIVE) -> None:
        """The role begins to do something, or, with WAITING, to wait for it."""
        track = self._tracks.get(role) or self._new(role, now)
        track.state, track.doing, track.begun = state, doing, now

    def leave(self, role: str, start: float, end: float, state: str = ACTIVE) -> None:
        """What the role did, or waited for, since `start` is over."""
        track = self._tracks.get(role) or self._new(role, start)
        if state == ACTIVE:
            track.active += end - start
        else:
            track.waiting += end - start
        track.state, track.doing, track.begun = IDLE, "", end
        if end > self._last:
            self._last = end

    def reset(self) -> None:
        """Forget what was; roles that are at work now are counted from here on when they end."""
        self._tracks = {}
        self._first, self._last = None, 0.0

    def snapshot(self, now: float) -> tuple[RoleActivity, ...]:
        """Every role that was seen: collectors by number, the learner, others, the evaluator. When nobody is at work, time
        stands still: idle seconds do not grow after a run."""
        tracks = dict(self._tracks)
        if self._first is None:
            return ()
        at_work = any(track.state != IDLE for track in tracks.values())
        until = now if at_work else max(self._last, self._first)
        whole = until - self._first
        found = []
        for role in sorted(tracks, key=rank):
            track = tracks[role]
            state, doing, since = track.state, track.doing, max(0.0, until - track.begun)
            active = track.active + (since if state == ACTIVE else 0.0)
            waiting = track.waiting + (since if state == WAITING else 0.0)
            idle = max(0.0, whole - active - waiting)
            found.append(RoleActivity(role, state, doing, since, active, waiting, idle))
        return tuple(found)

    def _new(self, role: str, now: float) -> _Track:
        if self._first is None or now < self._first:
            self._first = now
        return self._tracks.setdefault(role, _Track(now))


def rank(role: str) -> tuple[int, int, str]:
    """Sorts roles: collectors by their numbers, then the learner and what else there is, the evaluator last."""
    word, _, number = role.rpartition(" ")
    places = {"collector": 0, "learner": 1, "evaluator": 3}
    return places.get(word or role, 2), int(number) if word and number.isdigit() else 0, role
