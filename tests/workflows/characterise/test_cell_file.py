"""The file of a sweep: cut off anywhere, begun otherwise, or damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.workflows.characterise.cell_file import CellFile

IDENTITY = {"format": "hotset cells", "device_name": "made up", "threads": 2}
RECORDS = [made_up_record(replace(TINY, batch_size=size)) for size in (16, 32, 64)]


@pytest.fixture
def cells(tmp_path: Path) -> CellFile:
    cells = CellFile(tmp_path / "machine.cells.jsonl", IDENTITY)
    for record in RECORDS:
        cells.add(record)
    return cells


def test_cells_come_back_in_order_behind_one_line_of_the_machine(cells: CellFile) -> None:
    assert cells.read() == RECORDS
    lines = cells.path.read_text().splitlines()
    assert [json.loads(line) == IDENTITY for line in lines] == [True, False, False, False]
    assert CellFile(cells.path.with_name("other"), IDENTITY).read() == []


def test_a_file_that_was_cut_off_anywhere_keeps_its_whole_lines_and_goes_on(cells: CellFile) -> None:
    data = cells.path.read_bytes()
    for size in [*range(0, len(data), 61), data.index(b"\n"), data.index(b"\n") + 1, len(data) - 1]:
        cells.path.write_bytes(data[:size])
        num_whole = max(data[:size].count(b"\n") - 1, 0)
        assert cells.read() == RECORDS[:num_whole]
        assert cells.path.read_bytes() in data and cells.path.read_bytes()[-1:] in (b"", b"\n")
        for record in RECORDS[num_whole:]:
            cells.add(record)
        assert cells.path.read_bytes() == data


def test_a_full_disk_is_named_by_the_file_and_not_taken_for_that_of_stdout() -> None:
    with pytest.raises(HotsetError, match="/dev/full cannot be written: No space left on device") as full:
        CellFile(Path("/dev/full"), IDENTITY).add(RECORDS[0])
    assert full.value.hint is not None and "finished cells are kept" in full.value.hint


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (IDENTITY | {"threads": 4}, "begun with threads 4 instead of 2"),
        (IDENTITY | {"device_name": "x", "threads": 1}, "device_name 'x' instead of 'made up', threads 1"),
        ({"format": "hotset cells"}, "device_name None instead of 'made up', threads None instead of 2"),
        (IDENTITY | {"more": 1}, "begun with another first line"),
        ([], "begun with another first line"),
    ],
)
def test_a_file_of_another_machine_is_refused_by_what_differs(
    cells: CellFile, first: object, message: str
) -> None:
    rest = cells.path.read_text().split("\n", 1)[1]
    text = json.dumps(first) + "\n" + rest
    cells.path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        cells.read()
    assert error.value.hint == "give another --out, or delete the file"
    assert cells.path.read_text() == text


@pytest.mark.parametrize(
    ("found", "instead", "message"),
    [
        (b'"num_steps": 6', b'"num_steps": true', r"line 2\.num_steps is True, want a whole number"),
        (b'"batch_size": 32', b'"batch_size": 0', r"line 3\.cell\.batch_size is 0"),
        (b'"memory_bytes": 1', b'"memory_bytes": -1', r"line 2\.memory_bytes is -1"),
        (b'"distinct_rows": 1.0', b'"distinct_rows": NaN', r"line 2\.distinct_rows is nan"),
        (b'"cell"', b'"sell"', r"line 2\.cell is missing"),
        (b'{"cell"', b'\xff{"cell"', "Expecting value"),
        (b'{"cell"', b'\n{"cell"', "Expecting value"),
    ],
)
def test_a_line_that_is_no_cell_is_refused_with_its_number(
    cells: CellFile, found: bytes, instead: bytes, message: str
) -> None:
    data = cells.path.read_bytes()
    assert found in data
    cells.path.write_bytes(data.replace(found, instead, 1))
    with pytest.raises(ConfigError, match=f"is damaged: {message}") as error:
        cells.read()
    assert error.value.hint == "delete it, and measure its cells again"
