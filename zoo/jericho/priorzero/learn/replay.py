"""LightZero's UniZero buffer, with two of its rules made right for games whose valid actions change with the state."""

from __future__ import annotations

from typing import Any

import numpy as np
from lzero.mcts.buffer.game_buffer_unizero import UniZeroGameBuffer
from numpy.typing import NDArray

from zoo.jericho.priorzero.play.search import RootInput, TreeSearch


class ReplayBuffer(UniZeroGameBuffer):
    """UniZeroGameBuffer that evicts whole padded segments and reanalyzes within the valid actions."""

    game_pos_priorities: NDArray[Any]

    def _remove(self, excess_game_segment_index: int) -> None:
        """Drop the oldest segments and exactly their positions.

        The base class counts a segment's padding as positions too, so that the look-up table loses the wrong rows.
        """
        length = self._cfg.game_segment_length
        gone = self.game_segment_buffer[:excess_game_segment_index]
        positions = sum(min(len(segment), length) for segment in gone)
        del self.game_segment_buffer[:excess_game_segment_index]
        self.game_pos_priorities = self.game_pos_priorities[positions:]
        del self.game_segment_game_pos_look_up[:positions]
        self.base_idx += excess_game_segment_index

    def _compute_target_policy_reanalyzed(
        self, policy_re_context: list[Any] | None, model: Any, batch_action: Any, batch_timestep: Any = None
    ) -> Any:
        """Search again from the stored observations with the target network; the new visits also replace the stored."""
        if policy_re_context is None:
            return []
        observations, inside, positions, _, child_visits, _, masks, to_play, _ = policy_re_context
        width = self._cfg.num_unroll_steps + 1
        _, action_masks = self._preprocess_to_play_and_action_mask(len(positions), to_play, masks, positions)
        roots = [
            RootInput(np.asarray(observation, dtype=np.float32), [], np.asarray(mask, dtype=np.int8))
            for observation, mask, valid in zip(observations, action_masks, inside, strict=True)
            if valid
        ]
        search = TreeSearch(model, self._cfg, max_window=1)
        found = iter(search.run(roots, lambda logits: logits, num_simulations=self._cfg.num_simulations))
        targets = np.zeros((len(positions), width, self._cfg.model.action_space_size), dtype=np.float32)
        for row, (position, visits) in enumerate(zip(positions, child_visits, strict=True)):
            for step in range(width):
                if inside[row * width + step]:
                    targets[row, step] = visits[position + step] = next(found).visits
        return targets
