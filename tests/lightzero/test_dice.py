"""Searches of every compiled tree of LightZero follow from a seed, and from nothing else."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from easydict import EasyDict
from lzero.mcts import tree_search

from lzero_async.errors import ConfigError
from lzero_async.lightzero import dice
from lzero_async.lightzero.dice import TREES, repeatable, seed_dice

GAMES, ACTIONS, SAMPLED, LATENT, SIMULATIONS = 4, 6, 3, 5, 12
NOBODY = [-1] * GAMES  # whose turn it is: a game for one


class EveryActionAlike(torch.nn.Module):
    """A model that prefers no action, so that the dice decide, and whose states follow from the actions taken."""

    outputs = ACTIONS

    def recurrent_inference(self, latent: torch.Tensor, *inputs: Any, afterstate: bool = False) -> EasyDict:
        *memory, action = inputs
        latent = torch.tanh(latent * 1.7 + action.reshape(len(latent), -1).sum(dim=1, keepdim=True) * 0.3 + 0.1)
        found = EasyDict(
            latent_state=latent,
            value=latent.sum(dim=1, keepdim=True),
            policy_logits=torch.full((len(latent), self.outputs), 0.5),
        )
        found["value_prefix" if memory else "reward"] = latent[:, :1] * 0.1
        if memory:
            found.reward_hidden_state = tuple(memory[0])
        return found


def searched(
    name: str, memory: bool = False, continuous: bool | None = None, chance: bool = False, reuse: bool = False
) -> list[Any]:
    """What a search has found at its roots."""
    kind, model = getattr(tree_search, name), EveryActionAlike()
    cfg = dict(
        num_simulations=SIMULATIONS,
        discount_factor=0.9,
        device="cpu",
        env_type="not_board_games",
        lstm_horizon_len=3,
        max_num_considered_actions=4,
        model=dict(support_scale=5, categorical_distribution=False, continuous_action_space=bool(continuous)),
    )
    if continuous is None:
        roots = kind.roots(GAMES, [list(range(ACTIONS))] * GAMES, *([ACTIONS] if chance else []))
    else:
        model.outputs = 4 if continuous else ACTIONS  # means and deviations of two numbers
        size = 2 if continuous else ACTIONS
        roots = kind.roots(GAMES, [[-1] * SAMPLED] * GAMES, size, SAMPLED, continuous)
    states = np.linspace(-1, 1, GAMES * LATENT, dtype=np.float32).reshape(GAMES, LATENT)
    start = [[0.0] * GAMES] * (2 if name.startswith("Gumbel") else 1)  # rewards; values
    roots.prepare_no_noise(*start, [[0.5] * model.outputs] * GAMES, NOBODY)
    hidden = [tuple(np.zeros((1, GAMES, 2), np.float32) for _ in "ch")] if memory else []
    if reuse:
        kind(EasyDict(cfg)).search_with_reuse(roots, model, states, *hidden, NOBODY, [1] * GAMES, [0.5] * GAMES)
    else:
        kind(EasyDict(cfg)).search(roots, model, states, *hidden, NOBODY)
    found = [roots.get_distributions(), roots.get_values()]
    return found if continuous is None else [*found, np.asarray(roots.get_sampled_actions()).tolist()]


SEARCHES: dict[str, Callable[[], list[Any]]] = {
    "mz_tree": lambda: searched("MuZeroMCTSCtree"),
    "mz_tree, reusing": lambda: searched("MuZeroMCTSCtree", reuse=True),
    "ez_tree": lambda: searched("EfficientZeroMCTSCtree", memory=True),
    "smz_tree": lambda: searched("SampledMuZeroMCTSCtree", continuous=False),
    "smz_tree, continuous": lambda: searched("SampledMuZeroMCTSCtree", continuous=True),
    "ezs_tree": lambda: searched("SampledEfficientZeroMCTSCtree", memory=True, continuous=False),
    "ezs_tree, continuous": lambda: searched("SampledEfficientZeroMCTSCtree", memory=True, continuous=True),
    "stochastic_mz_tree": lambda: searched("StochasticMuZeroMCTSCtree", chance=True),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def after(seed: int, search: Callable[[], list[Any]]) -> list[Any]:
    seed_dice(seed)
    return search()


@pytest.mark.parametrize("name", SEARCHES)
def test_equal_seeds_give_equal_searches_and_others_do_not(name: str) -> None:
    search = SEARCHES[name]
    assert repeatable(name.split(",")[0])
    first = after(7, search)
    assert all(after(7, search) == first for _ in range(4))
    assert len({str(after(seed, search)) for seed in range(1, 6)}) == 5


def test_dice_go_on_from_one_search_to_the_next() -> None:
    for search in SEARCHES.values():
        first = after(7, search)
        assert search() != first


def test_a_gumbel_search_rolls_no_dice_and_leaves_them_alone() -> None:
    libc = ctypes.CDLL(None)

    def rolled_after(seed: int, search: Callable[[], object]) -> list[int]:
        seed_dice(seed)
        search()
        return [libc.rand() for _ in range(3)]

    found = [searched("GumbelMuZeroMCTSCtree") for _ in range(3)]
    assert found[0] == found[1] == found[2]
    untouched = rolled_after(7, lambda: None)
    assert all(rolled_after(7, lambda: searched("GumbelMuZeroMCTSCtree")) == untouched for _ in range(3))


def test_every_compiled_tree_is_known_and_repeatable() -> None:
    folder = Path(tree_search.__file__).parents[1] / "ctree"
    assert {path.name.split(".")[0] for path in folder.rglob("*.so")} == set(TREES)
    assert repeatable()


def test_trees_import_no_other_source_of_chance() -> None:
    """A new one would be a function of the system or of C++'s library with one of these words in its name."""
    words = ("rand", "seed", "clock", "time", "entropy", "getpid")
    known = {dice.RESEED, dice.CLOCK, dice.ENTROPY, "rand"}
    followers = {
        "gettimeofday",  # only what `srand` is given comes from it
        "_Z26get_time_and_set_rand_seedv",
        "_ZNSt13random_device7_M_initERKSs",
        "_ZNSt13random_device7_M_finiEv",
    }
    for tree, (package, symbols) in TREES.items():
        (path,) = (Path(tree_search.__file__).parents[1] / "ctree" / package).glob(f"{tree}.*.so")
        called = {name for name, _ in dice._slots(path.read_bytes()) if any(word in name for word in words)}
        engines = {
            name for name in called if "mersenne_twister" in name
        }  # seeded by one of the others, or by a constant
        runtime = {name for name in called if name.startswith("Py")}  # PyExc_RuntimeError
        assert set(symbols) <= called
        assert called - engines - runtime - followers <= known


