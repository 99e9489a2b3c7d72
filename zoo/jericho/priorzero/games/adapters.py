"""One running story file: its text, its outcome, a key of its state, and which commands change it.

`JerichoAdapter` plays what jericho supports (the shipped game included); zork1_release119.py adds a game of which jericho
knows nothing. One process should hold one of them: the C code under jericho is not made for threads.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jericho
from jericho import defines
from jericho.template_action_generator import TemplateActionGenerator

from zoo.jericho.priorzero.games.files import Game, shipped_bindings
from zoo.jericho.priorzero.games.zmachine import StoryLayout, digest
from zoo.jericho.priorzero.paths import cache_dir

_STATUS_LINES = re.compile(r"^>?[^\n]*?(?:-=[^\n]*=-\s*-?\d*/\d+|Score: *-?\d+ +Moves: *\d+)[ \t]*$", re.MULTILINE)
_LONE_STATUS = re.compile(r"\A\s*-?\d*/\d+\s*$", re.MULTILINE)
_BANNER = re.compile(r"Serial number", re.IGNORECASE)

# States of the interpreter's random numbers: seed, interval (0: not counting) and counter.
_DICE = (1, 0, 0)

# Commands that should change nothing: the globals they touch belong to the parser or count turns. The long one fills what
# a long command can fill. Whatever does change an object is left out when the game is looked at.
NULL_COMMANDS = (
    "qqqq",
    "zzzz zzzz zzzz zzzz zzzz zzzz zzzz zzzz",
    "look",
    "inventory",
    "wait",
    "examine me",
    "examine qqqq",
    "take me",
    "drop all",
    "put me in me",
    "put all in me",
    "unlock me with me",
    "give me to me",
    "enter me",
    "north",
    "south",
    "east",
    "west",
    "up",
    "down",
    "northeast",
    "northwest",
    "southeast",
    "southwest",
    "north;south",
    "south;north",
    "east;west",
    "west;east",
    "up;down",
    "down;up",
)


_SETTING_OUT = ("north", "south", "east", "west", "northeast", "southwest", "up", "down", "in", "out", "take all")


@dataclass(frozen=True)
class Outcome:
    """Where a game stands: points, turns, and whether and how it ended."""

    score: int
    moves: int
    won: bool
    died: bool
    over: bool


def clean_text(text: str) -> str:
    """What the game said, without status lines, prompts, trailing blanks and runs of empty lines."""
    text = _LONE_STATUS.sub("", _STATUS_LINES.sub("", text))
    lines = [line.rstrip() for line in text.replace("\r", "").split("\n")]
    lines = ["" if line.strip() == ">" else line for line in lines]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n").removesuffix("\n>").strip()


def without_banner(text: str) -> str:
    """Opening text without the paragraph that carries title, copyright and release."""
    kept = [part for part in text.split("\n\n") if not _BANNER.search(part)]
    return "\n\n".join(kept).strip() or text


class JerichoAdapter:
    """A game that jericho supports."""

    null_commands: tuple[str, ...] = NULL_COMMANDS
    most_names = 16

    def __init__(self, game: Game) -> None:
        if game.md5 in shipped_bindings():
            defines.BINDINGS_DICT[game.md5] = shipped_bindings()[game.md5]
        self.env = _open_story(game)
        self.layout = StoryLayout(game.path.read_bytes())
        self.dictionary: dict[str, Any] = {entry.word: entry for entry in self.env.get_dictionary()}
        self.word_length = max((len(word) for word in self.dictionary), default=9)
        self._memory = (ctypes.c_ubyte * self.env.frotz_lib.getRAMSize())()
        self._view = memoryview(self._memory).cast("B")
        self._region = self.layout.object_region
        self._special = (ctypes.c_ubyte * max(1, self.env.frotz_lib.get_special_ram_size()))()
        self.generator = self._make_generator()
        self.player = self._find_player()
        zork = game.name.startswith("zork1") and self.layout.version == 3
        self._thief = self.layout.find("thief") if zork else 0
        self.start_text = self.restart(None)
        self._variables = self._find_variables()

    def restart(self, seed: int | None) -> str:
        """Begin the game anew with that seed (None: the game's own) and return its opening text."""
        self.env.seed(seed)
        return without_banner(clean_text(self.env.reset()[0]))

    def step(self, command: str) -> str:
        """Send a command and return what the game said."""
        return clean_text(self.env.step(command)[0])

    def outcome(self) -> Outcome:
        """Where the game stands after `step` or `restart`; not to be read after `restore`."""
        won, died = self.env.victory(), self.env.game_over()
        over = won or died or self.env._emulator_halted()
        return Outcome(int(self.env.get_score()), int(self.env.get_moves()), won, died and not won, over)

    def save(self) -> Any:
        """The whole state of the interpreter, to be given to `restore`."""
        return self.env.get_state()

    def restore(self, state: Any) -> None:
        """Go back to a saved state."""
        self.env.set_state(state)

    def fix_dice(self) -> None:
        """Set the random numbers to come, so that what is tried from one state always has the same outcome."""
        self.env.frotz_lib.setRng(*_DICE)

    def peek(self, command: str) -> str:
        """What the game would say to a command with fixed dice; the command is then undone."""
        state = self.save()
        self.fix_dice()
        text = self.step(command)
        self.restore(state)
        return text

    def memory(self) -> memoryview:
        """The dynamic memory now; the same buffer at every call."""
        self.env.frotz_lib.getRAM(self._memory)
        return self._view

    def state_key(self) -> bytes:
        """A digest of the objects, their properties, the variables that belong to the game and jericho's special bytes."""
        memory = self.memory()
        return digest(self._objects(memory), *[memory[a:b] for a, b in self._variables], self._special_bytes())

    def held(self) -> list[int]:
        """Numbers of the objects the player holds."""
        return self.layout.contents(self.memory(), self.player)

    def around(self) -> list[int]:
        """Numbers of the objects in the player's surroundings, at any depth, without the player."""
        memory = self.memory()
        place = self.layout.parent(memory, self.player)
        return [n for n in self.layout.everything_in(memory, place) if n != self.player] if place else []

    def location(self) -> str:
        """Name of the place where the player is."""
        return self.object_name(self.layout.parent(self.memory(), self.player))

    def object_name(self, number: int) -> str:
        """Short name of an object."""
        found = self.env.get_object(number)
        return found.name if found is not None else ""

    def effects(self, commands: Sequence[str]) -> list[list[str]]:
        """The commands that would change the game, those with the same effect together."""
        return list(self.env._filter_candidate_actions(list(commands), use_ctypes=True).values())

    def close(self) -> None:
        """Free what the interpreter holds."""
        self.env.close()

    def _make_generator(self) -> TemplateActionGenerator:
        return self.env.act_gen

    def _find_player(self) -> int:
        return int(self.env.player_obj_num)

    def _objects(self, memory: memoryview) -> memoryview | bytearray:
        """The objects; in Zork I without the thief, unless he is with the player.

        He walks about all the time, which would make every turn a new state though nothing can be seen of it.
        """
        first, last = self._region
        thief, layout = self._thief, self.layout
        room = layout.parent(memory, thief) if thief else 0
        if room in (0, self._place(memory)):
            return memory[first:last]
        objects = bytearray(memory[first:last])
        follower = layout.sibling(memory, thief)
        before = next((n for n in layout.contents(memory, room) if layout.sibling(memory, n) == thief), 0)
        # In an entry of version 3 the holder, the next and the first held object are bytes 4, 5 and 6.
        objects[9 * (before - 1) + 5 if before else 9 * (room - 1) + 6] = follower
        objects[9 * (thief - 1) + 4 : 9 * (thief - 1) + 6] = b"\0\0"
        return objects

    def _place(self, memory: memoryview) -> int:
        """The room the player is in, by the variable that the status line of a version 3 game shows."""
        return self.layout.global_word(memory, 0)

    def _special_bytes(self) -> bytes:
        self.env.frotz_lib.get_special_ram(self._special)
        return bytes(self._special)

    def _find_variables(self) -> list[tuple[int, int]]:
        """Ranges of addresses of the variables that no command without effect changes: those that belong to the game."""
        for command in NULL_COMMANDS[2:6]:
            # What happens only once, at the first command, is over then.
            self.env.step(command)
        start = self.save()
        addresses = self.layout.variable_words
        changed = self._changed_by(self.null_commands, addresses)
        for command in _SETTING_OUT:
            # What a command that has an effect leaves behind for the parser shows when the next one has none.
            self.restore(start)
            self.env.step(command)
            if not self.outcome().over:
                changed |= self._changed_by((*NULL_COMMANDS[:6], *NULL_COMMANDS[-6:]), addresses)
        ranges: list[tuple[int, int]] = []
        for at in addresses:
            if at in changed:
                continue
            if ranges and ranges[-1][1] == at:
                ranges[-1] = (ranges[-1][0], at + 2)
            else:
                ranges.append((at, at + 2))
        return ranges

    def _changed_by(self, commands: Sequence[str], addresses: Sequence[int]) -> set[int]:
        """Those of the addresses of words that change, in the state now, by a command that leaves all objects alone."""
        start = self.save()
        memory = bytes(self.memory())
        objects = bytes(self._objects(memoryview(memory)))
        changed: set[int] = set()
        for command in commands:
            self.restore(start)
            for part in command.split(";"):
                self.env.step(part)
            after = self.memory()
            if bytes(self._objects(after)) == objects:
                changed |= {at for at in addresses if after[at : at + 2] != memory[at : at + 2]}
        return changed


def open_game(game: Game) -> JerichoAdapter:
    """The adapter that plays this game."""
    if game.supported:
        return JerichoAdapter(game)
    from zoo.jericho.priorzero.games.zork1_release119 import Release119Adapter

    return Release119Adapter(game)


def _open_story(game: Game) -> jericho.FrotzEnv:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jericho.jericho.UnsupportedGameWarning)
        env = jericho.FrotzEnv(str(_under_its_name(game)))
    words = env.get_dictionary()
    # It reads and parses the file at every call.
    env.get_dictionary = lambda: words
    return env


def _under_its_name(game: Game) -> Path:
    """A file of the game whose name does not mislead the interpreter: a copy in the user's cache folder where needed.

    The interpreter takes a file for a TextWorld game if and only if its name starts with "tw-".
    """
    if game.path.name.startswith("tw-") == game.name.startswith("tw-"):
        return game.path
    copy = cache_dir() / "stories" / game.md5 / (game.name + game.path.suffix)
    data = game.path.read_bytes()
    if not copy.exists() or copy.read_bytes() != data:
        copy.parent.mkdir(parents=True, exist_ok=True)
        unfinished = copy.with_name(f"{copy.name}.{os.getpid()}")
        unfinished.write_bytes(data)
        os.replace(unfinished, copy)
    return copy
