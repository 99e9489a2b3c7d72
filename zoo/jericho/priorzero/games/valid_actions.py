"""Valid actions, found once per state of a game: the search for them, and a store on disk that all workers share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zoo.jericho.priorzero.sqlite_cache import CacheFile

if TYPE_CHECKING:
    from zoo.jericho.priorzero.games.adapters import JerichoAdapter

# Part of every key: raise it when the search or the key of a state changes, and what was stored before is not found any more.
VERSION = 1

_WORD = re.compile(r"[a-z][a-z'-]*")
_NOT_OBJECTS = (
    "a all an and any at both each every everythin everything he her here him his i in is it its itself me mine my myself "
    "no of off on one other others out self she some that the their them there these they this those three to two us we with you "
    "your yourself"
)
_FEWEST_AROUND = 6


@dataclass(frozen=True)
class Description:
    """What is known of one state of a game: its valid actions (sorted, distinct), and what can be seen, held and where."""

    valid_actions: tuple[str, ...]
    look: str
    inventory: str
    location: str


def describe(adapter: JerichoAdapter) -> Description:
    """Find everything about the state the game is in, at the cost of trying hundreds of commands; the state is kept."""
    state = adapter.save()
    adapter.fix_dice()
    look = adapter.peek("look")
    listed = adapter.peek("inventory")
    held = sorted(filter(None, map(adapter.object_name, adapter.held())))
    inventory = f"You are carrying: {', '.join(held)}." if held else "You are carrying nothing."
    location = adapter.location()
    commands = adapter.generator.generate_actions([*object_names(adapter, look, listed), "all"])
    best = [_most_usual(group) for group in adapter.effects(commands)]
    adapter.restore(state)
    return Description(tidy_actions(best), look, inventory, location)


def tidy_actions(actions: Sequence[str]) -> tuple[str, ...]:
    """Sorted and distinct, blanks collapsed, nothing empty: the order tells nothing about what is worth doing."""
    return tuple(sorted({" ".join(action.split()) for action in actions} - {""}))


def object_names(adapter: JerichoAdapter, look: str, inventory: str) -> list[str]:
    """One word for each thing that can be referred to here, sorted.

    What is held keeps a word of its own, since in the dark every examination reads alike; elsewhere words whose
    examinations read alike mean one thing.
    """
    taken: dict[str, str] = {}
    for number in adapter.held():
        word = next((w for w in _words_of_name(adapter, number) if w not in taken.values()), None)
        if word:
            taken.setdefault(adapter.peek(f"examine {word}") + f"#{number}", word)
    named = [w for number in adapter.around() for w in _words_of_name(adapter, number)]
    ranked = {word: rank for rank, word in reversed(list(enumerate(named)))}
    words = set(named) | set(_words_of_text(adapter, look)) | set(_words_of_text(adapter, inventory))
    held_readings = {key.rpartition("#")[0] for key in taken}
    groups: dict[str, list[str]] = {}
    for word in sorted(words - set(taken.values())):
        reading = adapter.peek(f"examine {word}")
        if _is_recognised(reading) and reading not in held_readings:
            groups.setdefault(reading, []).append(word)

    def merit(word: str) -> tuple[bool, bool, int, int, str]:
        entry = adapter.dictionary[word[: adapter.word_length]]
        return (not entry.is_noun, entry.is_adj, ranked.get(word, len(ranked)), len(word), word)

    room = max(_FEWEST_AROUND, adapter.most_names - len(taken))
    best = [min(group, key=merit) for group in groups.values()]
    return sorted({*taken.values(), *sorted(best, key=merit)[:room]})


def _words_of_name(adapter: JerichoAdapter, number: int) -> list[str]:
    words = _WORD.findall(adapter.object_name(number).lower())
    return [w for w in reversed(words) if _can_name(adapter, w)]


def _words_of_text(adapter: JerichoAdapter, text: str) -> list[str]:
    return [w for w in _WORD.findall(text.lower()) if _can_name(adapter, w)]


def _can_name(adapter: JerichoAdapter, word: str) -> bool:
    entry = adapter.dictionary.get(word[: adapter.word_length])
    if entry is None or word in _NOT_OBJECTS.split() or entry.is_dir:
        return False
    return entry.is_noun or entry.is_adj or not entry.pos()


def _is_recognised(reading: str) -> bool:
    from jericho.util import clean, recognized

    return bool(recognized(clean(reading)))


def _most_usual(group: Sequence[str]) -> str:
    from jericho.util import verb_usage_count

    return min(group, key=lambda action: (-verb_usage_count(action), len(action), action))


class ValidActionStore(CacheFile):
    """A SQLite file of descriptions by story and state; see `CacheFile` for what may go wrong."""

    what = "valid actions"
    table = "described"
    columns: ClassVar = {"story": "TEXT", "version": "INTEGER", "state": "BLOB", "found": "TEXT"}
    unique = "story, version, state"

    def __init__(self, path: str | os.PathLike[str] | None, max_rows: int = 200_000, busy_seconds: float = 5.0) -> None:
        super().__init__(path, max_rows, busy_seconds)

    def get(self, story: str, state: bytes) -> Description | None:
        """The description of a state of a story (by md5), or None."""
        row = self._guarded(lambda: self._select(story, state))
        if row is None:
            return None
        try:
            actions, look, inventory, location = json.loads(row[0])
            return Description(tuple(actions), look, inventory, location)
        except (ValueError, TypeError):
            # Not what this version writes: as good as absent.
            return None

    def put(self, story: str, state: bytes, found: Description) -> None:
        """Keep a description; the first one of a state stays."""
        text = json.dumps([found.valid_actions, found.look, found.inventory, found.location], ensure_ascii=False)
        self._guarded(lambda: self._add([(story, VERSION, state, text)]))

    def __len__(self) -> int:
        row = self._guarded(lambda: self._run("SELECT count(*) FROM described").fetchone())
        return int(row[0]) if row else 0

    def _select(self, story: str, state: bytes) -> Any:
        return self._run(
            "SELECT found FROM described WHERE story=? AND version=? AND state=?", (story, VERSION, state)
        ).fetchone()
