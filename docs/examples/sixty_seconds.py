"""An agent of a few lines, trained in turn and asynchronously, and what that gained; about 15 seconds.

    python docs/examples/sixty_seconds.py

It needs lzero_async and nothing else. The agent is a Gaussian policy that looks for a point in the plane by the policy gradient;
the waits stand for what takes time in earnest: a simulator that is slow and uneven, a network, an evaluation. Put your own agent
in its place: three functions, and one place that holds the weights.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # not needed where lzero_async is installed

from lzero_async import AsyncTrainingCoordinator

GOAL = (3.0, -2.0)
TRAINS = 120


def reward(action):
    """Minus the squared distance to the goal."""
    return -sum((a - goal) ** 2 for a, goal in zip(action, GOAL, strict=True))


class Agent:
    """The weights are the policy's mean; one collect is 32 actions around one version of it."""

    def __init__(self):
        self.mean = [0.0, 0.0]
        self.dice = random.Random(1)

    def collect(self, context):
        """Play with the weights that the context holds."""
        time.sleep(min(0.1, self.dice.lognormvariate(-3.75, 0.5)))  # 27 ms on average, uneven
        played_with = context.snapshot.state
        actions = [[self.dice.gauss(m, 0.5) for m in played_with] for _ in range(32)]
        return {"mean": played_with, "actions": actions, "rewards": [reward(action) for action in actions]}

    def train(self, batch):
        """One step of the policy gradient, by the policy that played."""
        time.sleep(0.02)
        mean, actions, rewards = batch.data["mean"], batch.data["actions"], batch.data["rewards"]
        baseline = sum(rewards) / len(rewards)
        for axis in range(2):
            pull = sum((r - baseline) * (a[axis] - mean[axis]) for a, r in zip(actions, rewards, strict=True))
            self.mean[axis] += 0.05 * pull / len(actions)

    def evaluate(self, context):
        """The reward of the mean itself."""
        time.sleep(0.05)
        return reward(context.snapshot.state)


def run(degree, collectors):
    """Train; return the statistics and the last evaluation."""
    agent = Agent()
    with AsyncTrainingCoordinator(
        degree, enable_async_eval=degree > 0, num_collectors=collectors, get_weights=lambda: agent.mean
    ) as coordinator:
        result = coordinator.run(
            agent.collect, agent.train, agent.evaluate, eval_every=10, max_train=TRAINS, print_statistics=False
        )
    return result.statistics, result.last_eval.value


def main():
    """Three schedules for the same agent, one after the other."""
    print("degree  collectors  seconds  trains/s  staleness: mean  most  last evaluation")
    rates = []
    for degree, collectors in ((0, 1), (1, 1), (4, 2)):
        statistics, score = run(degree, collectors)
        rates.append(TRAINS / statistics["wall_time"])
        print(
            f"{degree:6}  {collectors:10}  {statistics['wall_time']:7.1f}  {rates[-1]:8.1f}  "
            f"{statistics['staleness_mean']:15.2f}  {statistics['staleness_max']:4}  {score:15.4f}"
        )
    print(f"Degree 4 trains {rates[-1] / rates[0]:.1f} times as often per second as degree 0.")


if __name__ == "__main__":
    main()
