"""Finding games, playing them in this process, and keeping their valid actions."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.games import files as game_files
from zoo.jericho.priorzero.games import valid_actions
from zoo.jericho.priorzero.games.files import RELEASE_119_MD5, SHIPPED_FOLDER, SHIPPED_GAME, find_game, identify
from zoo.jericho.priorzero.games.session import GameSession, checked_command
from zoo.jericho.priorzero.games.valid_actions import Description, ValidActionStore, describe, tidy_actions

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = SHIPPED_FOLDER / SHIPPED_GAME
RELEASE_119 = Path(os.environ.get("LZERO_ASYNC_TEST_GAMES", "")) / "zork1-r119.z3"
needs_release_119 = pytest.mark.skipif(
    not (os.environ.get("LZERO_ASYNC_TEST_GAMES") and RELEASE_119.is_file()),
    reason="LZERO_ASYNC_TEST_GAMES has no Zork I",
)


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(game_files.GAMES_VARIABLE, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


@pytest.fixture
def session():
    session = GameSession(find_game(SHIPPED_GAME))
    yield session
    session.close()


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv(game_files.GAMES_VARIABLE, str(tmp_path / "named"))
    roms = tmp_path / "roms"
    folders = [Path(), roms, tmp_path / "named", game_files.SUITE_FOLDER, tmp_path / "cache" / "games"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(SHIPPED, folder / "story.z5")
    for folder in folders:
        found = find_game("story.z5", str(roms))
        assert found.path == (folder / "story.z5").absolute()
        assert found.label == find_game(str(SHIPPED)).label
        found.path.unlink()
    with pytest.raises(ConfigError, match=r"'story\.z5' was not found") as error:
        find_game("story.z5", str(roms))
    for folder in [*folders, SHIPPED_FOLDER]:
        assert f"  {folder / 'story.z5'}\n" in str(error.value)
    assert "z-machine-games" in str(error.value) and "--rom_dir" in str(error.value)


def test_the_shipped_game_is_found_by_its_name():
    game = find_game(SHIPPED_GAME)
    assert (game.path, game.max_score, game.supported, game.shipped, game.substitute_for) == (
        SHIPPED,
        100,
        True,
        True,
        "",
    )
    assert game.name == Path(SHIPPED_GAME).stem


def test_a_file_is_known_by_its_content_not_by_its_name(tmp_path):
    shutil.copy(SHIPPED, tmp_path / "zork1.z5")
    game = find_game("zork1.z5", str(tmp_path))
    assert game.shipped and "Zork" not in game.label and game.substitute_for == ""


@needs_release_119
def test_release_119_is_never_taken_for_release_88(tmp_path):
    shutil.copy(RELEASE_119, tmp_path / "zork1.z5")
    game = find_game("zork1.z5", str(tmp_path), allow_substitute=True)
    assert (game.md5, game.label, game.max_score) == (RELEASE_119_MD5, "Zork I release 119", 350)
    assert not game.supported and not game.shipped and not game.substitute_for


def test_only_an_absent_zork_is_replaced_and_only_when_allowed(tmp_path):
    with pytest.raises(ConfigError, match="not found"):
        find_game("zork1.z5")
    game = find_game("zork1.z5", allow_substitute=True)
    assert game.shipped and game.substitute_for == "zork1.z5"
    with pytest.raises(ConfigError, match="not found"):
        find_game("zork2.z5", allow_substitute=True)
    assert find_game(SHIPPED_GAME, allow_substitute=True).substitute_for == ""


def _unknown_story() -> bytes:
    return SHIPPED.read_bytes() + b"\0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is a folder"),
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(500), "is not a Z-machine story file"),
        (b"\x05short", "is not a Z-machine story file"),
        (_unknown_story, "no game known here"),
    ],
)
def test_what_cannot_be_played_is_refused_clearly(tmp_path, content, message):
    path = tmp_path / "story.z5"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content() if callable(content) else content)
    with pytest.raises(ConfigError, match=message):
        find_game(str(path))
    with pytest.raises(ConfigError, match=message):
        find_game("story.z5", str(tmp_path), allow_substitute=True)


def test_an_unreadable_file_and_odd_arguments_are_refused(tmp_path, monkeypatch):
    shutil.copy(SHIPPED, tmp_path / "story.z5")

    def refuse(self, *_args, **_more):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched, pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        patched.setattr(Path, "open", refuse)
        find_game(str(tmp_path / "story.z5"))
    with pytest.raises(ConfigError, match="is not a folder"):
        find_game(SHIPPED_GAME, str(tmp_path / "absent"))
    for env_id in ("", "  ", None):
        with pytest.raises(ConfigError, match="env_id is"):
            find_game(env_id)
    with pytest.raises(ConfigError, match="not found"):
        find_game(str(tmp_path / "absent.z5"))


def test_a_copy_under_any_name_can_be_played(tmp_path):
    shutil.copy(SHIPPED, tmp_path / "renamed.z5")
    session = GameSession(identify(tmp_path / "renamed.z5"))
    state = session.reset()
    session.close()
    assert state.valid_actions and state.location


def test_texts_carry_no_status_line_prompt_or_protocol(session):
    states = [session.reset()]
    dice = random.Random(3)
    for _ in range(30):
        states.append(session.step(dice.choice(states[-1].valid_actions)))
        if states[-1].done:
            break
    for state in states:
        text = "\n".join([state.response, state.look, state.inventory])
        for noise in ("-=", "=-", "tw-print", "Serial number", "\n>", "\n\n\n"):
            assert noise not in text
        assert text == text.strip() and state.valid_actions == tidy_actions(state.valid_actions)
    assert states[0].location == states[0].look.split("\n")[0]


def test_known_states_are_described_as_if_found_anew(session):
    """Along random play, what was remembered of a state equals a new search in it, and `look` prints the same."""
    dice, state, compared = random.Random(1), session.reset(), 0
    for _ in range(120):
        known = session.statistics()["valid_action_hits"]
        state = session.step(dice.choice(state.valid_actions))
        if state.done:
            state = session.reset()
        if session.statistics()["valid_action_hits"] > known:
            adapter = session._adapter
            fresh = describe(adapter)
            assert (state.valid_actions, state.look, state.inventory, state.location) == (
                fresh.valid_actions,
                fresh.look,
                fresh.inventory,
                fresh.location,
            )
            before = adapter.save()
            assert adapter.step("look") == state.look
            adapter.restore(before)
            compared += 1
    assert compared > 20


def test_a_search_leaves_the_game_as_it_was(session):
    """The same commands give the same texts, scores and moves whether every state is searched or none."""
    rooms = walkthrough()
    with_search = [session.reset(), *[session.step(action) for action in rooms]]
    again = [session.reset(), *[session.step(action) for action in rooms]]
    assert with_search == again
    assert sum(state.reward for state in again) == 100 == again[-1].score and again[-1].won
    assert session.statistics()["valid_action_misses"] <= len(rooms)


def test_the_state_key_forgets_the_way_but_not_the_world(session):
    """Going somewhere and back gives the same key; every state that differs in jericho's hash has its own."""
    by_key: dict[bytes, str] = {}
    dice, state = random.Random(4), session.reset()
    for _ in range(150):
        key, world = session._adapter.state_key(), session._adapter.env.get_world_state_hash()
        assert by_key.setdefault(key, world) == world
        state = session.step(dice.choice(state.valid_actions))
        if state.done:
            state = session.reset()
    assert len(by_key) < 1.2 * len(set(by_key.values()))