def test_a_seed_or_a_tree_that_there_is_not_raises() -> None:
    for seed in (-1, 2**32, 0.5, True):
        with pytest.raises(ConfigError, match="seed is"):
            seed_dice(seed)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tree is 'oak'; it must be one of mz_tree, "):
        repeatable("mz_tree", "oak")


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Nothing is known of what has been patched; afterwards everything is patched again."""
    dice._patched.cache_clear()
    yield
    dice._patched.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_patching_once_more_changes_nothing() -> None:
    search = SEARCHES["smz_tree"]
    before = after(7, search)
    dice._patched.cache_clear()
    assert repeatable()
    assert after(7, search) == before


@pytest.mark.usefixtures("forgotten")
def test_where_it_cannot_be_done_searches_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not repeatable()
    assert not repeatable("mz_tree")
    seed_dice(7)
    SEARCHES["mz_tree"]()


@pytest.mark.usefixtures("forgotten")
def test_a_tree_that_this_lightzero_lacks_is_no_obstacle_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TREES, "oak_tree", ("ctree_oak", [dice.RESEED]))
    assert not repeatable()
    assert repeatable("mz_tree", "smz_tree")
    assert after(7, SEARCHES["mz_tree"]) == after(7, SEARCHES["mz_tree"])


PROGRAM = "#include <stdlib.h>\nint roll(unsigned seed) { srand(seed); return rand(); }\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("binding", ["lazy", "now"])  # `now`: the table is read-only once the library is loaded
@pytest.mark.parametrize("table", ["-fplt", "-fno-plt"])
def test_other_ways_to_link_a_library_are_understood(tmp_path: Path, table: str, binding: str) -> None:
    source, path = tmp_path / "roll.c", tmp_path / "roll.so"
    source.write_text(PROGRAM)
    flags = ["-shared", "-fPIC", "-O1", table, f"-Wl,-z,relro,-z,{binding}"]
    subprocess.run(["cc", *flags, "-o", str(path), str(source)], check=True)
    library, libc = ctypes.CDLL(str(path)), ctypes.CDLL(None)
    assert library.roll(3) == library.roll(3)
    nothing, missing = dice._address_of("getpagesize"), {"srand": 0, "no_such_function": 0}
    assert not dice._redirect(path, missing)
    assert library.roll(3) == library.roll(3)
    before = _permissions(path)
    assert dice._redirect(path, {"srand": nothing})
    assert _permissions(path) == before
    libc.srand(3)
    assert library.roll(3) != library.roll(3)
    copy = tmp_path / "copy.so"
    shutil.copy(path, copy)
    assert not dice._redirect(copy, {"srand": nothing})  # not loaded


def _permissions(library: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith(str(library))]


def test_what_is_no_library_has_no_slots() -> None:
    assert not list(dice._slots(b"#!/bin/sh\n"))
    assert not list(dice._slots(b""))
