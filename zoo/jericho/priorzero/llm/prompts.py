"""The chat prompt of the prior: role, history, current observation, valid actions; short and plain, for small models.

What stays the same stands first and history grows at its end, so that an episode's prompts share a long beginning and an engine
only computes what is new. When the history is full its window moves on by half its length at once, so most steps keep theirs.
Without history the prompt depends on the state alone, and a state seen before needs no language model at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm import Prompt

if TYPE_CHECKING:
    from zoo.jericho.priorzero.games.session import GameState

ASK = "What do you do next? Answer with one valid action."
ASK_COT = "Say in one short sentence what you want to do and why. Then write one valid action on a new line."


@dataclass(frozen=True)
class Turn:
    """One step of an episode: what was seen, what was done and the reward it brought."""

    observation: str
    action: str
    reward: float


def build_prompt(
    state: GameState,
    history: Sequence[Turn],
    *,
    history_length: int,
    game_title: str = "",
    actions: Sequence[str] | None = None,
    use_cot: bool = False,
    reasoning: str = "",
) -> Prompt:
    """The prompt for `state` after `history` (all turns of the episode so far, oldest first; at most `history_length` are shown).

    `actions` are the valid actions to list (default: the state's). `use_cot` asks for a sentence of reasoning first; `reasoning`
    is that sentence once it is known, as the beginning of the assistant's turn.
    """
    if history_length < 0:
        raise ConfigError(f"history_length is {history_length}, but must be 0 or more")
    title = f" {game_title}" if game_title else ""
    prompt: Prompt = [
        {
            "role": "system",
            "content": f"You are playing the text adventure{title}. Explore, take useful things and solve puzzles.",
        }
    ]
    news = ""
    for turn in history[window_start(len(history), history_length) :]:
        prompt.append({"role": "user", "content": news + turn.observation.strip()})
        prompt.append({"role": "assistant", "content": turn.action})
        news = f"Reward: {turn.reward:g}\n"
    if news:
        news += f"{state.response.strip()}\n"
    listed = ", ".join(action for action in (state.valid_actions if actions is None else actions) if action.strip())
    parts = [state.look.strip(), state.inventory.strip(), f"Valid actions: {listed}", ASK_COT if use_cot else ASK]
    prompt.append({"role": "user", "content": news + "\n".join(part for part in parts if part)})
    if reasoning.strip():
        prompt.append({"role": "assistant", "content": reasoning.strip() + "\n"})
    return prompt


def window_start(turns: int, history_length: int) -> int:
    """The first turn shown: at most `history_length` are, and once there are more the start moves by half of that at a time."""
    if turns <= history_length:
        return 0
    if history_length == 0:
        return turns
    chunk = max(1, history_length // 2)
    return -(-(turns - history_length) // chunk) * chunk
