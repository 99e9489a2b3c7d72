"""The installer of the checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from lzero_async.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("script", ["install", "install_vllm"])
def test_another_python_is_refused_in_one_sentence(script: str, tmp_path: Path, monkeypatch) -> None:
    spec = importlib.util.spec_from_file_location(script, ROOT / "requirements" / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(ConfigError, match=r"for Python 3\.11, but this is 3\.12; make an environment"):
        module.main([str(tmp_path)] if script == "install_vllm" else tmp_path / "stamp")
    assert not list(tmp_path.iterdir())
