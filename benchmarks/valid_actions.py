"""Valid actions of a state seen before, against finding them: ratios along the shipped game's walkthrough."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Bar
from zoo.jericho.priorzero.games.files import SHIPPED_FOLDER, SHIPPED_GAME, find_game
from zoo.jericho.priorzero.games.session import GameSession

STATES = 20
VISITS = 50


def bars() -> list[Bar]:
    """The bar of the second visit, and what stands beside it."""
    return [
        Bar("second visit in one run, key and checks included: times faster", 1000, True, lambda: measure()["memory"]),
        Bar("first visit in a later run, from disk: times faster", None, True, lambda: measure()["disk"]),
        Bar("a search (ms)", None, False, lambda: measure()["search_ms"]),
    ]


def measure() -> dict[str, float]:
    """Mean time of a search over mean time of a look-up, over the first states of the walkthrough.

    A look-up is what a step pays: computing the key of the state, finding the entry, and the look text compared with the
    game's every 64th time. The search is ours; jericho's own needs a spaCy model.
    """
    actions = (SHIPPED_FOLDER / "walkthrough.txt").read_text().split("\n")[: STATES - 1]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store.sqlite")
        search = memory = disk = 0.0
        first = GameSession(find_game(SHIPPED_GAME), store_path=path)
        first.reset()
        for action in ["", *actions]:
            if action:
                first.step(action)
            first._known.clear()
            first._store.close()
            search += seconds(first.description, 1)
            memory += seconds(first.description, VISITS) / VISITS
        first.close()
        filling = GameSession(find_game(SHIPPED_GAME), store_path=path)
        filling.reset()
        for action in actions:
            filling.step(action)
        filling.close()
        later = GameSession(find_game(SHIPPED_GAME), store_path=path)
        later.reset()
        for action in ["", *actions]:
            if action:
                later.step(action)
            later._known.clear()
            disk += seconds(later.description, 1)
        assert later.statistics()["valid_action_misses"] == 0
        later.close()
    count = len(actions) + 1
    return {
        "memory": search / memory,
        "disk": search / disk,
        "search_ms": 1e3 * search / count,
        "memory_us": 1e6 * memory / count,
        "disk_us": 1e6 * disk / count,
    }


def seconds(call: Callable[[], object], number: int) -> float:
    began = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - began


if __name__ == "__main__":
    print({name: round(value, 1) for name, value in measure().items()})
