"""``hotset bench train``: a training step against plain torch, and its parts against their lower bounds.

All contestants train on the same batches of one generated log, with SGD, in one process and in turns, so
that a ratio compares runs of one round. The references get their batches as tensors before the clock starts;
hotset reads and plans its own while it trains. CPU seconds of all threads stand beside the wall clock,
because other programs disturb them least: on a busy machine the clock says little about two threads.
On a device there are no contestants: the kernels of a step stand beside the lower bounds of that device.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.stages.preprocess import preprocess, remove_from
from ....stats.batches.epoch_order import epoch_order
from ....train.config import TrainConfig
from ....train.data.batch_order import RecordedOrder
from ....train.data.shards import Shards
from ....train.model.dcn_shape import DcnShape
from ....train.model.dense_dtype import DenseDtype, cpu_features, has_bf16
from ....train.model.dlrm_shape import DlrmShape, dlrm_shape
from ....train.model_building.choose_model import choose_model
from ....train.model_building.model_inputs import ModelInputs
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.devices import LATE, set_threads
from ...console import say
from ...machine_facts import describe_machine
from ...recipes import criteo_kaggle
from ..measuring.recorded_settings import recorded_settings
from ..measuring.rounds import median_ratio, take_turns
from .dcn_reference import ReferenceDcn
from .device_parts import measure_device_rates, measure_device_step
from .dlrm_reference import LEARNING_RATE, ReferenceBatch, ReferenceDlrm, ReferenceTraining, has_fbgemm
from .show_train import show_train
from .step_parts import MachineRates, measure_parts, measure_rates
from .train_contestants import WARM_UP_STEPS, Contestant, HotsetContestant, Seconds, TorchContestant

REFERENCE = "torch fp32"
"""The contestant that ratios are against."""
_LEAST_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class BenchTrainConfig:
    """Settings of the benchmark of a training step."""

    samples: int = 160_000
    """Samples of the generated log; the training part must hold seven batches of the largest size."""

    batch_sizes: tuple[int, ...] = (128, 2048, 16384)
    """Samples per batch."""

    embedding_dims: tuple[int, ...] = (16, 64)
    """Floats per row."""

    threads: tuple[int, ...] = (1, 2)
    """Numbers of threads."""

    round_samples: int = 32_768
    """Least number of samples that each contestant trains on in one round; four batches at least."""

    rounds: int = 5
    """Rounds in which each contestant runs once; ratios are medians over rounds."""

    parts: bool = field(
        default=True, metadata={"help": "Leave out the parts of a step, measured beside their lower bounds."}
    )
    """Whether the parts of a step are measured beside their lower bounds, with one thread."""

    seed: int = 0
    """Seed of the log, the models and the order of batches."""

    model: Literal["dlrm", "dcnv2"] = "dlrm"
    """Model of all contestants. Only with dlrm are the parts of a step measured."""

    cross_rank: int | None = None
    """Rank of the matrices of the cross network of dcnv2; by default they are full."""

    device: str = "cpu"
    """Device to train on. On cuda the parts of a step are its kernels, beside the device's lower bounds, and
    there are no contestants; late runs the same on a simulated GPU, whose times mean nothing."""

    scratch: Path | None = None
    """Folder for temporary files; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("samples", "round_samples", "rounds"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("batch_sizes", "embedding_dims", "threads"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be numbers from 1 up")
        if self.device != "cpu" and self.model != "dlrm":
            raise ConfigError(
                f"the parts of a step on {self.device} are those of dlrm, not of {self.model}",
                hint="leave --model out, or use --device cpu",
            )


def bench_train(config: BenchTrainConfig) -> dict[str, Any]:
    """Measure every contestant at every batch size, dim and number of threads.

    Returns:
        ``contestants``: microseconds per sample, medians over rounds; ``ratios``: how many times as fast as
        the reference in fp32 each is; ``parts``: those of hotset's step; the machine and its rates.
    """
    if config.device != "cpu":
        return _bench_device(config)
    machine = describe_machine()
    rates = measure_rates()
    threads_before = torch.get_num_threads()
    records: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as scratch:
            # One log, packed anew for each dim and batch size; every contestant trains on the same batches.
            for shards in _each_shards(config, Path(scratch)):
                contestants = _contestants(shards, config)
                for threads in config.threads:
                    say(
                        f"batch size {shards.batch_size:,}, dim {shards.embedding_dim}, {threads} "
                        f"thread{'' if threads == 1 else 's'}: {config.rounds} rounds"
                    )
                    records += _measured(contestants, shards, threads, config)
                if config.parts and config.model == "dlrm":
                    parts += _parts(shards, rates, config)
    finally:
        # The number of threads is the process's, and was the caller's before.
        torch.set_num_threads(threads_before)
    return {
        "benchmark": "train",
        "contestants": records,
        "ratios": _ratios(records),
        "parts": parts,
        "rates": asdict(rates),
        "settings": recorded_settings(config),
        "machine": machine | {"torch": torch.__version__},
    }


def _bench_device(config: BenchTrainConfig) -> dict[str, Any]:
    """Measure a step on a device and its parts, at every batch size and dim."""
    rates = measure_device_rates(config.device)
    parts: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    # A simulated GPU has the kernels of a GPU where they are chosen by name.
    kernels = "torch" if config.device.startswith(LATE) else None
    run = replace(_training(config), device=config.device, kernels=kernels, dense_dtype="auto")
    with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as scratch:
        for shards in _each_shards(config, Path(scratch)):
            say(f"batch size {shards.batch_size:,}, dim {shards.embedding_dim}, on {config.device}")
            found = measure_device_step(shards, run, _order(shards, config), WARM_UP_STEPS, rates)
            setting = {"batch_size": shards.batch_size, "embedding_dim": shards.embedding_dim}
            steps.append(setting | {"us": found.us})
            parts += [setting | asdict(part) for part in found.parts]
    return {
        "benchmark": "train",
        "contestants": [],
        "ratios": [],
        "steps": steps,
        "parts": parts if config.parts else [],
        "rates": asdict(rates),
        "settings": recorded_settings(config),
        "machine": describe_machine() | {"torch": torch.__version__},
    }


def _each_shards(config: BenchTrainConfig, scratch: Path) -> Iterator[Shards]:
    """Generate the log once and pack it for each dim and batch size."""
    log = scratch / "log.tsv"
    data = scratch / "data"
    generate(GenerateConfig(samples=config.samples, seed=config.seed), log)
    recipe = criteo_kaggle()
    for dim in config.embedding_dims:
        # What does not depend on the dim or the batch size is kept.
        if (data / "plan").exists():
            remove_from("split", data)
        split = replace(recipe.split, embedding_dim=dim, embedding_optimizer="sgd")
        for batch_size in config.batch_sizes:
            if (data / "shards").exists():
                remove_from("pack", data)
            pack = replace(recipe.pack, batch_size=batch_size, order="original")
            preprocess([log], replace(recipe, split=split, pack=pack), data)
            yield Shards.open(data)


def _order(shards: Shards, config: BenchTrainConfig) -> list[int]:
    """Return the batches of a round, those of the warm-up first."""
    num_steps = max(-(-config.round_samples // shards.batch_size), _LEAST_STEPS) + WARM_UP_STEPS
    # A last batch may be short; the others are all full.
    is_full = shards.is_hot_only[: shards.num_training_batches - 1]
    order: list[int] = epoch_order(is_full, config.seed, 0, spread=False).tolist()
    if len(order) < num_steps:
        if len(order) < _LEAST_STEPS + WARM_UP_STEPS:
            raise ConfigError(
                f"{len(order)} full batches of {shards.batch_size:,} samples are too few",
                hint=f"give --samples {2 * (_LEAST_STEPS + WARM_UP_STEPS) * shards.batch_size}",
            )
        # A short log is passed several times in a round.
        order = (order * -(-num_steps // len(order)))[:num_steps]
    return order[:num_steps]


def _contestants(shards: Shards, config: BenchTrainConfig) -> dict[str, Contestant]:
    order = _order(shards, config)
    # The references read their batches from memory, so that reading costs them nothing.
    batches = [ReferenceBatch.of(shards.training_batch(number)) for number in order]
    torch.manual_seed(config.seed)
    # Equal shapes, batches and order; only what a machine cannot run is left out.
    contestants: dict[str, Contestant] = {
        REFERENCE: TorchContestant(ReferenceTraining(_reference(shards, config)), batches),
    }
    # The reference of DCN V2 knows no tables of FBGEMM.
    if has_fbgemm() and config.model == "dlrm":
        with_tables = ReferenceDlrm(_shape(shards), _num_rows(shards), fbgemm=True)
        contestants["torch fp32, fbgemm"] = TorchContestant(ReferenceTraining(with_tables), batches)
    contestants["hotset fp32"] = HotsetContestant(shards, order, _training(config))
    contestants["hotset fp32, lookahead"] = HotsetContestant(
        shards, order, replace(_training(config), placement="lookahead")
    )
    # A CPU without such instructions takes some eleven times as long with either.
    if has_bf16(cpu_features()):
        autocast = ReferenceTraining(_reference(shards, config), autocast=True)
        contestants["torch bf16"] = TorchContestant(autocast, batches)
        in_bf16 = replace(_training(config), dense_dtype="bf16")
        contestants["hotset bf16"] = HotsetContestant(shards, order, in_bf16)
    return contestants


def _reference(shards: Shards, config: BenchTrainConfig) -> torch.nn.Module:
    """Build the model in plain torch."""
    if config.model == "dlrm":
        return ReferenceDlrm(_shape(shards), _num_rows(shards))
    inputs = ModelInputs.of(shards)
    chosen = choose_model(_training(config), shards.embedding_dim)
    return ReferenceDcn(DcnShape(inputs.num_dense, inputs.table_dims, chosen), _num_rows(shards))


def _num_rows(shards: Shards) -> list[int]:
    return [table.num_rows for table in shards.tables]


def _training(config: BenchTrainConfig) -> TrainConfig:
    # Plain SGD with one rate, which the reference implementation has too.
    return TrainConfig(
        model=config.model,
        cross_rank=config.cross_rank,
        placement="all-fast",
        seed=config.seed,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        embedding_lr=LEARNING_RATE,
        dense_lr=LEARNING_RATE,
    )


def _shape(shards: Shards) -> DlrmShape:
    return dlrm_shape("auto", shards.num_dense, len(shards.tables), shards.embedding_dim)


def _measured(
    contestants: dict[str, Contestant], shards: Shards, threads: int, config: BenchTrainConfig
) -> list[dict[str, Any]]:
    """Run all contestants in turn, round by round; return one record for each."""
    # Steps that compile and allocate are left out of the samples as out of the time.
    num_samples = (len(_order(shards, config)) - WARM_UP_STEPS) * shards.batch_size
    turns = {name: partial(contestant.run, threads) for name, contestant in contestants.items()}
    rounds = take_turns(turns, config.rounds)

    def microseconds(clock: Callable[[Seconds], float], found: list[Seconds]) -> list[float]:
        return [clock(seconds) / num_samples * 1e6 for seconds in found]

    records = []
    for name, found in rounds.items():
        wall = microseconds(lambda seconds: seconds.wall_seconds, found)
        cpu = microseconds(lambda seconds: seconds.cpu_seconds, found)
        records.append(
            {
                "name": name,
                "batch_size": shards.batch_size,
                "embedding_dim": shards.embedding_dim,
                "threads": threads,
                "wall_us": statistics.median(wall),
                "cpu_us": statistics.median(cpu),
                "best_wall_us": min(wall),
                "rounds": {"wall_us": wall, "cpu_us": cpu},
            }
        )
    return records


def _ratios(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many times as fast as the reference each contestant is: medians of the rounds' ratios."""
    # A ratio is of two contestants in one setting.
    setting = ("batch_size", "embedding_dim", "threads")
    references = {tuple(r[key] for key in setting): r for r in records if r["name"] == REFERENCE}
    found = []
    for record in records:
        reference = references[tuple(record[key] for key in setting)]
        # Round by round, then the median: both of a pair ran in the same minute.
        ratios = {
            f"{clock}_ratio": median_ratio(
                reference["rounds"][f"{clock}_us"], record["rounds"][f"{clock}_us"]
            )
            for clock in ("wall", "cpu")
        }
        found.append({key: record[key] for key in ("name", *setting)} | ratios)
    return found


def _parts(shards: Shards, rates: MachineRates, config: BenchTrainConfig) -> list[dict[str, Any]]:
    set_threads(1)
    order = RecordedOrder(np.array(_order(shards, config), np.int32))
    dtypes: tuple[DenseDtype, ...] = ("fp32", "bf16") if has_bf16(cpu_features()) else ("fp32",)
    found = []
    for dtype in dtypes:
        run = replace(_training(config), threads=1, dense_dtype=dtype)
        parts = measure_parts(build_trainer(shards, run, order), _shape(shards), rates, WARM_UP_STEPS)
        setting = {"batch_size": shards.batch_size, "embedding_dim": shards.embedding_dim}
        found += [setting | {"dense_dtype": dtype} | asdict(part) for part in parts]
    return found


CONFIG = BenchTrainConfig
measure = bench_train
show = show_train
