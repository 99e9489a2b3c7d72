"""The folder of a run and the program around it: a free folder, the checkpoint to go on from, the log, the exit code."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError, WorkerDied

FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
RUN_LOG: Final = "run.log"
ROLE_OUTPUT: Final = ".out"
LAST_CHECKPOINT: Final = Path("ckpt") / "last.safetensors"
BEST_CHECKPOINT: Final = LAST_CHECKPOINT.with_name("best.safetensors")
RESULTS: Final = "results.json"
TRACE: Final = "trace.json"
REPORT: Final = "report.html"
PLACES: Final[dict[str, str | Path]] = {
    "last checkpoint": LAST_CHECKPOINT,
    "best checkpoint": BEST_CHECKPOINT,
    "results": RESULTS,
    "metrics": "metrics.jsonl",
    "TensorBoard": "log",
    "trace": TRACE,
    "log": RUN_LOG,
}


def exit_code(program: Callable[[], int], folder_flag: str = "--exp_name") -> int:
    """Run a program and return its exit code; what a user can do something about is said in one sentence.

    1: a role died; 2: bad input or a disk that refuses; 130: interrupted. `folder_flag` chooses where the program writes.
    """
    try:
        return program()
    except ConfigError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return BAD_INPUT
    except WorkerDied as error:
        print(f"\nerror: {error} The run ends here.", file=sys.stderr)
        return FAILED
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        place = f" {error.filename}" if error.filename else ""
        print(f"\nerror: the run cannot go on: {error.strerror or error}{place}; make room or choose another {folder_flag}. "
              "Checkpoints written before are still there.", file=sys.stderr)  # fmt: skip
        return BAD_INPUT
    except KeyboardInterrupt:
        print("\ninterrupted at once; the last checkpoint, if there was one yet, is still there.", file=sys.stderr)
        return INTERRUPTED


def find_checkpoint(resume: str | None, exp_name: str) -> Path | None:
    """The checkpoint that --resume means: a file, or the last one of a run's folder (that of --exp_name if none is given)."""
    if resume is None:
        return None
    given = Path(resume or exp_name)
    saved = given / LAST_CHECKPOINT if given.is_dir() or not resume else given
    if not saved.is_file():
        raise ConfigError(f"There is no checkpoint at {saved}; give --resume a checkpoint file or a run's folder.")
    return saved


def find_run(
    resume: str | None, changes: dict[str, Any], exp_name: str, load: Callable[[Path], dict[str, Any]]
) -> tuple[Path | None, dict[str, Any] | None]:
    """The checkpoint that --resume means and what `load` reads of it; None without one. `changes` get its run's folder as their
    exp_name, unless they have one; `exp_name` is the default."""
    saved = find_checkpoint(resume, changes.get("exp_name", exp_name))
    if saved is None:
        return None, None
    state = load(saved)
    if (own := folder_of(saved)) is not None:
        changes.setdefault("exp_name", str(own))
    return saved, state


def folder_of(saved: Path) -> Path | None:
    """The folder of the run that wrote a checkpoint, if the file still lies there."""
    return saved.parent.parent if saved.parent.name == LAST_CHECKPOINT.parent.name else None


def free_folder(
    exp_name: str, saved: Path | None, harmless: Sequence[str] = (), folder_flag: str = "--exp_name"
) -> Path:
    """The folder to write into: the name itself, or with a number behind it when another run is there already.

    Files whose names begin with a word of `harmless` do not make a run.
    """
    folder, number = Path(exp_name), 2
    own = None if saved is None else folder_of(saved)
    while folder.exists() and not _is_free(folder, harmless):
        if own is not None and folder.is_dir() and folder.samefile(own):
            break
        folder, number = Path(f"{exp_name}-{number}"), number + 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made ({error.strerror}); choose another {folder_flag}."
        ) from error
    return folder


def say_folder(folder: Path, exp_name: str, saved: Path | None) -> None:
    """Print where the run writes, and why not where the user said if that is so."""
    taken = saved is None and folder != Path(exp_name)
    other = f" ({exp_name} holds another run; --resume {exp_name} goes on with that one)" if taken else ""
    print(f"folder: {folder}{other}", flush=True)


def _is_free(folder: Path, harmless: Sequence[str]) -> bool:
    """Whether nothing is in it but what a start leaves that failed."""
    if not folder.is_dir():
        return False
    return all(
        path.name.startswith(tuple(harmless))
        or path.suffix == ROLE_OUTPUT  # whatever workers said before they were ended; more is written behind it
        or (path.name == RUN_LOG and path.stat().st_size == 0)
        for path in folder.iterdir()
    )


class _ScreenHandler(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: a live view puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to(folder: Path, application: str) -> Iterator[None]:
    """Events of the library and of the application's loggers go to run.log, warnings to the screen too, while this lasts."""
    file, screen = logging.FileHandler(folder / RUN_LOG, encoding="utf-8"), _ScreenHandler()
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    screen.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("lzero_async", application)]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.propagate = False  # DI-engine puts a handler of its own on the root
        logger.addHandler(file)
        logger.addHandler(screen)
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(file)
            logger.removeHandler(screen)
            logger.setLevel(level)
            logger.propagate = propagate
        file.close()


def write_json(path: Path, value: Any) -> None:
    """Write a value for people to read; numbers of numpy and torch as numbers, what JSON does not know as text."""
    path.write_text(json.dumps(value, indent=2, default=lambda item: getattr(item, "item", lambda: str(item))()) + "\n")


def say_places(folder: Path) -> None:
    """Print where the files of a run are, those that are there."""
    for name, file in PLACES.items():
        if (folder / file).exists():
            print(f"{name + ':':17}{folder / file}")
