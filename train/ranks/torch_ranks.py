"""Ranks that are processes of torch.distributed, over gloo: what crosses lies in host memory.

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

_BACKEND = "gloo"
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LATE = re.compile("timed out|timeout", re.IGNORECASE)
"""In what gloo says of a rank that is there and does not answer."""


class _Work:
    """A collective of torch under way."""

    def __init__(self, work: dist.Work, ranks: TorchRanks) -> None:
        self._work = work
        self._ranks = ranks

    def wait(self) -> None:
        with self._ranks.lost_ranks():
            self._work.wait()


class TorchRanks:
    """This process among all of a launch.

    Args:
        timeout_seconds: how long the group waits for a process.
        group: of all processes, over gloo; None: the default one.
    """

    def __init__(self, timeout_seconds: float, group: dist.ProcessGroup | None = None) -> None:
        self._timeout_seconds = timeout_seconds
        self._group = group
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()

    def exchange(self, sent: Message, received: Message) -> Pending:
        """Start one all-to-all of bytes."""
        assert sent.sizes_W[self.rank] == received.sizes_W[self.rank] == 0, "a rank sends nothing to itself"
        # Sizes are known at both ends, so one call moves the bytes of all ranks.
        with self.lost_ranks():
            work = dist.all_to_all_single(
                received.data,
                sent.data,
                list(received.sizes_W),
                list(sent.sizes_W),
                group=self._group,
                async_op=True,
            )
        return Done() if work is None else _Work(work, self)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Gather equal tensors on every rank."""
        found = [torch.empty_like(part) for _ in range(self.num_ranks)]
        with self.lost_ranks():
            dist.all_gather(found, part, group=self._group)
        return found

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    @contextmanager
    def lost_ranks(self) -> Iterator[None]:
        """Turn what torch raises when a rank is gone, or late, into one line."""
        with _lost_ranks(self.rank, f"no answer in {self._timeout_seconds:g} s (HOTSET_RANK_TIMEOUT)"):
            yield


@contextmanager
def joined_ranks(timeout_seconds: float) -> Iterator[Ranks]:
    """Join the ranks of this launch inside the block; a process by itself is one rank."""
    ranks = join_ranks(timeout_seconds=timeout_seconds) if is_launched() else OneRank()
    try:
        yield ranks
    finally:
        ranks.close()


def join_ranks(timeout_seconds: float = 60.0) -> Ranks:
    """Join the other processes of this launch.

    Args:
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
    with _lost_ranks(int(os.environ["RANK"])):
        # Processes that have joined already, as Ray Train's workers, keep their group, which waits as long as
        # it likes, and on GPUs sends nothing from host memory: theirs is beside it.
        if dist.is_initialized():
            return TorchRanks(timeout_seconds, dist.new_group(backend=_BACKEND, timeout=timeout))
        dist.init_process_group(_BACKEND, timeout=timeout)
    return TorchRanks(timeout_seconds)


@contextmanager
def _lost_ranks(rank: int, if_late: str | None = None) -> Iterator[None]:
    """Turn what torch raises when a rank is gone into one line.

    Args:
        rank: this one.
        if_late: the reason where another one did not answer in time; None: torch's own.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = first_reason(error)
        if if_late is not None and _LATE.search(reason):
            reason = if_late
        raise RankError(
            f"rank {rank} lost another rank: {reason}", hint="look for the first error among the ranks"
        ) from error


def first_reason(error: Exception) -> str:
    """Return the first sentence of an error of torch, without the place in its code."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return re.sub(r"^\[[^]]*\] ", "", lines[0]).split(". ")[0]
