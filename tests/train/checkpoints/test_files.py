"""Merging row files, against a dict of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotset.train.checkpoints import files as merging
from hotset.train.checkpoints.files import FileRecord, is_worth_merging, merge_parts
from hotset.train.checkpoints.tensors import write_part
from hotset.train.execution.embeddings import RowsPart

NUM_ROWS = [6, 30, 9]
WIDTHS = [(2, 1), (2, 1), (3, 0)]


def test_each_row_has_the_value_of_the_last_file_that_has_it(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: object
) -> None:
    merging._PART_BYTES, before = 200, merging._PART_BYTES
    wanted: dict[tuple[int, int], list[float]] = {}
    files = []
    for number in range(9):
        tables = [[0, 1], [2]][number % 3 == 2]
        table = rng.choice(tables, 12)
        pairs = sorted({(int(each), int(rng.integers(NUM_ROWS[each]))) for each in table})
        dim, width = WIDTHS[tables[0]]
        values = rng.random((len(pairs), dim + width), np.float32)
        part = RowsPart(
            np.array([pair[0] for pair in pairs], np.int32),
            np.array([pair[1] for pair in pairs], np.int32),
            values[:, :dim].copy(),
            values[:, dim:].copy(),
        )
        name = f"rows-000000001-{number:05}.safetensors"
        num_bytes, checksum = write_part(tmp_path / name, part)
        files.append(FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum, rows=len(pairs)))
        wanted |= {pair: value for pair, value in zip(pairs, values.tolist(), strict=True)}

    try:
        parts = list(merge_parts(tmp_path, files, NUM_ROWS, WIDTHS))
    finally:
        merging._PART_BYTES = before
    found = {}
    for part in parts:
        values = np.concatenate([part.weights_ND, part.state_NW], axis=1).tolist()
        for table_id, value in zip(
            zip(part.tables_N.tolist(), part.ids_N.tolist(), strict=True), values, strict=True
        ):
            assert table_id not in found
            found[table_id] = value
    assert found == wanted and len(parts) > 2


def test_files_are_merged_once_most_of_their_rows_are_old() -> None:
    files = [
        FileRecord(path=f"rows-000000001-{n}.safetensors", bytes=1, xxh3_128="", rows=10) for n in range(3)
    ]
    assert not is_worth_merging(files[:1], 1) and not is_worth_merging(files, 15)
    assert is_worth_merging(files, 14)
