"""What goes wrong between the ranks of a data-parallel learner. Needs no torch: the coordinating process knows them, too."""

from __future__ import annotations


class GroupBroken(RuntimeError):
    """The ranks of a data-parallel learner lost each other: one died, hung or did not come. A new group can be made."""


class RankFailed(RuntimeError):
    """Another rank of the learner failed in an update; its own call raises why."""
