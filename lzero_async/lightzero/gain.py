"""What overlap can gain at most, from the first measured stages, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lzero_async.lightzero.options import LightZeroOptions

NAMES: Final = {"collect": "collecting", "train": "training", "eval": "evaluating"}
LITTLE: Final = 1.25  # stages whose times differ by less are nearly even


def shares(statistics: Mapping[str, Any]) -> dict[str, float]:
    """The share of each stage in the time that all of them take one after the other."""
    seconds = {stage: float(statistics[f"{stage}_total_time"]) for stage in NAMES}
    whole = sum(seconds.values())
    return {stage: part / whole if whole else 0.0 for stage, part in seconds.items()}


def most_to_gain(statistics: Mapping[str, Any], options: LightZeroOptions) -> str:
    """One sentence with the shares and the limit, and one with what would change it."""
    found = shares(statistics)
    in_turn = found["eval"] if not options.async_eval else 0.0
    collect = found["collect"] / options.num_collectors
    # Without async_eval an evaluation takes the learner's turn, and collecting goes on beside it.
    parts = {"collect": collect, "train": found["train"] + in_turn, "eval": 0.0 if in_turn else found["eval"]}
    longest = max(parts, key=lambda stage: parts[stage])
    limit = 1 / parts[longest] if parts[longest] else 1.0
    listed = ", ".join(f"{NAMES[stage]} {share:.0%}" for stage, share in found.items())
    return f"of the time in turn: {listed}. Overlap makes it at most {limit:.2f}x as fast. {_remedy(longest, parts, options)}"


def _remedy(longest: str, parts: Mapping[str, float], options: LightZeroOptions) -> str:
    others = max(share for stage, share in parts.items() if stage != longest)
    if others * LITTLE > parts[longest]:
        return "The longest two are nearly even, which is as good as it gets."
    if longest == "collect":
        wanted = (
            options.num_collectors * max(2, round(parts["collect"] / others)) if others else options.num_collectors + 1
        )
        return f"Collecting is the longest: --num_collectors {wanted}, given the cores, raises the limit."
    if longest == "eval":
        return "Evaluating is the longest: raise policy.eval_freq or lower env.n_evaluator_episode."
    return (
        "Training is the longest: a GPU or a smaller policy.replay_ratio (or update_per_collect) raises the limit; more "
        "collectors do not."
    )
