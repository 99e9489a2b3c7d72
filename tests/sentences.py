"""What tests ask of what a user is told."""

from __future__ import annotations


def assert_one_sentence(said: str, words: list[str]) -> None:
    """It is one line with these words, which says what is wrong, and no traceback."""
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
