"""Train one epoch of the Kaggle shape, 39.3 million samples.

It is trained as in a user's run. No file of the data set is read: the samples are drawn on the spot, 160
bytes each in memory and as many on the disk, and 100 more by row. In addition a run takes 4 GB of the disk
with its weights and states, and is deleted.
"""

from __future__ import annotations

import shutil
import time
from typing import Any, Literal, get_args

from ....pipeline.errors import ByteSize
from ....stats.ranking.row_bytes import row_bytes
from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ..kaggle_shards import draw_kaggle, write_kaggle_shards
from .checks import checksum_of_weights
from .part_settings import PartSettings
from .records import Records
from .speed import HOT_SHARE, SMALL_SCALE

_Name = Literal["all-fast", "lookahead"]
_SAMPLES, _SMALL_SAMPLES = 39_300_000, 6_000
_EVALUATION_SAMPLES, _FEW_EVALUATION_SAMPLES = 400_000, 500
_BATCH_SIZE, _SMALL_BATCH_SIZE = 65_536, 64
_DIM = 16
_OPTIMIZER: Literal["adagrad"] = "adagrad"


def train_an_epoch(settings: PartSettings, records: Records) -> None:
    """Write a row for the inputs and one for each placement, and compare the weights that both end with."""
    shards = _write_inputs(settings, records)
    num_rows = sum(table.num_rows for table in shards.tables)
    found: dict[str, str] = {}
    for name in get_args(_Name):
        with records.catching(f"an epoch of {name}"):
            found[name] = _train(name, num_rows, shards, settings, records)
    if len(found) == len(get_args(_Name)):
        is_equal = len(set(found.values())) == 1
        records.check("lookahead ends an epoch with the weights of all-fast", is_equal)


def _write_inputs(settings: PartSettings, records: Records) -> Shards:
    """Draw the samples, and process them as `hotset preprocess` does after its plan."""
    is_small = settings.is_small
    folder = settings.scratch / "epoch"
    num_training = _SMALL_SAMPLES if is_small else _SAMPLES
    num_evaluation = _FEW_EVALUATION_SAMPLES if is_small else _EVALUATION_SAMPLES
    seconds: dict[str, float] = {}
    begin = time.monotonic()

    def note(stage: str) -> None:
        nonlocal begin
        seconds[stage] = time.monotonic() - begin
        begin = time.monotonic()

    samples = draw_kaggle(num_training + num_evaluation, SMALL_SCALE if is_small else 1.0)
    note("draw")
    write_kaggle_shards(
        samples,
        folder / "shards",
        batch_size=_SMALL_BATCH_SIZE if is_small else _BATCH_SIZE,
        embedding_dim=_DIM,
        hot_share=HOT_SHARE,
        optimizer=_OPTIMIZER,
        num_evaluation=num_evaluation,
    )
    num_rows = sum(samples.num_rows)
    del samples
    note("pack")
    shards = Shards.open(folder / "shards")
    records.row(what="inputs of an epoch", samples=num_training, num_rows=num_rows, seconds=seconds)
    return shards


def _train(name: _Name, num_rows: int, shards: Shards, settings: PartSettings, records: Records) -> str:
    """Train under a placement, write its row, and return the checksum of the weights."""
    # Without safetensors no run is written.
    from ....train.run import train

    config = TrainConfig(
        placement=name,
        device=settings.device,
        kernels=settings.step_kernels,
        dense_dtype="auto",
        staging_bytes=_staging_bytes(num_rows),
        embedding_optimizer=_OPTIMIZER,
        dense_optimizer=_OPTIMIZER,
    )
    out = settings.scratch / f"epoch-{name}"
    begin = time.monotonic()
    summary = train(shards.manifest.folder, config, out)
    # With building, evaluation and writing; the training seconds are those of the steps alone.
    whole_seconds = time.monotonic() - begin
    weights = checksum_of_weights(out)
    shutil.rmtree(out)
    facts: dict[str, Any] = {
        "placement": name,
        "embedding_dim": _DIM,
        "batch_size": shards.batch_size,
        "num_rows": num_rows,
        "samples": summary.num_training_samples,
    }
    training_seconds = summary.num_training_samples / summary.samples_per_second
    records.row(
        what="epoch",
        **facts,
        samples_per_second=summary.samples_per_second,
        training_seconds=training_seconds,
        whole_seconds=whole_seconds,
        auc=summary.auc,
        log_loss=summary.log_loss,
        transfers_split=summary.transfers.split,
        transfers_shortened=summary.transfers.shortened,
        mover=summary.transfers.mover,
        weights=weights,
    )
    return weights


def _staging_bytes(num_rows: int) -> ByteSize:
    """Return the bytes of as many slots as there are hot rows."""
    return ByteSize(int(HOT_SHARE * num_rows) * row_bytes(_DIM, _OPTIMIZER))
