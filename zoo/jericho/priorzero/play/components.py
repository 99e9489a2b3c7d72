"""What the roles are built from: text encoder, language model, prior, UniZero's configuration, environments.

Roles in one process share them; a role in a process of its own makes its own there, since pickling carries only the options.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lzero_async.lightzero.silence import quiet
from zoo.jericho.priorzero.options import check_device, numbered, take_device, trains_llm, unizero_config
from zoo.jericho.priorzero.paths import valid_actions_file

if TYPE_CHECKING:
    from easydict import EasyDict

    from zoo.jericho.priorzero.games.files import Game
    from zoo.jericho.priorzero.games.jericho_env import JerichoEnv
    from zoo.jericho.priorzero.llm import Engine
    from zoo.jericho.priorzero.llm.prior import LLMPrior
    from zoo.jericho.priorzero.play.batch import LLMWeights
    from zoo.jericho.priorzero.play.text_encoder import TextEncoder
    from zoo.jericho.priorzero.sections import LLMConfig, PriorZeroOptions

CACHE_FILE = "cache.sqlite"


class Parts:
    """Made when first asked for, once. `threads` is how many torch may use in this process (0: its own choice)."""

    def __init__(
        self, options: PriorZeroOptions, game: Game, folder: Path, *, threads: int = 0, llm_device: str = "auto"
    ) -> None:
        self.options, self.game, self.folder = options, game, Path(folder)
        self._threads, self._llm_device = threads, llm_device
        self._machine = socket.gethostname()
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.RLock()
        self._encoder: TextEncoder | None = None
        self._engine: Engine | None = None
        self._prior: LLMPrior | None = None
        self._store: Any = None
        self.key = f"{socket.gethostname()}/{os.getpid()}/{id(self)}"

    def __getstate__(self) -> dict[str, Any]:
        names = ("options", "game", "folder", "_threads", "_llm_device", "_machine")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def limit_threads(self) -> None:
        """Keep torch in this process within its share of the cores."""
        import torch

        if self._threads:
            torch.set_num_threads(self._threads)

    @property
    def encoder(self) -> TextEncoder:
        """The frozen text encoder."""
        with self._lock:
            if self._encoder is None:
                from zoo.jericho.priorzero.play.text_encoder import TextEncoder

                encoder = self.options.encoder_config
                self._encoder = TextEncoder(
                    encoder.encoder_model,
                    max_tokens=encoder.max_tokens,
                    cache_size=encoder.cache_size,
                    store=self._shared_store(),
                )
            return self._encoder

    @property
    def prior(self) -> LLMPrior | None:
        """The language model's prior; None when the root policy is the world model's alone."""
        llm = self.options.llm_config
        with self._lock:
            if self._prior is None and llm.root_policy != "wm_logits":
                from zoo.jericho.priorzero.llm import make_engine
                from zoo.jericho.priorzero.llm.prior import LLMPrior

                options = _engine_options(llm, self._llm_device)
                if trains_llm(self.options):
                    from zoo.jericho.priorzero.llm.trained import Trainable

                    how = self.options.llm_train_config
                    options["trainable"] = Trainable(how.llm_method, how.lora_rank, how.lora_alpha, 0)
                self._engine = make_engine(llm.llm_engine, llm.llm, llm.llm_url, **options)
                self._prior = LLMPrior(
                    self._engine,
                    history_length=llm.history_length,
                    temperature=llm.prior_temperature,
                    reduction=llm.reduction,
                    use_cot=llm.use_cot,
                    cache_size=llm.prior_cache_size,
                    store=self._shared_store(),
                )
            return self._prior

    def use_llm(self, weights: LLMWeights | None) -> None:
        """Have the prior answer with these weights of the language model, None: as it was at first."""
        if self.prior is None or not trains_llm(self.options):
            return
        engine: Any = self._engine
        if weights is None:
            engine.load_trained(None, 0, "")
        elif weights.digest != engine.weights_digest:
            engine.load_trained(weights.trained.read(), weights.version, weights.digest)

    def unizero(self, device: str) -> EasyDict:
        """LightZero's configuration of UniZero on that device, which becomes this thread's default."""
        from zoo.jericho.priorzero.play.episodes import parts_of
        from zoo.jericho.priorzero.play.text_encoder import encoder_width

        width = encoder_width(self.options.encoder_config.encoder_model)
        with quiet():
            return unizero_config(
                self.options, width * parts_of(self.options.env_config.observation), take_device(device)
            )

    def new_env(self) -> JerichoEnv:
        """One more environment of this run's game."""
        from zoo.jericho.priorzero.games.jericho_env import JerichoEnv

        env = self.options.env_config
        kept = Path(env.valid_action_store) if env.valid_action_store else valid_actions_file()
        return JerichoEnv(
            {
                "game": self.game,
                "max_steps": env.max_steps,
                "max_action_num": env.max_action_num,
                "observation": env.observation,
                "step_timeout": env.step_timeout,
                "valid_action_store": "" if env.valid_action_store == "off" else str(self._of_this_machine(kept)),
            }
        )

    def statistics(self) -> dict[str, float]:
        """How much work the caches of encoder and prior saved."""
        values: dict[str, Any] = dict(self._encoder.statistics()) if self._encoder is not None else {}
        if self._prior is not None:
            values |= {f"prior_{key}": value for key, value in self._prior.statistics().items()}
            values["engine_restarts"] = getattr(self._engine, "restarts", 0)
            servers: dict[str, Any] = getattr(self._engine, "server_statistics", dict)()
            values |= {f"engine_{key}": value for key, value in servers.items()}
        return {key: value for key, value in values.items() if isinstance(value, (int, float))}

    def close(self) -> None:
        """End the language model; closing twice is harmless."""
        with self._lock:
            engine, store = self._engine, self._store
            self._engine = self._store = None
        if engine is not None:
            engine.close()
        if store is not None:
            store.close()

    def _shared_store(self) -> Any:
        from zoo.jericho.priorzero.sqlite_cache import SharedStore

        if self._store is None:
            self._store = SharedStore(self._of_this_machine(self.folder / CACHE_FILE))
        return self._store

    def _of_this_machine(self, path: Path) -> Path:
        """The file itself on the program's machine, elsewhere one beside it: on a file system that machines share, SQLite
        works for the processes of one of them only."""
        here = socket.gethostname()
        return path if here == self._machine else path.with_name(f"{path.stem}-{here}{path.suffix}")


@contextlib.contextmanager
def untouched_random() -> Iterator[None]:
    """Whatever is drawn inside from the global generators, afterwards they are as before."""
    from lzero_async.runs.checkpoint import random_state, restore_random_state

    before = random_state()
    try:
        yield
    finally:
        restore_random_state(before)


def _engine_options(llm: LLMConfig, device: str) -> dict[str, Any]:
    if llm.llm_engine != "vllm":
        return {"deterministic": llm.repeatable_prior, "device": numbered(check_device(device))}
    return {"tensor_parallel_size": llm.tensor_parallel_size, "gpu_memory_utilization": llm.gpu_memory_utilization}
