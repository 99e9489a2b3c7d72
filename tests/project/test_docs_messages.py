"""The messages that the documentation quotes are messages of the program."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PAGES = (PAGE, ROOT / "docs" / "gpus-and-machines.md")
VALUE = "…"


def templates(source: str) -> list[str]:
    """Every text of a program, with … for what is put in."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.sub(r"%\.?\d*[a-zA-Z]", VALUE, node.value))
    return [plain(text) for text in found]


def plain(text: str) -> str:
    """The text without regard to spaces, and with several values next to each other as one."""
    return re.sub(rf"(\s*{VALUE}\s*)+", VALUE, " ".join(text.split()))


def quotes(page: str) -> list[str]:
    return [line.removeprefix(">").strip() for line in page.splitlines() if line.startswith(">")]


def is_message(quote: str, known: list[str]) -> bool:
    """Whether a text of the program has the quote, … standing for whatever the program has there."""
    pattern = ".*".join(re.escape(part) for part in plain(quote).split(VALUE))
    return any(re.search(pattern, text) for text in known)


@pytest.fixture(scope="module")
def known() -> list[str]:
    return [
        text
        for folder in ("lzero_async", "zoo")
        for path in (ROOT / folder).glob("**/*.py")
        for text in templates(path.read_text())
    ]


@pytest.mark.parametrize("quote", [quote for page in PAGES for quote in quotes(page.read_text())])
def test_quoted_messages_exist(quote: str, known: list[str]) -> None:
    assert is_message(quote, known)


def test_messages_that_do_not_exist_are_noticed() -> None:
    known = templates(
        "raise E(f'There is no {name} at {place}; ' f'give {flag}.')\nlog.warning('%s failed %d times', a, b)"
    )
    assert is_message("There is no … at …; give", known)
    assert is_message("… failed … times", known)
    assert not is_message("There is a … at …", known)
    assert not is_message("… failed … times in a row", known)


def test_every_part_of_the_page_says_what_to_do() -> None:
    parts = PAGE.read_text().split("\n## ")[1:]
    assert len(parts) >= 12
    for part in parts:
        assert re.search(r"\*\*.*\bdo\b.*:\*\*", part, re.IGNORECASE), part.splitlines()[0]
