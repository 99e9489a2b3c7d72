"""The folder of a run and the program around it: a free folder, the checkpoint to go on from, the log, the exit code."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lzero_async.core.trace import to_json
from lzero_async.errors import TOO_MANY_FILES, BadData, ConfigError, WorkerDied, out_of_files
from lzero_async.runs.folder_lock import LOCK, FolderLock, holder

FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
RUN_LOG: Final = "run.log"
ROLE_OUTPUT: Final = ".out"
LAST_CHECKPOINT: Final = Path("ckpt") / "last.safetensors"
BEST_CHECKPOINT: Final = LAST_CHECKPOINT.with_name("best.safetensors")
SUMMARY: Final = "summary.json"
TRACE: Final = "trace.json"
REPORT: Final = "report.html"
PLACES: Final[dict[str, str | Path]] = {
    "last checkpoint": LAST_CHECKPOINT,
    "best checkpoint": BEST_CHECKPOINT,
    "results": SUMMARY,
    "metrics": "metrics.jsonl",
    "TensorBoard": "log",
    "trace": TRACE,
    "log": RUN_LOG,
}


def exit_code(program: Callable[[], int], folder_flag: str = "--exp_name") -> int:
    """Run a program and return its exit code; what a user can do something about is said in one sentence.

    1: a role died, data or weights became useless, or something else failed, which is shown with its traceback; 2: bad input
    or a disk that refuses what the program writes; 130: interrupted. `folder_flag` chooses where the program writes.
    """
    _own.clear()
    try:
        return program()
    except BadData as error:
        print(f"\nerror: {str(error).rstrip('.')}. The run ends here.", file=sys.stderr)
        return FAILED
    except ConfigError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return BAD_INPUT
    except WorkerDied as error:
        print(f"\nerror: {error} The run ends here.", file=sys.stderr)
        return FAILED
    except OSError as error:
        if _is_own(error):
            print(f"\nerror: the run cannot go on: {error.strerror or error} {error.filename}; make room or choose another "
                  f"{folder_flag}. Checkpoints written before are still there.", file=sys.stderr)  # fmt: skip
            return BAD_INPUT
        if (remedy := _remedy(error)) is None:
            raise
        traceback.print_exception(error)  # what raised it is the user's, or a role's
        place = f" {error.filename}" if error.filename else ""
        print(f"\nerror: the run cannot go on: {error.strerror or error}{place}; {remedy}.", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\ninterrupted at once; the last checkpoint, if there was one yet, is still there.", file=sys.stderr)
        return INTERRUPTED


_own: list[Path] = []  # the folders that this program writes into


def _is_own(error: OSError) -> bool:
    """Whether it is about the folder of this run; a program that has none writes what its flag names."""
    if error.errno is None or not isinstance(error.filename, (str, bytes)) or out_of_files(error):
        return False
    place = Path(os.fsdecode(error.filename)).absolute()
    return not _own or any(place.is_relative_to(folder) for folder in _own)


def _remedy(error: OSError) -> str | None:
    """What to do about an error of the system, if we know."""
    if out_of_files(error):
        return TOO_MANY_FILES.partition("; ")[2].rstrip(".")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there" if error.filename else "make room on the disk that it writes to"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "let the user of this program read and write it"
    if isinstance(error, ConnectionError):
        return "see whether the server that is asked runs, and where"
    return None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of writing say what was written: the system leaves that out once a file is open."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def find_checkpoint(resume: str | None, exp_name: str, lock: FolderLock) -> Path | None:
    """The checkpoint that --resume means: a file, or the last one of a run's folder (that of --exp_name if none is given).

    `lock` then holds that folder, so that the checkpoint stays as it is. ConfigError if its run is still running.
    """
    if resume is None:
        return None
    given = Path(resume or exp_name)
    saved = given / LAST_CHECKPOINT if given.is_dir() or not resume else given
    if not saved.is_file():
        raise ConfigError(f"There is no checkpoint at {saved}; give --resume a checkpoint file or a run's folder.")
    if (own := folder_of(saved)) is not None:
        _hold_run(own, lock)
    return saved


def _hold_run(folder: Path, lock: FolderLock) -> None:
    try:
        while not lock.take(folder):
            if (who := holder(folder)) is not None:
                raise ConfigError(f"The run in {folder} is still running ({who}); end it, or wait until it ends.")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # where nobody writes, nothing changes
            raise _cannot_lock(folder, error) from error


def _cannot_lock(folder: Path, error: OSError, folder_flag: str = "--exp_name") -> ConfigError:
    return ConfigError(f"The folder {folder} cannot be locked ({error.strerror}); choose another {folder_flag}.")


def find_run(
    resume: str | None,
    changes: dict[str, Any],
    exp_name: str,
    load: Callable[[Path], dict[str, Any]],
    lock: FolderLock,
) -> tuple[Path | None, dict[str, Any] | None]:
    """The checkpoint that --resume means and what `load` reads of it; None without one. `changes` get its run's folder as their
    exp_name, unless they have one; `exp_name` is the default. See `find_checkpoint` for `lock`."""
    saved = find_checkpoint(resume, changes.get("exp_name", exp_name), lock)
    if saved is None:
        return None, None
    state = load(saved)
    if (own := folder_of(saved)) is not None:
        changes.setdefault("exp_name", str(own))
    return saved, state


def folder_of(saved: Path) -> Path | None:
    """The folder of the run that wrote a checkpoint, if the file still lies there."""
    for place in (saved, Path(os.path.abspath(saved))):  # the latter for who stands in that folder
        if place.parent.name == LAST_CHECKPOINT.parent.name:
            return place.parent.parent
    return None


def free_folder(
    exp_name: str, saved: Path | None, lock: FolderLock, harmless: Sequence[str] = (), folder_flag: str = "--exp_name"
) -> Path:
    """The folder to write into, which `lock` holds then: the name itself, or with a number behind it when another run is there
    already.

    Files whose names begin with a word of `harmless` do not make a run.
    """
    folder, number = Path(exp_name), 2
    base = folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
    own = None if saved is None else folder_of(saved)
    while not _take(folder, own, lock, harmless, folder_flag):
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    _own.append(folder.absolute())
    return folder


def _take(folder: Path, own: Path | None, lock: FolderLock, harmless: Sequence[str], folder_flag: str) -> bool:
    """Make a folder and hold it, unless there is a run in it already that is not `own`."""
    if own is None or not (folder.is_dir() and folder.samefile(own)):
        own = None
    if own is None and folder.exists() and not _is_free(folder, harmless):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made ({error.strerror}); choose another {folder_flag}."
        ) from error
    try:
        # Held now, nothing changes any more; until now another run may have begun and even ended.
        return lock.take(folder) and (own is not None or _is_free(folder, harmless))
    except OSError as error:
        raise _cannot_lock(folder, error, folder_flag) from error


def say_folder(folder: Path, exp_name: str, saved: Path | None) -> None:
    """Print where the run writes, and why not where the user said if that is so."""
    other = ""
    if saved is None and folder != Path(exp_name):
        who = holder(Path(exp_name))
        hint = f"; --resume {exp_name} goes on with that one" if who is None else f", which is still running, {who}"
        other = f" ({exp_name} holds another run{hint})"
    print(f"folder: {folder}{other}", flush=True)


def _is_free(folder: Path, harmless: Sequence[str]) -> bool:
    """Whether nothing is in it but what a start leaves that failed."""
    if not folder.is_dir():
        return False
    return all(
        path.name.startswith((LOCK, *harmless))
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
    """Write a value for people to read; see `strict_json`."""
    text = to_json(value, indent=2) + "\n"
    with naming(path):
        path.write_text(text)


def say_places(folder: Path) -> None:
    """Print where the files of a run are, those that are there."""
    for name, file in PLACES.items():
        if (folder / file).exists():
            print(f"{name + ':':17}{folder / file}")
