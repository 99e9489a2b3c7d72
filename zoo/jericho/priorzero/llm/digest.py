"""What tells the weights of a language model from all others."""

from __future__ import annotations

import mmap
from pathlib import Path


def weights_digest(model: str) -> str:
    """A digest of all files of a model's folder (the weights, and what else its answers depend on), read once per load of
    weights. A name that is no folder here stands for itself."""
    import xxhash

    folder = Path(model).expanduser()
    if not model or not folder.is_dir():
        return model
    total = xxhash.xxh3_128()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        size = path.stat().st_size
        total.update(f"{path.name}\n{size}\n".encode())
        if size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                total.update(data)
    return total.hexdigest()
