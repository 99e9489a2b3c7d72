"""Zork I release 119, a story file that jericho can run but of which it knows neither score nor ends nor valid actions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jericho import defines
from jericho.template_action_generator import TemplateActionGenerator

from zoo.jericho.priorzero.games.adapters import NULL_COMMANDS, JerichoAdapter, Outcome

_OTHER_DICE = ((11, 0, 0), (222, 0, 0), (3333, 0, 0))


class Release119Adapter(JerichoAdapter):
    """Zork I release 119: score and moves from memory, ends from the text, commands tried one by one."""

    null_commands = (
        *NULL_COMMANDS,
        "examine mailbox",
        "look at mailbox",
        "look at house",
        "look at all",
        "look at all with door",
        "look at door with house",
        "fill mailbox with door",
        "fill door",
        "open house with mailbox",
        "open door",
        "ask house",
        "give all door",
        "give house to door",
        "put down all",
        "put door in house",
        "put all in house",
        "push house door",
        "take all off house",
        "take on house",
        "take house",
        "take all",
        "throw door at house",
        "climb",
        "climb house",
        "diagnose",
        "read door",
        "hello",
        "jump",
        "what is zork",
    )
    # Fewer than elsewhere: each command is tried from Python, and most templates name two things.
    most_names = 12
    _SCORE, _MOVES = 1, 2
    # They ask about the game or set how it talks; they change nothing in it.
    _IDLE_VERBS = ("diagno", "invent", "superb", "verbos", "brief", "bug", "examin", "look", "read", "find", "where")
    _WON, _DIED = "The ZORK trilogy continues with", "****  You have died  ****"

    def restart(self, seed: int | None) -> str:
        self._said = ""
        return super().restart(seed)

    def step(self, command: str) -> str:
        self._said = super().step(command)
        return self._said

    def outcome(self) -> Outcome:
        memory = self.memory()
        score, moves = (self.layout.global_word(memory, n) for n in (self._SCORE, self._MOVES))
        won, died = self._WON in self._said, self._DIED in self._said
        return Outcome(score, moves, won, died, won or died or self.env._emulator_halted())

    def location(self) -> str:
        return self.layout.name(self._place(self.memory()))

    def around(self) -> list[int]:
        memory = self.memory()
        return [n for n in self.layout.everything_in(memory, self._place(memory)) if n != self.player]

    def object_name(self, number: int) -> str:
        return self.layout.name(number)

    def effects(self, commands: Sequence[str]) -> list[list[str]]:
        start = self.save()
        before = self.state_key()
        idle = self._after(start, "wait", None)
        groups: dict[bytes, list[str]] = defaultdict(list)
        elsewhere = {dice: self._after(start, "wait", dice)[0] for dice in _OTHER_DICE}
        for command in commands:
            key, dice, end = self._after(start, command, None)
            if key not in (before, idle[0]) or end:
                if "(Taken)" not in self._said:
                    groups[key + end].append(command)
            elif dice != idle[1]:
                # It rolled dice and nothing came of it: a blow that missed counts if another throw would have hit.
                outcomes = [(self._after(start, command, other)[0], elsewhere[other]) for other in _OTHER_DICE]
                if any(after not in (before, waited) for after, waited in outcomes):
                    groups[b"dice" + outcomes[0][0]].append(command)
        self.restore(start)
        return list(groups.values())

    def _after(
        self, start: Any, command: str, dice: tuple[int, int, int] | None
    ) -> tuple[bytes, tuple[int, int, int], bytes]:
        self.restore(start)
        lib = self.env.frotz_lib
        if dice is not None:
            lib.setRng(*dice)
        self.step(command)
        outcome = self.outcome()
        rolled = (int(lib.getRngA()), int(lib.getRngInterval()), int(lib.getRngCounter()))
        return self.state_key(), rolled, b"won" if outcome.won else b"died" if outcome.died else b""

    def _make_generator(self) -> TemplateActionGenerator:
        generator = TemplateActionGenerator(defines.zork1)
        generator.templates = [t for t in generator.templates if t.split()[0] not in self._IDLE_VERBS]
        return generator

    def _find_player(self) -> int:
        return self.layout.find("cretin")

    def _special_bytes(self) -> bytes:
        return b""
