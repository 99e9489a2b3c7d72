"""Several vLLM servers behind one client: how the rate of answers grows with the servers, and what the loss of one costs.

    python -m benchmarks.engines [--steps N]

Each server is a process on the loopback interface that works on 4 questions at a time and takes 100 ms for each without using the
CPU: it answers 40 questions a second, whoever asks. Two clients, in threads, play 8 episodes each; in every step an episode
asks 4 questions, and a client waits for the answers of all its episodes, as a collector does. Numbers are ratios within one run.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import Bar
from benchmarks.llm_latency import latency_server

LATENCY = 0.1  # seconds
AT_ONCE = 4
CLIENTS, EPISODES, QUESTIONS = 2, 8, 4
STEPS = 5


def bars() -> list[Bar]:
    """One bar for each number of servers, and one for the loss of a server."""
    return [
        Bar("answers a second, 2 vLLM servers / 1", 1.8, True, lambda: rate(2) / rate(1), repeats=3),
        Bar("answers a second, 4 vLLM servers / 1", 3.4, True, lambda: rate(4) / rate(1), repeats=3),
        Bar(
            "answers a second, 4 vLLM servers of which one dies on the way / 1",
            2.4,
            True,
            lambda: rate(4, lost=1) / rate(1),
            repeats=3,
        ),
    ]


def rate(servers: int, *, lost: int = 0, steps: int = STEPS) -> float:
    """Answers per second of that many servers, of which the last `lost` die after a third of the steps."""
    with contextlib.ExitStack() as stack:
        lives = [stack.enter_context(contextlib.ExitStack()) for _ in range(servers)]
        urls = [life.enter_context(latency_server("model", LATENCY, AT_ONCE)) for life in lives]

        def lose() -> None:
            for life in lives[servers - lost :]:
                life.close()

        # Both clients stand still while servers die: which of their questions are lost is then the same in every run.
        pace = threading.Barrier(CLIENTS)
        with ThreadPoolExecutor(CLIENTS) as threads:
            plays = [
                threads.submit(play, urls, pace, steps, lose if not client else lambda: None)
                for client in range(CLIENTS)
            ]
            seconds = max(one.result() for one in plays)
    return CLIENTS * EPISODES * QUESTIONS * steps / seconds


def play(urls: Sequence[str], pace: threading.Barrier, steps: int, lose: Callable[[], None]) -> float:
    """The steps of one client's episodes; seconds that they took, without those in which the servers were ended."""
    from zoo.jericho.priorzero.llm.vllm.pool import PoolTransport
    from zoo.jericho.priorzero.llm.vllm.protocol import Answer, Question

    pool = PoolTransport(urls, "model")
    pool.restart()
    seconds = 0.0
    try:
        for step in range(steps):
            pace.wait()
            if step == steps // 3:
                lose()
                pace.wait()
            start = time.perf_counter()
            questions = [
                Question((episode, step, number), (1, 2), key=episode)
                for episode in range(EPISODES)
                for number in range(QUESTIONS)
            ]
            assert all(isinstance(answer, Answer) for answer in pool.ask(questions))
            seconds += time.perf_counter() - start
    finally:
        pool.close()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    one = rate(1, steps=steps)
    limit = AT_ONCE / LATENCY
    print(f"1 server: {one:.1f} answers/s, {one / limit:.2f} of what it can give", flush=True)
    for servers, lost in ((2, 0), (3, 0), (4, 0), (4, 1)):
        found = rate(servers, lost=lost, steps=steps)
        what = f"{servers} servers" + (f", of which {lost} dies on the way" if lost else "")
        print(f"{what}: {found:.1f} answers/s, {found / one:.2f} times as many", flush=True)


if __name__ == "__main__":
    main()
