"""Ranks that are processes of torch.distributed: gloo between hosts, NCCL between GPUs.

torchrun, or anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, starts them. Bytes that
each rank receives are fixed by the plan, so torch sends no sizes.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ...pipeline.errors import ConfigError
from ..options.rank_options import is_launched
from .ranks import Done, Message, OneRank, Pending, RankError, Ranks

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class _Work:
    """A collective of torch under way."""

    def __init__(self, work: dist.Work, rank: int) -> None:
        self._work = work
        self._rank = rank

    def wait(self) -> None:
        with _lost_ranks(self._rank):
            self._work.wait()


class TorchRanks:
    """This process among those of the default group of torch.distributed."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()

    def exchange(self, sent: Message, received: Message) -> Pending:
        """Start one all-to-all of bytes."""
        assert sent.sizes_W[self.rank] == received.sizes_W[self.rank] == 0, "a rank sends nothing to itself"
        # Sizes are known at both ends, so one call moves the bytes of all ranks.
        with _lost_ranks(self.rank):
            work = dist.all_to_all_single(
                received.data, sent.data, list(received.sizes_W), list(sent.sizes_W), async_op=True
            )
        return Done() if work is None else _Work(work, self.rank)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Gather equal tensors on every rank."""
        found = [torch.empty_like(part) for _ in range(self.num_ranks)]
        with _lost_ranks(self.rank):
            dist.all_gather(found, part)
        return found

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def joined_ranks(timeout_seconds: float) -> Iterator[Ranks]:
    """Join the ranks of this launch inside the block; a process by itself is one rank."""
    ranks = join_ranks(timeout_seconds=timeout_seconds) if is_launched() else OneRank()
    try:
        yield ranks
    finally:
        ranks.close()


def join_ranks(backend: str = "gloo", timeout_seconds: float = 60.0) -> Ranks:
    """Join the other processes of this launch.

    Args:
        backend: gloo or nccl.
        timeout_seconds: how long a rank may keep the others waiting.

    Raises:
        ConfigError: this process was not launched as a rank.
        RankError: the others do not come.
    """
    # Torch itself would wait for minutes for processes that were never started.
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"this process was not launched as a rank: {', '.join(missing)} not set",
            hint="start it with `torchrun --nproc-per-node 2`, or set them as torchrun does",
        )
    timeout = datetime.timedelta(seconds=timeout_seconds)
    # Ray Train has joined its workers already.
    if dist.is_initialized():
        return TorchRanks()
    with _lost_ranks(int(os.environ["RANK"])):
        dist.init_process_group(backend, timeout=timeout)
    return TorchRanks()


@contextmanager
def _lost_ranks(rank: int) -> Iterator[None]:
    """Turn what torch raises when a rank is gone into one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"rank {rank} lost another rank: {first_reason(error)}",
            hint="look for the first error among the ranks",
        ) from error


def first_reason(error: Exception) -> str:
    """Return the first sentence of an error of torch, without the place in its code."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return re.sub(r"^\[[^]]*\] ", "", lines[0]).split(". ")[0]