def test_an_untrustworthy_key_is_given_up_with_a_warning(monkeypatch, caplog, tmp_path):
    session = GameSession(find_game(SHIPPED_GAME), verify_every=1, store_path=str(tmp_path / "store"))
    monkeypatch.setattr(session._adapter, "state_key", lambda: b"always the same")
    first = session.reset()
    with caplog.at_level(logging.WARNING):
        second = session.step(first.valid_actions[0])
        third = session.step(second.valid_actions[0])
    session.close()
    assert second.look != first.look
    assert {second.location, third.location} - {first.location}
    assert sum("looks different now" in record.message for record in caplog.records) == 1
    assert session.statistics()["valid_action_misses"] == 3


@pytest.mark.parametrize(
    "command",
    ["", "   ", "save", "QUIT", "look. restart", "north then restore", "x" * 300, "take lamp; script", None, 3],
)
def test_commands_that_cannot_be_sent(command):
    with pytest.raises(ValueError):
        checked_command(command)


def test_commands_are_one_line():
    assert checked_command(" take \n the  lamp\t") == "take the lamp"


def test_order_and_duplicates_of_actions():
    assert tidy_actions(["west", "east ", "", "  ", "open  box", "west", "open box"]) == ("east", "open box", "west")


def test_after_the_end_a_reset_is_needed(session):
    with pytest.raises(RuntimeError, match="call reset first"):
        session.step("look")
    session.reset()
    for action in walkthrough():
        last = session.step(action)
    assert last.done and last.valid_actions == ()
    with pytest.raises(RuntimeError, match="call reset first"):
        session.step("look")


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_seeds_out_of_range(session, seed):
    with pytest.raises(ValueError, match="seed"):
        session.reset(seed)


