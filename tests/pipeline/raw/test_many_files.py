"""Many small files are read as few parts: the same rows, errors and bytes as a log read file by file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import ByteSize, HotsetError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.raw import log_files
from hotset.pipeline.raw.log_files import examples_of, groups_of
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig, count
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.logs.interrupted import interrupt_after
from hotset.tests.support.logs.other_logs import columns_in
from hotset.tests.support.own_calls import own_calls

NUM_FILES = 22
KEYS = """label = "label"
[dense]
price = "float"
[sparse]
day = "text"
word = "text"
list = { kind = "integer", list = true }
"""
Rows = list[dict[str, Any]]


def rows_of(number: int) -> Rows:
    """Return the rows of a file; the fourth has none."""
    return [
        {"label": row % 2, "price": row + number / 4, "word": f'w"{number % 7},', "list": [row, number]}
        for row in range(3 if number != 3 else 0)
    ]


def as_csv(rows: Rows) -> bytes:
    names = ("label", "word", "list", "price") if len(rows) % 2 else ("price", "label", "list", "word")
    lines = []
    for row in rows:
        word, elements = row["word"].replace('"', '""'), "|".join(map(str, row["list"]))
        shown = row | {"word": f'"{word}"', "list": elements}
        lines.append(",".join(str(shown[name]) for name in names))
    return "\n".join([",".join(names), *lines]).encode()


def as_parquet(rows: Rows) -> bytes:
    sink = pa.BufferOutputStream()
    kinds = {"label": pa.int64(), "price": pa.float64(), "word": pa.string(), "list": pa.list_(pa.int32())}
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), sink)
    return bytes(sink.getvalue().to_pybytes())


def as_json(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


FORMS: dict[str, tuple[str, Callable[[Rows], bytes]]] = {
    "csv": ("csv", as_csv),
    "gzip": ("csv", lambda rows: gzip.compress(as_csv(rows), mtime=0)),
    "parquet": ("parquet", as_parquet),
    "json": ("json", as_json),
}


def write_log(folder: Path, form: str, num_files: int = NUM_FILES) -> list[Path]:
    """Write small files in two folders that give the column ``day``."""
    files = []
    for number in range(num_files):
        place = folder / f"day={'ab'[number > 11]}"
        place.mkdir(parents=True, exist_ok=True)
        files.append(place / f"part-{number:03}")
        files[-1].write_bytes(FORMS[form][1](rows_of(number)))
    return files


def config_of(form: str, **changes: Any) -> IngestConfig:
    header = "header = true\n" if FORMS[form][0] == "csv" else ""
    return IngestConfig(schema=f'format = "{FORMS[form][0]}"\n{header}{KEYS}', **changes)


def read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each file be a part, as before there were groups."""
    monkeypatch.setattr(log_files, "_FEW_FILES", 10_000)


def parts_in(columns: Manifest) -> list[str]:
    return [entry.path for _, entry in columns.parts()]


def test_groups_of_a_log_stay_when_it_grows(rng: np.random.Generator, tmp_path: Path) -> None:
    state = (0,) * 6
    for _ in range(15):
        sizes = rng.choice([10, 900, 20_000], int(rng.integers(1, 900)), p=[0.99, 0.009, 0.001]).tolist()
        files = [RawFile(tmp_path, size, None, state, 0) for size in sizes]  # type: ignore[arg-type]
        whole = groups_of(files, 40_000)
        for number, group in whole.items():
            assert number in group and 16 < len(group) <= 256 and sum(sizes[n] for n in group) <= 10_000
        for num_files in rng.integers(0, len(files), 9).tolist():
            before = groups_of(files[:num_files], 40_000)
            last = before[num_files - 1].start if num_files - 1 in before else num_files
            assert all(whole[number] == group for number, group in before.items() if number < last)
            assert all(
                number in before for number in whole if number < last and whole[number].stop < num_files
            )


def test_memory_is_estimated_by_the_largest_file_of_each_compression(tmp_path: Path) -> None:
    kinds = [(7, None), (5, "gzip")] * 10
    files = [RawFile(tmp_path, size, kind, (0,) * 6, 0) for size, kind in kinds]  # type: ignore[arg-type]
    found = {(file.num_bytes, num_bytes) for file, num_bytes in examples_of(files, 40_000)}
    assert found == {(7, 240), (5, 240)}


