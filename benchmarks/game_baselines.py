"""How far chance and the language model alone get on the shipped game, at the step limit of the embedded preset.

python -m benchmarks.game_baselines --episodes 300 --llm_episodes 40 > benchmarks/results/game_baselines.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

import numpy as np


def measure(mode: str, episodes: int, max_steps: int, seed: int, temperature: float) -> dict:
    """Play whole episodes in one of the player's modes (`random`, `llm`) and sum them up."""
    from lzero_async.lightzero.silence import quiet
    from zoo.jericho.priorzero.options import build_options

    with quiet():
        from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
        from zoo.jericho.priorzero.games.jericho_env import JerichoEnv
        from zoo.jericho.priorzero.llm import make_engine
        from zoo.jericho.priorzero.llm.prior import LLMPrior
        from zoo.jericho.priorzero.play.episodes import Player, Style
    options = build_options()
    llm, game = options.llm_config, find_game(SHIPPED_GAME)
    slots = options.env_config.max_action_num
    envs = [JerichoEnv({"game": game, "max_steps": max_steps, "max_action_num": slots}) for _ in range(4)]
    prior = None
    if mode == "llm":
        prior = LLMPrior(make_engine("transformers"), temperature=1.0, reduction=llm.reduction, use_cot=llm.use_cot)
    player = Player(envs, None, None, prior, history_length=llm.history_length)
    try:
        played = player.play(episodes, np.random.default_rng(seed), Style(mode=mode, temperature=temperature))
    finally:
        player.close()
    scores = [int(episode.info["score"]) for episode in played]
    actions = Counter(int(mask.sum()) for episode in played for mask in episode.masks[:-1])
    total = sum(actions.values())
    return {
        "mode": mode,
        "temperature": temperature,
        "prior_temperature": 1.0,
        "game": game.label,
        "md5": game.md5,
        "episodes": episodes,
        "max_steps": max_steps,
        "mean_score": float(np.mean(scores)),
        "best_score": max(scores),
        "share_by_score": {score: count / episodes for score, count in sorted(Counter(scores).items())},
        "died": float(np.mean([bool(episode.info["died"]) for episode in played])),
        "mean_steps": float(np.mean([len(episode) for episode in played])),
        "valid_actions_mean": sum(number * count for number, count in actions.items()) / total,
        "valid_actions_max": max(actions),
    }


def main() -> None:
    """Print the measures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300, help="of random play (default %(default)s)")
    parser.add_argument(
        "--llm_episodes", type=int, default=40, help="of the language model at each temperature (default %(default)s)"
    )
    parser.add_argument("--max_steps", type=int, default=80, help="of an episode (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if min(args.episodes, args.llm_episodes, args.max_steps) < 1:
        parser.error("--episodes, --llm_episodes and --max_steps must be at least 1")
    rows = [measure("random", args.episodes, args.max_steps, args.seed, 1.0)]
    for temperature, episodes in ((0.0, 1), (0.25, args.llm_episodes), (1.0, args.llm_episodes)):
        rows.append(measure("llm", episodes, args.max_steps, args.seed, temperature))
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
