"""The program: run what is missing, compare, show and write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lzero_async.errors import ConfigError
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.run_dir import BAD_INPUT, SUMMARY, exit_code, free_folder, write_json
from lzero_async.tools.compare.arguments import Request, parse, shown
from lzero_async.tools.compare.measured import Run, load_run
from lzero_async.tools.compare.running import run_program
from lzero_async.tools.compare.show import Comparison, as_json, as_text, compare_runs


def main(arguments: Sequence[str]) -> int:
    """Compare; return the exit code: 0 done, 2 bad input, or that of the run that failed."""
    return exit_code(lambda: compare(parse(arguments)), "--out")


@dataclass
class _Made:
    """What is there so far."""

    sync: Run | None = None
    asynchronous: Run | None = None
    commands: dict[str, str] = field(default_factory=dict)


def compare(request: Request) -> int:
    """Run both, unless they are given, and show them; after a failure, the one there is."""
    made = _Made()
    if request.sync_run is not None:
        made.sync = _given(request, request.sync_run, asynchronous=False)
    if request.async_run is not None:
        made.asynchronous = _given(request, request.async_run, asynchronous=True)
    with FolderLock() as lock:
        out = free_folder(str(request.out), None, lock, folder_flag="--out")
        if out != request.out:
            print(f"{request.out} holds another comparison; this one goes to {out}.", file=sys.stderr)
        code = 0
        if made.sync is None:
            code, made.sync = _run(request, out / "sync", made, "1/2 synchronous")
        if made.asynchronous is None and not code:
            code, made.asynchronous = _run(request, out / "async", made, "2/2 asynchronous")
        if made.sync is None and made.asynchronous is None:
            return code
        found = compare_runs(request.app, made.sync, made.asynchronous)
        _show(request, out, found, made)
        return code


def _given(request: Request, folder: Path, *, asynchronous: bool) -> Run:
    """A finished run that the user names."""
    try:
        return _load(request, folder, asynchronous=asynchronous)
    except ConfigError as error:
        raise ConfigError(f"{'--async_run' if asynchronous else '--sync_run'}: {error}") from error


def _load(request: Request, folder: Path, *, asynchronous: bool) -> Run:
    """Read a run; ConfigError unless it is one of this application and this mode that can be measured."""
    run = load_run(folder, request.app.name)
    if run.synchronous == asynchronous:
        raise ConfigError(
            f"{folder} is not {'an asynchronous' if asynchronous else 'a synchronous'} run; give another one."
        )
    return run


def _run(request: Request, folder: Path, made: _Made, heading: str) -> tuple[int, Run | None]:
    """Run the application into `folder`; what it measured before it failed is kept if it can be read."""
    asynchronous = folder.name == "async"
    words = request.command(asynchronous=asynchronous, folder=folder)
    command = made.commands[folder.name] = shown(words)
    limit = f", {request.seconds:g} s" if request.seconds else ""
    print(f"\n{heading}{limit}: {command}", file=sys.stderr, flush=True)
    code = run_program(["-m", "lzero_async", *words])
    problem = f"The {heading.split()[1]} run ended with code {code}; its own words are above."
    if not code:
        try:
            return 0, _load(request, folder, asynchronous=asynchronous)
        except ConfigError as error:
            code, problem = BAD_INPUT, str(error)
    print(f"\nerror: {problem}", file=sys.stderr)
    if (folder / SUMMARY).is_file():
        flag = f"--{folder.name}_run {folder}"
        print(f"What it measured until then is kept: {flag} takes it instead of a new run.", file=sys.stderr)
    if made.sync is not None:
        flag = f"--sync_run {made.sync.folder}"
        print(f"The synchronous run is kept: the same command with {flag} runs only the other one.", file=sys.stderr)
    return code, None


def _show(request: Request, out: Path, found: Comparison, made: _Made) -> None:
    text = as_text(found)
    places = {"text": out / "compare.txt", "JSON": request.json or out / "compare.json"}
    for path in places.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    places["text"].write_text(text + "\n")
    write_json(places["JSON"], as_json(found, made.commands))
    picture = request.png or out / "compare.png"
    if _draw(found, picture):
        places["picture"] = picture
    print(f"\n{text}\n")  # last: whoever reads it may close the pipe early
    print(", ".join(f"{name}: {path}" for name, path in places.items()))


def _draw(found: Comparison, path: Path) -> bool:
    try:
        from lzero_async.tools.compare.picture import draw
    except ImportError as error:
        print(f"There is no picture, since {error.name} is not installed; pip install matplotlib.", file=sys.stderr)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(found, path)
    return True
