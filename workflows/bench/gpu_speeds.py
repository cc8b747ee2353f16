"""Measurements of a GPU day: the machine, every placement, and an epoch.

All runs of a group are built and warmed up; then each takes some steps in every round. The speed of a card
drifts with its heat, and that of a shared machine with its other work, which affects all runs of a round
alike. So a speed is the median over rounds, and a ratio the median over rounds of two speeds of the same
round. A run that waits for its turn has read batches ahead, forty on a machine of many cores. They would be
free in its next turn, so each turn begins with steps that do not count, and the clock starts after them.

Placements are measured in groups, each with all-fast among them. A group has as many runs at a time as memory
allows: a slow tier has all rows on the host, 17 GB at dim 128. A part that has to be named compares
TorchRec's cache on the device (``fused_uvm_caching``) with `lookahead`, both with a share of the rows there.
It needs TorchRec, and was never run on a GPU.

An epoch is one of the Kaggle shape, 39.3 million samples, trained as in a user's run. The samples are drawn
on the spot, 160 bytes each in memory and as many on the disk. A run takes 4 GB of the disk, and is deleted.
"""

from __future__ import annotations

import gc
import platform
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ByteSize
from ...pipeline.runtime.limits import available_bytes
from ...pipeline.runtime.tasks import num_workers
from ...stats.row_bytes import row_bytes
from ...stats.shuffle import epoch_order
from ...train.build import MOST_READERS, build_trainer
from ...train.config import PlacementName, TrainConfig
from ...train.data.batch import RecordedOrder
from ...train.data.shards import ShardSet
from ...train.gpu.queued_steps import QueuedSteps
from ...train.loop import train_steps
from ...train.placements.placements import MOST_STEPS_AHEAD
from ...train.threads import PLACES_AT_A_TIME
from ..machine import versions
from .gpu_checks import (
    HOT_SHARE,
    OUTPUT_CHARACTERS,
    SMALL_SCALE,
    base_config,
    checksum_of_weights,
    draw_kaggle,
    drawn_samples,
    packed_shards,
    write_kaggle_shards,
)
from .gpu_day import SPARE_SECONDS, PartSettings, Records, run_process
from .gpu_steps import IN_PIPELINE, TorchRecRun, measure_ceilings
from .harness import median_ratio

_LIBRARIES = ("torch", "triton", "numba", "numpy", "pyarrow")
REFERENCE = "all-fast"
"""Name of the contestant that the others are compared with."""
_ROUNDS = _WARM_UP_STEPS = 5
_MOST_SAMPLES = 12_000_000
"""Samples of the measured steps of one run, at most; they are planned before its first step."""
_MOST_STEPS = 1500
_STEP_SECONDS, _ENDING_SECONDS = 2.0, 5.0
"""Measured time of one run, about; and time that is kept for the runs of a group to end."""
BATCH_SIZES = (65_536, 16_384, 2_048)
"""The largest first: its figures are the most important."""
_SMALL_BATCH_SIZES = (64,)
_HOT_ONLY = "hot-only"
_FIRST = ("lookahead", "hybrid", "fae")
"""Placements that are measured first at the largest batch size, with all-fast."""
_CONTESTANTS = (REFERENCE, *_FIRST, _HOT_ONLY, "hybrid-uva", "cache", "hybrid-dedup")
_FIRST_AT_OTHER_SIZES = ("lookahead", _HOT_ONLY)
"""Placements that are measured at the smaller ones before the others are."""
TORCHREC = "torchrec-uvm-caching"
"""Name of TorchRec's contestant."""
CACHED_SHARES = (0.015, 0.1, 0.2, 0.4)
"""Shares of the rows that are on the device; published speeds of TorchRec are of the last two."""
_SHARE_OF_HOST = 0.6
"""Share of the host's available memory that the rows of a group may take."""
_EPOCH, _SMALL_EPOCH = (39_300_000, 400_000, 65_536), (6_000, 500, 64)
"""Training samples, those evaluated, and batch size of an epoch."""
_EPOCH_OPTIMIZER: Literal["adagrad"] = "adagrad"
_DIM = 16
"""Embedding dimension of an epoch."""


