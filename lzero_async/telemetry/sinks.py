"""The numbers of a run on disk: scalars and histograms for TensorBoard in log/, one line per train in metrics.jsonl, and if
wanted the same names for Weights & Biases."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from lzero_async.core.trace import to_json
from lzero_async.errors import ConfigError
from lzero_async.telemetry.tensorboard import Board, buckets
from lzero_async.validation import one_of

WANDB_MODES = ("off", "offline", "online")
STEP = "env_steps"  # the horizontal axis of every scalar at Weights & Biases
REACH_TIMEOUT = 10.0  # seconds
log = logging.getLogger(__name__)


class Records:
    """Writes into a run's folder. Nothing is opened before `prepare` or the first number, so that `resume` can come
    before it.

    `wandb`: "off", "offline" (needs no account and no network; `wandb sync` sends it later) or "online". `project`,
    `run_name` and `config` are shown there; by default the run is called as its folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wandb: str = "off",
        project: str = "lzero-async",
        run_name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        self._metrics = folder / "metrics.jsonl"
        self._board = Board(folder / "log")
        self._tracker: _WandbRun | None = None
        if one_of("wandb", wandb, WANDB_MODES) != "off":
            self._tracker = _WandbRun(folder, wandb, project, run_name or folder.name, config or {})

    def prepare(self) -> None:
        """Import TensorBoard's writer, which takes seconds, while nobody waits for it, and start Weights & Biases.

        Raises ConfigError when that cannot be started.
        """
        self._board.prepare()
        if self._tracker is not None:
            self._tracker.start()

    def scalars(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers for TensorBoard and Weights & Biases at this environment step; from any thread. Names that TensorBoard's
        layout knows get a place on its CUSTOM SCALARS page."""
        self._board.scalars(values, step)
        if self._tracker is not None:
            self._tracker.log(values, step)

    def histogram(self, name: str, counts: Mapping[int, int], step: int) -> None:
        """How often each whole number came, for TensorBoard and Weights & Biases; `counts` are not empty."""
        self._board.histogram(name, counts, step)
        if self._tracker is not None:
            self._tracker.histogram(name, counts, step)

    def train(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl, for whoever wants numbers without TensorBoard."""
        with self._metrics.open("a") as file:
            file.write(to_json(dict(row)) + "\n")

    def resume(self, trains: int, env_steps: int) -> None:
        """Forget what a killed run made after its last checkpoint; it is made again.

        Weights & Biases takes nothing back: there both are shown at the same steps.
        """
        self._board.purge = env_steps + 1
        if not self._metrics.is_file():
            return
        kept = []
        for line in self._metrics.read_text(errors="replace").splitlines():
            try:
                if json.loads(line)["train"] <= trains:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                log.warning("a line of %s cannot be read and is left out: %.60s", self._metrics, line)
        new = self._metrics.with_name("metrics.jsonl.new")
        new.write_text("".join(kept))
        new.replace(self._metrics)

    def flush(self) -> None:
        """Put on disk what TensorBoard still holds back."""
        self._board.flush()

    def close(self) -> None:
        """Write what is left and close the files; online, Weights & Biases sends what is left."""
        with contextlib.ExitStack() as stack:
            if self._tracker is not None:
                stack.callback(self._tracker.close)
            stack.callback(self._board.close)


class _WandbRun:
    """A run at Weights & Biases. Its id is kept in the run's folder, so that a resumed run goes on with it."""

    def __init__(self, folder: Path, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._folder, self._mode, self._project, self._name = folder, mode, project, name
        self._config = dict(config)
        self._run: Any = None
        self._over = False

    def start(self) -> None:
        """Start it unless it runs already; ConfigError says why it cannot."""
        if self._run is not None or self._over:
            return
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise ConfigError(
                f"wandb is {self._mode!r} and the package wandb cannot be imported ({error}); install it with "
                "pip install 'lzero-async[wandb]' or set wandb to 'off'."
            ) from error
        if wandb.run is not None:
            raise ConfigError(
                f"wandb is {self._mode!r} and this process has a W&B run open already ({wandb.run.id}); finish that one "
                "first or set wandb to 'off'."
            )
        # Only the settings of the whole session silence what is said before a run exists, and overrule $WANDB_MODE.
        session = wandb.setup(settings=wandb.Settings(silent=True, mode=self._mode))
        if self._mode == "online":
            self._check_account(wandb.api.api_key, session.settings.base_url)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                mode=self._mode,
                dir=str(self._folder),
                project=self._project,
                name=self._name,
                id=self._id(),
                resume="allow" if self._mode == "online" else None,
                config=self._config,
                allow_val_change=True,
                settings=wandb.Settings(silent=True, console="off"),
            )
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("*", step_metric=STEP)
        except Exception as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            others = "'offline' or 'off'" if self._mode == "online" else "'off'"
            raise ConfigError(
                f"wandb is {self._mode!r} and the run cannot be started ({first}); set wandb to {others}."
            ) from error

    def _check_account(self, key: str | None, server: str) -> None:
        """Refuse what would ask for a key on the terminal, or try for minutes to reach the server."""
        if not key:
            raise ConfigError(
                "wandb is 'online' and no account is logged in; run `wandb login`, or set wandb to 'offline'."
            )
        try:
            urlopen(server, timeout=REACH_TIMEOUT).close()
        except HTTPError as error:  # an answer, whatever it says
            error.close()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"wandb is 'online' and {server} cannot be reached ({error}); set wandb to 'offline' and send the run "
                "later with `wandb sync`."
            ) from error

    def _id(self) -> str:
        place = self._folder / "wandb-id.txt"
        if place.is_file() and (kept := place.read_text().strip()):
            return kept
        new = secrets.token_hex(4)
        place.write_text(new + "\n")
        return new

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """The numbers at this step. A failure is logged once and ends this record; the others have the numbers too."""
        self.start()
        if self._over:
            return
        try:
            # The step is a value of its own: W&B's own counter refuses an evaluation that arrives late.
            self._run.log({**values, STEP: step})
        except Exception as error:
            self._over = True
            log.error("Weights & Biases takes no more numbers (%r); TensorBoard and metrics.jsonl go on", error)

    def histogram(self, name: str, counts: Mapping[int, int], step: int) -> None:
        """A histogram at this step, as `log`."""
        edges, heights = buckets(counts)
        self.log({name: importlib.import_module("wandb").Histogram(np_histogram=(heights, edges))}, step)

    def close(self) -> None:
        """Finish the run and end W&B's own process."""
        if self._run is None:
            return
        self._over = True
        run, self._run = self._run, None
        run.finish(quiet=True)
        importlib.import_module("wandb").teardown()
