"""Small shard folders for tests: what ``pack`` writes, made of drawn ids and a planted click model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hotset.pipeline.folders.output import Output
from hotset.pipeline.formats.batch_checksums import checksums_of_file, note_checksums, write_checksums
from hotset.tests.support.json_records import AnyRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig:
    """The settings that ``pack`` records."""

    batch_size: int
    order: str = "grouped"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """A small log already divided into hot-only, mixed and evaluation samples."""

    num_rows: tuple[int, ...] = (5, 40, 300)
    num_hot: tuple[int, ...] = (5, 10, 20)
    batch_size: int = 32
    num_hot_only: int = 70
    num_mixed: int = 150
    num_evaluation: int = 90
    num_validation: int = 0
    """Evaluation samples of the validation part, the first ones."""
    num_dense: int = 2
    embedding_dim: int = 4
    skew: float = 1.5
    """Exponent of the ranks that are looked up; 0: all rows alike."""
    has_label: bool = True
    order: str = "grouped"
    seed: int = 0
    embedding_optimizer: str = "sgd"
    multi_hot: tuple[int, ...] = ()
    """Features with bags of none to four lookups."""
    equal_lengths: bool = False
    """Whether all bags of a sample are of one length, as histories are."""
    table_dims: tuple[int, ...] | None = None
    """Row width of each table; None: all ``embedding_dim``."""
    same_table: tuple[int, ...] = ()
    """Features that look up in the table of the feature before them, whose rows they are to have."""
    labels: tuple[str, ...] = ()
    """Labels that a fifth of the samples lack each; empty: there is one that all have."""
    number_labels: tuple[str, ...] = ()
    """Those of them that are any number."""
    has_weight: bool = False
    """Whether samples have a weight, which is 0 for some."""
    has_checksums: bool = True
    """Whether there are checksums of batches, which shards of older versions lack."""

    @property
    def num_features(self) -> int:
        return len(self.num_rows)

    @property
    def features_of_tables(self) -> list[list[int]]:
        """The features of each table."""
        tables: list[list[int]] = []
        for feature in range(self.num_features):
            if feature in self.same_table:
                tables[-1].append(feature)
            else:
                tables.append([feature])
        return tables


Samples = dict[str, NDArray[Any]]


def draw_ids(
    spec: ShardSpec, count: int, limits: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int32]:
    """(count, num_features); Zipf-like ranks below ``limits``."""
    if spec.skew == 0:
        return np.stack([rng.integers(0, limit, count) for limit in limits], axis=1).astype(np.int32)
    columns = [np.minimum(rng.zipf(spec.skew, count) - 1, limit - 1) for limit in limits]
    return np.stack(columns, axis=1).astype(np.int32)


def draw_samples(spec: ShardSpec, count: int, *, hot_only: bool, rng: np.random.Generator) -> Samples:
    """Samples whose click chance depends on the dense values and on every id's hash."""
    ids_BF = draw_ids(spec, count, spec.num_hot if hot_only else spec.num_rows, rng)
    dense_BK = rng.exponential(1.0, (count, spec.num_dense)).astype(np.float32)
    effects = np.sin(ids_BF.astype(np.float64) * 12.9898 + np.arange(spec.num_features)).sum(axis=1)
    logit = 1.5 * effects + (dense_BK.sum(axis=1) if spec.num_dense else 0) - 1.5
    label_B = (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    is_hot_B = np.all(ids_BF < np.array(spec.num_hot), axis=1)
    samples = {"label": label_B, "dense": dense_BK}
    lengths_B = rng.integers(0, 5, count) if spec.equal_lengths else None
    for feature in spec.multi_hot:
        limit = spec.num_hot[feature] if hot_only else spec.num_rows[feature]
        bags = np.empty(count, object)
        for sample in range(count):
            length = rng.integers(0, 5) if lengths_B is None else lengths_B[sample]
            bags[sample] = np.minimum(rng.zipf(spec.skew, length) - 1, limit - 1).astype(np.int32)
            is_hot_B[sample] &= bool(np.all(bags[sample] < spec.num_hot[feature]))
        samples[f"C{feature + 1}"] = bags
    samples |= draw_columns(spec, logit, rng)
    one_hot = [feature for feature in range(spec.num_features) if feature not in spec.multi_hot]
    return samples | {"ids": ids_BF[:, one_hot], "is_hot": is_hot_B.astype(np.uint8)}


def draw_columns(spec: ShardSpec, logit: NDArray[np.float64], rng: np.random.Generator) -> Samples:
    """Labels, NaN where missing, and weights; nothing is drawn where there are none."""
    found: Samples = {}
    for number, name in enumerate(spec.labels):
        label_B = rng.random(logit.size) < 1 / (1 + np.exp(number - logit))
        values = logit + number if name in spec.number_labels else label_B
        is_missing = rng.random(logit.size) < 0.2
        column = f"label_{name}" if number else "label"
        found[column] = np.where(is_missing, np.nan, values).astype(np.float32)
    if spec.has_weight:
        found["weight"] = rng.choice([0.0, 0.5, 1.0, 3.25], logit.size).astype(np.float32)
    return found


def to_record_batch(samples: Samples, *, has_label: bool, is_evaluation: bool) -> pa.RecordBatch:
    """One batch with the columns of the shard format."""
    columns: dict[str, pa.Array] = {}
    for name, values in samples.items():
        if name == "weight" or (name.startswith("label") and has_label):
            columns[name] = pa.array(values, mask=np.isnan(values))
    for name in ("dense", "ids"):
        matrix = samples[name]
        flat = pa.array(np.ascontiguousarray(matrix).reshape(-1))
        kind = pa.list_(flat.type, matrix.shape[1])
        parts = [None, flat.buffers()[1]]
        values = pa.Array.from_buffers(flat.type, flat.size if hasattr(flat, "size") else len(flat), parts)
        columns[name] = pa.Array.from_buffers(kind, matrix.shape[0], [None], children=[values])
    for name, bags in samples.items():
        if bags.dtype == object:
            columns[name] = pa.array([bag.tolist() for bag in bags], pa.list_(pa.int32()))
    if is_evaluation:
        columns["is_hot"] = pa.array(samples["is_hot"])
    return pa.record_batch(columns)


def write_file(output: Output, spec: ShardSpec, kind: str, samples: Samples, part: int = 0) -> int:
    """Write one file of ``kind``; returns how many batches it has."""
    count = samples["label"].size
    starts = range(0, count, spec.batch_size)
    is_hot = samples["is_hot"].astype(bool)
    facts: dict[str, Any] = {"kind": kind, "batches": len(starts)}
    if spec.labels:
        facts["num_unlabeled"] = int(np.isnan(samples["label"]).sum())
    if spec.order == "original" and kind == "mixed":
        stops = [start + spec.batch_size for start in starts]
        facts["hot_only_batches"] = [
            i for i, (start, stop) in enumerate(zip(starts, stops, strict=True)) if is_hot[start:stop].all()
        ]
    with output.writing(f"{kind}-{part:05d}.arrow", count, AnyRecord(**facts)) as path:
        batches = [
            to_record_batch(
                {name: column[start : start + spec.batch_size] for name, column in samples.items()},
                has_label=spec.has_label,
                is_evaluation=kind == "evaluation",
            )
            for start in starts
        ]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        note_checksums(output, f"{kind}-{part:05d}.arrow", checksums_of_file(path))
    return len(starts)


def training_samples(spec: ShardSpec, rng: np.random.Generator) -> dict[str, Samples]:
    """The training samples of each file kind."""
    hot_only = draw_samples(spec, spec.num_hot_only, hot_only=True, rng=rng)
    mixed = draw_samples(spec, spec.num_mixed, hot_only=False, rng=rng)
    if spec.order == "grouped":
        return {"hot_only": hot_only, "mixed": mixed}
    # The hot-only samples fill whole batches at the front, as chance would now and then.
    return {"mixed": {name: np.concatenate([hot_only[name], mixed[name]]) for name in mixed}}


def write_shards(folder: Path, spec: ShardSpec | None = None, **changes: Any) -> Path:
    """Write and seal a shard folder; ``changes`` are fields of ShardSpec."""
    spec = spec or ShardSpec(**changes)
    rng = np.random.default_rng(spec.seed)
    config = PackConfig(batch_size=spec.batch_size, order=spec.order)
    inputs = [{"name": "plan", "fingerprint": f"{spec.seed:032x}"}]
    output = Output.begin("pack", 1, config, inputs, folder)
    if output.sealed is not None:
        return folder
    kinds = training_samples(spec, rng)
    kinds["evaluation"] = draw_samples(spec, spec.num_evaluation, hot_only=False, rng=rng)
    batches = {"hot_only": 0, "mixed": 0, "evaluation": 0}
    for kind, samples in kinds.items():
        if samples["label"].size:
            batches[kind] = write_file(output, spec, kind, samples)
    counts = {kind: kinds[kind]["label"].size if kind in kinds else 0 for kind in batches}
    totals = totals_of(spec, counts, batches)
    if spec.labels:
        totals["num_unlabeled"] = sum(int(np.isnan(samples["label"]).sum()) for samples in kinds.values())
    if spec.has_checksums:
        write_checksums(output)
    output.seal(AnyRecord(**totals))
    return folder


def totals_of(spec: ShardSpec, counts: dict[str, int], batches: dict[str, int]) -> dict[str, Any]:
    """The totals of the manifest, as ``pack`` writes them."""
    tables: list[dict[str, Any]] = []
    for first, *others in spec.features_of_tables:
        rows, hot = spec.num_rows[first], spec.num_hot[first]
        assert all((spec.num_rows[each], spec.num_hot[each]) == (rows, hot) for each in others)
        tables.append(
            {"name": f"C{first + 1}", "num_rows": rows, "oov_id": rows - 1, "missing_id": 0, "num_hot": hot}
        )
        if others:
            tables[-1]["features"] = [
                {"name": f"C{each + 1}"} | ({"is_multi_hot": True} if each in spec.multi_hot else {})
                for each in (first, *others)
            ]
        if others or first in spec.multi_hot:
            tables[-1]["is_multi_hot"] = True
    for table, dim in zip(tables, spec.table_dims or (), strict=False):
        if dim != spec.embedding_dim:
            table["embedding_dim"] = dim
    return {
        "tables": tables,
        "dense": [f"I{i + 1}" for i in range(spec.num_dense)],
        "has_label": spec.has_label,
        "embedding_dim": spec.embedding_dim,
        "embedding_optimizer": spec.embedding_optimizer,
        "hot_bytes": sum(table["num_hot"] for table in tables) * spec.embedding_dim * 4,
        "row_bytes": spec.embedding_dim * 4,
        "num_hot_rows": sum(table["num_hot"] for table in tables),
        "num_rows": sum(table["num_rows"] for table in tables),
        "samples": counts,
        "batches": batches,
    } | {
        key: value
        for key, value in {
            "num_valid_samples": spec.num_validation,
            "labels": list(spec.labels),
            "number_labels": list(spec.number_labels),
            "has_weight": spec.has_weight,
        }.items()
        if value
    }
