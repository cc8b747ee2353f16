"""Categories to ids: what training knows has its own, everything else is oov, missing has a row.

Tests `encode`, `ids` and `tables`, too.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.errors import InputError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals, VocabularyTotals
from hotset.pipeline.formats.ids import PartSize, largest_part
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.raw.log_parts import open_parts
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema_file import schema_named, schema_of
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.encode import (
    EncodeConfig,
    EncodedSamples,
    SampleEncoder,
    encode,
    encode_parts,
    needed_bytes,
)
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.tests.support.logs.criteo_text import (
    NUM_DENSE,
    NUM_SPARSE,
    Sample,
    draw_samples,
    text_of,
    tree_of,
)
from hotset.tests.support.naive.naive_stages import SMALL_BLOCKS, columns_of, ids_of, naive_log, run_to
from hotset.tests.support.processes.memory_caps import count_stages_alone
from hotset.tests.support.scored_runs import prepared_lists


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("num_samples", "eval_fraction"), [(1, 0.0), (7, 0.5), (150, 0.4), (150, 0.0)])
@pytest.mark.parametrize(("min_count", "workers"), [(1, 2), (3, 1)])
def test_ids_agree_with_a_dictionary(
    tmp_path: Path,
    num_samples: int,
    eval_fraction: float,
    min_count: int,
    workers: int,
    rng: np.random.Generator,
) -> None:
    samples = draw_samples(num_samples, rng)
    count, rank = CountConfig(eval_fraction=eval_fraction), RankConfig(min_count=min_count)
    made = run_to("encode", tmp_path, samples, PreprocessConfig(count=count, rank=rank), workers=workers)
    num_train = num_samples - int(eval_fraction * num_samples)
    naive = naive_log(samples, num_train, min_count=min_count, num_hot_rows=0)
    assert ids_of(made) == naive.ids
    for f, table in enumerate(made.totals["tables"]):
        is_oov = [ids[f] == table["oov_id"] for ids in naive.ids]
        assert table["oov_train"] == sum(is_oov[:num_train]) == table["oov_count"]
        assert table["oov_evaluation"] == sum(is_oov[num_train:])
    assert made.totals["num_train_samples"] == num_train and made.num_samples == num_samples


def test_what_training_never_saw_is_oov(tmp_path: Path) -> None:
    """The first table meets a new category in evaluation, the second its first missing value."""
    known = Sample(1, (1,) * NUM_DENSE, (7,) * NUM_SPARSE)
    new = replace(known, categories=(8, None, *known.categories[2:]))
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.5))
    made = run_to("encode", tmp_path, [known, known, new, known], config)
    assert ids_of(made) == [[0] * 26, [0] * 26, [1, 1] + [0] * 24, [0] * 26]
    first, second, third, *_ = made.totals["tables"]
    assert first["oov_id"] == second["oov_id"] == second["missing_id"] == 1
    assert (first["oov_evaluation"], second["oov_evaluation"], third["oov_evaluation"]) == (1, 1, 0)
    assert first["oov_train"] == second["oov_train"] == first["oov_count"] == 0


def test_the_ids_of_training_do_not_depend_on_evaluation(tmp_path: Path, rng: np.random.Generator) -> None:
    samples = draw_samples(80, rng)
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.5))
    ids = []
    for name, evaluation in (("a", samples[40:]), ("b", draw_samples(40, np.random.default_rng(5)))):
        (tmp_path / name).mkdir()
        ids.append(ids_of(run_to("encode", tmp_path / name, [*samples[:40], *evaluation], config)))
    assert ids[0][:40] == ids[1][:40] and ids[0][40:] != ids[1][40:]


def test_a_part_of_which_nothing_was_good_has_no_samples(tmp_path: Path, rng: np.random.Generator) -> None:
    samples = draw_samples(40, rng)
    raw = tmp_path / "log"
    raw.write_bytes(text_of(samples[:20]) + b"x\n" * 2500 + text_of(samples[20:]))
    ingest = IngestConfig(block_bytes=SMALL_BLOCKS.block_bytes, on_bad_line="skip:1")
    shards = preprocess([raw], PreprocessConfig(ingest=ingest), tmp_path, Resources(workers=2))
    made = Manifest.read(tmp_path / "samples")
    naive = naive_log(samples, 35, min_count=1, num_hot_rows=0)
    assert ids_of(made) == naive.ids and any(entry.num_samples == 0 for entry in made.files)
    assert sum(shards.totals["samples"].values()) == 40


def test_parts_are_numbered_by_their_first_sample(tmp_path: Path, rng: np.random.Generator) -> None:
    columns = columns_of(tmp_path, draw_samples(30, rng), [], draw_samples(5, rng))
    parts = list(columns.parts())
    assert [entry for _, entry in parts] == columns.files
    assert [first for first, _ in parts] == [
        sum(entry.num_samples for entry in columns.files[:n]) for n in range(len(columns.files))
    ]


@pytest.mark.parametrize("damage", ["cut", "scrambled"])
def test_a_damaged_input_file_is_named(tmp_path: Path, damage: str, rng: np.random.Generator) -> None:
    run_to("rank", tmp_path, draw_samples(30, rng), PreprocessConfig())
    columns, vocabulary = (Manifest.read(tmp_path / name) for name in ("columns", "vocabulary"))
    path = tmp_path / "columns" / columns.files[1].path
    text = path.read_bytes()
    path.write_bytes(text[:-10] if damage == "cut" else b"\1" * len(text))
    message = "bytes, want" if damage == "cut" else "is damaged"
    with pytest.raises(ManifestError, match=f"{path.name}.* {message}") as caught:
        encode(EncodeConfig(), columns, vocabulary, tmp_path / "samples")
    assert "\n" not in str(caught.value)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("spare_bytes", "workers"), [(0, 1), (0, 2), (1000, 2), (3000, 1)])
def test_tables_that_do_not_fit_are_looked_up_in_passes_to_the_same_bytes(
    tmp_path: Path, workers: int, spare_bytes: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to spare every pass has a piece of one table, of 16 entries."""
    run_to("encode", tmp_path, draw_samples(150, rng), PreprocessConfig(count=CountConfig(eval_fraction=0.4)))
    columns, vocabulary = (Manifest.read(tmp_path / name) for name in ("columns", "vocabulary"))
    count_stages_alone(monkeypatch)
    largest = max(entry.num_samples for entry in columns.files)
    memory_bytes = needed_bytes(PartSize(largest), NUM_SPARSE, workers) + spare_bytes
    told: list[tuple[str, int, int]] = []
    out = tmp_path / "passes" / "samples"
    encode(
        EncodeConfig(),
        columns,
        vocabulary,
        out,
        Resources(workers=workers, memory_bytes=memory_bytes, progress=lambda *words: told.append(words)),
    )
    assert tree_of(out) == tree_of(tmp_path / "samples")
    assert told[-1][1] == told[-1][2] >= 2 * 150
    largest_table = max(table["num_rows"] for table in vocabulary.totals["tables"])
    assert largest_table > 11 or spare_bytes  # it does not fit into 16 entries


