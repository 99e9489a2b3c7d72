"""What each role does at this moment, and for how long it has worked and waited. Running sums; nothing grows with a run."""

from __future__ import annotations

import threading
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
    """One role. Several threads may work under its name: it is active while one of them is, and waits while none is active."""

    __slots__ = ("active", "begun", "doing", "reached", "seconds", "state", "waiting")

    def __init__(self, now: float) -> None:
        self.reached = self.begun = now  # the time up to which seconds are counted, and when the present state began
        self.seconds = {ACTIVE: 0.0, WAITING: 0.0, IDLE: 0.0}
        self.active = self.waiting = 0
        self.state = IDLE
        self.doing = {ACTIVE: "", WAITING: ""}

    def change(self, state: str, by: int, now: float, doing: str | None = None) -> None:
        """One more, or one less, is in this state."""
        before = self.state
        if now > self.reached:
            self.seconds[before] += now - self.reached
            self.reached = now
        if state == ACTIVE:
            self.active = self.active + by if self.active + by > 0 else 0
        else:
            self.waiting = self.waiting + by if self.waiting + by > 0 else 0
        if doing is not None:
            self.doing[state] = doing
        self.state = ACTIVE if self.active else WAITING if self.waiting else IDLE
        if by > 0 or self.state != before:
            self.begun = self.reached


class Activity:
    """Keeps the roles' states; from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._tracks: dict[str, _Track] = {}
        self._first: float | None = None
        self._frozen: float | None = None

    def freeze(self, now: float) -> None:
        """From now on time stands still."""
        with self.lock:
            self._frozen = now

    def thaw(self, now: float) -> None:
        """Time goes on: what passed since `freeze` is nobody's."""
        with self.lock:
            pause, self._frozen = now - (now if self._frozen is None else self._frozen), None
            self._first = None if self._first is None else self._first + pause
            for track in self._tracks.values():
                track.reached += pause
                track.begun += pause

    def enter(self, role: str, doing: str, now: float, state: str = ACTIVE) -> None:
        """The role begins to do something, or, with WAITING, to wait for it."""
        with self.lock:
            if self._frozen is not None:
                now = self._frozen
            track = self._tracks.get(role) or self._new(role, now)
            track.change(state, 1, now, doing)

    def leave(self, role: str, now: float, state: str = ACTIVE) -> None:
        """What the role did, or waited for, is over."""
        with self.lock:
            if self._frozen is not None:
                now = self._frozen
            if (track := self._tracks.get(role)) is not None:
                track.change(state, -1, now)

    def new_stretch(self, now: float) -> None:
        """A run begins: if nobody was at work until now, that was a pause, and nobody's idle time."""
        with self.lock:
            if self._first is not None and self._tracks and all(track.state == IDLE for track in self._tracks.values()):
                pause = max(0.0, now - max(track.reached for track in self._tracks.values()))
                self._first += pause
                for track in self._tracks.values():
                    track.reached += pause
                    track.begun += pause

    def reset(self, now: float) -> None:
        """Count from zero again; roles that are at work now stay so, and those that are not are forgotten."""
        with self.lock:
            kept = {role: track for role, track in self._tracks.items() if track.state != IDLE}
            for track in kept.values():
                track.seconds, track.reached, track.begun = dict.fromkeys(track.seconds, 0.0), now, now
            self._tracks, self._first = kept, now if kept else None

    def snapshot(self, now: float) -> tuple[RoleActivity, ...]:
        """Every role that was seen: collectors by number, the learner, others, the evaluator. When nobody is at work, time
        stands still: idle seconds do not grow after a run."""
        with self.lock:
            first, tracks = self._first, self._tracks
            if self._frozen is not None:
                now = self._frozen
            if first is None or not tracks:
                return ()
            if all(track.state == IDLE for track in tracks.values()):
                now = max(track.reached for track in tracks.values())
            return tuple(self._seen(role, tracks[role], first, now) for role in sorted(tracks, key=rank))

    @staticmethod
    def _seen(role: str, track: _Track, first: float, now: float) -> RoleActivity:
        state = track.state
        seconds = dict(track.seconds)
        seconds[state] += max(0.0, now - track.reached)
        active, waiting = seconds[ACTIVE], seconds[WAITING]
        idle = max(0.0, now - first - active - waiting)
        return RoleActivity(
            role, state, track.doing.get(state, ""), max(0.0, now - track.begun), active, waiting, idle
        )  # fmt: skip

    def _new(self, role: str, now: float) -> _Track:
        if self._first is None or now < self._first:
            self._first = now
        track = self._tracks[role] = _Track(now)
        return track


def rank(role: str) -> tuple[int, int, str]:
    """Sorts roles: collectors by their numbers, then the learner and what else there is, the evaluator last."""
    word, _, number = role.rpartition(" ")
    places = {"collector": 0, "learner": 1, "evaluator": 3}
    return places.get(word or role, 2), int(number) if word and number.isdigit() else 0, role
