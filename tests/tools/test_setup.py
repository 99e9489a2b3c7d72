"""`lzero-async setup`: what it says, what it refuses, what it gives pip."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs import applications
from lzero_async.runs.applications import ApplicationEntry
from lzero_async.tools.setup import command, locked

RUNNING = ".".join(map(str, sys.version_info[:2]))


def add_package(folder: Path, name: str) -> Path:
    """An installed package of one module, as pip records it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{name}.py,sha256=abc,6\n{info.name}/METADATA,,\n")
    module = folder / f"{name}.py"
    module.write_text("x = 1\n")
    return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are installed into."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return folder


@pytest.fixture
def tiny(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application `tiny`, whose lock pins three packages; returns the lock."""
    monkeypatch.delitem(sys.modules, "tinyapp", raising=False)
    package = site / "tinyapp"
    package.mkdir()
    (package / "__init__.py").write_text("")
    lock = package / "tiny.lock.txt"
    lock.write_text(f"# python: {RUNNING}\n# size: 3 KB\naaa==1.0\nbbb==1.0\ntorch==99.0\n")
    entry = ApplicationEntry("tiny", "a tiny one", "tinyapp:main", lock="tinyapp:tiny.lock.txt")
    monkeypatch.setattr(command, "find_application", lambda name: entry)
    return lock


@pytest.fixture(autouse=True)
def pip(site: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What pip is given; it installs that."""
    given: list[list[str]] = []

    def run(arguments: list[str], **_: object) -> None:
        given.append(arguments[arguments.index("--disable-pip-version-check") + 1 :])
        for pin in (word for word in arguments if "==" in word):
            name = pin.partition("==")[0]
            if not (site / f"{name}.py").exists():
                add_package(site, name)
                if name == "torch":
                    (site / "torch-1.0.dist-info").rename(site / "torch-99.0.dist-info")
                    (site / "torch-99.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 99.0+cpu\n")
                    (site / "torch-99.0.dist-info" / "RECORD").write_text("torch.py,,6\n")
            (site / f"{name}.py").write_text("x = 1\n")

    monkeypatch.setattr(subprocess, "run", run)
    return given


def test_a_package_is_complete_only_with_every_recorded_file_in_full(site: Path) -> None:
    assert not locked.is_complete("somepackage==1.0")
    module = add_package(site, "somepackage")
    record = site / "somepackage-1.0.dist-info" / "RECORD"
    text = record.read_text()
    record.unlink()
    assert not locked.is_complete("somepackage==1.0"), "no record yet: pip was interrupted"
    record.write_text(text)
    assert locked.is_complete("somepackage==1.0")
    assert not locked.is_complete("somepackage==1.1")
    module.write_text("x =")
    assert not locked.is_complete("somepackage==1.0"), "a torn file"
    module.unlink()
    assert not locked.is_complete("somepackage==1.0"), "a missing file"


def test_torch_comes_first_with_its_dependencies_and_the_rest_without(tiny: Path, pip, site: Path, capsys) -> None:
    add_package(site, "bbb")
    assert command.main(["tiny"]) == 0
    assert pip == [["torch==99.0", "-c", str(tiny)], ["--no-deps", "--force-reinstall", "aaa==1.0"]]
    said = capsys.readouterr().out
    assert "tiny needs 3 packages; 2 are missing here." in said
    assert "3 KB" in said and "Installed." in said


def test_a_second_call_installs_only_what_is_torn(tiny: Path, pip, site: Path, capsys) -> None:
    assert command.main(["tiny"]) == 0
    pip.clear()
    assert command.main(["tiny"]) == 0
    assert pip == []
    assert "All 3 packages of tiny are complete" in capsys.readouterr().out
    (site / "aaa.py").write_text("")
    assert command.main(["tiny"]) == 0
    assert pip == [["--no-deps", "--force-reinstall", "aaa==1.0"]]


@pytest.mark.parametrize("flag", ["--dry_run", "--dry-run"])
def test_a_dry_run_lists_everything_and_installs_nothing(flag: str, tiny: Path, pip, capsys) -> None:
    assert command.main(["tiny", flag]) == 0
    assert pip == []
    said = capsys.readouterr().out
    assert "pip install torch==99.0, with its dependencies" in said
    assert "pip install --no-deps, 2 packages:\n  aaa==1.0, bbb==1.0\n" in said
    assert "Nothing was installed" in said


@pytest.mark.parametrize(("failure", "code", "words"), [
    (KeyboardInterrupt(), 130, "Interrupted; the same command continues"),
    (subprocess.CalledProcessError(7, "pip"), 1, "a step ended with code 7"),
])  # fmt: skip
def test_what_ends_pip_is_said_with_how_to_continue(failure, code, words, tiny: Path, monkeypatch, capsys) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", fail)
    assert command.main(["tiny"]) == code
    assert words in capsys.readouterr().err


def test_what_pip_leaves_incomplete_is_named(tiny: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    assert command.main(["tiny"]) == 2
    assert "still incomplete: aaa==1.0, bbb==1.0, torch==99.0;" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value", "words"), [
    ("version_info", (3, 14, 0), f"for Python {RUNNING}, but this is 3.14; make an environment with Python {RUNNING}"),
    ("platform", "darwin", "for Linux, but this is darwin"),
])  # fmt: skip
def test_a_wrong_environment_is_refused_before_anything_is_done(
    name, value, words, tiny, pip, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, name, value)
    assert command.main(["tiny"]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1
    assert pip == [] and said.out == ""


def test_an_environment_without_pip_or_that_cannot_be_written_to(
    tiny: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "prefix", str(tmp_path / "nowhere"))
        assert command.main(["tiny"]) == 2
        assert "cannot be written to (No such file or directory)" in capsys.readouterr().err
    monkeypatch.setattr(locked.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="has no pip"):
        locked.check_environment(locked.read_lock(tiny))


def test_an_application_without_a_lock_says_what_pip_installs(monkeypatch, capsys) -> None:
    assert command.main(["mbpo"]) == 2
    assert (
        "mbpo carries no lock, since pip can install what it needs: pip install 'lzero-async[mbpo]'."
        in capsys.readouterr().err
    )
    point = metadata.EntryPoint("alone", "x:y", applications.GROUP)
    monkeypatch.setattr(applications, "installed", lambda: {"alone": point})
    for module in (applications, command):
        monkeypatch.setattr(module, "find_application", lambda name: ApplicationEntry(name, "", "x:y"))
    assert command.main(["alone"]) == 2
    assert "see its documentation" in capsys.readouterr().err


def test_a_lock_that_is_not_there_is_named(tiny: Path, capsys) -> None:
    tiny.unlink()
    assert command.main(["tiny"]) == 2
    assert "The lock tinyapp:tiny.lock.txt, which tiny names, is not installed" in capsys.readouterr().err
