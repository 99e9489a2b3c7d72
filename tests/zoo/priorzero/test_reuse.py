"""The account of saved work, where several roles share a process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zoo.jericho.priorzero.roles.reuse import Reuse


def test_the_newest_report_tells_what_the_roles_of_a_process_share() -> None:
    """The evaluator reports when it is ready and the collector after every collect: of the two the later one is right."""
    reuse = Reuse()

    def report(role: str, asked: int) -> None:
        shared: dict[str, Any] = {"encoder_asked": asked, "encoder_encoded": asked // 2, "encoder_hit_rate": 0.0}
        reuse.add(SimpleNamespace(name=role), {"key": "one process", "shared": shared, "games": {"game_steps": 1}})

    report("collector 0", 0)
    report("evaluator", 0)
    report("collector 0", 1050)
    assert reuse.totals() == {"encoder_asked": 1050, "encoder_encoded": 525, "encoder_hit_rate": 0.5, "game_steps": 2}
