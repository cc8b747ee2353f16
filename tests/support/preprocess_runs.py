"""A small run of all stages: its settings, copies of its folders, and the naive run it is held against."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.manifest import Manifest, checksum_of_written
from hotset.pipeline.formats import arrow_files, batch_checksums
from hotset.pipeline.preprocess import FOLDERS, PreprocessConfig
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.logs.criteo_text import Sample
from hotset.tests.support.naive.naive_stages import (
    batches_of,
    ids_of,
    naive_log,
    naive_shard_sample,
    rows_of,
    shuffled,
    tags_of,
)

CONFIG = PreprocessConfig(
    ingest=IngestConfig(block_bytes=ByteSize(8000)),
    count=CountConfig(eval_fraction=0.3),
    rank=RankConfig(min_count=2),
    split=SplitConfig(hot_bytes=ByteSize(32 * 75), embedding_dim=4, embedding_optimizer="adagrad"),
    pack=PackConfig(batch_size=16, seed=4),
)
CONFIG_OF_FEW = replace(CONFIG, split=replace(CONFIG.split, hot_bytes=ByteSize(32 * 40)))
"""The same with hot rows for a third of the tables, see `few_features`."""


def copy_of(made: Path, out: Path, *, before: str | None = None) -> Path:
    """A copy of ``made``, or of the folders of the stages before ``before``."""
    stages = list(FOLDERS)
    for stage in stages[: stages.index(before)] if before else stages:
        shutil.copytree(made / FOLDERS[stage], out / FOLDERS[stage])
    return out


def assert_equals_naive_run(
    folder: Path, samples: list[Sample], num_train: int, config: PreprocessConfig
) -> None:
    """Hold every folder against the naive run."""
    made = {name: Manifest.read(folder / name) for name in FOLDERS.values()}
    naive = naive_log(
        samples, num_train, min_count=config.rank.min_count, num_hot_rows=int(config.split.hot_bytes) // 32
    )
    assert rows_of(made["vocabulary"]) == naive.tables
    assert ids_of(made["samples"]) == naive.ids
    assert [table["num_hot"] for table in made["plan"].totals["tables"]] == naive.num_hot
    assert tags_of(made["plan"]) == naive.is_hot
    orders = {
        "hot_only": shuffled([n for n in range(num_train) if naive.is_hot[n]], config.pack.seed),
        "mixed": shuffled([n for n in range(num_train) if not naive.is_hot[n]], config.pack.seed),
        "evaluation": list(range(num_train, len(samples))),
    }
    for kind, numbers in orders.items():
        found = [sample for batch, _ in batches_of(made["shards"], kind) for sample in batch]
        assert found == [naive_shard_sample(samples[n], naive.ids[n]) for n in numbers]
    assert min(map(len, orders.values())) > 0


def failing_writer(num_files: int, error: type[BaseException]) -> Callable[..., Any]:
    """`write_batch` or `write_shard`, failing half-way through a file once ``num_files`` were written."""
    left = num_files

    def failing(path: Path, columns_or_schema: Any, *batches: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            path.write_bytes(b"half of it")
            raise error
        if batches:
            return batch_checksums.write_shard(path, columns_or_schema, *batches)
        return arrow_files.write_batch(path, columns_or_schema)

    return failing


@contextmanager
def stopped_after(num_files: int) -> Iterator[None]:
    """Raise KeyboardInterrupt once so many files were written."""
    left = num_files

    def stopping(path: Path) -> tuple[int, str]:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return checksum_of_written(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotset.pipeline.folders.output.checksum_of_written", stopping)
        yield
