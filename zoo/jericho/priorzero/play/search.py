"""UniZero's search, batched over games: LightZero's C++ tree over the world model's own transformer blocks.

LightZero finds the keys and values of a node by hashing its latent state, one game at a time in Python, and re-roots by
approximating shifted positions. Here every node owns a slot in one tensor: a simulation gathers its parents' slots,
runs two tokens for all games at once and writes the new slots. A root is computed from its window of past steps exactly
as in training. Nothing survives a search, so new weights never meet old caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass
class RootInput:
    """One game at its root: the window of observations (the last is now) and the actions between them."""

    observations: NDArray[Any]  # float32 [window, features], at most `max_window` rows
    actions: list[int]  # window - 1 slots
    mask: NDArray[Any]  # int8 [slots]


@dataclass
class RootOutput:
    """What the search found for one game."""

    visits: NDArray[Any]  # float32 [slots], a distribution; zero where the mask is zero
    value: float
    predicted_value: float
    policy_logits: NDArray[Any]  # float32 [slots], the world model's own


class TreeSearch:
    """MCTS for a batch of games with one UniZero model; the model is used in eval mode and never changed."""

    def __init__(self, model: Any, cfg: Any, max_window: int) -> None:
        from lzero.mcts import UniZeroMCTSCtree
        from lzero.policy import InverseScalarTransform

        world_model = model.world_model
        if world_model.config.rotary_emb or world_model.config.gru_gating or world_model.continuous_action_space:
            raise ValueError("TreeSearch needs learned positions, plain residuals and discrete actions")
        self.model, self.world_model, self.cfg = model, world_model, cfg
        self.capacity = int(world_model.config.max_tokens)
        self.max_window = max(1, min(max_window, self.capacity // 2 - 1))
        self._tree = UniZeroMCTSCtree(cfg)
        self._to_scalar = InverseScalarTransform(cfg.model.support_scale, cfg.device, True)
        config = world_model.config
        self._heads, self._head_size = config.num_heads, config.embed_dim // config.num_heads
        self._layers, self._slots = config.num_layers, config.action_space_size
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def run(
        self,
        roots: Sequence[RootInput],
        root_policy: Any,
        *,
        num_simulations: int,
        noise_weight: float = 0.0,
        rngs: Sequence[np.random.Generator] | None = None,
    ) -> list[RootOutput]:
        """Search each root; `root_policy(logits)` turns the world model's root logits [games, slots] into the tree's.

        Dirichlet noise is mixed into the roots with `noise_weight`, each drawn from its own generator of `rngs`, so that it
        does not depend on which roots are searched together.
        """
        from lzero.mcts.ctree.ctree_muzero import mz_tree

        self.model.eval()
        games = len(roots)
        pool = self._pool(num_simulations + 1, games)
        found, values = self._infer_roots(roots, pool)
        predicted = self._scalars(values)
        logits: NDArray[Any] = found.cpu().numpy()
        tree_logits = np.asarray(root_policy(logits), dtype=np.float32)
        legal = [np.flatnonzero(root.mask).tolist() for root in roots]
        tree, to_play = self._tree.roots(games, legal), [-1] * games
        if noise_weight > 0 and rngs is not None:
            alpha = self.cfg.root_dirichlet_alpha
            noises = [rng.dirichlet([alpha] * len(row)).tolist() for rng, row in zip(rngs, legal, strict=True)]
            tree.prepare(noise_weight, noises, [0.0] * games, tree_logits.tolist(), to_play)
        else:
            tree.prepare_no_noise([0.0] * games, tree_logits.tolist(), to_play)

        statistics = mz_tree.MinMaxStatsList(games)
        statistics.set_delta(self._tree._cfg.value_delta_max)
        base, init, discount = self._tree._cfg.pb_c_base, self._tree._cfg.pb_c_init, self.cfg.discount_factor
        for simulation in range(1, num_simulations + 1):
            results = mz_tree.ResultsWrapper(num=games)
            depth, game, action, turn = mz_tree.batch_traverse(tree, base, init, discount, statistics, results, to_play)
            reward, logit, value = self._expand(pool, simulation, depth, game, action)
            mz_tree.batch_backpropagate(
                simulation,
                discount,
                self._scalars(reward).tolist(),
                self._scalars(value).tolist(),
                logit.cpu().numpy().tolist(),
                statistics,
                results,
                turn,
            )
        return [
            RootOutput(_spread(visits, row, self._slots), float(value), float(guess), logit)
            for visits, row, value, guess, logit in zip(
                tree.get_distributions(), legal, tree.get_values(), predicted, logits, strict=True
            )
        ]

    @torch.inference_mode()
    def policy_logits(self, roots: Sequence[RootInput]) -> NDArray[Any]:
        """The world model's policy logits at the roots [games, slots], without a search."""
        self.model.eval()
        pool = self._pool(1, len(roots))
        return self._infer_roots(roots, pool)[0].cpu().numpy()

    def _scalars(self, categorical: torch.Tensor) -> NDArray[Any]:
        scalars: NDArray[Any] = self._to_scalar(categorical).reshape(-1).cpu().numpy()
        return scalars

    def _pool(self, nodes: int, games: int) -> _Pool:
        return _Pool(nodes, games, self._layers, self._heads, self.capacity, self._head_size, self.device)

    def _infer_roots(self, roots: Sequence[RootInput], pool: _Pool) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill slot 0 of the pool from the windows; return the roots' policy logits and value logits."""
        windows = [root.observations[-self.max_window :] for root in roots]
        lengths = torch.tensor([2 * len(window) - 1 for window in windows], device=self.device)
        observations = torch.from_numpy(np.concatenate(windows)).to(self.device)
        latents = self.world_model.tokenizer.encode_to_obs_embeddings(observations)[:, 0]
        tokens = latents.new_zeros(len(roots), int(lengths.max()), latents.shape[-1])
        start = 0
        for index, (root, window) in enumerate(zip(roots, windows, strict=True)):
            tokens[index, 0 : 2 * len(window) : 2] = latents[start : start + len(window)]
            if len(window) > 1:
                actions = torch.tensor(root.actions[-(len(window) - 1) :], device=self.device)
                tokens[index, 1 : 2 * len(window) - 1 : 2] = self.world_model.act_embedding_table(actions)
            start += len(window)
        keys, values = pool.slot(0)
        hidden = self._advance(tokens, keys, values, torch.zeros_like(lengths))
        rows = torch.arange(len(roots), device=self.device)
        now = hidden[rows, lengths - 1]
        pool.sizes[0] = lengths
        pool.latents = latents.new_zeros(pool.nodes, len(roots), latents.shape[-1])
        pool.latents[0] = tokens[rows, lengths - 1]
        return self._head("policy", now), self._head("value", now)

    def _expand(
        self, pool: _Pool, simulation: int, depth: Sequence[int], game: Sequence[int], action: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write one new node a game; return reward logits, policy logits, value logits."""
        parent, row = torch.tensor(depth, device=self.device), torch.tensor(game, device=self.device)
        keys, values = pool.slot(simulation)
        keys.copy_(pool.keys[parent, row])
        values.copy_(pool.values[parent, row])
        sizes = pool.sizes[parent, row].clone()
        full = torch.nonzero(sizes + 2 > self.capacity).flatten()
        if len(full):  # deeper than any training window: this line of play goes on from its latent alone
            fresh_keys, fresh_values = keys[full], values[full]
            latent = pool.latents[parent[full], row[full]].unsqueeze(1)
            self._advance(latent, fresh_keys, fresh_values, torch.zeros_like(full))
            keys[full], values[full], sizes[full] = fresh_keys, fresh_values, 1
        token = self.world_model.act_embedding_table(torch.tensor(action, device=self.device)).unsqueeze(1)
        hidden = self._advance(token, keys, values, sizes)[:, 0]
        reward, latent = self._head("rewards", hidden), self._head("observations", hidden)
        hidden = self._advance(latent.unsqueeze(1), keys, values, sizes + 1)[:, 0]
        pool.sizes[simulation] = sizes + 2
        pool.latents[simulation] = latent
        return reward, self._head("policy", hidden), self._head("value", hidden)

    def _head(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.world_model, f"head_{name}").head_module(hidden)
        return found

    def _advance(
        self, tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sizes: torch.Tensor
    ) -> torch.Tensor:
        """Run tokens [games, count, width] behind each game's first `sizes` cached ones; extend the caches in place."""
        games, count, width = tokens.shape
        positions = sizes[:, None] + torch.arange(count, device=self.device)
        x = tokens + self.world_model.pos_emb(positions)
        end = int(sizes.max()) + count
        # [games, 1, count, end]: a token sees what lies before it and itself
        hidden_from = torch.arange(end, device=self.device)[None, None, None] > positions[:, None, :, None]
        index = positions[:, None, :, None].expand(games, self._heads, count, self._head_size)
        for layer, block in enumerate(self.world_model.transformer.blocks):
            normal, attention = block.ln1(x), block.attn
            query, key, value = (
                part(normal).view(games, count, self._heads, self._head_size).transpose(1, 2)
                for part in (attention.query, attention.key, attention.value)
            )
            keys[:, layer].scatter_(2, index, key)
            values[:, layer].scatter_(2, index, value)
            scores = query @ keys[:, layer, :, :end].transpose(-2, -1) / self._head_size**0.5
            weights = scores.masked_fill(hidden_from, float("-inf")).softmax(-1)
            mixed = (weights @ values[:, layer, :, :end]).transpose(1, 2).reshape(games, count, width)
            x = x + attention.proj(mixed)
            x = x + block.mlp(block.ln2(x))
        found: torch.Tensor = self.world_model.transformer.ln_f(x)
        return found


class _Pool:
    """Keys and values of every node of a search: [nodes, games, layers, heads, tokens, head size]."""

    def __init__(
        self, nodes: int, games: int, layers: int, heads: int, tokens: int, head_size: int, device: torch.device
    ) -> None:
        self.nodes = nodes
        self.keys = torch.zeros(nodes, games, layers, heads, tokens, head_size, device=device)
        self.values = torch.zeros_like(self.keys)
        self.sizes = torch.zeros(nodes, games, dtype=torch.long, device=device)
        self.latents = torch.empty(0)

    def slot(self, node: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[node], self.values[node]


def _spread(visits: Sequence[float], legal: Sequence[int], slots: int) -> NDArray[Any]:
    """Visit counts of the legal actions as a distribution over all slots."""
    full = np.zeros(slots, dtype=np.float32)
    full[legal] = visits
    distribution: NDArray[Any] = full / max(full.sum(), 1e-6)
    return distribution
