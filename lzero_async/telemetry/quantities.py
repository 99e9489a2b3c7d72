"""What is counted and measured of a run, each quantity once: its name, from which the live view, the report, TensorBoard and
Prometheus make theirs."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TAGS: Final = "async/"
METRICS: Final = "lzero_async_"


class Quantity(NamedTuple):
    """A statistic of the coordinator or a count of the application, by its key there. `kind` is "counter", "gauge" or
    "histogram"; `unit` is '' where the label says it."""

    key: str
    label: str
    kind: str
    unit: str
    meaning: str

    @property
    def word(self) -> str:
        """The label as one word: "lag_mean" for "lag, mean"."""
        return re.sub(r"\W+", "_", self.label)

    @property
    def tag(self) -> str:
        """The scalar of TensorBoard."""
        return TAGS + self.word

    @property
    def metric(self) -> str:
        """The metric of Prometheus, which wants the unit at its end, without _total."""
        return METRICS + self.word + (f"_{self.unit}" if self.unit else "")


_ROWS: Final = (
    # How far a run is: counts of the application.
    ("steps_trained", "steps trained", "counter", "", "Environment steps that the learner has trained on."),
    ("steps_played", "steps played", "counter", "", "Environment steps that collectors have made."),
    ("episodes_trained", "episodes trained", "counter", "", "Whole episodes that the learner has trained on."),
    ("episodes_played", "episodes played", "counter", "", "Whole episodes that collectors have played to their end."),
    ("updates", "updates", "counter", "", "Gradient steps of the learner."),
    # Statistics of the coordinator.
    ("collect_count", "collects", "counter", "", "Committed collects."),
    ("train_count", "trains", "counter", "", "Finished trains; replays are not among them."),
    ("trained_collects", "trained collects", "counter", "", "Collects that trains used: collects_per_train each."),
    ("replay_count", "replays", "counter", "", "Extra trains on old data."),
    ("eval_count", "evaluations", "counter", "", "Finished evaluations."),
    ("evals_skipped", "skipped evaluations", "counter", "", "Background evaluations that eval_overlap left out."),
    ("version", "weights version", "gauge", "", "Finished trains and replays over the whole life of the run."),
    ("open_collects", "open collects", "gauge", "", "Collects that were admitted and have not been committed."),
    ("active_collectors", "active collectors", "gauge", "", "Collects that may run at once now."),
    ("collect_train_lag", "lag", "gauge", "batches", "Batches that wait for their train, the one being trained included."),
    ("mean_lag", "lag, mean", "gauge", "batches", "The mean lag, looked at after every commit."),
    ("max_lag", "lag, max", "gauge", "batches", "The largest lag so far."),
    ("lag_bound", "lag bound", "gauge", "batches",
     "What the lag may reach: the degree (1 at degree 0) times collects_per_train, or the queue's capacity and one more."),
    ("off_policy_degree", "degree", "gauge", "versions",
     "The degree in force: the bound of staleness; under staleness_policy allow it bounds the lag only."),
    ("staleness_counts", "staleness", "histogram", "versions",
     "Trained batches by the versions between their collect and the start of their train."),
    ("staleness_mean", "staleness, mean", "gauge", "versions", "The mean staleness of the trained batches."),
    ("staleness_max", "staleness, max", "gauge", "versions", "The largest staleness of a trained batch."),
    ("sample_age_mean", "sample age, mean", "gauge", "versions", "The mean age of replayed samples, where the learner tells it."),
    ("sample_age_max", "sample age, max", "gauge", "versions", "The largest age of a replayed sample, if the learner tells it."),
    ("queue_fill", "queue fill", "gauge", "ratio",
     "Share of the room for waiting batches that was in use, over time, without the batch that is being trained."),
    ("buffer_fill", "buffer fill", "gauge", "ratio", "Share of the replay buffer that is in use."),
    ("overlap_efficiency", "overlap efficiency", "gauge", "ratio",
     "Time of the busier of collecting and training per wall time; 1 is the limit, a serial loop of two equal stages has 0.5."),
    ("collect_total_time", "collect seconds", "counter", "", "Time of finished collects, summed over workers."),
    ("train_total_time", "train seconds", "counter", "", "Time of finished trains."),
    ("eval_total_time", "eval seconds", "counter", "", "Time of finished evaluations."),
    ("collect_wait_time", "collect wait seconds", "counter", "",
     "Time that collects waited to begin and to be committed, summed over workers."),
    ("train_wait_time", "train wait seconds", "counter", "", "Time that trains waited to begin."),
    ("eval_wait_time", "eval wait seconds", "counter", "", "Time that evaluations waited to begin."),
    ("dropped", "dropped batches", "counter", "",
     "Batches past their deadline, and those that a full queue had no room for."),
    ("failed", "failed collects", "counter", "", "Collects that raised."),
    ("rejected", "rejected collects", "counter", "", "Collects that returned None: nothing to train on."),
    ("train_failures", "failed trains", "counter", "", "Trains and replays that raised, each try counted."),
    ("refused_threads", "refused threads", "counter", "", "Threads that the system refused to this process."),
    ("missing_descriptors", "missing descriptors", "counter", "", "Open files that the system refused to this process."),
    ("restarts", "restarts", "counter", "", "Collectors and evaluators that went on after a failure."),
    ("abandoned", "abandoned batches", "counter", "",
     "Collects or batches given up by a stop, a cancelled task or a resume."),
    ("retired", "retired collectors", "counter", "", "Collectors that failed too often and were given up."),
    ("degree_changes", "degree changes", "counter", "", "Changes of an adaptive degree."),
    # What an application left out or saw go wrong.
    ("bad_episodes", "bad episodes", "counter", "", "Episodes left out because they failed or their data was bad."),
    ("env_timeouts", "environment timeouts", "counter", "", "Calls of an environment that took too long."),
    ("bad_batches", "refused batches", "counter", "", "Batches that the learner did not train on because their data was bad."),
    ("bad_updates", "skipped updates", "counter", "", "Updates that were left out because they would have spoiled the weights."),
)  # fmt: skip
QUANTITIES: Final = {row[0]: Quantity(*row) for row in _ROWS}
COUNTS: Final = ("steps_trained", "steps_played", "episodes_trained", "episodes_played", "updates")
TROUBLES: Final = (
    "dropped", "failed", "rejected", "train_failures", "refused_threads", "missing_descriptors", "restarts", "abandoned",
    "retired", "bad_episodes", "env_timeouts", "bad_batches", "bad_updates",
)  # fmt: skip


def quantity(key: str) -> Quantity:
    """The quantity with this key; an application's own count that the table does not have is called by its key."""
    return QUANTITIES.get(key) or Quantity(key, key.replace("_", " "), "counter", "", f"The run's own count of {key}.")


def label(key: str) -> str:
    """What a quantity is called."""
    return quantity(key).label


def tag(key: str) -> str:
    """The scalar of a quantity."""
    return quantity(key).tag


def rate_label(key: str) -> str:
    """What the growth of a count per second is called."""
    return f"{label(key)}/s"
