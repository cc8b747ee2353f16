"""Raw samples as a model takes them: the ids and dense values of shards, and lines that do not fit.

Tests `columns`, too.
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
from hotset.pipeline.raw.log_parts import open_parts
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.schema.schema import schema_named
from hotset.pipeline.schema.schema_file import schema_of
from hotset.pipeline.stages.encode_raw import EncodedSamples, SampleEncoder, encode_parts
from hotset.tests.support.scored_runs import prepared_lists


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
