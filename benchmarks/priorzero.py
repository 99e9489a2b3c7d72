"""The bars of PriorZero: `python -m benchmarks.priorzero`. Learning has its own command, `python -m benchmarks.learn`."""

from __future__ import annotations

from pathlib import Path

from benchmarks import llm_prior, resume, unizero_text, valid_actions
from benchmarks.harness import main_guard, run_bars

GROUPS = {
    "world model": unizero_text.bars,
    "prior": llm_prior.bars,
    "valid actions": valid_actions.bars,
    "resume": resume.bars,
}
OUTPUT = Path(__file__).parent / "results" / "priorzero.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured-priorzero.md"

if __name__ == "__main__":
    main_guard(lambda: run_bars("PriorZero", GROUPS, OUTPUT, PAGE))
