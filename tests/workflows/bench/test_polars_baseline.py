"""The Polars program writes the very samples that hotset writes; only their shuffled order differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.schema.schema import schema_named
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.stages.split import SplitConfig
from hotset.workflows.bench.polars_baseline import polars_preprocess
from hotset.workflows.recipes import criteo_kaggle

ROW_BYTES = 64
NUM_SAMPLES = 2100


def write_log(path: Path, rng: np.random.Generator) -> Path:
    """Skewed categories with many ties; C1 is missing in the evaluation part only, C2 in both."""
    integers = rng.integers(-3, 70_000, (NUM_SAMPLES, 13))
    categories = rng.zipf(1.5, (NUM_SAMPLES, 26)) % 3000 * 1_000_003
    is_missing = rng.random((NUM_SAMPLES, 39)) < 0.1
    is_missing[:1800, 13] = False
    labels = rng.integers(0, 2, NUM_SAMPLES)
    lines = []
    for i in range(NUM_SAMPLES):
        fields = [str(x) for x in integers[i]] + [f"{x % 2**32:08x}" for x in categories[i]]
        kept = ["" if gone else field for field, gone in zip(fields, is_missing[i], strict=True)]
        lines.append("\t".join([str(labels[i]), *kept]))
    path.write_text("\n".join(lines) + "\n")
    return path


def shards_of(manifest: Manifest, kind: str) -> pl.DataFrame:
    paths = [manifest.folder / entry.path for entry in manifest.files if entry.facts["kind"] == kind]
    frames = [pl.DataFrame(pa.ipc.open_file(path).read_all()) for path in paths]
    return pl.concat(frames) if frames else pl.DataFrame()


def in_any_order(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    rows = zip(frame["label"], frame["dense"].to_list(), frame["ids"].to_list(), strict=True)
    return sorted((label, tuple(dense), tuple(ids)) for label, dense, ids in rows)


@pytest.mark.parametrize("hot_rows", [400, 10**6])
def test_polars_and_hotset_write_the_same_samples(
    hot_rows: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    log = write_log(tmp_path / "log.tsv", rng)
    recipe = criteo_kaggle()
    recipe = replace(
        recipe,
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(hot_rows * ROW_BYTES)),
        pack=replace(recipe.pack, batch_size=128),
    )
    manifest = preprocess([log], recipe, tmp_path / "hotset", Resources(workers=1))
    facts = polars_preprocess(
        log, tmp_path / "polars", schema_named("criteo-kaggle"), hot_rows=hot_rows, batch_size=128
    )
    assert facts["samples"] == manifest.totals["samples"]
    assert facts["num_hot"] == [table["num_hot"] for table in manifest.totals["tables"]]
    theirs = {name: pl.read_ipc(tmp_path / "polars" / f"{name}.arrow") for name in facts["samples"]}
    assert shards_of(manifest, "evaluation").equals(theirs["evaluation"])
    for kind in ("hot_only", "mixed"):
        ours = shards_of(manifest, kind)
        if facts["samples"][kind]:
            assert in_any_order(ours) == in_any_order(theirs[kind])


def test_polars_writes_a_record_batch_for_each_training_batch(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    log = write_log(tmp_path / "log.tsv", rng)
    facts = polars_preprocess(
        log, tmp_path / "out", schema_named("criteo-kaggle"), hot_rows=400, batch_size=128
    )
    with pa.ipc.open_file(tmp_path / "out" / "mixed.arrow") as file:
        sizes = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
        names = file.schema.names
    assert names == ["label", "dense", "ids"]
    assert set(sizes[:-1]) == {128}
    assert sum(sizes) == facts["samples"]["mixed"]
