"""A run whose evaluator scores the weights: the best ones are kept, and what most such applications do is done here."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from lzero_async.runs.application import Application
from lzero_async.runs.run_dir import BEST_CHECKPOINT
from lzero_async.telemetry.quantities import label
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.progress import Progress, duration
from lzero_async.telemetry.view import SECONDS, Count, Progressed
from lzero_async.types import EvalContext, EvalResult, StopSignal
from lzero_async.workers.backend import Backend, Worker
from lzero_async.workers.calls import CallStop

KEPT_EVALUATIONS: Final = 10_000
KEPT_VERSIONS: Final = 1_000
SCORES: Final = ("mean_return", "min_return", "max_return", "mean_length")


class ScoredApplication(Application):
    """A run whose evaluator answers `evaluate(version, weights, episodes, repeat)` with a row of SCORES, `version`, `episodes`,
    `returns`; the best weights are kept. `axis` is the count of `_now` over which scalars are drawn.

    Options: eval_every, eval_episodes, max_restarts, restart_backoff, checkpoint_every, max_seconds. The learner answers
    `weights()`, `save(path, state, waiting)` and `save_weights(path, description, weights)`.
    """

    axis: ClassVar[str]

    def __init__(
        self,
        options: Any,
        folder: Path,
        backend: Backend,
        records: Records | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(options, folder, backend, records, progress)
        self.best: dict[str, Any] = {"return": None, "version": -1}
        self.history: list[dict[str, Any]] = []  # one row per evaluation
        self._at: dict[int, dict[str, int]] = {}  # how far the run was at the last versions

    @abstractmethod
    def _now(self) -> dict[str, int]:
        """Counts that say how far the run is, that of the axis first; keys of `quantities`, unless `_progressed` is another."""

    def _counters(self) -> dict[str, int]:
        """The counts that a checkpoint's description holds."""
        return self._now()

    def _evaluation(self, version: int) -> tuple[Any, ...]:
        """What the evaluator is told of an evaluation of this version, besides the weights and the repeat."""
        return (self.options.eval_episodes,)

    def _say_evaluation(self, result: EvalResult, at: Mapping[str, int]) -> str:
        """What to print of an evaluation of weights that were trained so far."""
        return f"evaluation (version {result.version}): mean return {float(result.value):.1f}, {result.seconds:.1f} s"

    def _progressed(self) -> Progressed:
        counts = [Count(name, value) for name, value in self._now().items()]
        return Progressed(
            counts=(*counts, Count(SECONDS, self.elapsed, self.options.max_seconds or None)),
            fills={"queue": self.queue.mean, "buffer": None},
            score="mean return",
            last_score=self.history[-1]["mean_return"] if self.history else None,
            best_score=self.best["return"],
            highest_score=None,
            recent_score=None,
        )

    def _roles(self) -> list[Worker]:
        return [self.learner, *([] if self.evaluator is None else [self.evaluator])]

    def _trained(self) -> None:
        every, trains = self.options.checkpoint_every, self.coordinator.train_count
        if every and trains and trains % every == 0 and not self.coordinator.last_was_replay:
            self.save()
        self.progress.show(self.line())

    def line(self) -> str:
        """The live line."""
        best = "-" if self.best["return"] is None else f"{self.best['return']:.1f}"
        counts = [f"{label(name)} {value:,}" for name, value in self._now().items()]
        return " | ".join(
            [duration(self.elapsed), *counts, f"best eval {best}", f"lag {self.coordinator.collect_train_lag}"]
        )

    def save(self) -> Path:
        """Write the last checkpoint. Call it between trains."""
        return self._save_whole({**self._description(), "history": list(self.history)})

    def _mark(self, version: int) -> None:
        """Remember how far the run is at this version."""
        self._at[version] = self._now()
        self._at.pop(version - KEPT_VERSIONS, None)

    def evaluate(self, context: EvalContext) -> float:
        """Have the evaluator play with the weights of the context; the score is the mean return."""
        assert context.snapshot is not None
        row = self._evaluate(context.version, context.snapshot.state, context.stop, context.repeat)
        return float(row["mean_return"])

    def _evaluate(self, version: int, weights: Any, stop: StopSignal, repeat: int = 0) -> dict[str, Any]:
        options = self.options
        row: dict[str, Any] = self._ask_evaluator(
            version, weights, *self._evaluation(version), repeat, stop=stop, max_restarts=options.max_restarts,
            restart_backoff=options.restart_backoff,
        )  # fmt: skip
        row |= {**self._at.get(version, self._now()), "seconds_at": self._seconds_now()}
        del row["returns"]
        self.history = [*self.history, row][-KEPT_EVALUATIONS:]
        self._records.scalars({f"evaluator/{name}": row[name] for name in SCORES}, row[self.axis])
        return row

    def _evaluated(self, result: EvalResult) -> None:
        self.progress.note(self._say_evaluation(result, self._at.get(result.version, self._now())))
        assert result.snapshot is not None
        self._keep_best(float(result.value), result.version, result.snapshot.state)

    def _keep_best(self, score: float, version: int, weights: Any) -> None:
        if self.best["return"] is None or score > self.best["return"]:
            self.best = {"return": score, "version": version}
            self.learner.call("save_weights", str(self.folder / BEST_CHECKPOINT), self._description(), weights)

    def final_evaluation(self) -> dict[str, Any] | None:
        """Evaluate the last weights once more; None without an evaluator."""
        if self.evaluator is None:
            return None
        version, weights = self.coordinator.version, self.learner.call("weights")
        row = self._evaluate(version, weights, CallStop())
        if not self.target_reached:  # the best weights are confirmed then, which a single evaluation does not outdo
            self._keep_best(row["mean_return"], version, weights)
        self.save()  # the last weights may be the best
        return row

    def _evaluations(self) -> list[dict[str, Any]]:
        return [
            {
                **row, "name": "evaluation", "steps": row[self.axis], "seconds": row["seconds_at"],
                "score": row["mean_return"], "low": row["min_return"], "high": row["max_return"],
            }
            for row in self.history
        ]  # fmt: skip

    def results(self) -> dict[str, Any]:
        return {"best": dict(self.best), "counters": self._counters()}

    def _description(self) -> dict[str, Any]:
        return {
            "options": json.loads(json.dumps(self.plain_options)),
            "counters": self._counters(),
            "best": dict(self.best),
        }
