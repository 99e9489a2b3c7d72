"""The commands and code blocks of the documentation, and which of them are run; `make docs-blocks` lists the others.

Every line of a `sh` block and every `python` block is run by test_docs.py. HTML comments right above a block, which nobody
sees on the page, say otherwise:

    <!-- not-run: reason -->                 nothing of the block is run
    <!-- not-run (fragment): reason -->      the lines that have the fragment are not
    <!-- run-with: --max_steps 400 -->       words that are put behind each command; also with a (fragment); {short_priorzero}
                                             and {short_lightzero} stand for what makes such a run short, {free_port} for a port

At the end of a line of a `sh` block, `# not-run: reason` does the same for that line. Of several comments for a line the last one
counts.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SHELL, PYTHON = "sh", "python"
SHOWN = {"", "text", "diff", "json", "yaml"}  # languages of what is only looked at
FENCE = re.compile(r"^(\s*)```(.*)$")
MARK = re.compile(r"^\s*<!--\s*(not-run|run-with)\s*(?:\((.+?)\))?\s*:\s*(.*?)\s*-->\s*$")
INLINE = re.compile(r"#.*?not-run:\s*(.+)$")
SHORT_PRIORZERO = (
    "--quick_test --max_iter 12 --set env_config.max_steps=3 --set policy_config.update_per_collect=2 "
    "--set llm_config.root_policy=wm_logits --set run_config.eval_every=0 --set run_config.checkpoint_every=0 "
    "--set run_config.eval_modes=world_model --set run_config.final_eval_modes=world_model"
)
SHORT_LIGHTZERO = (
    "--plain --threads 1 --max_train_iter 24 --set policy.num_simulations=4 --set policy.batch_size=8 "
    "--set policy.update_per_collect=4 --set policy.n_episode=8"
)


class Mark(NamedTuple):
    """One comment above a block: what it says of the lines that have the fragment."""

    kind: str
    fragment: str
    text: str


class Piece(NamedTuple):
    """A command of a `sh` block, or a whole `python` block. `reason`: why it is not run, '' if it is."""

    page: str
    line: int
    language: str
    text: str
    more: str
    reason: str

    @property
    def name(self) -> str:
        """The page and the line where it stands."""
        return f"{self.page}:{self.line}"

    @property
    def command(self) -> str:
        """What the shell is given."""
        return (
            f"{self.text} {self.more}".strip()
            .replace("{short_priorzero}", SHORT_PRIORZERO)
            .replace("{short_lightzero}", SHORT_LIGHTZERO)
        )


class BadBlock(Exception):
    """A block that cannot be sorted; says where it is and what to do."""


def pages(root: Path = ROOT) -> list[Path]:
    """Every page whose blocks are run."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("**/*.md"))]


def pieces(root: Path = ROOT) -> list[Piece]:
    """What the pages hold, in their order."""
    return [piece for page in pages(root) for piece in pieces_of(page.read_text(), str(page.relative_to(root)))]


def pieces_of(text: str, page: str) -> list[Piece]:
    """The commands and code blocks of one page; BadBlock if one of them cannot be sorted."""
    found: list[Piece] = []
    for line, language, marks, body in _blocks(text, page):
        if language in SHOWN:
            if marks:
                raise BadBlock(f"{page}:{line}: a block that is only shown needs no {marks[0].kind}; take it away.")
            continue
        if language not in (SHELL, PYTHON):
            raise BadBlock(
                f"{page}:{line}: the language is {language!r}; use sh, python, or {', '.join(sorted(SHOWN)[1:])}."
            )
        lines = _commands(body, line + 1) if language == SHELL else [(line, "\n".join(body) + "\n")]
        _check_fragments(marks, lines, page)
        found += [_piece(page, number, language, command, marks) for number, command in lines]
    return found


def _blocks(text: str, page: str) -> Iterator[tuple[int, str, list[Mark], list[str]]]:
    """Line of the fence, language, marks above it and lines of every fenced block."""
    marks: list[Mark] = []
    body: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if body is None and fence:
            start, indent, language, body = number, len(fence[1]), fence[2].strip(), []
        elif body is None:
            marks = [*marks, Mark(*(part or "" for part in mark.groups()))] if (mark := MARK.match(line)) else []
            if not mark and re.search(r"<!--.*(not-run|run-with)", line):
                raise BadBlock(f"{page}:{number}: this mark cannot be read; write <!-- not-run: reason --> on a line.")
        elif fence and not fence[2]:
            yield start, language, marks, body
            marks, body = [], None
        else:
            body.append(line[indent:] if not line[:indent].strip() else line)
    if body is not None:
        raise BadBlock(f"{page}:{start}: the block has no end.")


def _commands(body: list[str], first: int) -> list[tuple[int, str]]:
    """The commands of a `sh` block with their lines; a backslash at the end joins the next line."""
    found: list[tuple[int, str]] = []
    joined, start = "", first
    for number, line in enumerate(body, first):
        start = start if joined else number
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        if joined and not joined.startswith("#"):
            found.append((start, joined))
        joined = ""
    return found


def _check_fragments(marks: list[Mark], lines: list[tuple[int, str]], page: str) -> None:
    for mark in marks:
        if not any(mark.fragment in command for _, command in lines):
            raise BadBlock(f"{page}: no line has {mark.fragment!r}, which {mark.kind} names; correct it.")
        if not mark.text:
            raise BadBlock(f"{page}: {mark.kind} says nothing; give the reason, or the words.")


def _piece(page: str, line: int, language: str, text: str, marks: list[Mark]) -> Piece:
    said = {"not-run": "", "run-with": ""}
    for mark in marks:
        if mark.fragment in text:
            said = {**dict.fromkeys(said, ""), mark.kind: mark.text}
    inline = INLINE.search(text) if language == SHELL else None
    if language == SHELL:
        text = re.sub(r"\s+#\s.*$", "", text)
    return Piece(page, line, language, text, said["run-with"], inline[1].strip() if inline else said["not-run"])


def parsers() -> dict[str, Callable[[list[str]], object]]:
    """By program: what reads and checks its arguments without running anything."""
    from lzero_async.tools.advise import arguments as advise
    from lzero_async.tools.compare import arguments as compare
    from lzero_async.tools.timeline import command as timeline
    from zoo.episode_ppo import options as ppo_options
    from zoo.episode_ppo import train as ppo
    from zoo.jericho.priorzero import options as priorzero_options
    from zoo.jericho.priorzero import priorzero_entry as priorzero
    from zoo.mbpo import options as mbpo_options
    from zoo.mbpo import train as mbpo

    def check_mbpo(words: list[str]) -> None:
        flags = mbpo.parse_arguments(words)
        mbpo_options.build_options(mbpo_options.COMMAND.changes(flags), preset=flags.preset)

    def check_priorzero(words: list[str]) -> None:
        flags = priorzero.parse_arguments(words)
        priorzero_options.build_options(
            flags.preset, changes=priorzero.changes_of(flags), assignments=flags.assignments
        )

    return {
        "zoo/mbpo/train.py": check_mbpo,
        "zoo/episode_ppo/train.py": lambda words: ppo_options.build_options(ppo.changes_of(ppo.parse_arguments(words))),
        "zoo/jericho/priorzero/priorzero_entry.py": check_priorzero,
        "-m lzero_async advise": advise.parse,
        "-m lzero_async compare": compare.parse,
        "-m lzero_async timeline": timeline.parse,
    }


def check_arguments(command: str) -> bool:
    """Let the program's own parser read the command; False if it is none of ours. What it refuses raises."""
    words = shlex.split(command)
    for program, parse in parsers().items():
        start = program.split()
        if words[1 : 1 + len(start)] == start and "--help" not in words:
            parse(words[1 + len(start) :])
            return True
    return False


def not_run(root: Path = ROOT) -> list[str]:
    """One line for each command or block that is not run, with its reason."""
    return [
        f"{piece.name}: {piece.text.splitlines()[0][:100]}  [not-run: {piece.reason}]"
        for piece in pieces(root)
        if piece.reason
    ]


def summary(root: Path = ROOT) -> list[str]:
    """How many commands and blocks are run, then each that is not."""
    every, left_out = pieces(root), not_run(root)
    head = f"documentation: {len(every) - len(left_out)} commands and code blocks are run, {len(left_out)} are not"
    return [head + (":" if left_out else ""), *(f"  {line}" for line in left_out)]


if __name__ == "__main__":
    sys.stdout.write("\n".join(summary()) + "\n")
