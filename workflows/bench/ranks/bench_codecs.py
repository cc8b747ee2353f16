"""``hotset bench codecs``: the bytes of trained rows in every codec, beside those of published coders.

A model is trained on a generated log, and the rows that samples of it look up are coded as an exchange would
send them: the lookups of each table in slices of so many samples, one slice for each message. Ratios are of
volumes, all bytes of fp32 rows, one for each lookup, over all bytes in the codec, so small tables with high
ratios weigh no more than their bytes.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ....pipeline.errors import require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.stages.preprocess import preprocess
from ....stats.codecs.bounded_codec import BoundedCodec
from ....stats.codecs.codec_names import CODEC_NAMES, codec_of
from ....stats.codecs.entropy_sizes import huffman_bytes, levels_of, vector_lz_bytes
from ....stats.codecs.row_codec import MessageShape
from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ....train.run import train
from ....train.run_folder.run_reader import read_weights
from ...machine_facts import commit, describe_machine
from ...recipes import recipe_for
from ..measuring.recorded_settings import recorded_settings

BOUNDS = (0.01, 0.03, 0.05)
_FLOAT_BYTES = 4
_LZ, _HUFFMAN = "vector-LZ", "Huffman"
PUBLISHED = {
    "Criteo Kaggle": {_LZ: 7.8, _HUFFMAN: 8.75, "better of both": 12.25, "quicker of both": 10.97},
    "Criteo Terabyte": {_LZ: 9.7, _HUFFMAN: 10.7, "better of both": 15.7, "quicker of both": 14.6},
}
"""Ratios of volumes from the files that Feng et al. (SC'24) published with their code, at bounds of mixed
sizes. Their plots show 22.9 and 34.4, since they multiply the ratio of vector-LZ by 4 twice."""


@dataclass(frozen=True, kw_only=True)
class BenchCodecsConfig:
    """Settings of the benchmark of codecs: the log, the model, the messages."""

    samples: int = 500_000
    """Samples of the generated log; the model is trained on one epoch of it."""

    seed: int = 0
    """Seed of the log and of the training."""

    embedding_dim: int = 16
    """Floats per row."""

    slices: tuple[int, ...] = (512, 2048)
    """Numbers of samples whose lookups make one message."""

    batches: int = 8
    """Number of batches of 2,048 samples that are coded."""

    def __post_init__(self) -> None:
        for name in ("samples", "embedding_dim", "batches"):
            require_at_least(name, getattr(self, name), 1)
        for each in self.slices:
            require_at_least("slices", each, 1)


def bench_codecs(config: BenchCodecsConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Train, code, and return plain data, ready for JSON.

    Returns:
        For each size of slices the ratio of each codec, with and without deduplication, and the published
        ones.
    """
    with tempfile.TemporaryDirectory(prefix="hotset-codecs-") as name:
        folder = Path(name)
        generate(GenerateConfig(samples=config.samples, seed=config.seed), folder / "log.tsv")
        recipe = recipe_for("criteo-kaggle")
        split = replace(recipe.split, embedding_dim=config.embedding_dim)
        preprocess([folder / "log.tsv"], replace(recipe, split=split), folder / "data")
        chosen = TrainConfig(placement="all-fast", embedding_optimizer="adagrad", seed=config.seed)
        train(folder / "data" / "shards", chosen, folder / "run")
        weights = read_weights(folder / "run")
        shards = Shards.open(folder / "data")
        tables = [weights[table.name].numpy() for table in shards.tables]
        # Hot-only batches have the first numbers, so batches are taken evenly from all of them.
        numbers = np.linspace(0, shards.num_training_batches - 1, config.batches).astype(int)
        ids = [shards.training_batch(number).ids_BF for number in np.unique(numbers).tolist()]
        slices = []
        for number, size in enumerate(config.slices):
            progress("bench", number, len(config.slices))
            slices.append({"samples": size, "ratios": ratios_of(tables, ids, size)})
    return {
        "benchmark": "codecs",
        "settings": recorded_settings(config),
        "slices": slices,
        "published": PUBLISHED,
        "machine": describe_machine(),
        "commit": commit(),
    }


def ratios_of(
    tables: list[NDArray[np.float32]], batches: list[NDArray[np.int32]], slice_samples: int
) -> dict[str, float]:
    """Return by codec how many times smaller the lookups of batches become.

    Args:
        tables: (num_rows, D) each.
        batches: (B, F) ids of one lookup in each table.
        slice_samples: samples of a message; what is left of a batch is left out, unless it is all of it.
    """
    num_bytes: dict[str, float] = defaultdict(float)
    plain_bytes = 0
    # Which of two codes a table takes is decided for the table, over all messages.
    of_tables: dict[tuple[int, float], NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))
    for ids_BF in _slices(batches, slice_samples):
        distinct = [table[np.unique(ids)] for table, ids in zip(tables, ids_BF.T, strict=True)]
        starts = np.cumsum([0, *(rows.shape[0] for rows in distinct)])
        shape = MessageShape(starts, tables[0].shape[1])
        plain_bytes += ids_BF.size * shape.embedding_dim * _FLOAT_BYTES
        # Sizes of hotset's messages follow from their shape alone; other coders need the values.
        for name in CODEC_NAMES:
            num_bytes[f"distinct rows, {name}"] += codec_of(name).num_bytes(shape)
        for bound in BOUNDS:
            num_bytes[f"distinct rows, bounded:{bound:g}"] += BoundedCodec(bound).num_bytes(shape)
        for number, (table, ids, rows) in enumerate(zip(tables, ids_BF.T, distinct, strict=True)):
            looked_up = table[ids]
            num_bytes["zstd"] += _zstd_bytes(looked_up)
            num_bytes["distinct rows, zstd"] += _zstd_bytes(rows)
            for bound in BOUNDS:
                codes = levels_of(looked_up, bound)
                of_tables[number, bound] += (vector_lz_bytes(codes), huffman_bytes(codes))
                num_bytes[f"distinct rows, {_HUFFMAN} {bound:g}"] += huffman_bytes(levels_of(rows, bound))
    for (_, bound), of_table in of_tables.items():
        num_bytes[f"{_LZ} {bound:g}"] += int(of_table[0])
        num_bytes[f"{_HUFFMAN} {bound:g}"] += int(of_table[1])
        num_bytes[f"better of both {bound:g}"] += int(of_table.min())
    return {name: plain_bytes / found for name, found in sorted(num_bytes.items())}


def _slices(batches: list[NDArray[np.int32]], slice_samples: int) -> Iterator[NDArray[np.int32]]:
    for ids_BF in batches:
        size = min(slice_samples, ids_BF.shape[0])
        for first in range(0, ids_BF.shape[0] - size + 1, size):
            yield ids_BF[first : first + size]


def _zstd_bytes(rows: NDArray[np.float32]) -> int:
    data = np.ascontiguousarray(rows).tobytes()
    return len(pa.compress(data, codec="zstd", asbytes=True))


def show_codecs(result: dict[str, Any], console: Console) -> None:
    """Print the ratio of each codec, a column for each size of messages."""
    slices = result["slices"]
    title = "Bytes of one fp32 row a lookup, over those of a codec; all messages together"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for each in slices:
        table.add_column(f"{each['samples']:,} samples", justify="right")
    for name in slices[0]["ratios"]:
        table.add_row(name, *(f"{each['ratios'][name]:.2f}" for each in slices))
    console.print(table)
    for log, ratios in result["published"].items():
        console.print(f"published, {log}: {', '.join(f'{name} {ratio:g}' for name, ratio in ratios.items())}")


CONFIG = BenchCodecsConfig
measure = bench_codecs
show = show_codecs
