"""How worker processes start: with the standard library first and the interpreter's flags of their parent, and with one
sentence for a program that would start itself again and again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_program(
    folder: Path, source: str, *flags: str, cwd: Path | None = None, path: str = str(ROOT)
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    script = folder / "program.py"
    script.write_text(textwrap.dedent(source))
    return subprocess.run(
        [sys.executable, *flags, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd or folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def poisoned(folder: Path) -> Path:
    """A folder whose files leave a trace when they are executed instead of the real modules."""
    folder.mkdir()
    for name in ("queue", "random", "socket", "colorsys", "lzero_async/__init__"):
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(folder / 'executed')!r}, 'a').write({name!r} + ' ')\n")
    return folder


SCRIPTED = """
    import os, sys
    from lzero_async import make_backend
    from lzero_async.testing import ScriptedRole

    if __name__ == "__main__":
        backend = make_backend("process")
        worker = backend.start("scripted", ScriptedRole)
        print(worker.call("do", "import queue, random, socket, colorsys; result = colorsys.__file__"))
        print(worker.call("do", "import lzero_async; result = lzero_async.__file__"))
        backend.close()
"""


def test_a_worker_executes_nothing_of_the_current_folder(tmp_path: Path) -> None:
    cwd = poisoned(tmp_path / "cwd")
    done = run_program(tmp_path / "program", SCRIPTED, cwd=cwd)
    standard, ours = done.stdout.splitlines() or ("", "")
    assert not (cwd / "executed").exists(), (cwd / "executed").read_text()
    assert standard.startswith(os.path.dirname(os.__file__)), done.stderr
    assert ours == str(ROOT / "lzero_async" / "__init__.py")


def test_the_standard_library_is_before_the_path_of_the_parent_which_is_handed_on(tmp_path: Path) -> None:
    cwd = poisoned(tmp_path / "cwd")
    (cwd / "own_roles.py").write_text(
        "class Role:\n    def __init__(self, emit): ...\n    def answer(self): return 42\n"
    )
    later = """
        sys.path.insert(0, os.getcwd())
        import own_roles
        own = backend.start("own", own_roles.Role)
        print(own.call("answer"))
        worker.restart()
        print(worker.call("do", "import queue, random, socket, colorsys; result = colorsys.__file__"))
        backend.close()
    """
    done = run_program(tmp_path / "program", SCRIPTED.replace("        backend.close()\n", "") + later[1:], cwd=cwd)
    assert not (cwd / "executed").exists(), (cwd / "executed").read_text()
    _, _, answer, standard = done.stdout.splitlines() or ("", "", "", "")
    assert answer == "42", done.stderr
    assert standard.startswith(os.path.dirname(os.__file__))


FLAGS = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from lzero_async import make_backend
    from lzero_async.testing import ScriptedRole

    LOOK = "import sys; result = str(sys.flags), sys.warnoptions, sorted(sys._xoptions.items())"

    if __name__ == "__main__":
        backend = make_backend("process")
        worker = backend.start("scripted", ScriptedRole)
        here = str(sys.flags), sys.warnoptions, sorted(sys._xoptions.items())
        found = worker.call("do", LOOK)
        print(found == here, here, found)
        backend.close()
"""


def test_the_flags_of_the_interpreter_are_handed_on(tmp_path: Path) -> None:
    for flags in (
        ("-O", "-B", "-s", "-W", "error::UserWarning", "-X", "utf8=1", "-X", "anything=3", "-X", "else"),
        ("-OO", "-I", "-W", "ignore", "-X", "dev"),
        ("-E",),
    ):
        done = run_program(tmp_path / "program", FLAGS, *flags)
        assert done.stdout.startswith("True"), done.stdout + done.stderr


def test_a_program_without_a_guard_is_told_in_one_sentence(tmp_path: Path) -> None:
    source = f"""
        import os
        from lzero_async import make_backend

        open({str(tmp_path / "imports")!r}, "a").write("x")

        class Role:
            def __init__(self, emit): ...
            def answer(self): return 42

        backend = make_backend("process")
        worker = backend.start("role", Role)
        try:
            print(worker.call("answer"))
        finally:
            backend.close()
    """
    done = run_program(tmp_path / "program", source)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("lzero_async.errors.ConfigError: role is started while the program is imported"), done.stderr
    assert "put whatever starts workers under 'if __name__ == \"__main__\":'" in last
    assert (tmp_path / "imports").read_text() == "xx"  # the program, and its one worker


def test_a_role_of_a_program_may_start_roles_of_the_program(tmp_path: Path) -> None:
    source = """
        from lzero_async import make_backend

        class Inner:
            def __init__(self, emit): ...
            def answer(self): return 42

        class Outer:
            def __init__(self, emit):
                self.backend = make_backend("process")
                self.inner = self.backend.start("inner", Inner)
            def answer(self): return self.inner.call("answer")
            def close(self): self.backend.close()

        if __name__ == "__main__":
            backend = make_backend("process")
            print(backend.start("outer", Outer).call("answer"))
            backend.close()
    """
    done = run_program(tmp_path / "program", source)
    assert done.stdout == "42\n", done.stderr
