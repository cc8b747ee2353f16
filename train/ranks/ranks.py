"""The ranks of a run: a single process, or several over gloo.

`Ranks` is their interface. Nothing is negotiated: each rank knows from the plan how many bytes it sends to
every other and how many it receives, so torch sends no sizes. Calls are collective: all ranks make the same
calls in the same order. Messages are in host memory. torchrun, or anything else that sets RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT, starts the processes.

The module also measures the speed of the link between ranks, and opens the store of a launch, where ranks
leave signs of life.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore, Store

from ...pipeline.errors import ConfigError, HotsetError, SaidElsewhereError
from ..config_parts import is_launched

_SIGN_SECONDS = 0.1
"""Between two signs that a rank is still at work; far less than any wait for one that is gone."""
_SUCCEEDED, _HAS_ERROR, _LEFT_TO_OTHERS = range(3)
"""What a rank says of work that may be refused."""
_UNDER_WAY, _FAILED = -1, -2
"""What rank 0 says of its work, instead of the number that comes of it."""


class RankError(HotsetError):
    """A rank is gone, is late, or follows another plan."""


class NotFiniteRowError(HotsetError):
    """A number to be coded is an infinity or a NaN."""


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes for every rank, in the order of ranks; none for the sender."""

    data: torch.Tensor
    """(sum of the sizes,) uint8."""
    sizes_W: tuple[int, ...]
    """Bytes of each rank."""

    def __post_init__(self) -> None:
        if self.data.dtype != torch.uint8 or self.data.numel() != sum(self.sizes_W):
            raise ValueError(
                f"a message of {self.data.numel()} {self.data.dtype} has parts of {sum(self.sizes_W)} bytes"
            )

    def parts(self) -> list[torch.Tensor]:
        """The bytes of each rank."""
        return list(torch.split(self.data, list(self.sizes_W)))

    @classmethod
    def unset(cls, sizes: Sequence[int]) -> Message:
        """Allocate a message to be received."""
        return cls(torch.empty(sum(sizes), dtype=torch.uint8, device="cpu"), tuple(sizes))


class Ranks(Protocol):
    """The ranks of a run, seen from one of them."""

    rank: int
    """Number of this one, from 0."""
    num_ranks: int

    def exchange(self, sent: Message, received: Message) -> Callable[[], None]:
        """Send to and receive from every rank; return what waits for the received bytes.

        Leave both buffers alone until the wait is over. It raises RankError where a rank is gone, or sent
        other bytes than its plan says.
        """

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return copies of all ranks' tensors, of one shape and dtype."""

    def close(self) -> None:
        """Leave the others; what they still wait for from this rank raises there."""


class OneRank:
    """The single rank of a run in one process."""

    rank = 0
    num_ranks = 1

    def exchange(self, sent: Message, received: Message) -> Callable[[], None]:
        """Send nothing."""
        assert sent.sizes_W == received.sizes_W == (0,), "a rank sends nothing to itself"
        return lambda: None

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return a copy of the tensor."""
        return [part.clone()]

    def close(self) -> None:
        """There is nobody to leave."""


def gather_numbers(ranks: Ranks, own: int) -> list[int]:
    """Return the number of each rank; every rank calls this."""
    return [int(each) for each in ranks.gather(torch.tensor([own], dtype=torch.int64, device="cpu"))]


def gather_arrays(ranks: Ranks, arrays: Sequence[NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """Return the arrays of every rank, which may be others on each; every rank calls this."""
    own = torch.from_numpy(packed(arrays))
    # Messages have one size on all ranks, that of the largest.
    padded = torch.zeros(max(gather_numbers(ranks, own.numel())), dtype=torch.uint8, device="cpu")
    padded[: own.numel()] = own
    return [unpacked(each.numpy()) for each in ranks.gather(padded)]


def packed(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the bytes of arrays, with what `unpacked` needs before them."""
    kinds = json.dumps([(each.dtype.str, each.shape) for each in arrays]).encode()
    parts = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays]
    head = np.array([len(kinds)], np.int64).view(np.uint8)
    return np.concatenate([head, np.frombuffer(kinds, np.uint8), *parts])


