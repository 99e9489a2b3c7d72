"""What the documentation shows is run: every command, every Python block, the targets it names, and its links."""

from __future__ import annotations

import difflib
import inspect
import re
from pathlib import Path

import pytest

from lzero_async import Adaptation, AsyncTrainingCoordinator, Bound, Recovery
from tests.project.docs_blocks import ROOT, BadBlock, Piece, check_arguments, pages, pieces, pieces_of, summary
from tests.project.docs_running import Scratch, kind_of

PAGES = pages()
PIECES = pieces()
COMMANDS = [piece for piece in PIECES if piece.language == "sh"]
CODE = [piece for piece in PIECES if piece.language == "python"]


def some(chosen: list[Piece]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("piece", chosen, ids=[piece.name for piece in chosen])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return Scratch(tmp_path_factory.mktemp("docs"), PIECES)


def one_of_each_kind(chosen: list[Piece]) -> pytest.MarkDecorator:
    """The first command of every kind; `make soak` runs the others."""
    kinds: set[tuple[str, ...]] = set()
    params = []
    for piece in chosen:
        marks = [pytest.mark.soak] if kind_of(piece.command) in kinds else []
        params.append(pytest.param(piece, id=piece.name, marks=marks))
        kinds.add(kind_of(piece.command))
    return pytest.mark.parametrize("piece", params)


@pytest.mark.slow
@one_of_each_kind([piece for piece in COMMANDS if not piece.reason])
def test_commands_run(piece: Piece, scratch: Scratch) -> None:
    done = scratch.run(piece)
    assert done.returncode == 0, f"{piece.command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout + done.stderr


def shape(text: str) -> list[list[str]]:
    """The words of each line, whatever the numbers are."""
    return [re.sub(r"-?\d+(\.\d+)?", "#", line).split() for line in text.splitlines()]


@pytest.mark.parametrize("example", ["serial_loop", "async_loop", "sixty_seconds"])
def test_the_tutorial_shows_what_its_examples_print(example: str, scratch: Scratch) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    command = f".venv/bin/python docs/examples/{example}.py"
    shown = re.search(rf"^{re.escape(command)}\n```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert shown is not None
    printed = scratch.run(next(piece for piece in COMMANDS if piece.command == command)).stdout
    assert shape(shown[1]) == shape(printed)


def test_the_tutorials_ten_lines_turn_one_example_into_the_other(scratch: Scratch) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    serial, asynchronous = (
        (ROOT / "docs" / "examples" / f"{name}_loop.py").read_text() for name in ("serial", "async")
    )
    diff = "".join(
        difflib.unified_diff(
            serial.splitlines(True), asynchronous.splitlines(True), "serial_loop.py", "async_loop.py", n=1
        )
    )
    assert f"```diff\n{diff}```" in page
    assert len(re.findall(r"^\+(?!\+\+)", diff, re.MULTILINE)) <= 10
    assert f"```python\n{serial}```" in page
    took = [
        float(re.search(r"in ([\d.]+) s", scratch.run(piece).stdout)[1])  # type: ignore[index]
        for piece in COMMANDS
        if piece.page == "docs/tutorial.md" and "_loop.py" in piece.text
    ]
    assert took[1] < took[0]


@some([piece for piece in CODE if not piece.reason])
def test_python_blocks_run(
    piece: Piece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(piece.text, piece.name, "exec"), {"__name__": "block"})
    printed = capsys.readouterr().out
    assert printed
    after = (ROOT / piece.page).read_text().partition(f"{piece.text}```\n\n```text\n")[2]
    if after:  # what it prints is shown below it
        assert shape(after.partition("```")[0]) == shape(printed)


@some(COMMANDS)
def test_the_programs_take_every_command_as_it_is_shown(piece: Piece) -> None:
    check_arguments(piece.text)
    if not piece.reason:
        check_arguments(piece.command.replace("{free_port}", "9464"))


def test_options_that_do_not_exist_are_noticed() -> None:
    assert check_arguments(".venv/bin/python zoo/mbpo/train.py --num_envs 8")
    assert not check_arguments("ls")
    with pytest.raises(ValueError, match="no option num_env;"):
        check_arguments(".venv/bin/python zoo/mbpo/train.py --num_env 8")


def test_commands_of_one_kind_run_the_same_code() -> None:
    train = ".venv/bin/python zoo/mbpo/train.py --num_envs"
    assert kind_of(f"{train} 8") == kind_of(f"{train} 16 --max_steps 4") == ("zoo/mbpo/train.py",)
    assert kind_of(f"{train} 8 --backend ray") == ("zoo/mbpo/train.py", "--backend", "ray")
    assert kind_of(f"{train} 8 --resume runs/x") == ("zoo/mbpo/train.py", "--resume")
    assert kind_of(".venv/bin/python -m lzero_async report runs/x") == ("lzero-async", "report", "a run")
    assert kind_of(".venv/bin/lzero-async train mbpo --num_envs 8") == ("lzero-async", "train", "mbpo")
    assert kind_of("make train ARGS='--seed 1'") == ("make", "train")


def test_marks_say_what_is_run() -> None:
    page = (
        "<!-- run-with: --short 1 -->\n<!-- not-run (slow): an hour -->\n```sh\nfast --x   # why\nslow \\\n  --y\n"
        "other  # a thing; not-run: no such file\n```\n```python\nprint(1)\n```\n```text\nseen\n```\n"
    )
    found = pieces_of(page, "page.md")
    assert [(piece.line, piece.command, piece.reason) for piece in found[:3]] == [
        (4, "fast --x --short 1", ""),
        (5, "slow --y", "an hour"),
        (7, "other --short 1", "no such file"),
    ]
    assert found[3] == Piece("page.md", 9, "python", "print(1)\n", "", "")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```bash\nls\n```\n", "language is 'bash'"),
        ("```sh\nls\n", "has no end"),
        ("<!-- not-run (cat): why -->\n```sh\nls\n```\n", "no line has 'cat'"),
        ("<!-- not-run: -->\n```sh\nls\n```\n", "says nothing"),
        ("<!-- not-run -->\n```sh\nls\n```\n", "cannot be read"),
        ("<!-- not-run: why -->\n```text\nls\n```\n", "needs no not-run"),
    ],
)
def test_blocks_that_would_escape_are_refused(page: str, words: str) -> None:
    with pytest.raises(BadBlock, match=re.escape(words)):
        pieces_of(page, "page.md")


def test_the_list_of_what_is_not_run_has_every_reason() -> None:
    told = "\n".join(summary())
    assert all(f"{piece.name}: " in told and f"not-run: {piece.reason}]" in told for piece in PIECES if piece.reason)
    assert told.startswith(f"documentation: {sum(not piece.reason for piece in PIECES)} commands")


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page.name


def test_every_link_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_into_a_page_meets_a_heading() -> None:
    found = 0
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text()):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"
            found += 1
    assert found


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 9_000


def test_the_reference_names_every_argument() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    coordinator = AsyncTrainingCoordinator
    for function in (coordinator.__init__, Bound, Recovery, Adaptation, coordinator.run, coordinator.batches):
        names = set(inspect.signature(function).parameters) - {
            "self",
            "coordinator",
            "collect",
            "train_fn",
            "eval_fn",
        }
        assert [name for name in names if f"`{name}`" not in reference] == []