@pytest.mark.parametrize("form", FORMS)
def test_many_small_files_are_few_parts_with_the_rows_of_each(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_log(tmp_path / "log", form)
    found = ingest(files, config_of(form), tmp_path / "found", Resources(workers=2))
    tree = tree_of(tmp_path / "found")
    assert parts_in(found) == ["file0000-before0022.arrow"]
    with monkeypatch.context() as patch:
        read_alone(patch)
        wanted = ingest(files, config_of(form), tmp_path / "wanted")
    assert len(parts_in(wanted)) >= NUM_FILES - 1
    assert columns_in(found) == columns_in(wanted) and found.totals == wanted.totals
    # A run that was killed, and one that goes on with parts of a version that had no groups.
    for num_written in (9,) if form in ("csv", "parquet") else ():
        out = tmp_path / f"killed{num_written}"
        with monkeypatch.context() as patch:
            if num_written:
                read_alone(patch)
            patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(num_written, KeyError))
            with pytest.raises(KeyError):
                ingest(files, config_of(form), out)
        ingest(files, config_of(form), out)
        assert tree_of(out) == tree


def test_criteos_small_files_are_one_part(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"part-{number:03}" for number in range(NUM_FILES)]
    for number, file in enumerate(files):
        text = text_of(draw_samples(number % 4, rng))
        file.write_bytes(
            b"\xef\xbb\xbf" * (number == 5) + text + b"\n" * (number % 3) + b"x\n" * (number == 9)
        )
    config = IngestConfig(on_bad_line="skip:0.5")
    found = ingest(files, config, tmp_path / "found")
    assert parts_in(found) == ["file0001-before0022.arrow"]
    with monkeypatch.context() as patch:
        read_alone(patch)
        wanted = ingest(files, config, tmp_path / "wanted")
    assert columns_in(found) == columns_in(wanted) and found.totals == wanted.totals


@pytest.mark.parametrize(("form", "is_old"), [("csv", False), ("parquet", True)])
def test_an_extension_has_the_bytes_of_a_run_from_scratch(
    form: str, is_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_log(tmp_path / "log", form, 40)
    # Groups of some twenty files.
    size = max(file.stat().st_size for file in files)
    config = config_of(form, block_bytes=ByteSize(4 * 20 * size))
    columns = ingest(files, config, tmp_path / "whole" / "columns")
    count(CountConfig(), columns, tmp_path / "whole" / "counts")
    wanted = tree_of(tmp_path / "whole")
    for num_files in (5, 25):
        out = tmp_path / f"out{num_files}" / "columns"
        with monkeypatch.context() as patch:
            if is_old:
                read_alone(patch)
            count(CountConfig(), ingest(files[:num_files], config, out), out.with_name("counts"))
        assert verify(out.parent, raw=files[:num_files]) == []
        before = tree_of(out)
        # One that is given up, also for another one, leaves the folder as it was.
        for num_more in (40, 30):
            with monkeypatch.context() as patch:
                patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(0, KeyError))
                with pytest.raises(KeyError):
                    ingest(files[:num_more], config, out, extend=True)
        ingest(files[:num_files], config, out)
        assert tree_of(out) == before
        count(CountConfig(), ingest(files, config, out, extend=True), out.with_name("counts"))
        assert tree_of(out.parent) == wanted


CUT_OFF = gzip.compress(b"label,price,word,list\n" + b"1,2,a,3\n" * 20_000)[:-9]
WRONG = {
    "a bad value": {
        17: b"label,price,word,list\n1,2,a,3\n1,x,a,3\n",
        19: b"label,price,word,list\n2,2,a,3\n",
    },
    "a field too many": {20: b"label,price,word,list\n1,2,a,3\n\n1,2,a,3,4\n"},
    "a quote that stays open in two files": {
        12: b'label,price,word,list\n1,2,"a,3\n',
        13: b'label,price,word,list\n1,2,b",3\n',
    },
    "many bad lines": {18: b"label,price,word,list\n1,2,a,3\n7,2,a,3\n7,2,a,3\n"},
    "many bad lines and a quote that stays open": {
        16: b"label,price,word,list\n7,2,a,3\n7,2,a,3\n1,2,a,3\n",
        18: b'label,price,word,list\n1,2,"a,3\n',
    },
    "a file without its column": {18: b"label,price,list\n1,2,3\n"},
    "a damaged file behind a bad value": {14: b"label,price,word,list\n1,2,a,3\n9,2,a,3\n", 19: CUT_OFF},
}


