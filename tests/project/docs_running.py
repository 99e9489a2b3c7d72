"""Runs the documentation's commands in a scratch folder that looks like the project's, each once however often it is shown."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.commands import run_command
from tests.project.docs_blocks import ROOT, Piece

LINKED = ("lzero_async", "zoo", "docs", "tests", "benchmarks", "requirements", "Makefile")
MAKERS = {  # what makes a folder that other commands read, where no --exp_name or --out names it
    "runs/train": "make train",
    "runs/mbpo": "zoo/mbpo/train.py",
    "runs/episode_ppo": "zoo/episode_ppo/train.py",
    "runs/compare": "lzero_async compare",
}
LIMIT = 200.0  # seconds of one command
OTHER_CODE = {  # options that make another kind of run
    "--help", "--resume", "--backend", "--trainer", "--collector", "--preset", "--learner_ranks", "--json", "--batch",
    "--sync_run", "--metrics-port", "--dry_run",
}  # fmt: skip


def kind_of(command: str) -> tuple[str, ...]:
    """What is alike in commands that run the same code: the program or the tool, and the options that change that."""
    words = shlex.split(command)
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    if scripts:
        program = scripts[:1]
    else:  # `make target`, `tool`, or `lzero-async tool [application]`, however that is spelled
        plain = [Path(word).name for word in words if word not in ("-m", ".venv/bin/python")]
        plain = ["lzero-async" if word == "lzero_async" else word for word in plain]
        program = plain[: 3 if plain[:2] == ["lzero-async", "train"] else 2]
    chosen = [
        words[place : place + 1 + (word == "--backend")] for place, word in enumerate(words) if word in OTHER_CODE
    ]
    reads = ["a run"] if program[0] == "lzero-async" and any(word.startswith("runs/") for word in words[2:]) else []
    return (*program, *reads, *sorted({word for one in chosen for word in one}))


class Scratch:
    """A folder to run commands in; what they write stays there. `pieces` are those that may be needed before another one."""

    def __init__(self, folder: Path, pieces: list[Piece]) -> None:
        self.folder = folder
        self._pieces = [piece for piece in pieces if not piece.reason]
        self._done: dict[str, subprocess.CompletedProcess[str]] = {}
        self._started: set[str] = set()  # programs that were started cold once
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)

    def run(self, piece: Piece) -> subprocess.CompletedProcess[str]:
        """Run it, and before it what makes the runs that it reads; what has been run already is not run again."""
        if piece.command not in self._done:
            for folder in self._missing(piece):
                if maker := self._maker(folder, piece):
                    self.run(maker)
            self._done[piece.command] = self._run(piece.command)
        return self._done[piece.command]

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A shell runs it, if it is the first one of its program or more than a program with arguments."""
        line, words = self._here(command), shlex.split(command)
        options: dict[str, Any] = {
            "cwd": self.folder, "env": {**os.environ, "PYTHON": sys.executable, "COLUMNS": "120"}, "capture_output": True,
            "text": True, "timeout": LIMIT, "check": False, "stdin": subprocess.DEVNULL,
        }  # fmt: skip
        program, plain = " ".join(words[:3] if "-m" in words else words[:2]), not re.search(r"[|&;<>$`*?(){}~\n]", line)
        try:
            if plain and program in self._started and line.startswith("/"):
                script, *arguments = shlex.split(line)
                of_python = os.path.basename(script).startswith("python")
                return run_command([sys.executable, *([] if of_python else [script]), *arguments], **options)
            if "--help" not in words:
                self._started.add(program)
            return subprocess.run(line, shell=True, **options)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done after {LIMIT:g} s; shorten it with run-with: {command}") from None

    def _here(self, command: str) -> str:
        """The command with the interpreter of these tests, whose environment is not set up again by make."""
        command = command.replace(".venv/bin/", f"{shlex.quote(str(Path(sys.executable).parent))}/")
        command = command.replace("{free_port}", str(_free_port()))
        return f"{command} STAMP= PY={shlex.quote(sys.executable)}" if command.startswith("make ") else command

    def _missing(self, piece: Piece) -> list[str]:
        """The runs that the command reads and that are not there."""
        read = re.sub(r"--(exp_name|out)[ =]\S+", "", piece.command)
        folders = dict.fromkeys(re.findall(r"\bruns/[\w-]+", read))
        return [folder for folder in folders if not (self.folder / folder).exists()]

    def _maker(self, folder: str, reader: Piece) -> Piece | None:
        named = re.compile(rf"--(exp_name|out)[ =]{re.escape(folder)}\b")
        makers = [piece for piece in self._pieces if named.search(piece.command)]
        if folder in MAKERS:
            makers += [piece for piece in self._pieces if MAKERS[folder] in piece.text and "--help" not in piece.text]
        return next((piece for piece in makers if folder not in re.sub(named, "", piece.command)), None)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
