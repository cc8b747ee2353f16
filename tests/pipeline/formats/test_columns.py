"""Texts of the most frequent categories, against a naive twin, and as a user meets them.

The file of predictions appears whole, in row groups of a million, or not at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
from numpy.typing import NDArray

from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats import columns
from hotset.pipeline.formats.columns import read_texts, readable, texts_of_table, top_categories, write_scores
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig, count
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.verify import verify
from hotset.tests.support.resealed import reseal
from hotset.workflows.cli import main

SCHEMA = """
format = "csv"
label = "y"
[sparse]
word = "text"
n = "integer"
words = { kind = "text", list = true, name = "many words" }
"""


def draw_lines(num_rows: int, rng: np.random.Generator) -> list[tuple[int, str, int, str]]:
    """Words of a skewed log; a tenth of the words is missing."""
    words = [f"w{word}" if word % 10 else "" for word in rng.zipf(1.3, num_rows) % 500]
    lists = ["|".join(f"e{word}" for word in rng.zipf(1.5, n) % 90) for n in rng.integers(0, 5, num_rows)]
    return [(int(rng.integers(2)), words[i], i, lists[i]) for i in range(num_rows)]


def write(path: Path, lines: list[tuple[int, str, int, str]]) -> Path:
    path.write_text("y,word,n,words\n" + "".join(",".join(map(str, line)) + "\n" for line in lines))
    return path


def config(**changes: Any) -> IngestConfig:
    return replace(IngestConfig(schema=SCHEMA, block_bytes=ByteSize(2000)), **changes)


def hash_of(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def naive_kept(words: list[str], always: int) -> set[str]:
    """The texts that one part keeps of one column."""
    counts = Counter(word for word in words if word)
    once = sorted((word for word in counts if counts[word] == 1), key=hash_of)
    recurring = {word for word in counts if counts[word] > 1}
    return recurring | set(once[: max(0, always - len(recurring))])


def naive_top(words: list[str], num_texts: int) -> list[str]:
    """The most frequent words, ties by hash."""
    counts = Counter(word for word in words if word)
    return sorted(counts, key=lambda word: (-counts[word], hash_of(word)))[:num_texts]


@pytest.mark.parametrize(("always", "num_texts"), [(10_000, 1000), (10_000, 20), (15, 100), (0, 100)])
def test_texts_are_those_of_the_naive_twin(
    tmp_path: Path, always: int, num_texts: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.formats.columns._ALWAYS_KEPT", always)
    monkeypatch.setattr("hotset.pipeline.formats.columns._CHUNK_ROWS", 7)
    lines = draw_lines(900, rng)
    columns = ingest([write(tmp_path / "log", lines)], config(), tmp_path / "columns", Resources(workers=2))
    parts, first = [], 0
    for entry in columns.files:
        if not entry.is_texts:
            parts.append(lines[first : first + entry.num_samples])
            first += entry.num_samples
    assert len(parts) > 5
    counts = count(
        CountConfig(eval_fraction=0.2, texts=num_texts), columns, tmp_path / "counts", Resources(workers=2)
    )
    split: dict[str, Callable[[Any], list[str]]] = {
        "word": lambda line: [line[1]],
        "many words": lambda line: line[3].split("|"),
    }
    for name, words_of in split.items():
        kept = [naive_kept([word for line in part for word in words_of(line)], always) for part in parts]
        top = naive_top([word for line in lines[:720] for word in words_of(line)], num_texts)
        wanted = {hash_of(word): word for word in top if any(word in words for words in kept)}
        batch = read_texts(counts, counts.entry(f"{name}.texts.arrow"))
        found = dict(zip(batch.column("category").to_pylist(), batch.column("text").to_pylist(), strict=True))
        assert found == wanted and list(found) == sorted(found)
        occurrences = Counter(word for line in lines[:720] for word in words_of(line))
        assert all(hash_of(word) in found for word in top if occurrences[word] > len(parts))
        assert always < 10_000 or len(found) == len(top)
    assert not any("n.texts" in entry.path for entry in counts.files)


@pytest.fixture
def made(tmp_path: Path, rng: np.random.Generator) -> Path:
    write(tmp_path / "log", draw_lines(600, rng))
    (tmp_path / "my.toml").write_text(SCHEMA)
    words = ["preprocess", str(tmp_path / "log"), "--schema", str(tmp_path / "my.toml"), "--min-count", "2"]
    assert main([*words, "--out", str(tmp_path / "out"), "--batch-size", "16", "--texts", "30"]) == 0
    return tmp_path


def test_a_text_has_the_id_of_its_category(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocabulary = Manifest.read(made / "out/vocabulary")
    texts = texts_of_table(vocabulary, "word")
    assert len(texts) > 20 and list(texts) == sorted(texts)
    capsys.readouterr()
    assert main(["stats", str(made / "out"), "--feature", "word", "--top", "5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["category"] for row in rows if row["id"] in texts] == [
        texts[row["id"]] for row in rows if row["id"] in texts
    ]
    word = next(iter(texts.values()))
    assert main(["stats", str(made / "out"), "--feature", "word", "--category", word, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["category"], texts[row["id"]]) == (word, word)
    assert verify(made / "out") == []


def test_a_text_that_is_not_its_category_is_found(made: Path) -> None:
    for folder in ("columns", "counts", "vocabulary"):
        manifest = Manifest.read(made / "out" / folder)
        entry = next(entry for entry in manifest.files if entry.is_texts)
        before = {path: path.read_bytes() for path in manifest.folder.iterdir()}
        path = reseal(manifest.folder, lambda columns: columns["text"].reverse(), entry.path)
        faults = verify(made / "out", raw=[made / "log"])
        assert any(str(path) in fault and "text in row 0" in fault for fault in faults)
        for path, text in before.items():
            path.write_bytes(text)
    assert verify(made / "out") == []


def test_another_log_gets_the_texts_with_the_ids(made: Path) -> None:
    words = ["preprocess", str(made / "log"), "--like", str(made / "out"), "--out", str(made / "like")]
    assert main(words) == 0 and verify(made / "like") == []
    folders = (made / name / "vocabulary" for name in ("out", "like"))
    ours, theirs = (texts_of_table(Manifest.read(folder), "word") for folder in folders)
    assert ours == theirs != {}


def test_none_are_kept_where_none_are_wanted(tmp_path: Path, rng: np.random.Generator) -> None:
    columns = ingest([write(tmp_path / "log", draw_lines(100, rng))], config(), tmp_path / "columns")
    counts = count(CountConfig(texts=0), columns, tmp_path / "counts")
    assert not any(entry.is_texts for entry in counts.files)
    with pytest.raises(ConfigError, match="texts must be 0 or more, got -1"):
        CountConfig(texts=-1)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"", ""),
        ("naïve ☃".encode(), "naïve ☃"),
        (b"a\xff\0b", "a\ufffd\0b"),
        (b"x" * 200, "x" * 200),
        (b"x" * 201, "x" * 200 + "…"),
        (b"x" * 199 + "☃☃".encode(), "x" * 199 + "…"),
        ("☃".encode() * 100, "☃" * 66 + "…"),
        (b"\x80" * 300, "\ufffd" * 196 + "…"),
    ],
)
def test_long_texts_are_cut_and_odd_bytes_replaced(text: bytes, wanted: str) -> None:
    assert readable(text) == wanted


def test_odd_texts_go_all_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [b"\xff\xfe", b"[bold]x[/bold]", "☃".encode() * 100, b"\x1b[31mred", b"plain"]
    (tmp_path / "log").write_bytes(b"w\n" + b"".join(word + b"\n" for word in words for _ in range(9)))
    (tmp_path / "my.toml").write_text('format = "csv"\n[sparse]\nw = "text"\n')
    out = str(tmp_path / "out")
    assert (
        main(["preprocess", str(tmp_path / "log"), "--schema", str(tmp_path / "my.toml"), "--out", out]) == 0
    )
    texts = texts_of_table(Manifest.read(tmp_path / "out/vocabulary"), "w")
    assert sorted(texts.values()) == sorted(readable(word) for word in words)
    assert verify(tmp_path / "out") == []
    capsys.readouterr()
    assert main(["stats", out, "--feature", "w"]) == 0
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown and "\x1b[31m" not in shown


def test_the_most_frequent_are_found_in_chunks(rng: np.random.Generator) -> None:
    categories = np.unique(rng.integers(0, 2**63, 500).astype(np.uint64))
    occurrences: NDArray[np.int64] = rng.integers(1, 9, categories.shape)
    order = sorted(range(categories.shape[0]), key=lambda i: (-occurrences[i], categories[i]))
    for num_texts in (0, 1, 40, 1000):
        wanted = sorted(int(categories[i]) for i in order[:num_texts])
        assert top_categories((categories, occurrences), num_texts).tolist() == wanted


def test_predictions_keep_their_order_across_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_ROWS_OF_GROUP", 100)
    values = np.random.default_rng(0).random(1000).astype(np.float32)
    write_scores(tmp_path / "s.parquet", ("probability",), np.split(values, 40))
    found = pq.ParquetFile(tmp_path / "s.parquet")
    assert found.num_row_groups == 10
    np.testing.assert_array_equal(found.read()["probability"].to_numpy(), values)


def test_an_interrupted_file_is_not_there(tmp_path: Path) -> None:
    def interrupted() -> Iterator[NDArray[np.float32]]:
        yield np.zeros(3, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scores(tmp_path / "s.parquet", ("probability",), interrupted())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_on_demand_alone(tmp_path: Path) -> None:
    (tmp_path / "s.parquet").write_bytes(b"old")
    with pytest.raises(HotsetError, match="exists"):
        write_scores(tmp_path / "s.parquet", ("probability",), [])
    write_scores(tmp_path / "s.parquet", ("probability",), [], overwrite=True)
    assert pq.read_table(tmp_path / "s.parquet").num_rows == 0
