"""The language model's prior with SmolLM2-135M-Instruct on one CPU thread, against one full pass per action, same library.

CPU time, not wall time, so that a busy machine changes the ratios little.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.harness import Bar
from zoo.jericho.priorzero.games.session import GameState
from zoo.jericho.priorzero.llm import ScoreRequest, make_engine
from zoo.jericho.priorzero.llm.prior import LLMPrior, PriorRequest
from zoo.jericho.priorzero.llm.prompts import Turn, build_prompt
from zoo.jericho.priorzero.llm.smollm2 import model_folder

ACTIONS_TEXT = """go north, go south, go east, go west, go up, open sack, open window, open the small box, close window,
take bottle, take sack, take all, drop lamp, turn on lamp, put lamp in sack, put lamp on table, examine table, drink water, wait,
look"""
ACTIONS = ACTIONS_TEXT.replace("\n", " ").split(", ")
DESCRIPTION = """You are in the kitchen of the old house. A long table fills the room and somebody has cooked here today.
A narrow passage leads west, stairs go up into the dark, and the small window in the east wall stands open.
A brown sack lies on the table beside a glass bottle of water. Crumbs cover the floor and a mouse looks out of its hole.
Somewhere above you a board creaks. The wind moves the curtain and the smell of wet grass comes in from the garden.
A clock without hands hangs over the door. Three hooks are on the wall, and on the last one hangs an apron with deep pockets. """
SENTENCES = DESCRIPTION.replace("\n", " ").split(". ")
errors: list[float] = []
episodes = itertools.count(1)


def game_state(look: str, response: str = "Taken.") -> GameState:
    return GameState(
        response=response,
        look=look,
        inventory="You are carrying: a brass lantern, a rope, a leaflet.",
        location="Kitchen",
        valid_actions=tuple(ACTIONS),
        reward=0.0,
        score=0,
        moves=1,
        done=False,
        won=False,
        died=False,
    )


@cache
def engine(**options):
    return make_engine("transformers", threads=1, device="cpu", **options)


@cache
def reference_model():
    return AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32).eval()


@cache
def look_of(tokens: int, first: int = 0) -> str:
    """A description that makes the prompt without history about this long."""
    words = (". ".join(SENTENCES[first:] + SENTENCES[:first]) * 4).split()
    count = 1
    while engine().count_tokens(build_prompt(game_state(" ".join(words[:count])), (), history_length=0)) < tokens:
        count += 1
    return " ".join(words[:count])


def cpu(work: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


@torch.inference_mode()
def full_passes(request: ScoreRequest) -> np.ndarray:
    """One pass over prompt and action per action; logits only where they are needed."""
    prompt, candidates = engine()._tokens.request_ids(request)
    scores = []
    for candidate in candidates:
        ids = torch.tensor([[*prompt, *candidate]])
        logits = reference_model()(ids, logits_to_keep=len(candidate) + 1, use_cache=False).logits[0, :-1]
        own = logits.float().log_softmax(-1).gather(1, torch.tensor(candidate)[:, None])
        scores.append(float(own.mean()))
    return np.array(scores)


def compare(request: ScoreRequest, *engine_options: tuple[str, object]) -> float:
    ours, scores = cpu(lambda: engine(**dict(engine_options)).score([request])[0])
    theirs, reference = cpu(lambda: full_passes(request))
    errors.append(float(np.abs(scores - reference).max()))
    return theirs / ours


def first_step() -> float:
    prompt = build_prompt(game_state(look_of(300)), (), history_length=0)
    return compare(ScoreRequest(prompt, tuple(ACTIONS)), ("max_kv_entries", 0))


def episode_step(looks: list[str], answers: list[str]) -> float:
    """The last step of an episode through rooms of these descriptions, each left after one answer of the game.

    Each episode has a title of its own at the head of its prompts: the engine would find an equal prompt of an earlier repeat.
    """
    history: tuple[Turn, ...] = ()
    key = next(episodes)
    for look, answer in zip(looks[:-1], answers, strict=True):
        prompt = build_prompt(game_state(look), history, history_length=16, game_title=f"number {key}")
        engine().score([ScoreRequest(prompt, tuple(ACTIONS), key)])
        history += (Turn(answer, ACTIONS[len(history)], 0.0),)
    prompt = build_prompt(game_state(looks[-1]), history, history_length=16, game_title=f"number {key}")
    return compare(ScoreRequest(prompt, tuple(ACTIONS), key))


def later_step() -> float:
    """One room with short answers, after an opening that makes the prompt 300 tokens long: what most steps look like."""
    room = "Kitchen. A table, a sack and a bottle are here."
    return episode_step([room] * 6, [look_of(300), *["Taken."] * 4])


def new_room_step() -> float:
    """A new room every step, each with a description that makes a prompt of 300 tokens by itself."""
    looks = [look_of(300, first) for first in range(3)]
    return episode_step(looks, looks[:-1])


def second_visit() -> float:
    prior = LLMPrior(engine(max_kv_entries=0))
    item = PriorRequest(game_state(look_of(300)), tuple(ACTIONS))
    first, _ = cpu(lambda: prior([item]))
    again, _ = cpu(lambda: [prior([item]) for _ in range(1_000)])
    return first / (again / 1_000)


def environments() -> float:
    """Eight environments with little that is new, in one call against one call each."""
    requests = [
        ScoreRequest(
            build_prompt(game_state(f"Room {i}."), (), history_length=0, actions=ACTIONS[:4]), tuple(ACTIONS[:4]), i
        )
        for i in range(8)
    ]
    alone, _ = cpu(lambda: [make_cold().score([request]) for request in requests])
    together, _ = cpu(lambda: make_cold().score(requests))
    return alone / together


def make_cold():
    """The engine without KV caches of former prompts."""
    return engine(max_kv_entries=0)


def bars() -> list[Bar]:
    first_step(), errors.clear()  # load and warm up
    return [
        Bar("20 actions after a 300-token prompt, CPU time of full passes / ours", 10, True, first_step, 3),
        Bar("sixth step of an episode in one room, history kept, full passes / ours", 20, True, later_step, 3),
        Bar(
            "third room of an episode, long descriptions, history kept, full passes / ours", 20, True, new_room_step, 2
        ),
        Bar("second visit of a state, first visit / second", 100, True, second_visit, 3),
        Bar("largest difference of a mean log-prob to the full pass", 1e-3, False, lambda: max(errors), 1),
        Bar("8 environments with short prompts, one call each / one call", None, True, environments, 3),
    ]
