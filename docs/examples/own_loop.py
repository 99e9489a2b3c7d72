"""A loop of your own: its body trains, and collectors run beside it."""

from random import gauss

from lzero_async import AsyncTrainingCoordinator

policy = {"mean": 0.0}  # whatever your agent's weights are


def collect(context):  # runs beside the loop, on a frozen copy of the weights
    return [context.snapshot.state["mean"] + gauss(0, 1) for _ in range(64)]


with AsyncTrainingCoordinator(off_policy_degree=2, get_weights=lambda: policy) as coordinator:
    for batch in coordinator.batches(collect=collect, max_train=100):
        policy["mean"] += 0.1 * sum((x - policy["mean"]) * -((x - 3) ** 2) for x in batch.data) / len(batch.data)
    oldest = coordinator.get_statistics()["staleness_max"]
print(f"looked for 3, found {policy['mean']:.1f}; batches were at most {oldest} versions old")
