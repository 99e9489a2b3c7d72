"""The language model's learner: updates of its trained weights on what the search found, repeatably."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs.soundness import first_bad
from zoo.jericho.priorzero.llm import Reduction
from zoo.jericho.priorzero.llm.digest import weights_digest
from zoo.jericho.priorzero.llm.model_loading import clear_errors, load_model
from zoo.jericho.priorzero.llm.packed import forward, node_log_probs
from zoo.jericho.priorzero.llm.smollm2 import model_folder
from zoo.jericho.priorzero.llm.trained import (
    Trainable,
    load_trained,
    make_trainable,
    switch_adapter,
    trained_digest,
    trained_weights,
)
from zoo.jericho.priorzero.play.batch import Collected
from zoo.jericho.priorzero.tune import losses
from zoo.jericho.priorzero.tune.examples import Example, can_teach, gather, is_held_out

if TYPE_CHECKING:
    from zoo.jericho.priorzero.sections import LLMTrainConfig

STREAM: Final = 5  # of random numbers: 1 to 4 are those of the roles that play
PROBED: Final = 8  # prompts whose agreement is looked at again after a train
REFERENCES: Final = 20_000  # prompts whose scores by the untrained model are kept
MOST_BAD: Final = 10
log = logging.getLogger(__name__)


class LLMLearner:
    """Trains a causal language model, a train at a time. `version` counts the trains; what it is after one follows from what it
    was before, the batches and the seed."""

    def __init__(
        self,
        model: str,
        how: LLMTrainConfig,
        *,
        seed: int,
        device: str,
        temperature: float,
        reduction: Reduction,
        discount: float,
    ) -> None:
        self._how, self._seed, self._temperature, self._reduction = how, seed, temperature, reduction
        self._discount = discount
        self.device = torch.device(device)
        folder = model_folder(model)
        self._base = weights_digest(folder)
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        with clear_errors(f"cannot load the language model {model!r}", "give a model folder or a reachable hub name"):
            self.model: Any = load_model(folder, dtype).to(self.device)
        make_trainable(self.model, trainable(how, seed))
        if self.device.type == "cuda":
            self.model.gradient_checkpointing_enable()
            self.model.enable_input_require_grads()
        self._reference: Any = None
        if how.llm_method == "full" and how.llm_kl_weight:
            self._reference = copy.deepcopy(self.model).requires_grad_(False)
        self._references: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._parameters = list(trained_weights(self.model).values())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=how.llm_learning_rate, weight_decay=how.llm_weight_decay
        )
        self.version = self.updates = self._bad = 0
        self._first = self.state()

    # -- a train -------------------------------------------------------------------------------------------------------

    def train(
        self, batches: Sequence[Collected], on_update: Callable[[int], None] = lambda _: None
    ) -> dict[str, float]:
        """Make `llm_updates` updates on these batches; the means of what they say. A train without anything to learn from is a
        train, too. Raises BadData after too many updates in a row that were not finite."""
        found = [example for example in gather(batches, self._discount, self._how.rft_steps) if can_teach(example)]
        held_out = [example for example in found if is_held_out(example, self._how.llm_holdout)]
        examples = [example for example in found if not is_held_out(example, self._how.llm_holdout)]
        rng = np.random.default_rng([self._seed, STREAM, self.version])
        sums: dict[str, float] = {}
        made = left_out = 0
        probed = examples[:PROBED]
        before = self.agreement(probed)
        for chosen in self._draw(examples, rng):
            told = self._update(chosen)
            if told is None:
                left_out += 1
                continue
            made += 1
            for name, value in told.items():
                sums[name] = sums.get(name, 0.0) + value
            on_update(self.updates)
        self.version += 1
        values = {name: value / made for name, value in sums.items()}
        if examples:
            values |= {"top1_before": before, "top1_after": self.agreement(probed)}
        if held_out:
            values |= {"top1_held_out": self.agreement(held_out[:PROBED]), "held_out": float(len(held_out[:PROBED]))}
        return values | {"examples": float(len(examples)), "updates": float(made), "left_out": float(left_out)}

    def _draw(self, examples: Sequence[Example], rng: np.random.Generator) -> Iterator[list[Example]]:
        """The examples of each update of a train, distinct within one. What was met more often comes more often, as the square
        root: its visits say more, and the agent will be there again; yet what is rare is learned, too."""
        if not examples:
            return
        often = np.sqrt([len(example.steps) for example in examples])
        count = min(self._how.llm_batch_size, len(examples))
        for _ in range(self._how.llm_updates):
            yield [examples[i] for i in rng.choice(len(examples), count, replace=False, p=often / often.sum())]

    def _update(self, examples: Sequence[Example]) -> dict[str, float] | None:
        """One step of the optimizer on these examples; None if it was not finite and left out."""
        self._optimizer.zero_grad(set_to_none=True)
        self.model.train(self.device.type == "cuda")  # gradient checkpointing wants it; there is no dropout
        told: dict[str, float] = {}
        for part in self._passes(examples):
            loss, found = self._loss(part)
            if not torch.isfinite(loss):
                self._leave_out(f"its loss is {float(loss.detach())}")
                return None
            (loss * (len(part) / len(examples))).backward()
            for name, value in found.items():
                told[name] = told.get(name, 0.0) + value * len(part) / len(examples)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._how.llm_grad_clip))
        if not math.isfinite(norm):
            self._leave_out(f"the norm of its gradients is {norm}")
            return None
        for group in self._optimizer.param_groups:
            group["lr"] = self._how.llm_learning_rate * self._rate()
        self._optimizer.step()
        self.updates += 1
        self._bad = 0
        return told | {"gradient_norm": norm}

    def _rate(self) -> float:
        """Part of the learning rate for the next update: up in a line, then as it is or down in a half cosine."""
        how = self._how
        if self.updates < how.llm_warmup_updates:
            return (self.updates + 1) / how.llm_warmup_updates
        if how.llm_lr_schedule == "constant":
            return 1.0
        gone = min(1.0, (self.updates - how.llm_warmup_updates) / max(1, how.llm_decay_updates))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * gone))

    def _leave_out(self, why: str) -> None:
        self._bad += 1
        log.warning("an update of the language model is left out: %s", why)
        if self._bad >= MOST_BAD:
            raise BadData(
                f"{self._bad} updates of the language model in a row were not finite, the last one because {why}; lower "
                "llm_train_config.llm_learning_rate."
            )

    def _passes(self, examples: Sequence[Example]) -> Iterator[list[Example]]:
        """The examples by length, at most `tokens_per_pass` tokens at a time, padding included, or one alone."""
        part: list[Example] = []
        for example in sorted(examples, key=lambda one: one.row.new):
            if part and example.row.new * (len(part) + 1) > self._how.llm_tokens_per_pass:
                yield part
                part = []
            part.append(example)
        if part:
            yield part

    # -- scores and losses ---------------------------------------------------------------------------------------------

    def scores(self, examples: Sequence[Example], model: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of the candidates [examples, candidates] as engines make them, and which of them there are."""
        width = max(len(one.copies) for one in examples)
        present = torch.zeros(len(examples), width, dtype=torch.bool, device=self.device)
        rows = [one.row for one in examples]
        parts = []
        for number, (row, logits) in enumerate(zip(rows, forward(model or self.model, rows), strict=True)):
            nodes = node_log_probs(row, logits)
            member = torch.from_numpy(_membership(row.trie, self._reduction)).to(self.device)
            parts.append(torch.nn.functional.pad(member @ nodes, (0, width - len(member))))
            present[number, : len(member)] = torch.tensor([end >= 0 for end in row.trie.ends])
        return torch.stack(parts), present

    def _loss(self, part: Sequence[Example]) -> tuple[torch.Tensor, dict[str, float]]:
        how = self._how
        scores, present = self.scores(part)
        copies = self._padded([one.copies for one in part], present.shape[1], 1.0)
        log_pi = losses.log_policy(scores, present, copies, self._temperature)
        target = self._padded([one.target for one in part], present.shape[1], 0.0)
        parts: dict[str, torch.Tensor] = {"entropy": losses.entropy(log_pi, present).mean()}
        total = -how.llm_entropy_weight * parts["entropy"]
        if how.llm_train in ("distill", "both"):
            parts["distill_loss"] = losses.distillation(log_pi, present, target**how.distill_power).mean()
            total = total + how.distill_weight * parts["distill_loss"]
        if how.llm_train in ("rft", "both"):
            parts |= self._policy_gradient(part, scores, present, copies, log_pi)
            total = total + how.rft_weight * parts["rft_loss"]
        if how.llm_kl_weight:
            reference = self._reference_scores(part, present)
            log_reference = losses.log_policy(reference, present, copies, self._temperature)
            parts["kl_to_reference"] = losses.kl_to_reference(log_pi, log_reference, present).mean()
            total = total + how.llm_kl_weight * parts["kl_to_reference"]
        best = log_pi.detach().argmax(-1) == target.argmax(-1)
        parts["top1"] = best.float().mean()
        return total, {name: float(value.detach()) for name, value in (parts | {"loss": total}).items()}

    def _policy_gradient(
        self, part: Sequence[Example], scores: torch.Tensor, present: torch.Tensor, copies: torch.Tensor, log_pi: torch.Tensor
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        how = self._how
        steps = [
            (number, step) for number, one in enumerate(part) for step in one.steps if math.isfinite(step.advantage)
        ]
        steps = [(number, step) for number, step in steps if bool(present[number, step.action])]
        if not steps:
            return {"rft_loss": log_pi.new_zeros(()), "ratio": log_pi.new_ones(()), "clipped": log_pi.new_zeros(())}
        rows = torch.tensor([number for number, _ in steps], device=self.device)
        actions = torch.tensor([step.action for _, step in steps], device=self.device)
        old = self._padded([step.scores for _, step in steps], present.shape[1], float("-inf"))
        old = old.masked_fill(~present[rows], 0.0)
        log_old = losses.log_policy(old, present[rows], copies[rows], self._temperature)
        every = torch.arange(len(steps), device=self.device)
        if how.rft_ratio == "gspo":
            log_ratio = scores[rows, actions] - old[every, actions]
        else:
            log_ratio = log_pi[rows, actions] - log_old[every, actions]
        advantage = torch.tensor([step.advantage for _, step in steps], device=self.device)
        taken = torch.tensor([step.taken for _, step in steps], device=self.device)
        correction = losses.truncated_correction(log_old[every, actions], taken, how.rft_max_correction)
        # Every example weighs the same, however many steps met it.
        weight = 1.0 / torch.tensor([len(part[number].steps) for number, _ in steps], device=self.device)
        each = losses.policy_gradient(log_ratio, advantage, correction, how.rft_clip)
        ratio = log_ratio.detach().exp()
        return {
            "rft_loss": (each * weight).sum() / len(part),
            "ratio": ratio.mean(),
            "clipped": ((ratio - 1).abs() > how.rft_clip).float().mean(),
            "correction": correction.mean(),
        }

    def _reference_scores(self, part: Sequence[Example], present: torch.Tensor) -> torch.Tensor:
        """What the untrained model says; it never changes, so it is asked once for each prompt."""
        keys = {id(one): _digest_of(one) for one in part}
        unknown = [one for one in part if keys[id(one)] not in self._references]
        with torch.no_grad(), self._untrained() as model:
            for one in unknown:  # each alone, so that it is the same number whenever it is asked
                (found,), _ = self.scores([one], model)
                self._references[keys[id(one)]] = found.cpu()
        rows = [self._references[keys[id(one)]].numpy() for one in part]
        while len(self._references) > REFERENCES:
            self._references.popitem(last=False)
        return self._padded(rows, present.shape[1], 0.0)

    @contextmanager
    def _untrained(self) -> Iterator[Any]:
        """The model as it was at first."""
        if self._reference is not None:
            yield self._reference
            return
        switch_adapter(self.model, False)
        try:
            yield self.model
        finally:
            switch_adapter(self.model, True)

    @torch.no_grad()
    def agreement(self, examples: Sequence[Example]) -> float:
        """The share of examples in which the model likes best what the search visited most."""
        if not examples:
            return float("nan")
        self.model.eval()
        right = 0
        for part in self._passes(examples):
            scores, present = self.scores(part)
            copies = self._padded([one.copies for one in part], present.shape[1], 1.0)
            best = losses.log_policy(scores, present, copies, self._temperature).argmax(-1)
            target = self._padded([one.target for one in part], present.shape[1], 0.0)
            right += int((best == target.argmax(-1)).sum())
        return right / len(examples)

    def _padded(self, rows: Sequence[Any], width: int, value: float) -> torch.Tensor:
        out = torch.full((len(rows), width), value, device=self.device)
        for number, row in enumerate(rows):
            out[number, : len(row)] = torch.as_tensor(row, dtype=torch.float32)
        return out

    # -- what is handed over -------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """What is trained, as it is now."""
        return trained_weights(self.model)

    def digest(self) -> str:
        """A digest of the weights, those that are not trained included."""
        return trained_digest(self._base, self.weights())

    def state(self) -> dict[str, Any]:
        """Everything that a train changes, copied."""
        return {
            "trained": {name: value.detach().cpu().clone() for name, value in self.weights().items()},
            "optimizer": copy.deepcopy(self._optimizer.state_dict()["state"]),
            "version": self.version,
            "updates": self.updates,
            "base": self._base,
        }

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on from there; None: from the beginning. Raises BadData for what is not finite."""
        state = self._first if state is None else state
        if state["base"] != self._base:
            raise ConfigError(
                "the language model is not the one that was trained: its files have changed; put the run's own model back."
            )
        if found := first_bad(state):
            raise BadData(f"the language model's state is not finite: {found}")
        load_trained(self.model, state["trained"])
        groups = self._optimizer.state_dict()["param_groups"]
        # The optimizer keeps what it is given and changes it in place; the state stays as it was handed over.
        moments = {int(number): copy.deepcopy(dict(values)) for number, values in state["optimizer"].items()}
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.version, self.updates = int(state["version"]), int(state["updates"])


def trainable(how: LLMTrainConfig, seed: int) -> Trainable:
    """How learner and engines prepare their models."""
    return Trainable(how.llm_method, how.lora_rank, how.lora_alpha, seed)


def _digest_of(example: Example) -> bytes:
    """What tells a prompt and its candidates from others."""
    key: Any = example.row.key
    tokens, candidates = key
    found = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=16)
    for candidate in candidates:
        found.update(b"|" + np.asarray(candidate, np.int32).tobytes())
    return found.digest()


def _membership(trie: Any, reduction: Reduction) -> Any:
    """[candidates, nodes]: how much each node's log-probability counts for a candidate's score."""
    member = np.zeros((len(trie.ends), len(trie.tokens)), np.float32)
    for candidate, end in enumerate(trie.ends):
        path = list(trie.ancestors(end))
        member[candidate, path] = 1.0 / len(path) if reduction == "mean" and path else 1.0
    return member
