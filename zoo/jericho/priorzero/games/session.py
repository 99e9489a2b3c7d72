"""One game in this process: states in, commands out, with valid actions found once per state."""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass

from zoo.jericho.priorzero.games.files import Game
from zoo.jericho.priorzero.games.valid_actions import Description, ValidActionStore, describe

_logger = logging.getLogger(__name__)
_LONGEST_COMMAND = 190
_LARGEST_SEED = 2**31 - 1
# They would leave the game, or write or read files, or replace the game by another.
_FORBIDDEN = "save restore restor restart restar quit q script unscript unscri transcript noscript record replay"


@dataclass(frozen=True)
class GameState:
    """What there is to know after a command; `reward` is the change of score, `moves` the game's own count of turns."""

    response: str
    look: str
    inventory: str
    location: str
    valid_actions: tuple[str, ...]
    reward: float
    score: int
    moves: int
    done: bool
    won: bool
    died: bool

    def fault(self) -> str:
        """What no game can mean by this state; '' if all is well."""
        for name in ("response", "look", "inventory", "location"):
            if not isinstance(getattr(self, name), str):
                return f"{name} is {_shown(getattr(self, name))}, not a text"
        actions = self.valid_actions
        if not isinstance(actions, tuple) or not all(isinstance(action, str) for action in actions):
            return f"valid_actions is {_shown(actions)}, not a tuple of texts"
        for name in ("reward", "score", "moves"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                return f"{name} is {_shown(value)}, not a finite number"
        return ""


class GameSession:
    """A game that is played in this process; use one per process, since the C code under jericho is not made for threads.

    `seed` None means the game's own seed. `store_path` empty: nothing is kept on disk. The last `memory_size`
    descriptions are kept in memory. Every `verify_every`-th time a description is used again, its look text is compared
    with what the game says; if they differ the key of the state is not to be trusted, so nothing is reused any more.
    """

    def __init__(
        self,
        game: Game,
        seed: int | None = None,
        *,
        store_path: str = "",
        store_rows: int = 200_000,
        memory_size: int = 50_000,
        verify_every: int = 64,
    ) -> None:
        # The state above is used in places that play no game and need no jericho.
        from zoo.jericho.priorzero.games.adapters import open_game

        self._game = game
        self._adapter = open_game(game)
        self._seed = _checked_seed(seed)
        self._store = ValidActionStore(store_path, store_rows)
        self._known: dict[bytes, Description] = {}
        self._memory_size = memory_size
        self._verify_every = verify_every
        self._trusted = True
        self._score = 0
        self._over = True
        self._counts = {"steps": 0, "episodes": 0, "valid_action_hits": 0, "valid_action_store_hits": 0}
        self._counts |= {"valid_action_misses": 0, "valid_action_checks": 0}
        self._search_seconds = 0.0

    def reset(self, seed: int | None = None) -> GameState:
        """Begin the game anew; a seed given here holds from now on."""
        if seed is not None:
            self._seed = _checked_seed(seed)
        response = self._adapter.restart(self._seed)
        self._score = self._adapter.outcome().score
        self._over = False
        self._counts["episodes"] += 1
        return self._state(response)

    def step(self, action: str) -> GameState:
        """Send one command; ValueError for one that cannot be sent, RuntimeError if the game has ended."""
        command = checked_command(action)
        if self._over:
            raise RuntimeError("the game has ended or was never begun; call reset first")
        self._counts["steps"] += 1
        return self._state(self._adapter.step(command))

    def statistics(self) -> dict[str, float]:
        """Counts since the session began; `valid_action_search_seconds` is what the searches took."""
        return {**self._counts, "valid_action_search_seconds": self._search_seconds}

    def close(self) -> None:
        """Close the game and the store."""
        self._store.close()
        self._adapter.close()

    def _state(self, response: str) -> GameState:
        now = self._adapter.outcome()
        reward, self._score, self._over = float(now.score - self._score), now.score, now.over
        if now.over:
            seen = Description((), response, "", "")
        else:
            seen = self.description()
        return GameState(
            response=response,
            look=seen.look,
            inventory=seen.inventory,
            location=seen.location,
            valid_actions=seen.valid_actions,
            reward=reward,
            score=now.score,
            moves=now.moves,
            done=now.over,
            won=now.won,
            died=now.died,
        )

    def description(self) -> Description:
        """Valid actions, look, inventory and location of the state the game is in: known ones at the cost of a look-up."""
        if not self._trusted:
            return self._search()
        key = self._adapter.state_key()
        found = self._known.get(key)
        if found is None:
            found = self._store.get(self._game.md5, key) if self._store.usable else None
            if found is None:
                found = self._search()
                self._store.put(self._game.md5, key, found)
                return self._remember(key, found)
            self._counts["valid_action_store_hits"] += 1
            self._remember(key, found)
        self._counts["valid_action_hits"] += 1
        if self._counts["valid_action_hits"] % self._verify_every == 0 and not self._holds(found):
            return self._search()
        return found

    def _search(self) -> Description:
        began = time.perf_counter()
        found = describe(self._adapter)
        self._search_seconds += time.perf_counter() - began
        self._counts["valid_action_misses"] += 1
        return found

    def _remember(self, key: bytes, found: Description) -> Description:
        if len(self._known) >= self._memory_size:
            del self._known[next(iter(self._known))]
        self._known[key] = found
        return found

    def _holds(self, found: Description) -> bool:
        self._counts["valid_action_checks"] += 1
        if self._adapter.peek("look") == found.look:
            return True
        _logger.warning(
            "%s: a state that was seen before looks different now, so valid actions are found anew every time (slow)",
            self._game.label,
        )
        self._trusted = False
        self._known.clear()
        self._store.close()
        return False


def checked_command(action: str) -> str:
    """The command with blanks collapsed; ValueError if it is empty, too long, or one that leaves the game or writes files."""
    if not isinstance(action, str) or not action.strip():
        raise ValueError(f"the command {action!r} is empty; give what to type, such as 'look'")
    command = " ".join(action.split())
    if len(command.encode()) > _LONGEST_COMMAND:
        raise ValueError(f"the command {command[:40]!r}... is longer than {_LONGEST_COMMAND} bytes")
    for sentence in re.split(r"[.,;]|\bthen\b", command.lower()):
        words = sentence.split()
        if words and words[0] in _FORBIDDEN.split():
            raise ValueError(
                f"the command {command!r} would leave the game or touch files ({words[0]!r}), so it is not sent"
            )
    return command


def _shown(value: object, most: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[:most]}..."


def _checked_seed(seed: int | None) -> int | None:
    if seed is None:
        return None
    if not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"seed {seed} is not between 0 and {_LARGEST_SEED}")
    # The interpreter takes 0 for "no seed".
    return seed or _LARGEST_SEED