# The store on disk.

FOUND = Description(("go", "stay"), "A room.", "You are carrying nothing.", "Room")


def test_a_later_run_finds_what_was_stored(tmp_path):
    path = str(tmp_path / "store.sqlite")
    first = GameSession(find_game(SHIPPED_GAME), store_path=path)
    states = [first.reset(), *[first.step(action) for action in walkthrough()[:8]]]
    first.close()
    second = GameSession(find_game(SHIPPED_GAME), store_path=path)
    assert [second.reset(), *[second.step(action) for action in walkthrough()[:8]]] == states
    counts = second.statistics()
    second.close()
    assert counts["valid_action_misses"] == 0 and counts["valid_action_store_hits"] > 0


def test_story_state_and_version_are_all_part_of_the_key(tmp_path, monkeypatch):
    store = ValidActionStore(tmp_path / "store.sqlite")
    store.put("story", b"state", FOUND)
    assert store.get("story", b"state") == FOUND
    assert store.get("other", b"state") is None and store.get("story", b"other") is None
    store.put("story", b"state", Description((), "", "", ""))
    assert store.get("story", b"state") == FOUND
    monkeypatch.setattr(valid_actions, "VERSION", valid_actions.VERSION + 1)
    assert store.get("story", b"state") is None
    store.close()


def test_the_store_is_bounded_and_forgets_the_oldest(tmp_path):
    store = ValidActionStore(tmp_path / "store.sqlite", max_rows=50)
    for number in range(200):
        store.put("story", b"%d" % number, FOUND)
    assert len(store) == 50
    assert store.get("story", b"149") is None and store.get("story", b"150") == FOUND
    store.close()


