"""The installer sees what is missing or torn."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "requirements" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_package_is_complete_only_with_every_recorded_file_in_full(install, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not install.is_complete("somepackage==1.0")
    info = tmp_path / "somepackage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somepackage\nVersion: 1.0\n")
    module = tmp_path / "somepackage.py"
    module.write_text("x = 1\n")
    assert not install.is_complete("somepackage==1.0"), "no record yet: pip was interrupted"
    (info / "RECORD").write_text("somepackage.py,sha256=abc,6\nsomepackage-1.0.dist-info/METADATA,,\n")
    assert install.is_complete("somepackage==1.0")
    assert not install.is_complete("somepackage==1.1")
    module.write_text("x =")
    assert not install.is_complete("somepackage==1.0"), "a torn file"
    module.unlink()
    assert not install.is_complete("somepackage==1.0"), "a missing file"


def test_another_python_is_refused_in_one_sentence(install, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert install.main(tmp_path / "stamp") == 2
    assert "for Python 3.11" in capsys.readouterr().out
