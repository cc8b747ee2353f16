"""Logs of histories against a twin in plain Python; tests `histories`, too."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate import CHUNK_SAMPLES, GenerateConfig, generate
from hotset.pipeline.generate.histories import (
    HistoryWorld,
    category_of_item,
    draw_history,
    drawn_rank,
    history_world_of,
    is_of_histories,
    most_bytes,
    rank_in_group,
)
from hotset.stats.id_tables import mix64_pair
from hotset.tests.support.logs.criteo_text import generate_chunk

SPREAD = 2_654_435_761
Sample = tuple[int, int, list[int], list[int]]


def world_of(scale: float = 1000) -> HistoryWorld:
    return history_world_of("taobao", scale)


def samples_in(text: bytes) -> list[Sample]:
    """Label, user, items and categories of each line."""
    found = []
    for line in text.decode().splitlines():
        label, user, items, categories = line.split(",")
        own, theirs = ([int(value) for value in values.split("|")] for values in (items, categories))
        found.append((int(label), int(user), own, theirs))
    return found


def drawn(world: HistoryWorld, seed: int, number: int) -> tuple[int, int, list[int]]:
    items = np.zeros(world.history_length + 1, np.int64)
    bits = np.uint64(mix64_pair(np.uint64(seed), np.uint64(number)))
    label, user, size = draw_history(world, bits, items)
    return label, user, items[:size].tolist()


def test_the_text_is_that_of_the_drawn_samples() -> None:
    world = world_of()
    sizes = (world.num_users, int(world.item_edges[-1]), int(world.category_edges[-1]))
    text = generate_chunk("taobao", 7, 90, 60, 1000)
    assert max(map(len, text.splitlines(keepends=True))) <= most_bytes(world)
    for number, found in enumerate(samples_in(text), start=90):
        label, user, items = drawn(world, 7, number)
        categories = [category_of_item(world, item) for item in items]
        ranks = ([user], items, categories)
        (user,), items, categories = (
            [rank * SPREAD % size for rank in of_kind] for of_kind, size in zip(ranks, sizes, strict=True)
        )
        assert found == (label, user, items, categories)


@pytest.mark.parametrize("scale", [1, 1000, 10**9])
def test_values_name_their_ranks(scale: float) -> None:
    """Each rank has a value of its own, because the prime has no divisor in common with their number."""
    world = world_of(scale)
    for size in (world.num_users, int(world.item_edges[-1]), int(world.category_edges[-1])):
        assert np.gcd(size, SPREAD) == 1 and size >= 100 >= world.num_groups


@pytest.mark.parametrize("scale", [1, 100])
def test_ranks_have_the_shares_of_the_profile(scale: float) -> None:
    """The running share of the ranks is drawn backwards: at each edge, and between, where it is linear."""
    world = world_of(scale)
    edges, ends = world.item_edges.tolist(), world.item_ends.tolist()
    assert edges[0] == 0 and ends[0] == 0 and ends[-1] == 2**32 and ends == sorted(ends)
    for piece in (0, 1, len(edges) // 2, len(edges) - 2):
        first, stop = ends[piece], ends[piece + 1]
        if first == stop:
            continue
        assert drawn_rank(world.item_edges, world.item_ends, np.uint64(first)) == edges[piece]
        assert drawn_rank(world.item_edges, world.item_ends, np.uint64(stop - 1)) == edges[piece + 1] - 1
    if scale == 1:
        at = dict(zip(edges, ends, strict=True))
        assert at[1] / 2**32 == pytest.approx(0.016, abs=1e-6)
        near = min(edges, key=lambda edge: abs(edge - 150_000))
        assert at[near] / 2**32 == pytest.approx(0.748, abs=0.01)


def test_categories_and_items_keep_their_group() -> None:
    world = world_of(10_000)
    num_items, num_categories = int(world.item_edges[-1]), int(world.category_edges[-1])
    for item in range(num_items):
        category = category_of_item(world, item)
        assert 0 <= category < num_categories and category % world.num_groups == item % world.num_groups
    for group in range(world.num_groups):
        moved = rank_in_group(num_items - 1, group, world.num_groups, num_items)
        assert 0 <= moved < num_items and moved % world.num_groups == group


def test_histories_are_courses_of_their_users() -> None:
    """Two windows of a user show the same events where they overlap, and candidates follow interests."""
    world = world_of(100_000)
    rows = [drawn(world, 1, number) for number in range(4000)]
    followed: Counter[tuple[int, bool]] = Counter()
    for label, _, items in rows:
        groups = {item % world.num_groups for item in items[:-1]}
        followed[label, items[-1] % world.num_groups in groups] += len(items) == world.history_length + 1
    share = {
        label: followed[label, True] / (followed[label, True] + followed[label, False]) for label in (0, 1)
    }
    assert share[1] > share[0] + 0.15
    assert 0.45 < sum(label for label, _, _ in rows) / len(rows) < 0.55
    lengths = Counter(len(items) - 1 for _, _, items in rows)
    assert set(lengths) == set(range(1, world.history_length + 1))
    assert 0.85 < lengths[world.history_length] / len(rows) < 0.95
    # Positive samples of one user and start are one window.
    users = Counter(user for _, user, _ in rows)
    assert len(users) == world.num_users
    pairs = Counter(tuple(items[-6:-1]) for label, _, items in rows if label and len(items) > 6)
    assert max(pairs.values()) > 1


def test_the_first_bytes_never_change() -> None:
    text = generate_chunk("taobao", 0, 0, 100)
    assert (
        hashlib.sha256(text).hexdigest() == "8d3781ef228c6487a818442e7812aacb26a1ff1692960e7d2ae2969a52b39b62"
    )


def test_a_log_does_not_depend_on_workers_and_chunks(tmp_path: Path) -> None:
    size = CHUNK_SAMPLES + 50
    for workers in (1, 3):
        config = GenerateConfig(profile="taobao", samples=size, scale=1000, seed=4)
        generate(config, tmp_path / f"{workers}.csv", workers=workers)
    text = (tmp_path / "1.csv").read_bytes()
    assert text == (tmp_path / "3.csv").read_bytes()
    header, _, rest = text.partition(b"\n")
    assert header == b"label,user,item,category"
    assert rest == b"".join(generate_chunk("taobao", 4, start, size // 2, 1000) for start in (0, size // 2))


def test_a_log_may_be_compressed_and_without_labels(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"profile": "taobao", "samples": 30, "scale": 1000}
    generate(GenerateConfig(**settings), tmp_path / "log.csv")
    generate(GenerateConfig(**settings), tmp_path / "log.csv.gz")
    summary = generate(GenerateConfig(**settings, label=False), tmp_path / "bare.csv")
    lines = (tmp_path / "log.csv").read_bytes().splitlines()
    assert gzip.decompress((tmp_path / "log.csv.gz").read_bytes()).splitlines() == lines
    bare = (tmp_path / "bare.csv").read_bytes().splitlines()
    assert bare[0] == b"user,item,category" and [line[2:] for line in lines[1:]] == bare[1:]
    assert summary.num_samples == 30 and summary.num_clicks == 0


def test_profiles_know_their_kind() -> None:
    assert is_of_histories("taobao") and not is_of_histories("criteo-kaggle")
    with pytest.raises(ConfigError, match="no profile 'tabao'"):
        is_of_histories("tabao")
