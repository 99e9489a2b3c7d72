"""The learner's ranks as one group of torch.distributed: who meets where, and what they send each other.

Orders and shares of batches travel over gloo; gradients too, or over NCCL when the models are on GPUs. Whatever breaks a
group (a rank that died, hung or does not come) raises GroupBroken in every rank that is left; the next generation is a new
group.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zoo.jericho.priorzero.learn.rank_errors import GroupBroken, RankFailed


class RankGroup:
    """One rank's side of the group. `join_timeout`: seconds to wait for the others at the meeting point; `timeout`: seconds
    that any message may take."""

    def __init__(self, rank: int, ranks: int, device: str, *, join_timeout: float, timeout: float) -> None:
        self.rank, self.ranks, self.device = rank, ranks, torch.device(device)
        self._join_timeout, self._timeout = timedelta(seconds=join_timeout), timedelta(seconds=timeout)
        self._store: dist.TCPStore | None = None
        self._generation = -1  # of the group that this rank is in
        self._gradients: Any = None  # the group that adds gradients up

    def open(self, host: str) -> tuple[str, int]:
        """Open the meeting point, on this address only; rank 0 does. Returns where the others find it."""
        listener = socket.create_server((host, 0))
        port = int(listener.getsockname()[1])
        self._store = dist.TCPStore(
            host, port, None, True, self._join_timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return host, port

    @property
    def generation(self) -> int:
        """The generation that this rank is in; -1 while it is in none."""
        return self._generation

    def join(self, address: tuple[str, int], generation: int) -> None:
        """Be in the group of this generation; wait for all others to come."""
        if generation == self._generation:
            return
        self.leave()
        seconds = self._join_timeout.total_seconds()
        with _broken(f"the ranks of the learner did not all meet at {address} within {seconds:g} s"):
            if self._store is None:
                self._store = dist.TCPStore(*address, None, False, self._join_timeout)
            store = dist.PrefixStore(f"generation {generation}", self._store)
            store.set(f"rank {self.rank}", "here")
            store.wait([f"rank {rank}" for rank in range(self.ranks)], self._join_timeout)
            # One that dies between this and the last must not cost the others the time that a message may take.
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.ranks, timeout=self._join_timeout
            )
            dist.distributed_c10d._set_pg_timeout(self._timeout)
            on_gpu = self.device.type == "cuda"
            self._gradients = dist.new_group(backend="nccl", timeout=self._timeout) if on_gpu else None
        self._generation = generation

    def leave(self) -> None:
        """Leave the group; whoever still waits for this rank there is told so by the closed connection."""
        self._generation, self._gradients = -1, None
        if dist.is_initialized():
            dist.destroy_process_group()

    def scatter(self, orders: Sequence[Any] | None = None) -> Any:
        """Rank 0 gives an object for each rank, its own included; everyone gets its own."""
        mine: list[Any] = [None]
        with _broken("an order between the ranks of the learner was lost"):
            dist.scatter_object_list(mine, None if orders is None else list(orders), src=0)
        return mine[0]

    def broadcast(self, value: Any = None) -> Any:
        """Rank 0 gives an object; everyone gets it."""
        values = [value]
        with _broken("the state of the learner could not be sent to its ranks"):
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor becomes its sum over all ranks, the same bits on each; RankFailed if one of them told a failure."""
        self._ask_all(failed=False)
        with _broken("the ranks of the learner could not add up their numbers"):
            dist.all_reduce(tensor, group=self._gradients if tensor.is_cuda else None)
        return tensor

    def any(self, mine: bool) -> bool:
        """Whether one of the ranks says so; RankFailed if one of them told a failure."""
        return self._ask_all(failed=False, flag=mine)

    def tell_failure(self) -> None:
        """Instead of the next `add_up` or `any`: it raises RankFailed in all other ranks."""
        with contextlib.suppress(GroupBroken, RankFailed):  # they fail in any case
            self._ask_all(failed=True)

    def _ask_all(self, *, failed: bool, flag: bool = False) -> bool:
        """A small question before each sum, always over gloo: a rank that failed has no numbers to add, and NCCL would wait
        for those of one that died. Returns whether a rank has set its flag."""
        answers = torch.tensor([int(failed), int(flag)])
        with _broken("a rank of the learner does not answer"):
            dist.all_reduce(answers)
        if int(answers[0]):
            raise RankFailed("a rank of the learner failed in this update; its own error says why")
        return bool(answers[1])


@contextlib.contextmanager
def _broken(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch has no narrower one for gloo
        raise GroupBroken(f"{what}: {str(error).splitlines()[0]}") from error
