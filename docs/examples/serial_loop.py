import random
import time

PRIZES = [0.2, 0.5, 0.8]  # the chances of three slot machines; the agent does not know them
values = [0.5, 0.5, 0.5]  # what it believes of each: its weights
dice = random.Random(0)


def collect(values):
    time.sleep(0.02)  # a simulator or a language model takes its time
    played = []
    for _ in range(10):
        machine = dice.randrange(3) if dice.random() < 0.3 else values.index(max(values))
        played.append((machine, float(dice.random() < PRIZES[machine])))
    return played


def train(played):
    time.sleep(0.02)  # a network takes its time
    for machine, prize in played:
        values[machine] += 0.02 * (prize - values[machine])


start = time.perf_counter()
for _ in range(100):
    train(collect(values))
print(f"100 trains in {time.perf_counter() - start:.2f} s; machine {values.index(max(values))} seems best")
