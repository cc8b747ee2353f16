"""Raw logs to columns: what is read, what is refused and where, what is skipped and counted.

The memory of a worker follows from the lines at the start of a log, its columns and the block.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ByteSize, ConfigError, InputError, ManifestError, MemoryCapError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.formats.arrow_files import read_batch, write_batch
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.tasks import Resources, run_tasks
from hotset.pipeline.schema.schema_file import schema_of
from hotset.pipeline.stages.ingest import IngestConfig, ingest, part_bytes, samples_of_block
from hotset.tests.support.logs.criteo_text import (
    NUM_DENSE,
    NUM_SPARSE,
    SCHEMA,
    Sample,
    draw_samples,
    text_of,
    tree_of,
)
from hotset.tests.support.logs.interrupted import interrupt_after
from hotset.tests.support.processes.memory_caps import count_stages_alone

SMALL = ByteSize(1500)
"""Block bytes: five lines or so."""


def config(**changes: Any) -> IngestConfig:
    return IngestConfig(**({"block_bytes": SMALL} | changes))


def samples_of(columns: Manifest) -> list[Sample]:
    """All samples of a columns folder, in log order."""
    samples = []
    names = ["label"] if columns.totals["has_label"] else []
    for entry in columns.files:
        batch = read_batch(columns, entry)
        lists = [batch.column(name).to_pylist() for name in names + columns.totals["dense"]]
        lists += [batch.column(name).to_pylist() for name in columns.totals["sparse"]]
        labels = lists.pop(0) if names else [0] * entry.num_samples
        for label, *values in zip(labels, *lists, strict=True):
            samples.append(Sample(label, tuple(values[:NUM_DENSE]), tuple(values[NUM_DENSE:])))
    return samples


def without_label(samples: list[Sample]) -> list[Sample]:
    return [Sample(0, sample.dense, sample.categories) for sample in samples]


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
@pytest.mark.parametrize("block_bytes", [61, 1500, 1 << 20])
@pytest.mark.parametrize("label", [True, False])
def test_columns_hold_the_log(
    tmp_path: Path, label: bool, block_bytes: int, name: str, rng: np.random.Generator
) -> None:
    samples = draw_samples(25, rng)
    raw = write(tmp_path / name, text_of(samples, label=label))
    setting = config(label=label, block_bytes=ByteSize(block_bytes))
    columns = ingest([raw], setting, tmp_path / "out", Resources(workers=2))
    assert samples_of(columns) == (samples if label else without_label(samples))
    assert columns.totals["samples"] == columns.num_samples == 25 and columns.totals["has_label"] is label
    assert (columns.totals["dense"], columns.totals["sparse"]) == (list(SCHEMA.dense), list(SCHEMA.sparse))
    assert columns.totals["bad_lines"] == {}
    (facts,) = columns.totals["raw"]
    assert (facts["name"], facts["lines"], facts["samples"]) == (name, 25, 25)
    assert facts["bytes"] == raw.stat().st_size
    assert len(columns.files) == {61: 25, 1500: len(columns.files), 1 << 20: 1}[block_bytes]


@pytest.mark.parametrize("change", ["crlf", "no last newline", "crlf, no last newline", "both ends"])
def test_line_ends_make_no_difference(tmp_path: Path, change: str, rng: np.random.Generator) -> None:
    samples = draw_samples(25, rng)
    text = text_of(samples, line_end=b"\r\n" if "crlf" in change else b"\n")
    if change == "both ends":
        text = text_of(samples[:9]) + text_of(samples[9:], line_end=b"\r\n")
    raw = write(tmp_path / "log.tsv", text.removesuffix(b"\n") if "no last" in change else text)
    assert samples_of(ingest([raw], config(), tmp_path / "out")) == samples


def test_several_files_are_one_log_and_empty_ones_count_nothing(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    samples = draw_samples(40, rng)
    parts = {
        "a.tsv": samples[:11],
        "b.tsv": [],
        "c.tsv.gz": samples[11:30],
        "d.gz": [],
        "e.tsv": samples[30:],
    }
    raw = [write(tmp_path / name, text_of(part)) for name, part in parts.items()]
    columns = ingest(raw, config(), tmp_path / "out", Resources(workers=2))
    assert samples_of(columns) == samples
    assert [(file["name"], file["samples"]) for file in columns.totals["raw"]] == [
        (name, len(part)) for name, part in parts.items()
    ]


@pytest.mark.parametrize("text", [b"", b"x\n\n"])
def test_a_log_without_a_sample_is_refused(tmp_path: Path, text: bytes) -> None:
    raw = [write(tmp_path / "a.tsv", text), write(tmp_path / "b.tsv.gz", b"")]
    with pytest.raises(InputError, match=r"a\.tsv: the log is empty: it has no samples"):
        ingest(raw, config(on_bad_line="skip:1"), tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no input file given"):
        ingest([], config(), tmp_path / "out")


_GOOD = Sample(1, (-5,) * NUM_DENSE, (0xBEEF,) * NUM_SPARSE).line().split(b"\t")


def damaged(column: int, field: bytes) -> bytes:
    return b"\t".join([*_GOOD[:column], field, *_GOOD[column + 1 :]])


DAMAGE: dict[str, tuple[bytes, str]] = {
    "field_count": (b"1\t2", ": found 2 fields, want 40 between tabs"),
    "bad_integer": (damaged(3, b"4.5"), ", column 4 (I3): found '4.5', want a decimal integer or nothing"),
    "bad_category": (damaged(14, b"zz"), ", column 15 (C1): found 'zz', want 8 hex digits or nothing"),
    "bad_label": (damaged(0, b"2"), ", column 1 (label): found '2', want 0 or 1"),
    "nul_byte": (damaged(39, b"0\0"), r", column 40 (C26): found '0\x00', want text without NUL bytes"),
    "long_field": (
        damaged(5, b"7" * 100),
        f", column 6 (I5): found '{'7' * 40}'... (100 bytes), want at most 64 bytes",
    ),
    "integer_range": (
        damaged(1, b"-2147483649"),
        ", column 2 (I1): found '-2147483649', want an integer from -2147483648 to 2147483647",
    ),
}


@pytest.mark.parametrize("reason", DAMAGE)
@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
def test_damage_is_refused_with_file_line_column_found_and_wanted(
    tmp_path: Path, name: str, reason: str, rng: np.random.Generator
) -> None:
    line, message = DAMAGE[reason]
    samples = draw_samples(60, rng)
    first = write(tmp_path / "first.tsv", text_of(samples[:7]))
    text = text_of(samples[:42]) + line + b"\r\n" + text_of(samples[42:50]) + b"worse\n"
    raw = write(tmp_path / name, text + text_of(samples[50:]))
    with pytest.raises(InputError) as caught:
        ingest([first, raw], config(), tmp_path / "out", Resources(workers=2))
    assert str(caught.value) == f"{raw}, line 43{message}"
    hint = caught.value.hint or ""
    assert "--on-bad-line skip" in hint and "--no-label" not in hint
    assert not (tmp_path / "out" / MANIFEST).exists()


@pytest.mark.parametrize(("label", "wanted"), [(True, "39 fields, want 40"), (False, "40 fields, want 39")])
def test_a_log_read_with_the_wrong_idea_of_its_label_is_refused(
    tmp_path: Path, label: bool, wanted: str, rng: np.random.Generator
) -> None:
    raw = write(tmp_path / "log.tsv", text_of(draw_samples(3, rng), label=not label))
    with pytest.raises(InputError, match=f"line 1: found {wanted} between tabs") as caught:
        ingest([raw], config(label=label), tmp_path / "out")
    assert ("with --no-label" if label else "without --no-label") in str(caught.value.hint)


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
def test_skipped_lines_are_counted_by_reason(tmp_path: Path, name: str, rng: np.random.Generator) -> None:
    samples = draw_samples(60, rng)
    lines = [sample.line() for sample in samples]
    for place, (line, _) in enumerate(DAMAGE.values()):
        lines.insert(9 * place, line)
    lines[30:30] = [b"", b"\t", *[b"x" * 200] * 20]  # more than a block of nothing else
    raw = write(tmp_path / name, b"\n".join(lines))
    skipping = config(on_bad_line="skip:0.35")
    columns = ingest([raw], skipping, tmp_path / "out", Resources(workers=2))
    assert samples_of(columns) == samples
    wanted = dict.fromkeys(DAMAGE, 1) | {"field_count": 3, "long_field": 21}
    assert columns.totals["bad_lines"] == wanted
    (facts,) = columns.totals["raw"]
    assert (facts["lines"], facts["samples"]) == (len(lines), 60)
    assert any(entry.num_samples == 0 for entry in columns.files)


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
@pytest.mark.parametrize(("fraction", "is_fine"), [(0.04, True), (0.039, False), (0, False), (1, True)])
def test_too_many_skipped_lines_are_refused(
    tmp_path: Path, name: str, fraction: float, is_fine: bool, rng: np.random.Generator
) -> None:
    text = text_of(draw_samples(72, rng)) + b"1\tx\n" * 2 + DAMAGE["bad_label"][0] + b"\n"
    raw = write(tmp_path / name, text)
    skipping = config(on_bad_line=f"skip:{fraction}")
    if is_fine:
        assert ingest([raw], skipping, tmp_path / "out").num_samples == 72
        return
    with pytest.raises(InputError) as caught:
        ingest([raw], skipping, tmp_path / "out")
    assert str(caught.value) == (
        f"{raw}: 3 of the first 75 lines are bad (2 field_count, 1 bad_label), "
        f"more than the fraction {fraction} that may be skipped"
    )
    remedy = str(caught.value.hint).rpartition("--on-bad-line ")[2]
    assert remedy == "skip:0.04"
    assert ingest([raw], config(on_bad_line=remedy), tmp_path / "out").num_samples == 72


def test_a_log_whose_lines_are_all_skipped_says_so(tmp_path: Path) -> None:
    raw = write(tmp_path / "log.tsv", b"nothing like a log\n" * 9)
    with pytest.raises(InputError, match="it has no samples, but bad lines: 9"):
        ingest([raw], config(on_bad_line="skip:1"), tmp_path / "out")


def test_a_hopeless_file_is_not_read_to_its_end(tmp_path: Path, rng: np.random.Generator) -> None:
    raw = write(tmp_path / "log.tsv", b"nothing like a log\n" * 1000 + text_of(draw_samples(100, rng)))
    with pytest.raises(InputError, match="79 of the first 79 lines are bad"):
        ingest([raw], config(on_bad_line="skip"), tmp_path / "out", Resources(workers=1))


def test_any_share_may_be_skipped_where_one_is_allowed(tmp_path: Path, rng: np.random.Generator) -> None:
    """Bad lines are shorter than good ones can be, so a file may hold more than its bytes suggest."""
    samples = draw_samples(3, rng)
    raw = write(tmp_path / "log.tsv", b"\n" * 5000 + text_of(samples))
    columns = ingest([raw], config(on_bad_line="skip:1"), tmp_path / "out")
    assert samples_of(columns) == samples and columns.totals["bad_lines"] == {"field_count": 5000}


def test_plain_and_gzip_copies_give_the_same_files(tmp_path: Path, rng: np.random.Generator) -> None:
    text = text_of(draw_samples(60, rng))
    trees = []
    for name in ("log.tsv", "log.tsv.gz"):
        out = tmp_path / name.replace(".", "-")
        ingest([write(tmp_path / name, text)], config(), out, Resources(workers=2))
        trees.append(tree_of(out))
        del trees[-1][MANIFEST]
    assert trees[0] == trees[1] and len(trees[0]) > 5
    assert {"file0000-block0000000.arrow", "file0000-block0000001.arrow"} <= set(trees[0])


def test_a_memory_cap_is_kept_by_fewer_workers_and_refused_where_one_needs_more(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_stages_alone(monkeypatch)
    raw = write(tmp_path / "log.tsv", text_of(draw_samples(60, rng)))
    with pytest.raises(MemoryCapError, match="ingest cannot stay within") as caught:
        ingest([raw], config(), tmp_path / "out", Resources(workers=4, memory_bytes=1))
    assert caught.value.hint == "--memory 1MiB would do; a smaller --block-bytes needs less"
    assert not (tmp_path / "out").exists()
    used = []

    def recorded(function: Any, tasks: Any, *, workers: int) -> Any:
        used.append(workers)
        return run_tasks(function, tasks, workers=workers)

    monkeypatch.setattr("hotset.pipeline.stages.ingest.run_tasks", recorded)
    schema = schema_of("criteo-kaggle")
    needed = part_bytes(RawFile.inspect(raw), schema, SMALL, has_label=True)
    for memory_bytes in (needed, 3 * needed - 1, 9 * needed):
        out = tmp_path / str(memory_bytes)
        ingest([raw], config(), out, Resources(workers=4, memory_bytes=memory_bytes))
    assert used == [1, 2, 4]
    # A finished folder is read, whatever the cap.
    ingest([raw], config(), tmp_path / str(needed), Resources(workers=4, memory_bytes=1))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_bad_line", ["error", "skip:0.5"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    tmp_path: Path,
    workers: int,
    on_bad_line: str,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    samples = draw_samples(80, rng)
    bad = b"x\n" if on_bad_line != "error" else b""
    text = text_of(samples[:30]) + bad + text_of(samples[30:])
    raw = [write(tmp_path / "a.tsv", text), write(tmp_path / "b.tsv.gz", text)]
    setting = config(on_bad_line=on_bad_line)
    ingest(raw, setting, tmp_path / "whole")
    for num_files in (0, 3, 20):
        out = tmp_path / f"out{num_files}"
        with monkeypatch.context() as patch:
            patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(num_files, error))
            with pytest.raises(error):
                ingest(raw, setting, out, Resources(workers=workers))
        assert not (out / MANIFEST).exists()
        ingest(raw, setting, out, Resources(workers=3 - workers))
        assert tree_of(out) == tree_of(tmp_path / "whole")


def test_another_log_needs_another_folder(tmp_path: Path, rng: np.random.Generator) -> None:
    samples = draw_samples(9, rng)
    raw = write(tmp_path / "log.tsv", text_of(samples))
    ingest([raw], config(), tmp_path / "out")
    other = write(tmp_path / "other.tsv", text_of(samples))
    for logs in ([other], [raw, other], [write(raw, text_of(samples[:8]))]):
        with pytest.raises(ManifestError, match="was written from other inputs"):
            ingest(logs, config(), tmp_path / "out")


def test_a_file_that_grows_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    text = text_of(draw_samples(30, rng))
    raw = write(tmp_path / "log.tsv", text)

    def growing(path: Path, columns: dict[str, Any]) -> None:
        raw.write_bytes(text + text)
        write_batch(path, columns)

    monkeypatch.setattr("hotset.pipeline.stages.ingest.write_batch", growing)
    with pytest.raises(InputError, match=r"log\.tsv changed while it was read"):
        ingest([raw], config(), tmp_path / "out", Resources(workers=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "movielens"},
        {"on_bad_line": "ignore"},
        {"on_bad_line": "skip:1.1"},
        {"on_bad_line": "skip:nan"},
        {"on_bad_line": "skip:"},
        {"on_bad_line": "error:0.5"},
        {"block_bytes": ByteSize(0)},
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        config(**changes)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "num_lines"),
    [
        ("criteo_kaggle_uniform_110k.tsv.gz", 109_711),
        ("criteo_kaggle_head_contiguous_15k.tsv.gz", 15_000),
        ("criteo_kaggle_first100k_random10pct_10k.tsv.gz", 10_075),
        ("criteo_kaggle_test_uniform_18k_nolabel.tsv.gz", 18_181),
        ("criteo_kaggle_test_head_contiguous_10k_nolabel.tsv.gz", 10_000),
        ("criteo_1tb_day0_head_8k.tsv.gz", 8_000),
    ],
)
def test_every_real_sample_parses(tmp_path: Path, real_data: Path, name: str, num_lines: int) -> None:
    columns = ingest([real_data / name], IngestConfig(label="nolabel" not in name), tmp_path / "out")
    assert columns.num_samples == columns.totals["raw"][0]["lines"] == num_lines


@pytest.mark.real_data
def test_no_real_sample_was_left_out(real_data: Path) -> None:
    assert len(list(real_data.glob("*.tsv.gz"))) == 6


_CSV = 'format = "csv"\nlabel = "y"\n[sparse]\na = "integer"\n'
_LINE = b"1" + b"\t5" * 13 + b"\t0a1b2c3d" * 26 + b"\n"


def bytes_of(path: Path, schema: str, block_bytes: int, *, has_label: bool = True) -> int:
    return part_bytes(RawFile.inspect(path), schema_of(schema), block_bytes, has_label=has_label)


def test_a_block_of_criteo_takes_its_text_and_its_values(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(_LINE * 1000)
    assert bytes_of(path, "criteo-kaggle", 1 << 40) == int(262_000 * 9 / 8 + 1000 * 40 * 4.7)
    assert bytes_of(path, "criteo-kaggle", 26_200) == int(26_200 * 9 / 8 + 100 * 40 * 4.7)
    assert bytes_of(path, "criteo-kaggle", 26_200, has_label=False) == int(26_200 * 9 / 8 + 100 * 39 * 4.7)


def test_blocks_of_a_compressed_log_wait_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(_LINE * 1000))
    assert bytes_of(path, "criteo-kaggle", 262_000) == int(262_000 * 3 + 1000 * 40 * 4.7)


def test_short_lines_of_csv_take_many_times_their_text(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"y,a\n" * 250)
    assert bytes_of(path, _CSV, 1 << 40) == int(1000 * 9 / 8 + 250 * 2 * 36)


def test_all_values_of_json_lines_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"y":1,"a":7}\n' * 250)
    assert bytes_of(path, _CSV, 1 << 40) == int(3500 * (9 / 8 + 6) + 250 * 2 * 36)


def test_a_log_that_cannot_be_read_is_left_to_the_parser(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(_LINE * 1000)[:100])
    assert bytes_of(path, "criteo-kaggle", 16 * MIB) == int(16 * MIB * 3 + 16 * MIB / 160 * 40 * 4.7)


def test_parquet_counts_values_and_not_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1")
    assert bytes_of(path, _CSV.replace("csv", "parquet"), 8000) == 64_000


def test_the_samples_of_a_block_follow_from_the_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"y,a\n" * 800)

    def samples(path: Path, schema: str, block_bytes: int) -> int:
        return samples_of_block(RawFile.inspect(path), schema_of(schema), block_bytes, has_label=True)

    # An eighth more than expected; a small file has no more than its own.
    assert samples(path, _CSV, 400) == 112
    assert samples(path, _CSV, 1 << 40) == 900
    compressed = tmp_path / "log.csv.gz"
    compressed.write_bytes(gzip.compress(b"y,a\n" * 800))
    assert samples(compressed, _CSV, 4000) == 1125
    path.write_bytes(b"PAR1")
    assert samples(path, _CSV.replace("csv", "parquet"), 8000) == 500
