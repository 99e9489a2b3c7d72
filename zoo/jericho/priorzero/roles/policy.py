"""What a run of PriorZero has learned, as the evaluator plays it: the search, with or without the language model's prior."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.policy import PlayedEpisode, Policy
from lzero_async.validation import one_of
from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.games.files import find_game
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.play.batch import LLMWeights, Weights
from zoo.jericho.priorzero.play.components import Parts
from zoo.jericho.priorzero.roles import factories
from zoo.jericho.priorzero.sections import Mode

if TYPE_CHECKING:
    from zoo.jericho.priorzero.games.jericho_env import JerichoEnv
    from zoo.jericho.priorzero.play.open_game import OpenGame
    from zoo.jericho.priorzero.roles.players import EvaluatorRole

MODES: Final = get_args(Mode)
COMPILED: Final = "_orig_mod."
NEEDED: Final = ("timestep", "valid_actions", "action_mask", "state")  # of an observation


def load(folder: Path, path: Path, device: str, *, mode: str = "") -> TextPolicy:
    """The policy in a checkpoint of a run. mode: prior (search with the language model's prior), world_model (search alone) or
    llm (the language model alone), or prior_frozen or llm_frozen, the same with the language model as it was before it was
    trained; the default is the one that the run is evaluated in."""
    state = checkpoint.load(path, CHECKPOINT)
    with checkpoint.fitting(path):
        saved, game, usual = state["options"], state["game"], _usual_mode(state["options"])
        weights = state["weights"] if "weights" in state else state["learner"]["policy"]["model"]
        llm = llm_weights(state)
    mode = one_of("mode", mode or usual, MODES)
    changes: dict[str, Any] = {
        "env_config.evaluator_env_num": 1, "run_config.eval_modes": (mode,), "run_config.final_eval_modes": (mode,),
    }  # fmt: skip
    if mode == "world_model":
        # No language model has to be loaded.
        changes |= {"llm_config.root_policy": "wm_logits", "llm_train_config.llm_train": "off"}
    options = build_options(saved=saved, changes=changes)
    found = find_game(
        options.env_config.env_id, options.env_config.rom_dir or None, allow_substitute=bool(game["substitute_for"])
    )
    if found.md5 != game["md5"]:
        raise ConfigError(
            f"{path} is of the game {game['label']!r}, but {found.path} is another one; put that one there."
        )
    parts = Parts(options, found, folder, llm_device=device)
    policy = TextPolicy(factories.evaluator(parts, device, False, lambda event: None), mode)
    try:
        with checkpoint.fitting(path):
            policy.load(weights, llm)
    except BaseException:
        policy.close()
        raise
    return policy


def llm_weights(state: Mapping[str, Any]) -> LLMWeights | None:
    """What the language model was trained to, in a checkpoint of the last or the best weights."""
    if "weights" in state:
        saved, trained = state.get("llm_weights"), state.get("llm_trained")
    else:
        saved = state.get("llm")
        trained = None if saved is None or saved["state"] is None else saved["state"]["trained"]
    if saved is None or trained is None:
        return None
    return LLMWeights(int(saved["version"]), str(saved["digest"]), Parcel(dict(trained)))


def _usual_mode(saved: Mapping[str, Any]) -> str:
    run = saved["run_config"]
    return str([*run["eval_modes"], *run["final_eval_modes"], "world_model"][0])


class TextPolicy(Policy):
    """An evaluator with one game.

    An observation is the dictionary that `JerichoEnv` returns: the text alone does not say which actions are valid. An action is
    a command. The search looks back over the episode, so `policy(observation)` remembers it: show it every observation of an
    episode, and take the actions that it gives. An observation with `timestep` 0 begins another episode.
    """

    score_name = "score"

    def __init__(self, evaluator: EvaluatorRole, mode: str) -> None:
        self._evaluator, self._mode = evaluator, mode
        self._game: OpenGame | None = None

    def load(self, weights: Mapping[str, Any], llm: LLMWeights | None = None) -> None:
        """Take these weights of the models; the learner's own have a prefix, because its model is compiled."""
        plain = {name.removeprefix(COMPILED): value for name, value in weights.items()}
        self._evaluator.load(0, Weights(Parcel(plain), llm))

    def __call__(self, observation: Mapping[str, Any]) -> str:
        if not isinstance(observation, Mapping) or any(name not in observation for name in NEEDED):
            raise ConfigError(
                f"The observation is a {type(observation).__name__} without all of {', '.join(NEEDED)}; give the dictionary "
                "that JerichoEnv returns, since a policy of PriorZero chooses among valid actions."
            )
        if observation["timestep"] == 0 or self._game is None:
            self._game = self._evaluator.begin(observation)
        else:
            self._game.follow(observation)
        return self._evaluator.act(self._game, self._mode)

    def play_episode(self, seed: int) -> PlayedEpisode:
        episode = self._evaluator.play(self._mode, seed)
        return PlayedEpisode(seed, float(episode.info.get("score", 0)), len(episode))

    def new_env(self) -> JerichoEnv:
        """Another environment of the run's game, to act in; close it when it is not needed any more."""
        return self._evaluator.parts.new_env()

    def close(self) -> None:
        self._evaluator.close()