def measure_machine(settings: PartSettings, records: Records) -> None:
    """Write the names and ceilings of the device and of the link to it.

    Meanwhile another process compiles the kernels of the host, which takes a minute where nothing is cached.
    Otherwise every process that tries a kernel would compile them, within its time limit.
    """
    path, seconds = settings.scratch / "host-kernels.jsonl", records.seconds_left - SPARE_SECONDS
    with ThreadPoolExecutor(1) as pool:
        host_kernels = pool.submit(run_process, "host-kernels", settings, path, seconds)
        _write_ceilings(settings, records)
    status, output = host_kernels.result()
    records.check("kernels of the host are compiled", status == "ok", output[-OUTPUT_CHARACTERS:])


def _write_ceilings(settings: PartSettings, records: Records) -> None:
    device = settings.torch_device
    is_gpu = device.type == "cuda"
    records.fact(
        device=torch.cuda.get_device_name(device) if is_gpu else platform.processor() or "cpu",
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if is_gpu else None,
        python=platform.python_version(),
        libraries=versions(_LIBRARIES),
    )
    for name, rate in measure_ceilings(device, is_small=settings.is_small).items():
        unit = "flops" if name.startswith("products") else "bytes"
        records.row(**{"what": name, f"{unit}_per_second": rate})


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One of several runs that are compared."""

    name: str
    shards: ShardSet
    config: TrainConfig
    is_hot_only: bool = False
    """Whether it trains on hot-only batches alone."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Columns of its row that say what was measured."""
    cached_share: float | None = None
    """Share of the rows in the cache of a run by TorchRec; None: hotset runs it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """The number and length of the turns of a run."""

    rounds: int = _ROUNDS
    seconds: float
    """Time after which a turn ends."""
    fewest_steps: int = 4
    """Steps before which it does not."""
    most_steps: int
    """Steps after which it ends in any case."""
    steps_ahead: int
    """Steps that may have been read ahead of a turn, and do not count."""

    @classmethod
    def of(cls, batch_size: int, *, is_small: bool) -> Turns:
        """Return the turns for a batch size; a few steps where everything is only tried."""
        if is_small:
            return cls(seconds=0.0, fewest_steps=2, most_steps=2, steps_ahead=0)
        # Batches are read ahead by each reader, packed ahead by each, and sent ahead.
        num_readers = min(num_workers(0), MOST_READERS)
        steps_ahead = 2 * num_readers + MOST_STEPS_AHEAD + PLACES_AT_A_TIME
        most_steps = min(_MOST_STEPS, _MOST_SAMPLES // batch_size) // _ROUNDS
        return cls(seconds=_STEP_SECONDS / _ROUNDS, most_steps=most_steps, steps_ahead=steps_ahead)


@dataclass(frozen=True, slots=True)
class Turn:
    """Work of a run in a turn, without the steps that do not count."""

    num_samples: int
    steps: int
    seconds: float

    @property
    def samples_per_second(self) -> float:
        """Speed of the turn."""
        return self.num_samples / self.seconds


class HotsetRun:
    """Training steps by hotset, so many at most."""

    def __init__(self, contestant: Contestant, num_steps: int) -> None:
        shards, config = contestant.shards, contestant.config
        # fae orders its batches by itself.
        if config.placement == "fae":
            epochs = -(-num_steps // shards.num_training_batches)
            self.trainer = build_trainer(shards, replace(config, epochs=epochs))
        else:
            order = _order_of(contestant, num_steps)
            self.trainer = build_trainer(shards, config, RecordedOrder(order))
        self._taken = train_steps(self.trainer)
        self.synchronize = self.trainer.runner.synchronize

    @property
    def num_samples(self) -> int:
        """Samples so far."""
        return self.trainer.num_samples

    def take(self) -> None:
        """Run a step."""
        if next(self._taken, None) is None:
            raise ValueError(f"the run ended after {self.trainer.step} steps")

    def close(self) -> None:
        """End the run; its trainer keeps its counts."""
        self._taken.close()

    def counted(self) -> dict[str, Any]:
        """Return the bytes that moved, and how."""
        trainer, runner, counted = self.trainer, self.trainer.runner, dict[str, Any]()
        assert isinstance(runner, QueuedSteps), "a part for devices that are not the host"
        if runner.sent_samples:
            counted["bytes_sent_per_sample"] = runner.sent_bytes / runner.sent_samples
            counted["is_recorded"] = runner.is_recorded
        to_device, to_host = trainer.meter.training_bytes()
        moved = {"bytes_to_device": to_device, "bytes_to_host": to_host, "mover": runner.moves.name}
        return counted | moved | {"all_steps": trainer.step}


class RunInTurns:
    """A run that takes some of its steps at each turn."""

    def __init__(self, contestant: Contestant, turns: Turns) -> None:
        self._turns = turns
        # fae has the mixed batches of an epoch together and the others together, so a turn of it is whole
        # epochs. What it decides as it goes is not read ahead.
        is_fae = contestant.config.placement == "fae"
        self._steps_ahead = 0 if is_fae else turns.steps_ahead
        self._multiple = contestant.shards.num_training_batches if is_fae and turns.seconds else 1
        self._most_steps = self._multiple * -(-turns.most_steps // self._multiple)
        num_steps = _WARM_UP_STEPS + turns.rounds * (self._steps_ahead + self._most_steps)
        self.run: HotsetRun | TorchRecRun
        if contestant.cached_share is None:
            self.run = HotsetRun(contestant, num_steps)
        else:
            order = _order_of(contestant, num_steps + IN_PIPELINE)
            self.run = TorchRecRun(contestant.shards, contestant.config, order, contestant.cached_share)

    def warm_up(self) -> None:
        """Run the first steps, which plan, compile and record."""
        for _ in range(_WARM_UP_STEPS):
            self.run.take()
        self.run.synchronize()

    def turn(self) -> Turn:
        """Run the steps of a turn, and return the work of those that count."""
        turns = self._turns
        begin = time.perf_counter()
        # Where half a turn does not suffice for what was read ahead, reading is not what the steps wait for.
        for _ in range(self._steps_ahead):
            self.run.take()
            if time.perf_counter() - begin > turns.seconds / 2:
                break
        # The clock is read with the device at rest, at both ends.
        self.run.synchronize()
        begin = time.perf_counter()
        first_samples = self.run.num_samples
        for step in range(1, self._most_steps + 1):
            self.run.take()
            is_over = step >= turns.fewest_steps and step % self._multiple == 0
            if is_over and time.perf_counter() - begin > turns.seconds:
                break
        self.run.synchronize()
        seconds = time.perf_counter() - begin
        return Turn(self.run.num_samples - first_samples, step, seconds)


def measure_in_turns(group: str, contestants: Sequence[Contestant], turns: Turns, records: Records) -> None:
    """Build the runs, let them take turns, and write a row for each.

    One that raises is a check that failed, and the others go on. Where time runs out the round is the last
    one, and where it does not suffice to build all, in their order, those that are left are left out.
    """
    runs = _Runs(group, records)
    try:
        for contestant in contestants:
            if not runs.add(contestant, turns):
                records.leave_open()
                break
        runs.take_rounds(turns.rounds)
        runs.write_rows(contestants)
    finally:
        runs.end()


class _Runs:
    """The runs of a group that are built, by the names of their contestants."""

    def __init__(self, group: str, records: Records) -> None:
        self._group = group
        self._records = records
        self._runs: dict[str, RunInTurns] = {}
        self._turns: dict[str, list[Turn]] = {}
        """Turns so far, one in each round."""
        self._build_seconds = 0.0

    def add(self, contestant: Contestant, turns: Turns) -> bool:
        """Build a run and warm it up; False where there is no time for it."""
        # Two are built in any case: fewer have nothing to compare.
        if len(self._runs) > 1 and not self._records.has_time(self._build_seconds + _ENDING_SECONDS):
            return False
        begin, name = time.monotonic(), contestant.name
        gc.collect()  # the parts of a trainer refer to each other, and those of one that has raised go now
        with self._catching(name):
            self._runs[name] = RunInTurns(contestant, turns)
            self._runs[name].warm_up()
            self._turns[name] = []
        self._build_seconds = max(self._build_seconds, time.monotonic() - begin)
        return True

    def take_rounds(self, num_rounds: int) -> None:
        """Run each contestant once per round, in alternating order."""
        for number in range(num_rounds):
            begin = time.monotonic()
            names = list(self._runs)
            for name in names if number % 2 == 0 else names[::-1]:
                with self._catching(name):
                    self._turns[name].append(self._runs[name].turn())
            # What was found so far stays where a later turn hangs, and the process is killed.
            rates = {name: _rates(turns) for name, turns in self._turns.items()}
            self._records.fact(**{f"turns of {self._group}": rates})
            # Another round takes as long, and then the runs end.
            if not self._records.has_time(time.monotonic() - begin + _ENDING_SECONDS):
                break

    def write_rows(self, contestants: Sequence[Contestant]) -> None:
        """End the runs, and write what was measured of each."""
        for name in list(self._runs):
            with self._catching(name):
                self._runs[name].run.close()
        facts = {contestant.name: contestant.facts for contestant in contestants}
        for name, run in self._runs.items():
            turns, rates = self._turns[name], _rates(self._turns[name])
            with self._records.catching(self._check(name)):
                measured = {"samples_per_second": statistics.median(rates), "rounds": rates}
                if REFERENCE in self._runs:
                    measured["of_all_fast"] = median_ratio(rates, _rates(self._turns[REFERENCE]))
                measured["steps"] = sum(turn.steps for turn in turns)
                measured["seconds"] = sum(turn.seconds for turn in turns)
                self._records.row(**facts[name], group=self._group, **measured, **run.run.counted())

    def end(self) -> None:
        """Release all runs: their rows, 17 GB each at dim 128, go before others are built."""
        for name in list(self._runs):
            self._release(name)
        gc.collect()

    def _check(self, name: str) -> str:
        return f"speed of {name}, {self._group}"

    @contextmanager
    def _catching(self, name: str) -> Iterator[None]:
        """Note a check that failed where a run raises, and go on without it."""
        is_over = False
        with self._records.catching(self._check(name)):
            yield
            is_over = True
        if not is_over:
            self._release(name)

    def _release(self, name: str) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            with self._records.catching(f"end of the run: {self._check(name)}"):
                run.run.close()


def _rates(turns: Sequence[Turn]) -> list[float]:
    return [turn.samples_per_second for turn in turns]


def _order_of(contestant: Contestant, num_steps: int) -> NDArray[np.int32]:
    """Return the batches of ``num_steps`` steps in the order of an epoch, repeated if it has fewer."""
    shards = contestant.shards
    order = epoch_order(shards.is_hot_only, contestant.config.seed, 0, spread=shards.is_grouped)
    if contestant.is_hot_only:
        order = order[shards.is_hot_only[order]]
    if order.size == 0:
        raise ValueError("no batch looks up hot rows alone")
    return np.resize(order, num_steps).astype(np.int32)


def measure_speed(settings: PartSettings, records: Records, embedding_dim: int) -> None:
    """Train under all placements, those of a group in turns; rows are written as soon as one is measured."""
    samples = drawn_samples(settings)
    num_rows = sum(samples.num_rows)
    configs = _contestants(settings, num_rows, embedding_dim)
    most_runs = _most_runs(settings, num_rows, embedding_dim)
    groups: dict[str, tuple[list[str], int]] = {}
    for names, batch_size in _in_order(list(configs), _batch_sizes(settings)):
        for fitting in _fitting(names, most_runs):
            groups[f"speeds at {batch_size}: {', '.join(fitting)}"] = fitting, batch_size
    shards_of = cache(lambda batch_size: packed_shards(settings, samples, batch_size, embedding_dim))
    for piece in records.pieces(list(groups)):
        names, batch_size = groups[piece]
        facts = {"embedding_dim": embedding_dim, "batch_size": batch_size, "num_rows": num_rows}
        with records.catching(piece):
            contestants = [
                Contestant(
                    name=name,
                    shards=shards_of(batch_size),
                    config=configs[name],
                    is_hot_only=name == _HOT_ONLY,
                    facts={"placement": name, **facts},
                )
                for name in names
            ]
            turns = Turns.of(batch_size, is_small=settings.is_small)
            measure_in_turns(piece, contestants, turns, records)


def compare_caches(settings: PartSettings, records: Records, embedding_dim: int) -> None:
    """Train with shares of the rows on the device, under `lookahead` and by TorchRec, next to all-fast."""
    samples = drawn_samples(settings)
    num_rows = sum(samples.num_rows)
    batch_size = _batch_sizes(settings)[0]
    base = _config(settings, num_rows, embedding_dim)
    groups = {f"{share:.1%} of the rows at {batch_size}": share for share in CACHED_SHARES}
    for piece in records.pieces(list(groups)):
        share = groups[piece]
        # Hot rows are those of the shards, and the other rows of the share are staging slots.
        staging = ByteSize(int((share - HOT_SHARE) * num_rows) * row_bytes(embedding_dim, "sgd"))
        lookahead = replace(base, placement="lookahead", staging_bytes=staging)
        facts = {"embedding_dim": embedding_dim, "batch_size": batch_size, "num_rows": num_rows}
        with records.catching(piece):
            shards = packed_shards(settings, samples, batch_size, embedding_dim)
            contestants = [
                Contestant(
                    name=name,
                    shards=shards,
                    config=config,
                    facts={"placement": name, "share": share, **facts},
                    cached_share=share if name == TORCHREC else None,
                )
                for name, config in ((REFERENCE, base), ("lookahead", lookahead), (TORCHREC, base))
            ]
            turns = Turns.of(batch_size, is_small=settings.is_small)
            measure_in_turns(piece, contestants, turns, records)


def _batch_sizes(settings: PartSettings) -> tuple[int, ...]:
    return _SMALL_BATCH_SIZES if settings.is_small else BATCH_SIZES


def _in_order(names: Sequence[str], batch_sizes: Sequence[int]) -> list[tuple[list[str], int]]:
    """Return the groups with their batch sizes, the most important first."""
    largest, *others = batch_sizes
    first = [([name for name in names if name in _FIRST], largest)]
    first += [([name for name in names if name in _FIRST_AT_OTHER_SIZES], size) for size in others]
    # Then the others at each size.
    rest = [([name for name in names if name not in chosen], size) for chosen, size in first]
    # The reference is in all of them.
    return [
        ([REFERENCE, *(name for name in group if name != REFERENCE)], size) for group, size in first + rest
    ]


def _fitting(names: Sequence[str], most_runs: int) -> list[list[str]]:
    """Divide a group, whose first run is the reference, into groups of so many others that memory holds."""
    reference, *others = names
    size = max(most_runs, 1)
    return [[reference, *others[first : first + size]] for first in range(0, len(others), size)]


def _most_runs(settings: PartSettings, num_rows: int, embedding_dim: int) -> int:
    """Return how many runs besides all-fast the host holds: each has all of its rows there."""
    available = available_bytes()
    if available is None:
        return len(get_args(PlacementName))
    held = int(_SHARE_OF_HOST * available) // (num_rows * row_bytes(embedding_dim, "sgd"))
    # On a GPU all-fast has its rows there, without one on the host, too.
    return held - (settings.torch_device.type == "cpu")


def _contestants(settings: PartSettings, num_rows: int, embedding_dim: int) -> dict[str, TrainConfig]:
    """Return the settings of each contestant by name."""
    base = replace(_config(settings, num_rows, embedding_dim), fae_variant="code")
    configs: dict[str, TrainConfig] = {
        name: replace(base, placement=name) for name in get_args(PlacementName)
    }
    # Hot-only batches move no rows, so this is the speed of look-ahead without its transfers.
    configs[_HOT_ONLY] = configs["lookahead"]
    return {name: configs[name] for name in _CONTESTANTS}


def _config(
    settings: PartSettings, num_rows: int, embedding_dim: int, optimizer: Literal["sgd", "adagrad"] = "sgd"
) -> TrainConfig:
    """Return the settings of all-fast; staging gets as many slots as there are hot rows: 1.5 % of all."""
    staging = ByteSize(int(HOT_SHARE * num_rows) * row_bytes(embedding_dim, optimizer))
    return replace(base_config(settings, optimizer), staging_bytes=staging)


def train_an_epoch(settings: PartSettings, records: Records) -> None:
    """Write a row for the inputs and one for each placement, and compare the weights that both end with."""
    shards = _write_inputs(settings, records)
    names: tuple[PlacementName, ...] = ("all-fast", "lookahead")
    found: dict[str, str] = {}
    for name in names:
        with records.catching(f"an epoch of {name}"):
            found[name] = _train_epoch(name, shards, settings, records)
    if len(found) == len(names):
        is_equal = len(set(found.values())) == 1
        records.check("lookahead ends an epoch with the weights of all-fast", is_equal)


def _write_inputs(settings: PartSettings, records: Records) -> ShardSet:
    """Draw the samples, and process them as `hotset preprocess` does after its plan."""
    num_training, num_evaluation, batch_size = _SMALL_EPOCH if settings.is_small else _EPOCH
    begin = time.monotonic()
    samples = draw_kaggle(num_training + num_evaluation, SMALL_SCALE if settings.is_small else 1.0)
    drawn = time.monotonic()
    shards = write_kaggle_shards(
        samples,
        settings.scratch / "epoch" / "shards",
        batch_size=batch_size,
        embedding_dim=_DIM,
        optimizer=_EPOCH_OPTIMIZER,
        num_evaluation=num_evaluation,
    )
    seconds = {"draw": drawn - begin, "pack": time.monotonic() - drawn}
    num_rows = sum(samples.num_rows)
    records.row(what="inputs of an epoch", samples=num_training, num_rows=num_rows, seconds=seconds)
    return shards


def _train_epoch(name: PlacementName, shards: ShardSet, settings: PartSettings, records: Records) -> str:
    """Train under a placement, write its row, and return the checksum of the weights."""
    # Without safetensors no run is written.
    from ...train.run import train

    num_rows = sum(table.num_rows for table in shards.tables)
    config = replace(_config(settings, num_rows, _DIM, _EPOCH_OPTIMIZER), placement=name)
    out = settings.scratch / f"epoch-{name}"
    begin = time.monotonic()
    summary = train(shards.manifest.folder, config, out)
    # With building, evaluation and writing; the training seconds are those of the steps alone.
    whole_seconds = time.monotonic() - begin
    weights = checksum_of_weights(out)
    shutil.rmtree(out)
    records.row(
        what="epoch",
        placement=name,
        embedding_dim=_DIM,
        batch_size=shards.batch_size,
        num_rows=num_rows,
        samples=summary.num_training_samples,
        samples_per_second=summary.samples_per_second,
        training_seconds=summary.num_training_samples / summary.samples_per_second,
        whole_seconds=whole_seconds,
        auc=summary.auc,
        log_loss=summary.log_loss,
        mover=summary.transfers.mover,
        weights=weights,
    )
    return weights
