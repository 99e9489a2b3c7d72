"""One rank of an all-reduce by gloo over loopback, timed; the first rank prints the seconds of each size as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = {"1 kB": 1_000, "10 MB": 10_000_000, "40 MB": 40_000_000}
IN_A_ROW = {"1 kB": 200, "10 MB": 5, "40 MB": 2}  # a small one takes as long as the scheduler's moods: a mean of many
WARM_UP, ROUNDS = 2, 7
ROOT = Path(__file__).resolve().parent.parent


def measure(ranks: int) -> dict[str, list[float]]:
    """Seconds of an all-reduce between so many processes of this machine, for each size."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks._all_reduce", str(Path(folder, "meeting")), str(ranks)]
        processes = [
            subprocess.Popen([*command, str(rank)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        printed = [process.communicate()[0] for process in processes]
    if failed := [process.returncode for process in processes if process.returncode]:
        raise SystemExit(f"a rank of the all-reduce ended with code {failed[0]}; what it said is above.")
    return dict(json.loads(printed[0]))


def main(meeting: str, ranks: int, rank: int) -> None:
    """Take part, and print what the first rank saw."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", world_size=ranks, rank=rank)
    found: dict[str, list[float]] = {}
    for name, size in SIZES.items():
        tensor = torch.ones(size // 4)
        for place in range(WARM_UP + ROUNDS):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(IN_A_ROW[name]):
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX)  # stays finite, however often
            if place >= WARM_UP:
                found.setdefault(name, []).append((time.perf_counter() - start) / IN_A_ROW[name])
    if rank == 0:
        sys.stdout.write(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
