"""The generator: bytes do not depend on how they are made, and the log looks like the real one.

The tables made from a profile: exact marginals for any dependence and scale, click rate, sigmoid.

Profiles: coverage, refusals, and what is in the files.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.generate import generate as module
from hotset.pipeline.generate.generate import (
    PROFILES,
    Coverage,
    GenerateConfig,
    GenerateSummary,
    generate,
    load_profile,
    piece_ranks,
    profile_names,
    scaled_num_rows,
    sigmoid_table,
    world_of,
)
from hotset.pipeline.generate.kernel import NUM_SIGMOID, World, draw_samples
from hotset.tests.support.logs.criteo_text import generate_chunk

NUM_SAMPLES = 200_000
HEAD = 20_000
"""Values of a column among which are the thousand most looked up."""
PROFILE = load_profile("criteo-kaggle")


@pytest.fixture(scope="module")
def drawn() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Ranks, logits and labels of a log."""
    ranks = np.empty((NUM_SAMPLES, 39), np.int64)
    logits = np.empty(NUM_SAMPLES, np.int64)
    labels = np.empty(NUM_SAMPLES, np.uint8)
    draw_samples(world_of("criteo-kaggle"), np.uint64(5), 0, ranks, logits, labels)
    return ranks, logits, labels


@pytest.fixture(scope="module")
def probabilities(drawn: tuple[NDArray[np.int64], ...]) -> NDArray[np.float64]:
    """(NUM_SAMPLES, 26); lookup probability of each category that was drawn."""
    return np.stack([shares_of(place, drawn[0][:, place]) for place in range(13, 39)], axis=1)


