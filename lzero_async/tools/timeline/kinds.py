"""What a role can be doing, and how each of these is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple


class Kind(NamedTuple):
    """How one kind of work is drawn: as a character, as one that is filled to less than half, and in a colour."""

    mark: str
    partly: str
    colour: str
    label: str


WAIT: Final = "wait"
CUT_OFF: Final = "cut off"
FAILED: Final = "failed"
REJECTED: Final = "rejected"
OTHER: Final = "other"
KINDS: Final = {
    "collect": Kind("=", "-", "#2a9d8f", "collect"),
    "train": Kind("#", "+", "#e76f51", "train"),
    "replay": Kind("R", "r", "#f4a261", "train on old data"),
    "publish": Kind("P", "p", "#264653", "publish weights"),
    "eval": Kind("E", "e", "#8d6cab", "evaluation"),
    OTHER: Kind("O", "o", "#8ab17d", "other work"),
    WAIT: Kind(".", ".", "#e4e7eb", "waits"),
    CUT_OFF: Kind("~", "~", "#c9b79c", "cut off by the end"),
    FAILED: Kind("x", "x", "#c1121f", "failed"),
    REJECTED: Kind("/", "/", "#b08968", "rejected"),
}
PLAIN: Final = (WAIT, CUT_OFF, FAILED, REJECTED)  # drawn the same however short they are
IDLE: Final = " "
SEEN: Final = 0.02  # of a character's time: less work than this does not show
FULL: Final = 0.5


def kind_of(name: str) -> str:
    """The kind of a span by its name; what the application calls its own is other work."""
    if name.startswith("wait"):
        return WAIT
    for end in (FAILED, CUT_OFF, REJECTED):
        if name.endswith(f" {end}"):
            return end
    return name if name in KINDS else OTHER


def mark(shares: Mapping[str, float]) -> str:
    """The character for a stretch in which each kind took this share of the time; a failure is never hidden by other work."""
    if shares.get(FAILED, 0.0) > 0:
        return KINDS[FAILED].mark
    waits = shares.get(WAIT, 0.0)
    work = {kind: share for kind, share in shares.items() if kind != WAIT}
    total = sum(work.values())
    if total < SEEN:
        return KINDS[WAIT].mark if waits > 1 - total - waits else IDLE
    most = KINDS[max(work, key=work.__getitem__)]
    return most.mark if total >= FULL else most.partly


def legend(kinds: Collection[str]) -> str:
    """What the characters mean, those of these kinds only."""
    shown = [(kind, look) for kind, look in KINDS.items() if kind in kinds]
    work = [look for kind, look in shown if kind not in PLAIN]
    parts = [", ".join(f"{look.mark} {look.label}" for look in work)]
    if work:
        parts.append(f"{' '.join(look.partly for look in work)} the same, less than half of the time")
    parts += [f"{look.mark} {look.label}" for kind, look in shown if kind in PLAIN]
    return "; ".join([*(part for part in parts if part), "blank: idle"])
