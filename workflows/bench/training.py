"""Training next to other programs: a step next to plain torch, and tables larger than memory.

``steps``: a DLRM or DCN V2 in plain torch, on the same batches in the same order. Contestants take turns:
plain torch, the same with FBGEMM's tables where installed, hotset with every row at hand, hotset's
`lookahead`, and torch (under autocast) and hotset in bf16 where the CPU has instructions. Plain torch has an
``nn.EmbeddingBag`` with sparse gradients for each table, and SGD for everything. With FBGEMM all tables are
one module that looks up and updates in fused kernels; the rest stays. ``--open-files`` opens that many small
shard files instead, and takes the first step.

``memory``: tables four times a limit of memory that the system enforces. The contestants train the same
batches to the same bits and differ in where cold rows are: in memory without any limit; in files by their
next use (`lookahead`); and in a memory-mapped table with random advice (`hybrid`). The run in memory waits
for no disk, so its ratio to a mapped table is the most that any placement could gain.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ...pipeline.errors import MIB, ByteSize, ConfigError, parse_byte_size
from ...pipeline.runtime.limits import numbers_in
from ...pipeline.runtime.tasks import num_workers
from ...stats.row_bytes import row_bytes
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.batch import Batch, RecordedOrder
from ...train.data.shards import ShardSet
from ...train.loop import Trainer, read_ahead, run_steps, train_steps
from ...train.model.gradients import cpu_features, has_bf16
from ...train.model.shapes import dlrm_shape
from .. import characterise
from ..characterise import DrawnShards
from . import harness
from .harness import Facts, Measurement, MemoryLimit, Options, Seconds, tell
from .plain_torch import PlainDcn, PlainDlrm, PlainNet, TorchOptimizers, bags

_FBGEMM = "fbgemm_gpu"
REFERENCE = "torch fp32"
"""The contestant that ratios are against."""
WARM_UP_STEPS = 3
"""Steps of each turn before the clock starts."""
_LEAST_STEPS = 4
_SMALL_BATCH, _TRIALS = 64, 5
"""Batch size of the small files, each of which has one batch, and how often they are opened."""

PARSER, _JOBS = harness.new_parsers(
    __spec__, __doc__, steps="next to plain torch", memory="tables that do not fit in memory"
)
_STEP, _MEMORY = _JOBS.values()
_STEP.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 2048, 16384])
_STEP.add_argument("--embedding-dims", type=int, nargs="+", default=[16, 64])
_STEP.add_argument("--threads", type=int, nargs="+", default=[1, 2])
_STEP.add_argument("--model", choices=("dlrm", "dcnv2"), default="dlrm")
_STEP.add_argument("--rounds", type=int, default=5, help="rounds in which each contestant runs once")
_STEP.add_argument("--round-samples", type=int, default=32_768, help="at least, of each round")
_STEP.add_argument("--open-files", type=int, help="shard files to open instead")


def measure(options: Options, scratch: Path) -> Facts:
    """Measure what the options select."""
    return (compare_steps if options.what == "steps" else compare_memory)(options, scratch)


def compare_steps(options: Options, scratch: Path) -> Facts:
    """Measure every contestant at every batch size, dim and number of threads; or how shards are opened."""
    records: list[Facts] = []
    ratios: list[Facts] = []
    threads_before = torch.get_num_threads()
    if options.open_files is not None:
        return _measure_opening(options.open_files, scratch)
    for shards in _each_shards(options, scratch):
        for threads in options.threads:
            setting = {"batch_size": shards.batch_size, "embedding_dim": shards.embedding_dim}
            setting["threads"] = threads
            tell(", ".join(f"{name} {value:,}" for name, value in setting.items()))
            rounds = harness.take_turns(_contestants(shards, options, threads), options.rounds)
            num_steps = len(order_of(shards, options.round_samples)) - WARM_UP_STEPS
            for name, measured in rounds.items():
                about = {"name": name} | setting
                median = harness.median_seconds(measured)
                microseconds = 1e6 / (num_steps * shards.batch_size)
                each = {f"{clock}_us": microseconds * median[f"{clock}_seconds"] for clock in ("wall", "cpu")}
                records.append(about | each | {"rounds": measured})
                found = harness.compare(rounds[REFERENCE], measured)
                ratios.append(about | {f"{clock}_ratio": ratio for clock, ratio in found.items()})
    torch.set_num_threads(threads_before)
    return {"contestants": records, "ratios": ratios}


def _each_shards(options: Options, scratch: Path) -> Iterator[ShardSet]:
    """Generate the log once and pack it for each dim and batch size."""
    largest = max(options.batch_sizes)
    # Seven sevenths: the last is for evaluation, and the last batch may be short.
    samples = 2 * (_LEAST_STEPS + WARM_UP_STEPS) * largest
    log = harness.new_log(scratch, max(min(samples, 10 * options.round_samples), 9 * largest))
    for dim, batch_size in product(options.embedding_dims, options.batch_sizes):
        settings = {"embedding_dim": dim, "batch_size": batch_size, "embedding_optimizer": "sgd"}
        yield harness.pack_again(log, scratch / "data", **settings, order="original")


def order_of(shards: ShardSet, round_samples: int) -> list[int]:
    """Return the batches of a round, those of the warm-up first."""
    num_steps = max(-(-round_samples // shards.batch_size), _LEAST_STEPS) + WARM_UP_STEPS
    # A last batch may be short; the others are all full.
    is_hot_only = shards.is_hot_only[: shards.num_training_batches - 1]
    order: list[int] = epoch_order(is_hot_only, 0, 0, spread=False).tolist()
    if not order:
        raise ConfigError(f"no full batch of {shards.batch_size:,} samples")
    # A short log is passed several times in a round.
    return (order * -(-num_steps // len(order)))[:num_steps]


def _contestants(shards: ShardSet, options: Options, threads: int) -> dict[str, Callable[[], Seconds]]:
    order = order_of(shards, options.round_samples)
    config = TrainConfig(
        model=options.model,
        placement="all-fast",
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        embedding_lr=0.1,
        dense_lr=0.1,
        threads=threads,
    )
    torch.manual_seed(0)
    rows, dim = [table.num_rows for table in shards.tables], shards.embedding_dim
    # Those of torch read their batches from memory, so that reading costs them nothing.
    batches = [_InMemory(shards.training_batch(number)) for number in order]

    def plain(tables: nn.Module | None = None, *, autocast: bool = False) -> Callable[[], Seconds]:
        sizes = shards.num_dense, len(rows), dim
        widths = dlrm_shape("auto", *sizes)
        net: PlainNet
        if options.model == "dcnv2":
            net = PlainDcn(bags(rows, dim), sizes, widths.top[1:-1], None)
        else:
            kind = PlainDlrm if tables is None else FbgemmDlrm
            net = kind(tables or bags(rows, dim), sizes, widths.bottom[1:-1], widths.top[1:-1])
        optimizers = TorchOptimizers(config.optimizers("sgd"), net.tables.parameters(), net.layers())
        return partial(_run_torch, net, optimizers, batches, threads, autocast)

    def own(**settings: Any) -> Callable[[], Seconds]:
        return lambda: train_timed(shards, replace(config, **settings), order)[1]

    found = {REFERENCE: plain()}
    if importlib.util.find_spec(_FBGEMM) and options.model == "dlrm":
        found["torch fp32, fbgemm"] = plain(_fbgemm_tables(rows, dim))
    found["hotset fp32"] = own()
    found["hotset fp32, lookahead"] = own(placement="lookahead")
    # A CPU without such instructions takes some eleven times as long with either.
    if has_bf16(cpu_features()):
        found["torch bf16"] = plain(autocast=True)
        found["hotset bf16"] = own(dense_dtype="bf16")
    return found


class _InMemory:
    """A batch of one-hot features as plain torch wants it, made before the clock starts."""

    def __init__(self, batch: Batch) -> None:
        self.inputs = batch.dense_BK.clone(), torch.from_numpy(batch.ids_BF.T.copy()).long()
        self.label_B = batch.label_B.clone()


def _run_torch(
    net: PlainNet, optimizers: TorchOptimizers, batches: list[_InMemory], threads: int, autocast: bool
) -> Seconds:
    torch.set_num_threads(threads)
    begin = harness.clock()
    for number, batch in enumerate(batches):
        if number == WARM_UP_STEPS:
            begin = harness.clock()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logit_B = net(*batch.inputs)
        # The loss is computed in fp32 whatever the model computed in.
        optimizers.step(binary_cross_entropy_with_logits(logit_B.float(), batch.label_B))
    return harness.seconds_since(begin)


class FbgemmDlrm(PlainDlrm):
    """DLRM with all tables in one operator of FBGEMM."""

    def _look_up(self, ids_FB: torch.Tensor) -> list[torch.Tensor]:
        emb_BN = self.tables(ids_FB.reshape(-1), torch.arange(ids_FB.numel() + 1))
        return list(emb_BN.float().split(emb_BN.shape[1] // len(ids_FB), dim=1))


def _fbgemm_tables(num_rows: Sequence[int], embedding_dim: int) -> Any:
    # Its build for the CPU warns of optimizers that it lacks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        training = importlib.import_module(f"{_FBGEMM}.split_table_batched_embeddings_ops_training")
        common = importlib.import_module(f"{_FBGEMM}.split_table_batched_embeddings_ops_common")
        config = importlib.import_module(f"{_FBGEMM}.split_embedding_configs")
    # Tables in host memory with their update fused into the backward pass, as FBGEMM does best on a CPU.
    place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    return training.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, embedding_dim, *place) for rows in num_rows],
        optimizer=config.EmbOptimType.EXACT_SGD,
        learning_rate=0.1,
    )


def train_timed(
    shards: ShardSet, config: TrainConfig, order: Sequence[int], num_warm_up: int = WARM_UP_STEPS
) -> tuple[Trainer, Seconds]:
    """Read, plan and train batches in a new run; return it, and its seconds after the warm-up."""
    set_threads(config.threads)
    trainer = build_trainer(shards, config, RecordedOrder(np.array(order, np.int32)))
    begin = harness.clock()
    with closing(train_steps(trainer)) as steps:
        for _ in steps:
            if trainer.step == num_warm_up:
                trainer.runner.synchronize()
                begin = harness.clock()
    trainer.runner.synchronize()
    return trainer, harness.seconds_since(begin)


def samples_of(shards: ShardSet, order: Sequence[int]) -> int:
    """Return the samples of training batches."""
    return sum(shards.training_batch(number).num_samples for number in order)


def _measure_opening(num_files: int, folder: Path) -> Facts:
    """Open shards of so many files, and take the first step."""
    with mock.patch.object(characterise, "_FILE_SAMPLES", _SMALL_BATCH):
        characterise.DrawnShards(
            rows_of_table=1000, skew=1.1, num_batches=num_files, batch_size=_SMALL_BATCH
        ).write(folder / "small")
    # Once for the code of kernels, which is loaded or compiled at its first use.
    trials = [_first_step(folder / "small") for _ in range(1 + _TRIALS)][1:]
    names = ("seconds_to_open", "seconds_to_first_step")
    return {name: statistics.median(trial[name] for trial in trials) for name in names} | {"trials": trials}


def _first_step(folder: Path) -> Facts:
    begin = time.perf_counter()
    shards = ShardSet.open(folder)
    opened = time.perf_counter() - begin
    trainer = build_trainer(shards, TrainConfig(placement="all-fast", threads=1))
    with closing(read_ahead(trainer)) as steps:
        trainer.runner.train(next(iter(steps)), 0, trainer.rates.of_step(0))
    return {"seconds_to_open": opened, "seconds_to_first_step": time.perf_counter() - begin}


IN_MEMORY = "in memory, no limit"
LOOKAHEAD = "lookahead"
MAPPED = "mapped, random advice"
_LARGE_TABLES = 26
_WARM_UP_ROWS = 4000
_DIM, _BATCH_SIZE, _BATCHES, _EPOCHS = 16, 2048, 100, 2
"""Batches of an epoch are those at 10 % cold lookups; other shares make as many of these lookups."""

_MEMORY.add_argument("--memory", type=parse_byte_size, default=ByteSize(640 * MIB), help="limit of a run")
_MEMORY.add_argument("--times", type=float, default=4.0, help="size of the tables over that memory")
_MEMORY.add_argument("--cold-shares", type=float, nargs="+", default=[0.1, 0.02])
_MEMORY.add_argument("--batches", type=int, default=_BATCHES, help="batches of an epoch at 10%% cold")
_MEMORY.add_argument("--rounds", type=int, default=3, help="rounds in which each contestant runs once")


def compare_memory(options: Options, scratch: Path) -> Facts:
    """Draw the samples of each share of cold lookups, and let every contestant train on them in turn."""
    if not all(0 < share <= 1 for share in options.cold_shares):
        raise ConfigError("cold_shares must be above 0, and at most 1")
    bytes_of_rows = _LARGE_TABLES * row_bytes(_DIM, "sgd")
    rows_of_table = int(options.memory * options.times) // bytes_of_rows
    # Hot rows take a tenth of the memory.
    hot_rows_of_table = options.memory // 10 // bytes_of_rows
    shares = []
    warm_up = _draw(scratch / "warm-up", _WARM_UP_ROWS, 100, 0.5, 3)
    for share in options.cold_shares:
        num_batches = max(round(options.batches * 0.1 / share), 1)
        drawn = _draw(scratch / f"cold-{share}", rows_of_table, hot_rows_of_table, share, num_batches)
        tell(f"{share:.0%} cold lookups, {num_batches} batches")
        turns = {
            name: partial(_measure, name, config, options.memory, drawn, warm_up, scratch)
            for name, config in _configs(options.memory).items()
        }
        rounds = harness.take_turns(turns, options.rounds)
        shares.append({"cold_share": share, "num_batches": num_batches, **_share(rounds)})
    return {"shares": shares, "table_bytes": rows_of_table * bytes_of_rows}


def _configs(memory: int) -> dict[str, TrainConfig]:
    """Return the settings of each contestant: lookahead may use an eightieth of the memory for cold rows."""
    lookahead = TrainConfig(
        placement="lookahead",
        slow_bytes=ByteSize(memory // 80),
        staging_bytes=ByteSize(memory // 160),
        epochs=_EPOCHS,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        threads=num_workers(0),
    )
    # A limit of one byte puts all rows in the file.
    mapped = replace(lookahead, placement="hybrid", slow_bytes=ByteSize(1))
    in_memory = replace(lookahead, slow_bytes=None)
    return {IN_MEMORY: in_memory, LOOKAHEAD: lookahead, MAPPED: mapped}


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdShards(DrawnShards):
    """A drawn log whose cold lookups are spread evenly over the cold rows."""

    num_tables: int = _LARGE_TABLES
    skew: float = 0.0
    cold_share: float
    """Share of the lookups that are of cold rows."""

    def _draw_ids(self, shape: tuple[int, int], num_rows: int, rng: np.random.Generator) -> NDArray[np.int32]:
        cold = rng.integers(self.hot_rows_of_table, num_rows, shape)
        # Hot rows are looked up as a power of a uniform number: 1 % of them get a fifth of their lookups.
        hot = (self.hot_rows_of_table * rng.random(shape) ** 3).astype(np.int64)
        return np.where(rng.random(shape) < self.cold_share, cold, hot).astype(np.int32)


def _draw(folder: Path, rows: int, hot_rows: int, cold_share: float, num_batches: int) -> Path:
    sizes: Any = {"rows_of_table": rows, "hot_rows_of_table": hot_rows, "num_batches": num_batches}
    ColdShards(**sizes, cold_share=cold_share, batch_size=_BATCH_SIZE, embedding_dim=_DIM).write(folder)
    return folder


def _measure(
    contestant: str, config: TrainConfig, memory: int, shards: Path, warm_up: Path, scratch: Path
) -> Measurement:
    """Run one contestant in a new process."""
    # The warm-up fits in no fewer slots than a batch of it needs.
    small = replace(config, slow_bytes=config.staging_bytes) if contestant == LOOKAHEAD else config
    with harness.memory_limit(memory) as limit:
        job = (shards, config, None if contestant == IN_MEMORY else limit)
        return harness.measure_in_fresh_process(scratch, train_limited, (warm_up, small, None), job)


def _share(rounds: dict[str, list[Measurement]]) -> Facts:
    def speeds(contestant: str) -> list[float]:
        return [one.facts["num_samples"] / one.facts["training_seconds"] for one in rounds[contestant]]

    def ratios_of(contestant: str) -> dict[str, float]:
        others = [name for name in rounds if name != contestant]
        return {
            f"{contestant} / {name}": harness.median_ratio(speeds(contestant), speeds(name))
            for name in others
        }

    # Equal weights show that memory limits change no bit.
    digests = {one.facts["digest"] for measured in rounds.values() for one in measured}
    return {
        "contestants": [
            {"name": name, "samples_per_second": statistics.median(speeds(name))} | _costs(measured)
            for name, measured in rounds.items()
        ],
        "ratios": ratios_of(LOOKAHEAD),
        "bounds": ratios_of(IN_MEMORY),
        "equal_bits": len(digests) == 1,
    }


def _costs(measured: list[Measurement]) -> Facts:
    """Return medians over rounds, the greatest peak, and every round as it was."""
    names = ("setup_seconds", "training_cpu_seconds", "bytes_read", "bytes_written")
    return {
        **{name: statistics.median(one.facts[name] for one in measured) for name in names},
        "peak_anonymous_bytes": max(one.peak_anonymous_bytes for one in measured),
        "rounds": [one.facts for one in measured],
    }


def train_limited(folder: Path, job: tuple[Path, TrainConfig, MemoryLimit | None]) -> Facts:
    """Train with the files of rows in ``folder``; return its times, disk traffic and peak memory.

    Args:
        job: the shards, the settings, and the group of processes to join; None for no limit.
    """
    path, config, limit = job
    # The limit holds from here on, after everything that every contestant loads.
    if limit is not None:
        limit.join()
    set_threads(config.threads)
    start = time.perf_counter()
    trainer = build_trainer(ShardSet.open(path), config, spill_folder=folder)
    # Setting up is measured apart from training, as are the bytes it reads.
    setup_seconds = time.perf_counter() - start
    before, begin = _disk_traffic(), harness.clock()
    run_steps(trainer, lambda *_: None)
    (_, cpu_seconds), after = harness.seconds_since(begin), _disk_traffic()
    return {
        "num_samples": trainer.num_samples,
        "training_seconds": trainer.meter.training_seconds,
        "training_cpu_seconds": cpu_seconds,
        "setup_seconds": setup_seconds,
        **{name: after[name] - count for name, count in before.items()},
        "peak_bytes": limit.peak_bytes() if limit else None,
        "digest": digest_of(trainer),
    }


def digest_of(trainer: Trainer) -> str:
    """Return the xxh3-128 of all weights, read in parts."""
    digest = xxhash.xxh3_128()
    weights = trainer.weights()
    for name in sorted(weights):
        for part in weights.parts(name):
            digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


def _disk_traffic() -> dict[str, int]:
    """Return the bytes read from the device and written to it so far."""
    counted = numbers_in(Path("/proc/self/io"))
    return {"bytes_read": counted["read_bytes"], "bytes_written": counted["write_bytes"]}


if __name__ == "__main__":
    harness.main(PARSER, measure)