@pytest.mark.parametrize("on_bad_line", ["error", "skip:0.5"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_as_if_each_file_was_read_alone(
    wrong: str, on_bad_line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_log(tmp_path / "log", "csv")
    for number, text in WRONG[wrong].items():
        files[number].write_bytes(text)

    def outcome(out: Path) -> Any:
        try:
            columns = ingest(files, config_of("csv", on_bad_line=on_bad_line), out)
        except HotsetError as error:
            return str(error), error.hint
        return columns_in(columns), columns.totals

    found = outcome(tmp_path / "found")
    read_alone(monkeypatch)
    assert found == outcome(tmp_path / "wanted")
    assert isinstance(found[0], str) or on_bad_line != "error"


def test_times_are_in_order_from_file_to_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"part-{number:03}" for number in range(NUM_FILES)]
    for number, file in enumerate(files):
        file.write_text(f"label,t,a\n1,{100 + 10 * number},x\n1,{105 + 10 * number},y\n")
    schema = 'format = "csv"\nheader = true\nlabel = "label"\ntime = { column = "t", unit = "s" }\n'
    schema += '[sparse]\na = "text"'
    columns = ingest(files, IngestConfig(schema=schema), tmp_path / "out")
    assert parts_in(columns) == ["file0000-before0022.arrow"]
    files[19].write_text("label,t,a\n1,100,x\n")
    with pytest.raises(HotsetError, match="part-019, after line 1: the next time, ") as caught:
        ingest(files, IngestConfig(schema=schema), tmp_path / "out2")
    read_alone(monkeypatch)
    with pytest.raises(HotsetError) as alone:
        ingest(files, IngestConfig(schema=schema), tmp_path / "out3")
    assert str(alone.value) == str(caught.value)


def test_files_that_do_not_fit_together_are_parts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another type, and so many values from few bytes that they are several parts."""
    files = write_log(tmp_path / "log", "parquet")
    rows = [row | {"label": str(row["label"])} for row in rows_of(1)]
    pq.write_table(pa.Table.from_pylist(rows), files[10])
    pq.write_table(pa.Table.from_pylist(rows_of(1) * 2000), files[16])
    config = config_of("parquet", block_bytes=ByteSize(4 * sum(file.stat().st_size for file in files)))
    found = ingest(files, config, tmp_path / "found")
    names = parts_in(found)
    assert names[:3] == [f"file{number:04}-before0022.arrow" for number in (0, 10, 11)]
    assert names[3] == "file0016-before0022-row000000000000.arrow" and len(names) < 20
    tree = tree_of(tmp_path / "found")
    with monkeypatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(4, KeyError))
        with pytest.raises(KeyError):
            ingest(files, config, tmp_path / "again")
    ingest(files, config, tmp_path / "again")
    assert tree_of(tmp_path / "again") == tree
    read_alone(monkeypatch)
    assert columns_in(found) == columns_in(ingest(files, config, tmp_path / "wanted"))


def test_numbered_texts_of_many_files_are_joined(tmp_path: Path) -> None:
    """Together they have more texts than their numbers may count, and some have a number for a null."""
    files = [tmp_path / f"part-{number:03}" for number in range(NUM_FILES)]
    for number, file in enumerate(files):
        texts = pa.array([f"{number}-{row}" for row in range(9)] + [None])
        words = pa.DictionaryArray.from_arrays(pa.array([*range(10), None], pa.int8()), texts)
        table = pa.table({"label": [1] * 11, "word": words})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    schema = 'format = "arrow"\nlabel = "label"\n[sparse]\nword = "text"'
    columns = ingest(files, IngestConfig(schema=schema), tmp_path / "out")
    assert parts_in(columns) == ["file0000-before0022.arrow"]
    words = columns_in(columns)["word"]
    assert len({*words}) == 9 * NUM_FILES + 1 and words.count(None) == 2 * NUM_FILES


def test_a_file_that_changed_after_a_kill_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_log(tmp_path / "log", "csv", 40)
    config = config_of("csv", block_bytes=ByteSize(4 * 20 * max(file.stat().st_size for file in files)))
    with monkeypatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(1, KeyError))
        with pytest.raises(KeyError):
            ingest(files, config, tmp_path / "out", Resources(workers=1))
    files[7].write_bytes(files[7].read_bytes().replace(b'"w"', b'"v"'))
    with pytest.raises(HotsetError, match="part-007 has changed since an unfinished run read it into "):
        ingest(files, config, tmp_path / "out")


@pytest.mark.parametrize(("form", "most_calls"), [("csv", 220), ("parquet", 170)])
def test_a_small_file_costs_few_calls(form: str, most_calls: int, tmp_path: Path) -> None:
    files = write_log(tmp_path / "log", form, 40)
    calls = []
    for number in (20, 40):
        run = partial(ingest, files[:number], config_of(form), tmp_path / f"{number}")
        calls.append(own_calls(run).total())
    assert (calls[1] - calls[0]) / 20 <= most_calls
    assert not (tmp_path / "40" / MANIFEST).read_bytes().count(b"-block")