def shares_of(place: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lookup probability of the values at ``ranks`` of a column, -1 being missing."""
    column = PROFILE.columns[place]
    num_values = column.present.num_values
    shares = column.present.at(num_values, ranks + 1) - column.present.at(num_values, ranks)
    return np.where(ranks < 0, column.missing_share, shares * (1 - column.missing_share))


def head_shares(place: int) -> NDArray[np.float64]:
    """Lookup probability of the first values of a column, missing last."""
    num_values = PROFILE.columns[place].present.num_values
    ranks = np.append(np.arange(min(num_values, HEAD)), -1)
    return shares_of(place, ranks)


def test_the_first_bytes_never_change() -> None:
    text = generate_chunk("criteo-kaggle", 0, 0, 1000)
    assert xxhash.xxh3_128_hexdigest(text) == "bf4361879b3d0e50f67a98ba898c1845"
    text = generate_chunk("criteo-kaggle", 42, 10**12, 1000, 100)
    assert xxhash.xxh3_128_hexdigest(text) == "b7fafe66657552d23d17310461a9bc79"


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("chunk_samples", [1, 700, 1 << 14])
def test_bytes_do_not_depend_on_workers_or_chunks(
    workers: int, chunk_samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_SAMPLES", chunk_samples)
    config = GenerateConfig(samples=1500, seed=9, scale=50)
    summary = generate(config, tmp_path / "log.tsv", workers=workers)
    text = (tmp_path / "log.tsv").read_bytes()
    assert text == generate_chunk("criteo-kaggle", 9, 0, 1500, 50)
    num_clicks = sum(line.startswith(b"1") for line in text.splitlines())
    assert summary == GenerateSummary(1500, num_clicks, len(text))


def test_a_log_can_be_continued(tmp_path: Path) -> None:
    for start, samples in ((0, 300), (300, 1), (301, 199)):
        generate(GenerateConfig(samples=samples, start=start), tmp_path / f"{start}.tsv")
    parts = b"".join((tmp_path / f"{start}.tsv").read_bytes() for start in (0, 300, 301))
    assert parts == generate_chunk("criteo-kaggle", 0, 0, 500)


def test_seeds_give_different_logs_of_the_same_world() -> None:
    one, other = (generate_chunk("criteo-kaggle", seed, 0, 2000) for seed in (0, 1))
    assert one != other
    most_frequent = [
        max(set(values), key=values.count)
        for values in ([line.split(b"\t")[22] for line in text.splitlines()] for text in (one, other))
    ]
    assert most_frequent[0] == most_frequent[1]


def test_a_compressed_log_is_one_gzip_member_with_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_SAMPLES", 1 << 11)
    config = GenerateConfig(samples=5000, scale=100)
    generate(config, tmp_path / "log.tsv", workers=1)
    for workers in (1, 2):
        generate(config, tmp_path / f"{workers}.tsv.gz", workers=workers)
    packed = (tmp_path / "1.tsv.gz").read_bytes()
    assert packed == (tmp_path / "2.tsv.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # no time
    decompressor = zlib.decompressobj(31)
    assert decompressor.decompress(packed) == (tmp_path / "log.tsv").read_bytes()
    assert decompressor.eof and decompressor.unused_data == b""


@pytest.mark.parametrize("name", ["none.tsv", "none.tsv.gz"])
def test_no_samples_make_an_empty_log(name: str, tmp_path: Path) -> None:
    assert generate(GenerateConfig(samples=0), tmp_path / name) == GenerateSummary(0, 0, 0)
    packed = (tmp_path / name).read_bytes()
    assert (gzip.decompress(packed) if name.endswith(".gz") else packed) == b""


def test_a_log_without_labels_has_the_other_fields(tmp_path: Path) -> None:
    generate(GenerateConfig(samples=100, label=False), tmp_path / "log.tsv")
    labelled = generate_chunk("criteo-kaggle", 0, 0, 100).splitlines()
    assert (tmp_path / "log.tsv").read_bytes().splitlines() == [line[2:] for line in labelled]


def test_an_existing_file_is_kept_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "log.tsv"
    out.write_text("mine")
    with pytest.raises(HotsetError, match=r"log\.tsv exists"):
        generate(GenerateConfig(samples=10), out)
    assert out.read_text() == "mine"
    generate(GenerateConfig(samples=10), out, overwrite=True)
    assert len(out.read_bytes().splitlines()) == 10


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="not a directory"):
        generate(GenerateConfig(samples=10), tmp_path / "none" / "log.tsv")


def test_an_interrupted_log_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt) as caught:
        generate(GenerateConfig(samples=100), tmp_path / "log.tsv", workers=2, progress=stop)
    assert list(tmp_path.iterdir()) == []
    # What made the log has ended, though the error is held, and with it what its traceback refers to.
    assert set(threading.enumerate()) <= before, caught


def test_progress_counts_the_samples_written(tmp_path: Path) -> None:
    seen: list[int] = []
    generate(GenerateConfig(samples=40_000, scale=1000), tmp_path / "log.tsv", progress=seen.append)
    assert seen == [1 << 14, 2 << 14, 40_000]


@pytest.mark.parametrize(
    "fields",
    [
        {"samples": -1},
        {"seed": -1},
        {"seed": 1 << 64},
        {"scale": 0.5},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"start": -1},
        {"start": (1 << 62) - 1, "samples": 2},
        {"profile": "avazu"},
        {"profile": "../criteo-kaggle"},
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(fields)))):
        GenerateConfig(**fields)  # type: ignore[arg-type]


def test_the_click_rate_is_the_real_one(drawn: tuple[NDArray[np.int64], ...]) -> None:
    assert drawn[2].mean() == pytest.approx(0.256, abs=0.005)


def test_a_perfect_model_would_reach_an_auc_of_about_0_82(drawn: tuple[NDArray[np.int64], ...]) -> None:
    _, logits, labels = drawn
    ranks = np.argsort(np.argsort(logits, kind="stable"), kind="stable") + 1.0
    num_clicks = int(labels.sum())
    wins = ranks[labels == 1].sum() - num_clicks * (num_clicks + 1) / 2
    assert wins / (num_clicks * (NUM_SAMPLES - num_clicks)) == pytest.approx(0.82, abs=0.01)


@pytest.mark.parametrize(
    ("threshold", "hot_lookups", "hot_samples"),
    [(1e-5, 0.914, 0.48), (1e-6, 0.942, 0.615), (1e-7, 0.961, 0.714)],
)
def test_cold_lookups_come_together_as_in_the_real_log(
    threshold: float, hot_lookups: float, hot_samples: float, probabilities: NDArray[np.float64]
) -> None:
    is_hot = probabilities >= threshold
    assert is_hot.mean() == pytest.approx(hot_lookups, abs=0.03)
    assert is_hot.all(axis=1).mean() == pytest.approx(hot_samples, abs=0.03)


@pytest.mark.parametrize("place", range(13, 39))
def test_head_shares_are_the_profiles(place: int, drawn: tuple[NDArray[np.int64], ...]) -> None:
    shares = head_shares(place)
    top = np.argsort(-shares, kind="stable")[:1000]
    # Of the values behind the head none is among them: a look at some of up to ten million.
    num_values = PROFILE.columns[place].present.num_values
    behind = np.unique(np.linspace(len(shares) - 1, num_values - 1, 1000).astype(np.int64))
    assert num_values <= HEAD or shares_of(place, behind).max() <= shares[top[-1]]
    ranks = drawn[0][:, place]
    ranks = np.where(ranks < 0, len(shares) - 1, ranks)
    counts = np.bincount(ranks, minlength=len(shares))
    for k in (1, 10, 100, 1000):
        assert counts[top[:k]].sum() / NUM_SAMPLES == pytest.approx(shares[top[:k]].sum(), abs=0.005)


def test_missing_values_come_in_blocks(drawn: tuple[NDArray[np.int64], ...]) -> None:
    is_missing = drawn[0] < 0
    world = world_of("criteo-kaggle")
    weights = np.diff(world.class_ends.astype(np.float64), prepend=0) / 2**32
    for masks, ends in zip(world.missing_masks, world.missing_ends, strict=True):
        shares = weights @ np.diff(ends.astype(np.float64), axis=1, prepend=0) / 2**32
        patterns = (masks[:, None] >> np.arange(39, dtype=np.uint64) & np.uint64(1)).astype(bool)
        places = np.flatnonzero(patterns.any(axis=0))
        for pattern, share in zip(patterns[shares > 0], shares[shares > 0], strict=True):
            shows = (is_missing[:, places] == pattern[places]).all(axis=1)
            assert shows.mean() == pytest.approx(share, abs=0.005)


def test_integers_have_the_profiles_distribution(drawn: tuple[NDArray[np.int64], ...]) -> None:
    for place, column in enumerate(PROFILE.columns[:13]):
        present = drawn[0][drawn[0][:, place] >= 0, place]
        for rank, share in zip(column.present.ranks, column.present.shares, strict=True):
            assert np.mean(present < rank) == pytest.approx(share, abs=0.006), column.name


ONE = float(1 << 32)


def shares(ends: np.ndarray) -> np.ndarray:
    return np.diff(ends.astype(np.float64), axis=-1, prepend=0.0) / ONE


def missing_by_class(world: World, column: int) -> np.ndarray:
    found = np.zeros(world.class_ends.shape[0])
    for group in range(world.missing_masks.shape[0]):
        names_it = (world.missing_masks[group] >> np.uint64(column)) & np.uint64(1)
        found += shares(world.missing_ends[group]) @ names_it.astype(np.float64)
    return found


def test_missing_shares_are_the_profiles() -> None:
    world = world_of("criteo-kaggle")
    weights = shares(world.class_ends)
    for place, column in enumerate(PROFILE.columns):
        assert weights @ missing_by_class(world, place) == pytest.approx(column.missing_share, abs=1e-6)


def test_buckets_of_all_classes_together_have_the_profiles_shares() -> None:
    world = world_of("criteo-kaggle")
    weights = shares(world.class_ends)
    for place, column in enumerate(PROFILE.columns):
        present = weights * (1 - missing_by_class(world, place))
        drawn = present @ shares(world.bucket_ends[:, place, 1:]) / present.sum()
        starts = np.append(world.bucket_starts[place].astype(np.float64), ONE)
        np.testing.assert_allclose(drawn, np.diff(starts) / ONE, atol=2e-4, err_msg=column.name)


def test_the_sigmoid_is_the_sigmoid() -> None:
    logits = (np.arange(NUM_SIGMOID) - NUM_SIGMOID // 2) / 256
    np.testing.assert_allclose(sigmoid_table() / ONE, 1 / (1 + np.exp(-logits)), atol=1e-9)


@pytest.mark.parametrize(
    ("num_rows", "scale", "wanted"),
    [(3, 10, 3), (100, 1000, 100), (583, 10, 100), (10_131_227, 1000, 10_131)],
)
def test_a_scale_divides_large_tables_and_leaves_small_ones(num_rows: int, scale: float, wanted: int) -> None:
    assert scaled_num_rows(num_rows, scale) == wanted


def test_pieces_cover_each_column_once() -> None:
    for column in PROFILE.columns:
        ranks = piece_ranks(column, 1)
        assert ranks[0] == 0 and ranks[-1] == column.present.num_values
        assert np.all(np.diff(ranks) > 0)
        assert set(column.present.ranks.astype(int)) <= set(ranks.tolist())


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("scale", [1, 17.5, 1000, 1e9])
def test_every_scale_gives_valid_samples_that_click_at_the_rate(scale: float) -> None:
    num_samples = 60_000
    world = world_of("criteo-kaggle", scale)
    ranks = np.empty((num_samples, 39), np.int64)
    logits = np.empty(num_samples, np.int64)
    labels = np.empty(num_samples, np.uint8)
    draw_samples(world, np.uint64(11), 0, ranks, logits, labels)
    assert labels.mean() == pytest.approx(0.256, abs=0.006)
    for place, column in enumerate(PROFILE.columns):
        assert ranks[:, place].max() < piece_ranks(column, scale)[-1]
        first_share = np.mean(ranks[ranks[:, place] >= 0, place] == 0)
        assert first_share == pytest.approx(
            float(column.present.at(column.present.num_values, np.array([1]))[0]), abs=0.012
        )


def test_a_profile_that_does_not_exist_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="'criteo'") as caught:
        load_profile("criteo")
    assert caught.value.hint is not None and "criteo-kaggle" in caught.value.hint


def test_profiles_are_small() -> None:
    assert profile_names() == ["criteo-kaggle", "taobao"]
    assert all(path.stat().st_size < 60_000 for path in PROFILES.iterdir())


def test_the_kaggle_profile_has_the_published_rows() -> None:
    columns = load_profile("criteo-kaggle").columns
    assert [column.name for column in columns[:13]] == [f"I{number}" for number in range(1, 14)]
    assert [column.name for column in columns[13:]] == [f"C{number}" for number in range(1, 27)]
    assert sum(column.num_rows for column in columns[13:]) == 33_762_577
    for column in columns[13:]:
        assert column.present.num_values == column.num_rows - (column.missing_share > 0)


def test_coverage_is_linear_in_the_logarithm_of_the_rank() -> None:
    coverage = Coverage(np.array([1.0, 4.0, 64.0]), np.array([0.2, 0.6, 1.0]))
    shares = coverage.at(64, np.array([0, 1, 2, 4, 16, 64]))
    np.testing.assert_allclose(shares, [0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_shrunk_column_keeps_its_head_and_its_shape() -> None:
    coverage = Coverage(np.array([1.0, 4.0, 64.0]), np.array([0.2, 0.6, 1.0]))
    shares = coverage.at(8, np.array([0, 1, 2, 8]))  # 8 = 64 ** (1 / 2): rank 2 now stands where 4 stood
    np.testing.assert_allclose(shares, [0, 0.2, 0.6, 1.0])


def test_a_column_of_one_value_is_covered_by_it() -> None:
    coverage = Coverage(np.array([1.0, 3.0]), np.array([0.5, 1.0]))
    np.testing.assert_allclose(coverage.at(1, np.array([0, 1])), [0, 1])