def test_processes_write_at_once(tmp_path):
    path = tmp_path / "store.sqlite"
    code = """
import sys
from zoo.jericho.priorzero.games.valid_actions import Description, ValidActionStore
store, name = ValidActionStore(sys.argv[1]), sys.argv[2]
for number in range(150):
    store.put("story", b"shared %d" % number, Description((str(number),), "look", "", ""))
    store.put(name, b"%d" % number, Description((name,), "look", "", ""))
    assert store.get("story", b"shared %d" % number).valid_actions == (str(number),)
assert store.usable
"""
    command = [sys.executable, "-c", code, str(path)]
    writers = [
        subprocess.Popen([*command, f"w{n}"], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0 and not errors, errors.decode()
    store = ValidActionStore(path)
    assert len(store) == 150 + 4 * 150
    assert store.get("w3", b"149").valid_actions == ("w3",)
    store.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_damaged_store_is_moved_aside(tmp_path, caplog):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"this is no database" * 400)
    with caplog.at_level(logging.WARNING):
        store = ValidActionStore(path)
    store.put("story", b"state", FOUND)
    assert store.usable and store.get("story", b"state") == FOUND
    store.close()
    assert [p.read_bytes()[:19] for p in tmp_path.glob("*.damaged-*")] == [b"this is no database"]
    assert sum("damaged" in record.message for record in caplog.records) == 1


def test_a_store_damaged_while_in_use_is_begun_anew(tmp_path, caplog):
    path = tmp_path / "store.sqlite"
    store = ValidActionStore(path)
    for number in range(300):
        store.put("story", b"%d" % number, FOUND)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xaa" * (len(data) - 4096)
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        store = ValidActionStore(path)
        store.get("story", b"7")
        store.put("story", b"new", FOUND)
        store.put("story", b"new", FOUND)
    assert store.usable and store.get("story", b"new") == FOUND and store.get("story", b"7") is None
    store.close()


def test_rows_that_make_no_sense_count_as_absent(tmp_path):
    store = ValidActionStore(tmp_path / "store.sqlite")
    for number, text in enumerate(["{", "[]", "3", json.dumps([None, "", "", ""])]):
        store._add([("story", valid_actions.VERSION, b"%d" % number, text)])
        assert store.get("story", b"%d" % number) is None
    store.close()


def test_a_full_disk_or_unusable_place_warns_once_and_the_game_goes_on(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        session = GameSession(find_game(SHIPPED_GAME), store_path=str(tmp_path / "file" / "store.sqlite"))
        assert session.step(session.reset().valid_actions[0]).valid_actions
        session.close()
        assert sum("not kept on disk" in record.message for record in caplog.records) == 1
        caplog.clear()
        store = ValidActionStore(tmp_path / "store.sqlite")
        store._run("PRAGMA max_page_count=8")
        for number in range(300):
            store.put("story", b"%d" % number, Description(("go",), "long " * 400, "", ""))
    assert not store.usable and store.get("story", b"0") is None
    assert sum("not kept on disk" in record.message for record in caplog.records) == 1


def test_no_path_means_no_store(tmp_path):
    store = ValidActionStore("")
    store.put("story", b"state", FOUND)
    assert not store.usable and store.get("story", b"state") is None and len(store) == 0


# Zork I release 119, which jericho does not know.


@needs_release_119
def test_release_119_is_won_by_the_walkthrough():
    from jericho.defines import zork1

    from zoo.jericho.priorzero.games.adapters import open_game

    adapter = open_game(identify(RELEASE_119))
    adapter.restart(12)
    scores = []
    for action in zork1["walkthrough"].split("/"):
        adapter.step(action)
        scores.append(adapter.outcome().score)
        assert not adapter.outcome().died
    end = adapter.outcome()
    assert (end.score, end.moves, end.won, end.over) == (350, 394, True, True)
    assert scores[0] == 0 and scores[:-1].count(350) <= len(scores) // 10


@needs_release_119
def test_release_119_has_valid_actions_places_and_things():
    session = GameSession(identify(RELEASE_119), 12)
    state = session.reset()
    assert state.location == "West of House" and {"north", "south", "west", "open mailbox"} <= set(state.valid_actions)
    assert len(state.valid_actions) < 20
    state = session.step("open mailbox")
    assert "take leaflet" in state.valid_actions and state.moves == 1
    state = session.step("take leaflet")
    assert state.inventory == "You are carrying: leaflet."
    assert "Score:" not in state.response + state.look
    session.close()


@needs_release_119
def test_release_119_notices_death():
    session = GameSession(identify(RELEASE_119), 12)
    session.reset()
    # Known commands; the searches between them would only take time.
    session._trusted, session._search = False, lambda: FOUND
    total = 0.0
    for action in ["s", "e", "open window", "enter", "w", "move rug", "open trap door", "down", "n", "n", "n", "n"]:
        state = session.step(action)
        total += state.reward
        if state.done:
            break
    assert state.died and not state.won and state.valid_actions == ()
    assert total == state.score
    session.close()


@needs_release_119
def test_release_119_rolls_the_same_dice_whether_states_are_known_or_not():
    """A search in between must not change what the game's own random numbers bring."""
    actions = ["n", "n", "u", "take egg", "d"]
    searched = GameSession(identify(RELEASE_119), 7)
    plain = GameSession(identify(RELEASE_119), 7)
    plain._trusted, plain._search = False, lambda: FOUND
    searched.reset(), plain.reset()
    for action in actions:
        one, other = searched.step(action), plain.step(action)
        assert (one.response, one.score, one.moves) == (other.response, other.score, other.moves)
        assert bytes(searched._adapter.memory()) == bytes(plain._adapter.memory())
    searched.close(), plain.close()


def walkthrough() -> list[str]:
    return (SHIPPED_FOLDER / "walkthrough.txt").read_text().split("\n")[:-1]
