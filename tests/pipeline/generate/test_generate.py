"""The generator: bytes do not depend on how they are made, and the log looks like the real one."""

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
from hotset.pipeline.generate.generate import GenerateConfig, GenerateSummary, generate
from hotset.pipeline.generate.kernel import draw_samples
from hotset.pipeline.generate.world import load_profile, world_of
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


def test_a_compressed_log_is_one_gzip_member_with_the_same_text(tmp_path: Path) -> None:
    config = GenerateConfig(samples=40_000, scale=100)
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
