"""The sizes and rates of everything that learns, and their defaults: found on Pendulum, also with data of old policies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LearnerOptions:
    """What a Learner reads from its options; any object with these attributes serves."""

    hidden_size: int = 64  # width of actor and critics
    hidden_layers: int = 2  # hidden layers of actor and critics
    on_bad_update: str = "skip"  # what an update that is not finite does: "skip" or "stop"
    learning_rate: float = 3e-3  # of actor, critics and temperature
    discount: float = 0.99  # per step
    tau: float = 0.02  # share by which the target critics follow at each update
    batch_size: int = 256  # rows of an agent update
    real_ratio: float = 0.1  # share of real rows in a batch; 1 is real data only
    real_buffer_size: int = 100_000  # transitions
    model_buffer_size: int = 10_000  # transitions; small, so that rows of old dynamics are soon replaced
    sampling: str = "uniform"  # uniform, recent or priority
    ensemble_size: int = 7  # dynamics networks
    num_elites: int = 5  # of them, used by rollouts
    dynamics_hidden_size: int = 64  # width of a dynamics network
    dynamics_layers: int = 3  # hidden layers of a dynamics network
    dynamics_learning_rate: float = 3e-3  # of the dynamics networks
    dynamics_batch_size: int = 64  # rows of a dynamics update, for each network
    rollout_length: int = 5  # steps of a model rollout
    rollout_batch_size: int = 1_000  # starts that are rolled out at once
    device: str = "cpu"  # where all of it lives
    seed: int = 0  # of everything random in the learner
