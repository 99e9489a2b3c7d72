"""The role that searches old episodes again with newer weights: new visit counts and values for the learner's buffer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.lightzero.dice import seed_dice
from lzero_async.lightzero.silence import quiet
from lzero_async.types import StopSignal
from lzero_async.workers.calls import stopped
from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.play.batch import Collected, Weights
from zoo.jericho.priorzero.play.components import Parts, untouched_random
from zoo.jericho.priorzero.play.open_game import Episode
from zoo.jericho.priorzero.play.root_policy import mix_root_policies
from zoo.jericho.priorzero.play.search import RootInput, TreeSearch

REANALYZE_STREAM = 3
ROOTS_AT_ONCE = 64
NICE = 10  # the others go first where cores are short


@dataclass
class Fresh:
    """New targets of a batch's episodes, by weights of `version`: visits float32 [T, slots] and values float32 [T] each."""

    batch: int
    version: int
    visits: list[NDArray[Any]]
    values: list[NDArray[Any]]


class ReanalyzeRole:
    """Searches whole batches again, as a collector searches: the same window, root policy and simulations, but no noise."""

    def __init__(self, parts: Parts, device: str, own_process: bool, emit: Callable[[Any], None]) -> None:
        parts.limit_threads()
        if own_process:
            os.nice(NICE)
        with quiet():
            from lzero.model.unizero_model import UniZeroModel
        options, llm = parts.options, parts.options.llm_config
        cfg = parts.unizero(device)
        with untouched_random(), quiet():
            self.model = UniZeroModel(**cfg.model).to(cfg.device)
        self.parts, self.version = parts, -1
        self._search = TreeSearch(self.model, cfg, options.policy_config.root_window)
        self._mixing = {"mode": llm.root_policy, "llm_weight": llm.llm_weight, "weighting": llm.weighting}

    def ready(self) -> None:
        """Answered once the role is made."""

    def research(self, batch: int, version: int, weights: Weights, collected: Parcel, stop: StopSignal) -> Parcel:
        """Search every step of a collected batch again with these weights: a Parcel of Fresh. Raises Stopped."""
        if version != self.version:
            self.model.load_state_dict(weights.world_model.read())
            self.version = version
        data: Collected = collected.read()
        start = time.monotonic()
        seed_dice(int(np.random.default_rng([self._seed, REANALYZE_STREAM, batch, version]).integers(2**31)))
        found = [self._search_again(episode, stop) for episode in data.episodes]
        fresh = Fresh(batch, version, [visits for visits, _ in found], [values for _, values in found])
        seconds = time.monotonic() - start
        return Parcel(fresh, {"batch": batch, "version": version, "steps": data.steps, "seconds": seconds})

    @property
    def _seed(self) -> int:
        return int(self.parts.options.run_config.seed)

    def _search_again(self, episode: Episode, stop: StopSignal) -> tuple[NDArray[Any], NDArray[Any]]:
        policy = self.parts.options.policy_config
        visits, values = [], []
        for first, roots in self._roots(episode):
            if stop.is_set():
                raise stopped(stop)  # half a batch is none
            outputs = self._search.run(
                roots, self._root_policy(episode, first, len(roots)), num_simulations=policy.num_simulations
            )
            visits += [output.visits for output in outputs]
            values += [output.value for output in outputs]
        return np.stack(visits).astype(np.float32), np.asarray(values, np.float32)

    def _roots(self, episode: Episode) -> Iterator[tuple[int, list[RootInput]]]:
        """The steps of an episode in order, some at a time, each batch with the number of its first step."""
        window = self._search.max_window
        for first in range(0, len(episode), ROOTS_AT_ONCE):
            steps = range(first, min(first + ROOTS_AT_ONCE, len(episode)))
            begins = [max(0, step - window + 1) for step in steps]
            yield first, [
                RootInput(
                    np.array(episode.observations[begin : step + 1]), episode.actions[begin:step].tolist(), episode.masks[step]
                )
                for begin, step in zip(begins, steps, strict=True)
            ]  # fmt: skip

    def _root_policy(self, episode: Episode, first: int, count: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """What the search begins with: the prior that the collector had, mixed as it mixed it."""
        if episode.priors is None:
            return lambda logits: logits
        priors, masks = episode.priors[first : first + count], episode.masks[first : first + count]
        return lambda logits: mix_root_policies(list(priors), logits, masks, **self._mixing)

    def close(self) -> None:
        """Free what the role holds."""
        self.parts.close()
