"""The program around a run: resume it, run it, evaluate it once more, report, close it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lzero_async.errors import ConfigError
from lzero_async.runs.application import Application
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.run_dir import INTERRUPTED, exit_code, free_folder, logging_to, say_folder, say_places, write_json

log = logging.getLogger(__name__)


def run_program(
    application: Application,
    resume: Callable[[], str] | None = None,
    ends: Mapping[str, str] | None = None,
    report: Callable[[Any, str], None] | None = None,
) -> int:
    """Run an application to its end; return the exit code.

    `resume()` goes on from a checkpoint and returns what to say of that. `ends` has the program's names for the loop's
    limits. `report(final, reason)` says what came of it; `final` is None without a final evaluation.
    """
    interrupted = False
    try:
        if resume is not None:
            print(resume(), flush=True)
        write_json(application.folder / "options.json", application.plain_options)
        try:
            result = application.run()
        except Exception as error:
            application.ended_by = f"a failure: {error!r}"
            application.summarise()
            if application.last_checkpoint.is_file():
                print(f"\ngo on from the last checkpoint with: --resume {application.folder}", file=sys.stderr)
            raise
        application.save()
        reason = (ends or {}).get(result.reason, result.reason)
        interrupted = result.reason.startswith("SIG")
        failure: Exception | None = None
        try:
            application.final = None if interrupted else application.final_evaluation()
        except KeyboardInterrupt:
            interrupted, reason = True, f"{reason}; the final evaluation was interrupted"
        except Exception as error:  # what was learned is reported first
            failure, reason = error, f"{reason}; the final evaluation failed"
        application.progress.clear()
        application.coordinator.print_statistics()
        application.ended_by = reason
        application.summarise()
        (report or _report(application))(application.final, reason)
        if interrupted:
            print(f"go on with: --resume {application.folder}")
        if failure is not None:
            raise failure
    except BaseException as error:
        try:
            application.close()
        except Exception as late:  # the first error is the one to show
            log.error("while closing after %r: %r", error, late)
        if isinstance(error, Exception) and not isinstance(error, ConfigError):
            application.write_report()
        raise
    application.close()
    application.write_report()
    return INTERRUPTED if interrupted else 0


def _report(application: Application) -> Callable[[Any, str], None]:
    def say(final: Any, reason: str) -> None:
        if final is not None:
            print(f"final evaluation: {final}")
        print(f"ended by: {reason}")
        say_places(application.folder)

    return say


def train(make: Callable[[Path], Application], exp_name: str, logger: str) -> int:
    """The whole program of an application that is not resumed: its folder with a lock and a log, its run, its exit code. `make`
    makes the application for a folder; `logger` names its events."""

    def begin() -> int:
        with FolderLock() as lock:
            folder = free_folder(exp_name, None, lock)
            with logging_to(folder, logger):
                say_folder(folder, exp_name, None)
                return run_program(make(folder))

    return exit_code(begin)