def test_stopped_between_passes_the_same_run_goes_on(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to("encode", tmp_path, draw_samples(90, rng), PreprocessConfig())
    columns, vocabulary = (Manifest.read(tmp_path / name) for name in ("columns", "vocabulary"))
    count_stages_alone(monkeypatch)
    memory_bytes = needed_bytes(largest_part(columns, columns.files), NUM_SPARSE, 1) + 3000
    out, num_told = tmp_path / "passes" / "samples", 0

    def stop(*_: object) -> None:
        nonlocal num_told
        num_told += 1
        if num_told == len(columns.files) + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(
            EncodeConfig(),
            columns,
            vocabulary,
            out,
            Resources(workers=1, memory_bytes=memory_bytes, progress=stop),
        )
    encode(EncodeConfig(), columns, vocabulary, out, Resources(workers=1, memory_bytes=memory_bytes + 2000))
    assert tree_of(out) == tree_of(tmp_path / "samples")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A preprocessed folder, and the log of its evaluation part."""
    scored = prepared_lists(tmp_path_factory.mktemp("lists"))
    return scored.data, scored.log


def encoded(data: Path, log: Path, *, block_bytes: int = 900) -> list[EncodedSamples]:
    schema = schema_of(str(ColumnsTotals.of(Manifest.read(data / "columns")).schema))
    encoder = SampleEncoder(schema, Manifest.read(data / "vocabulary"))
    parts = open_parts(RawFile.inspect(log), 0, schema, block_bytes=block_bytes, has_label=False, strict=True)
    return list(encode_parts(parts, str(log), encoder, workers=2))


def test_samples_are_those_of_the_shards(folders: tuple[Path, Path]) -> None:
    found = encoded(*folders)
    assert len(found) > 3
    files = sorted((folders[0] / "shards").glob("evaluation-*.arrow"))
    table = pa.concat_tables(pa.ipc.open_file(path).read_all() for path in files)
    dense = np.concatenate([part.dense for part in found])
    np.testing.assert_array_equal(dense, np.array(table["dense"].to_pylist(), np.float32))
    np.testing.assert_array_equal(np.concatenate([p.ids.matrix for p in found]), table["ids"].to_pylist())
    for name in found[0].ids.lists:
        bags = [part.ids.lists[name] for part in found]
        lists = [ids[a:b].tolist() for starts, ids in bags for a, b in pairwise(starts)]
        assert lists == table[name].to_pylist()


def test_unknown_categories_get_the_row_of_oov(folders: tuple[Path, Path], tmp_path: Path) -> None:
    data, log = folders
    header, line, *_ = log.read_text().splitlines()
    fields = line.split(",")
    fields[header.split(",").index("user")] = "never seen before"
    fields[header.split(",").index("site")] = ""
    (tmp_path / "log.csv").write_text("\n".join([header, ",".join(fields)]))
    (found,) = encoded(data, tmp_path / "log.csv")
    tables = {table.name: table for table in VocabularyTotals.of(Manifest.read(data / "vocabulary")).tables}
    ids = dict(zip(tables, found.ids.ids, strict=True))
    assert ids["user"].tolist() == [tables["user"].oov_id]
    assert ids["site"].tolist() == [tables["site"].missing_id]


@pytest.mark.parametrize("line", [1, 70])
def test_a_line_that_does_not_fit_is_refused_by_its_number(
    folders: tuple[Path, Path], tmp_path: Path, line: int
) -> None:
    lines = folders[1].read_text().splitlines()
    lines[line] += ",more"
    (tmp_path / "log.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=rf"log\.csv, line {line + 1}: found 11 fields, want 10") as refused:
        encoded(folders[0], tmp_path / "log.csv")
    assert refused.value.hint == "fix the line: every line gets a prediction, so none is skipped"


def test_a_schema_of_other_features_is_refused(folders: tuple[Path, Path]) -> None:
    vocabulary = Manifest.read(folders[0] / "vocabulary")
    other = replace(schema_named("avazu"), sparse=("hour",), kinds=("integer",))
    with pytest.raises(ManifestError, match=r"has the features tags, .*, the schema has hour"):
        SampleEncoder(other, vocabulary)