def unpacked(message: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """Return copies of the arrays that were packed; what follows them is ignored."""
    stop = 8 + int(message[:8].view(np.int64)[0])
    arrays = []
    for kind, shape in json.loads(message[8:stop].tobytes()):
        first, stop = stop, stop + np.dtype(kind).itemsize * math.prod(shape)
        # Copies begin where arrays of numbers may begin.
        arrays.append(message[first:stop].copy().view(kind).reshape(shape))
    return arrays


def gather_texts(ranks: Ranks, text: str) -> list[str]:
    """Return the texts of all ranks; every rank calls this."""
    own = np.frombuffer(text.encode(), np.uint8)
    return [each.tobytes().decode() for (each,) in gather_arrays(ranks, [own])]


@contextmanager
def raise_on_any_rank(ranks: Ranks) -> Iterator[None]:
    """Run the block on every rank; if it fails on one, raise on all.

    Raises:
        HotsetError: what the block raised here, where no rank before this one failed.
        SaidElsewhereError: another rank says why it failed.
    """
    error = None
    try:
        yield
    except HotsetError as raised:
        error = raised
    # All ranks take part, so that none waits for one that has failed. An error that another rank reports
    # comes last: a rank inside collective work may have raised one itself.
    outcome = _HAS_ERROR if error is not None else _SUCCEEDED
    if isinstance(error, SaidElsewhereError):
        outcome = _LEFT_TO_OTHERS
    outcomes = gather_numbers(ranks, outcome)
    if max(outcomes) == _SUCCEEDED:
        return
    first = outcomes.index(_HAS_ERROR if _HAS_ERROR in outcomes else _LEFT_TO_OTHERS)
    if error is not None and first == ranks.rank:
        raise error
    raise SaidElsewhereError(f"rank {first} cannot go on") from error


def arrays_to_first(ranks: Ranks, arrays: Sequence[NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """Return the arrays of every rank at rank 0, nothing elsewhere; every rank calls this."""
    is_first = ranks.rank == 0
    # All messages go to rank 0, whose own part needs none.
    own = np.empty(0, np.uint8) if is_first else packed(arrays)
    sizes = gather_numbers(ranks, own.size)
    received = Message.unset(sizes if is_first else [0] * ranks.num_ranks)
    sent = Message(torch.from_numpy(own), (own.size, *[0] * (ranks.num_ranks - 1)))
    ranks.exchange(sent, received)()
    return [[*arrays], *(unpacked(each.numpy()) for each in received.parts()[1:])] if is_first else []


def first_says(ranks: Ranks, own: bool) -> bool:
    """Return what rank 0 says, such as by its clock; every rank calls this."""
    return bool(gather_numbers(ranks, own)[0])


def wait_for_first(ranks: Ranks, work: Callable[[], int]) -> int:
    """Do work at rank 0 alone, while the others wait.

    They wait however long it takes. A rank that writes a large file is still alive: from time to time it
    tells the others that it is running.

    Args:
        work: makes no calls to other ranks; returns a number from 0 on.

    Returns:
        The number, at every rank.

    Raises:
        Exception: what ``work`` raises, at rank 0.
        SaidElsewhereError: at the other ranks in this case.
    """
    if ranks.rank:
        while (number := gather_numbers(ranks, _UNDER_WAY)[0]) == _UNDER_WAY:
            pass
        if number == _FAILED:
            raise SaidElsewhereError("rank 0 cannot go on")
        return number
    if ranks.num_ranks == 1:
        return work()
    # The work is done in a thread, so that this one can speak meanwhile.
    with ThreadPoolExecutor(1, "first") as pool:
        under_way = pool.submit(work)
        while not under_way.done():
            wait([under_way], timeout=_SIGN_SECONDS)
            if not under_way.done():
                gather_numbers(ranks, _UNDER_WAY)
    is_done = under_way.exception() is None
    gather_numbers(ranks, under_way.result() if is_done else _FAILED)
    return under_way.result()


Found = TypeVar("Found")


def wait_for_all(ranks: Ranks, work: Callable[[], Found]) -> Found:
    """Do work at every rank, and return what it returned here once all have done theirs.

    As with `wait_for_first`, ranks wait however long it takes.

    Args:
        work: makes no calls to other ranks.

    Raises:
        Exception: what ``work`` raises here.
        SaidElsewhereError: that of another rank raised.
    """
    with ThreadPoolExecutor(1, "own") as pool:
        under_way = pool.submit(work)
        states = [_UNDER_WAY]
        while _UNDER_WAY in states:
            wait([under_way], timeout=_SIGN_SECONDS)
            state = _UNDER_WAY
            if under_way.done():
                state = 0 if under_way.exception() is None else _FAILED
            states = gather_numbers(ranks, state)
    result = under_way.result()
    if _FAILED in states:
        raise SaidElsewhereError(f"rank {states.index(_FAILED)} cannot go on")
    return result


def check_equal_settings(ranks: Ranks, settings: Mapping[str, object]) -> None:
    """Compare the texts of this rank's settings with those of the others, one by one.

    All ranks call this.

    Raises:
        RankError: one differs somewhere; every rank raises, and names it and the rank.
    """
    own = json.dumps({name: repr(value) for name, value in sorted(settings.items())})
    # Every rank gets all texts and decides alike, so that none waits for one that has raised.
    found = [json.loads(each) for each in gather_texts(ranks, own)]
    for name in dict.fromkeys(name for each in found for name in each):
        others = [str(rank) for rank, each in enumerate(found) if each.get(name) != found[0].get(name)]
        if others:
            differ = f"rank {others[0]} differs" if len(others) == 1 else f"ranks {', '.join(others)} differ"
            raise RankError(
                f"{differ} from rank 0 in {name}",
                hint="give all ranks the same DIR (its shards/), options and version of hotset",
            )


_BACKEND = "gloo"
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LATE = re.compile("timed out|timeout", re.IGNORECASE)
"""In what gloo says of a rank that is there and does not answer."""


class TorchRanks:
    """This process among all of a launch.

    Args:
        timeout_seconds: how long the group waits for a process.
        group: of all processes, over gloo; None: the default one.
        pulse: tells which rank is gone; None: errors name none.
    """

    def __init__(
        self, timeout_seconds: float, group: dist.ProcessGroup | None = None, pulse: Pulse | None = None
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._group = group
        self._pulse = pulse
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()

    def exchange(self, sent: Message, received: Message) -> Callable[[], None]:
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

        def wait() -> None:
            with self.lost_ranks():
                if work is not None:
                    work.wait()

        return wait

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Gather equal tensors on every rank."""
        found = [torch.empty_like(part) for _ in range(self.num_ranks)]
        with self.lost_ranks():
            dist.all_gather(found, part, group=self._group)
        return found

    def close(self) -> None:
        """Leave the group."""
        if self._pulse is not None:
            self._pulse.stop()
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    @contextmanager
    def lost_ranks(self) -> Iterator[None]:
        """Turn what torch raises when a rank is gone, or late, into one line."""
        if self.num_ranks == 1:
            yield
            return
        if_late = f"no answer in {self._timeout_seconds:g} s (HOTSET_RANK_TIMEOUT)"
        with _lost_ranks(self.rank, if_late, self._pulse):
            yield


@contextmanager
def joined_ranks(timeout_seconds: float) -> Iterator[Ranks]:
    """Join this launch's ranks inside the block; one process is one rank."""
    ranks = join_ranks(timeout_seconds=timeout_seconds) if is_launched() else OneRank()
    try:
        yield ranks
    finally:
        ranks.close()


@contextmanager
def joined_processes(timeout_seconds: float, device: str) -> Iterator[Ranks]:
    """Join this launch's ranks for TorchRec, whose process group one process needs, too.

    Args:
        device: cpu or cuda, where tensors of the host cross by gloo still.
    """
    backend = _BACKEND
    # Where there is no such device, the run is refused once all ranks can say so.
    if device.startswith("cuda") and torch.cuda.is_available():
        place, count = int(os.environ.get("LOCAL_RANK") or 0), torch.cuda.device_count()
        if place >= count:
            raise ConfigError(f"rank {place} of this machine has no CUDA device: there are {count}")
        torch.cuda.set_device(place)
        backend = f"cpu:{_BACKEND},cuda:nccl"
    if not is_launched() and not dist.is_initialized():
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
        ranks: Ranks = TorchRanks(timeout_seconds)
    else:
        ranks = join_ranks(timeout_seconds, backend)
    try:
        yield ranks
    finally:
        ranks.close()


def join_ranks(timeout_seconds: float = 60.0, backend: str = _BACKEND) -> Ranks:
    """Join the other processes of this launch.

    Args:
        timeout_seconds: how long a rank may keep the others waiting.
        backend: of a group that is made here.

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
    rank = int(os.environ["RANK"])
    with _lost_ranks(rank):
        # Processes that have joined already, such as Ray Train's workers, keep their process group, which has
        # no timeout and on GPUs sends nothing from host memory; a second group is made for our messages.
        if dist.is_initialized():
            return TorchRanks(timeout_seconds, dist.new_group(backend=_BACKEND, timeout=timeout))
        num_ranks = int(os.environ["WORLD_SIZE"])
        store = open_store(rank, num_ranks, timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    return TorchRanks(timeout_seconds, pulse=Pulse(store, rank, num_ranks) if has_agent() else None)


@contextmanager
def _lost_ranks(rank: int, if_late: str | None = None, pulse: Pulse | None = None) -> Iterator[None]:
    """Turn what torch raises when a rank is gone into one line.

    Args:
        rank: this one.
        if_late: the reason where another one did not answer in time; None: torch's own.
        pulse: tells which one is gone; None: nobody knows.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = first_reason(error)
        if if_late is not None and _LATE.search(reason):
            reason = if_late
        lost = pulse.lost() if pulse is not None else []
        ranks = "ranks" if len(lost) > 1 else "rank"
        names = f"{ranks} {', '.join(map(str, lost))}" if lost else "another rank"
        hint = "look for the first error among the ranks"
        raise RankError(f"rank {rank} lost {names}: {reason}", hint=hint) from error


def first_reason(error: Exception) -> str:
    """Return the first sentence of a torch error, without its place."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return re.sub(r"^\[[^]]*\] ", "", lines[0]).split(". ")[0]


_SMALL_BYTES = 4 << 10
_LARGE_BYTES = 2 << 20
_MOST_SECONDS = 0.4
"""Seconds for the messages of one size."""
_LEAST_TRIALS, _MOST_TRIALS = 2, 50


class LinkSpeed(NamedTuple):
    """A line through the times of messages: all ranks know the same."""

    delay_seconds: float
    bytes_per_second: float
    """Of one rank to all others together, each way."""


def measure_link(ranks: Ranks) -> LinkSpeed:
    """Exchange small and large messages between all ranks, below a second.

    Returns:
        The delay and the bandwidth at the slowest rank, the same numbers at every rank.
    """
    small = _seconds(ranks, _SMALL_BYTES)
    large = _seconds(ranks, _LARGE_BYTES)
    more_bytes = (_LARGE_BYTES - _SMALL_BYTES) * (ranks.num_ranks - 1)
    # On a busy machine the larger message may be the faster one.
    per_byte = max(large - small, large / 4) / more_bytes
    delay = max(small - _SMALL_BYTES * (ranks.num_ranks - 1) * per_byte, 0.0)
    return LinkSpeed(delay, 1 / per_byte)


def slowest(ranks: Ranks, seconds: float) -> float:
    """Return the largest of the seconds that the ranks have measured."""
    return max(
        float(each) for each in ranks.gather(torch.tensor([seconds], dtype=torch.float64, device="cpu"))
    )


def _seconds(ranks: Ranks, num_bytes: int) -> float:
    """Return the median seconds of a message to each other rank."""
    # All ranks make equally many trials: the first one says how many fit into the time.
    first = slowest(ranks, _trial(ranks, num_bytes))
    first = min(first, slowest(ranks, _trial(ranks, num_bytes)))
    num_trials = min(max(int(_MOST_SECONDS / max(first, 1e-6)), _LEAST_TRIALS), _MOST_TRIALS)
    return slowest(ranks, statistics.median(_trial(ranks, num_bytes) for _ in range(num_trials)))


def _trial(ranks: Ranks, num_bytes: int) -> float:
    sizes = tuple(num_bytes * (rank != ranks.rank) for rank in range(ranks.num_ranks))
    sent = Message(torch.ones(sum(sizes), dtype=torch.uint8, device="cpu"), sizes)
    received = Message.unset(sizes)
    begin = time.perf_counter()
    ranks.exchange(sent, received)()
    return time.perf_counter() - begin


_BEAT_SECONDS = 0.5
"""Between two signs of a rank that it is running."""
_joins = itertools.count()
"""Groups that this process has joined; all ranks join equally many."""


class Pulse:
    """Signs of life of all ranks in the store of a launch.

    A thread counts one key up for each rank. A process that was killed or stopped counts no more, one that
    waits for others does.

    Args:
        store: of all ranks; each has a client of its own.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            try:
                self._store.add(_beats_of(self._rank), 1)
            except RuntimeError:  # torchrun is gone, and its ranks end as well
                return

    def lost(self) -> list[int]:
        """Return the ranks that give no sign any more; takes a second and a half."""
        others = [rank for rank in range(self._num_ranks) if rank != self._rank]
        try:
            before = [self._store.add(_beats_of(rank), 0) for rank in others]
            time.sleep(3 * _BEAT_SECONDS)
            after = [self._store.add(_beats_of(rank), 0) for rank in others]
        except RuntimeError:
            return []
        return [rank for rank, was, now in zip(others, before, after, strict=True) if was == now]

    def stop(self) -> None:
        """Give no sign any more."""
        self._stopped.set()
        self._thread.join()


def _beats_of(rank: int) -> str:
    return f"beats/{rank}"


def has_agent() -> bool:
    """Return whether torchrun hosts the store of its ranks, which then outlives each of them."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def open_store(rank: int, num_ranks: int, timeout: datetime.timedelta) -> Store:
    """Open the store of the launch, under a name of this attempt.

    Torchrun keeps its store when it starts lost ranks again. By torch's own names they would find the
    addresses of the processes before them.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        num_ranks,
        is_master=rank == 0 and not has_agent(),
        timeout=timeout,
        multi_tenant=True,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"hotset/{attempt}/{next(_joins)}", store)
