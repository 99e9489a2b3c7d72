"""Finding a story file and saying which game it is, by its md5 and never by its name."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from zoo.jericho.priorzero.games.zmachine import looks_like_story
from zoo.jericho.priorzero.paths import cache_dir

SHIPPED_GAME = "tw-gannet.z5"
SHIPPED_FOLDER = Path(__file__).resolve().parent
GAMES_VARIABLE = "LZERO_ASYNC_GAMES"
SUITE_FOLDER = Path("z-machine-games-master") / "jericho-game-suite"
RELEASE_119_MD5 = "1d4606016ea58ee038da53d994392323"

_LARGEST_STORY = 1 << 20
_LABELS = {"b732a93a6244ddd92a9b9a3e3a46c687": ("Zork I (release 88)", 350)}


@dataclass(frozen=True)
class Game:
    """A story file that was found and identified; `label` names it in every result.

    `supported` says that jericho itself knows the game (else an adapter of ours plays it), `shipped` that it comes with
    the project, and `substitute_for` which absent game it stands in for (empty: none).
    """

    path: Path
    md5: str
    name: str
    label: str
    max_score: int
    supported: bool
    shipped: bool
    substitute_for: str = ""


def find_game(env_id: str, rom_dir: str | None = None, *, allow_substitute: bool = False) -> Game:
    """The game of story file `env_id` (a name or a path).

    Looked for as given, in `rom_dir`, in `$LZERO_ASYNC_GAMES`, in ./z-machine-games-master/jericho-game-suite, in the
    user's cache folder and among the games that ship. With `allow_substitute` an absent zork1.z5 is replaced by the
    shipped game, which then says so in `substitute_for`. Raises ConfigError where nothing usable is found.
    """
    if not isinstance(env_id, str) or not env_id.strip():
        raise _bad_input(f"env_id is {env_id!r}; give the name or path of a story file, such as {SHIPPED_GAME}")
    if rom_dir and not Path(rom_dir).expanduser().is_dir():
        raise _bad_input(
            f"rom_dir {rom_dir!r} is not a folder; give the folder that holds the story files, or leave it out"
        )
    tried = _places(env_id, rom_dir)
    for candidate in tried:
        if candidate.exists():
            return identify(candidate)
    wanted = Path(env_id).name
    if allow_substitute and wanted in ("zork1.z5", "zork1"):
        return replace(identify(SHIPPED_FOLDER / SHIPPED_GAME), substitute_for="zork1.z5")
    searched = "\n".join(f"  {place}" for place in tried)
    raise _bad_input(
        f"the story file {env_id!r} was not found; looked for\n{searched}\n"
        "To get Zork I and the other games of jericho, unpack the public 'z-machine-games' archive here (as "
        f"{SUITE_FOLDER.parts[0]}/) or name its folder with --rom_dir or ${GAMES_VARIABLE}; "
        f"the game that ships with the project is {SHIPPED_GAME}"
    )


def identify(path: Path) -> Game:
    """The game in the story file at `path`, by md5; ConfigError if it cannot be read or is not a game that can be played."""
    path = path.absolute()
    data = _read(path)
    md5 = hashlib.md5(data).hexdigest()
    ours = shipped_bindings()
    if md5 in ours:
        entry = ours[md5]
        name, title = Path(entry["rom"]).stem, str(entry["title"])
        return Game(path, md5, name, title, int(entry["max_score"]), supported=True, shipped=True)
    if md5 == RELEASE_119_MD5:
        return Game(path, md5, "zork1-r119", "Zork I release 119", 350, supported=False, shipped=False)
    from jericho.defines import BINDINGS_DICT

    if md5 in BINDINGS_DICT:
        name = str(BINDINGS_DICT[md5]["name"])
        label, max_score = _LABELS.get(md5) or (name, _max_score(path))
        return Game(path, md5, name, label, max_score, supported=True, shipped=False)
    raise _bad_input(
        f"{path} is a story file (md5 {md5}) but no game known here, so its score and valid actions cannot be read; "
        f"use a game that jericho supports, Zork I release 119, or {SHIPPED_GAME}"
    )


@lru_cache(maxsize=1)
def shipped_bindings() -> dict[str, dict[str, Any]]:
    """What the shipped game declares of itself (name, title, grammar, ...), by md5 of the story file."""
    try:
        text = (SHIPPED_FOLDER / "bindings.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    declared = json.loads(text)
    return {str(declared["md5"]): declared}


def _places(env_id: str, rom_dir: str | None) -> list[Path]:
    given = Path(env_id).expanduser()
    if given.is_absolute():
        return [given]
    folders = [Path()]
    if rom_dir:
        folders.append(Path(rom_dir).expanduser())
    named = os.environ.get(GAMES_VARIABLE)
    if named:
        folders.append(Path(named).expanduser())
    folders += [SUITE_FOLDER, cache_dir() / "games", SHIPPED_FOLDER]
    return [folder / given for folder in folders]


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise _bad_input(f"{path} is a folder, not a story file; give the file in it, or the folder as --rom_dir")
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_STORY)
    except OSError as error:
        raise _bad_input(
            f"the story file {path} cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    if not data:
        raise _bad_input(f"the story file {path} is empty; download it again")
    if not looks_like_story(data):
        raise _bad_input(f"{path} is not a Z-machine story file (.z3, .z5, .z8); give the game file itself, unpacked")
    return data


def _max_score(path: Path) -> int:
    from jericho import FrotzEnv

    return int(FrotzEnv(str(path)).get_max_score())


def _bad_input(message: str) -> Exception:
    # Imported here, so that a game's own process, which never reports bad input, starts without the library.
    from lzero_async.errors import ConfigError

    return ConfigError(message)
