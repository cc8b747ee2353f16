"""The results of the stages, computed slowly with dictionaries and sorted lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.arrow_files import read_batch
from hotset.pipeline.preprocess import FOLDERS, PreprocessConfig, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema_file import schema_named
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.stats.id_tables import mix64_pair
from hotset.tests.support.logs.criteo_text import Sample, text_of

SMALL_BLOCKS = IngestConfig(block_bytes=ByteSize(2000))
"""Parts of a few lines each."""


def columns_of(folder: Path, *parts: Sequence[Sample], config: IngestConfig = SMALL_BLOCKS) -> Manifest:
    """Write one raw file for each part, and make ``folder/columns`` of them."""
    raw = [folder / f"day{number}" for number in range(len(parts))]
    for path, part in zip(raw, parts, strict=True):
        path.write_bytes(text_of(part, label=config.label))
    return ingest(raw, config, folder / "columns")


def run_to(
    stage: str, folder: Path, samples: Sequence[Sample], config: PreprocessConfig, *, workers: int = 1
) -> Manifest:
    """Run the stages up to and with ``stage`` inside ``folder``; returns what the last one made."""
    config = replace(config, ingest=replace(config.ingest, block_bytes=SMALL_BLOCKS.block_bytes))
    made = columns_of(folder, samples, config=config.ingest)
    for name in list(FOLDERS)[1 : list(FOLDERS).index(stage) + 1]:
        made = run_stage(name, getattr(config, name), folder, Resources(workers=workers))
    return made


OOV = "oov"
Row = tuple[int | str | None, int]
"""The purpose of a row (a category, None for missing, or OOV), and its lookups."""


def naive_table(column: Sequence[int | None], min_count: int) -> list[Row]:
    """The rows of one table in the order of their ids, from the training part of its column."""
    counts = Counter(column)
    own = {category: count for category, count in counts.items() if count >= min_count}
    rows: list[Row] = [*own.items(), (OOV, len(column) - sum(own.values()))]

    def importance(row: Row) -> tuple[int, int, int]:
        what, count = row
        return -count, 2 if what == OOV else what is not None, what if isinstance(what, int) else 0

    return sorted(rows, key=importance)


@dataclass(frozen=True, slots=True)
class NaiveLog:
    """Everything that counts, ranks, encode and split should find."""

    tables: list[list[Row]]
    places: list[list[int]]
    num_hot: list[int]
    ids: list[list[int]]
    """Per sample of the log, training and evaluation."""
    is_hot: list[bool]


def naive_log(samples: Sequence[Sample], num_train: int, *, min_count: int, num_hot_rows: int) -> NaiveLog:
    """Count and rank the first ``num_train`` samples, then encode and tag all of them."""
    num_sparse = len(samples[0].categories)
    columns = [[sample.categories[f] for sample in samples] for f in range(num_sparse)]
    tables = [naive_table(column[:num_train], min_count) for column in columns]
    rows = [(-count, f, i) for f, table in enumerate(tables) for i, (_, count) in enumerate(table)]
    order = sorted(rows)
    place = {(f, i): n for n, (_, f, i) in enumerate(order)}
    places = [[place[f, i] for i in range(len(table))] for f, table in enumerate(tables)]
    num_hot = [sum(f == table for _, f, _ in order[:num_hot_rows]) for table in range(num_sparse)]
    id_of = [{what: i for i, (what, _) in enumerate(table)} for table in tables]
    ids = [
        [known.get(category, known[OOV]) for known, category in zip(id_of, sample.categories, strict=True)]
        for sample in samples
    ]
    is_hot = [all(i < n for i, n in zip(row, num_hot, strict=True)) for row in ids]
    return NaiveLog(tables, places, num_hot, ids, is_hot)


ShardSample = tuple[float, tuple[float, ...], tuple[int, ...]]
"""Label, dense values and ids of a sample in a shard."""


def naive_shard_sample(sample: Sample, ids: Sequence[int]) -> ShardSample:
    """The sample as shards hold it."""
    dense = tuple(float(np.float32(math.log1p(max(value or 0, 0)))) for value in sample.dense)
    return float(sample.label), dense, tuple(ids)


def shuffled(sample_numbers: Sequence[int], seed: int) -> list[int]:
    """Sample numbers in the order of their keys."""
    return sorted(sample_numbers, key=lambda number: int(mix64_pair(np.uint64(seed), np.uint64(number))))


def batches_of(shards: Manifest, kind: str) -> Iterator[tuple[list[ShardSample], list[int] | None]]:
    """Samples of each batch of a kind, in order, and their tags where the kind has some; checks the form."""
    for _, entry in shards.parts():
        if entry.facts["kind"] == kind:
            yield from _batches_of_file(shards, entry.path)


def _batches_of_file(shards: Manifest, name: str) -> Iterator[tuple[list[ShardSample], list[int] | None]]:
    entry = next(entry for entry in shards.files if entry.path == name)
    reader = pa.ipc.open_file(pa.memory_map(str(shards.folder / name)))
    assert reader.num_record_batches == entry.facts["batches"]
    schema = schema_named("criteo-kaggle")
    types = {"label": "float", "dense": f"fixed_size_list<item: float>[{len(schema.dense)}]"}
    types |= {"ids": f"fixed_size_list<item: int32>[{len(schema.sparse)}]", "is_hot": "uint8"}
    has_label, is_tagged = shards.totals["has_label"], entry.facts["kind"] == "evaluation"
    wanted = [*(["label"] if has_label else []), "dense", "ids", *(["is_hot"] if is_tagged else [])]
    assert {field.name: str(field.type) for field in reader.schema} == {name: types[name] for name in wanted}
    num_samples = 0
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        assert all(column.null_count == 0 for column in batch.columns)
        columns = {name: batch.column(name).to_pylist() for name in wanted}
        labels = columns.get("label", [0.0] * batch.num_rows)
        rows = zip(labels, columns["dense"], columns["ids"], strict=True)
        num_samples += batch.num_rows
        yield [(label, tuple(d), tuple(i)) for label, d, i in rows], columns.get("is_hot")
    assert num_samples == entry.num_samples


def ids_of(samples: Manifest) -> list[list[int]]:
    """Ids of all samples of a samples folder, in log order."""
    return [ids for entry in samples.files for ids in read_batch(samples, entry).column("ids").to_pylist()]


def tags_of(plan: Manifest) -> list[bool]:
    """Tags of all samples of a plan folder, in log order."""
    return [bool(t) for entry in plan.files for t in read_batch(plan, entry).column("is_hot").to_pylist()]


def rows_of(vocabulary: Manifest) -> list[list[Row]]:
    """The tables of a vocabulary folder, as `naive_table` gives them."""
    tables = []
    for facts in vocabulary.totals["tables"]:
        name = facts["name"]
        entry = next(entry for entry in vocabulary.files if entry.path == f"{name}.arrow")
        batch = read_batch(vocabulary, entry)
        whats: list[int | str | None] = batch.column("category").to_pylist()
        assert facts["num_rows"] == len(whats) == entry.num_samples
        assert all(
            (what is None) == (i in (facts["missing_id"], facts["oov_id"])) for i, what in enumerate(whats)
        )
        whats[facts["oov_id"]] = OOV
        tables.append(list(zip(whats, batch.column("count").to_pylist(), strict=True)))
    return tables
