"""The kernels that draw and write samples against plain Python on unbounded integers.

Logarithms and interpolation against their obvious forms.

Tests `world`, too.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.generate.generate import (
    CHUNK_SAMPLES,
    GenerateConfig,
    generate,
    history_world_of,
    world_of,
)
from hotset.pipeline.generate.kernel import (
    MAX_SAMPLE_BYTES,
    NUM_GROUPS,
    NUM_SIGMOID,
    HistoryWorld,
    World,
    _write_integer,
    category_of_item,
    category_value,
    draw_history,
    draw_samples,
    drawn_rank,
    interpolate,
    log2,
    most_bytes,
    rank_in_group,
    write_samples,
)
from hotset.stats.id_tables import mix64_pair
from hotset.tests.support.logs.criteo_text import generate_chunk

MASK = (1 << 64) - 1


def mix(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def first_beyond(ends: Any, u: int) -> int:
    return next(place for place, end in enumerate(ends) if u < int(end))


def naive_sample(world: World, seed: int, number: int) -> tuple[list[int], int, int]:
    """Ranks, logit and label of one sample."""
    base = mix(mix(seed) ^ number)

    def variable(place: int) -> int:
        return mix((base + place * 0x9E3779B97F4A7C15) & MASK)

    latent = first_beyond(world.class_ends, variable(0) >> 32)
    missing = 0
    for group in range(world.missing_masks.shape[0]):
        pattern = first_beyond(world.missing_ends[group, latent], variable(16 + group) >> 32)
        missing |= int(world.missing_masks[group, pattern])
    shared = [variable(8 + group) >> 32 for group in range(NUM_GROUPS)]
    ranks = []
    logit = int(world.intercept)
    hashes = {}
    for column in range(world.groups.shape[0]):
        rank = -1
        effect = int(world.missing_effects[column])
        if not missing >> column & 1:
            bits = variable(64 + column)
            is_coupled = bits % 1024 < int(world.couplings[column])
            within = shared[world.groups[column]] if is_coupled else bits >> 32
            bucket = first_beyond(world.bucket_ends[latent, column, 1:], within)
            slope = int(world.bucket_slopes[latent, column, bucket])
            jitter = bits >> 10 & ((1 << 20) - 1)
            u = (within - int(world.bucket_ends[latent, column, bucket])) * slope + (jitter * slope >> 20)
            u = (u >> 32) + int(world.bucket_starts[column, bucket])
            piece = int(world.guide[column, u >> 22])
            piece += first_beyond(world.piece_starts[piece + 1 :], u)
            offset = (u - int(world.piece_starts[piece])) * int(world.piece_slopes[piece]) >> 32
            rank = int(world.piece_ranks[piece]) + offset
            effect = int(world.piece_effects[piece])
        if column >= len(world.smallest):
            hashes[column] = mix(int(world.keys[column]) ^ (rank + 1))
            main = sum(hashes[column] >> 8 * byte & 255 for byte in range(4)) - 510
            effect = main * effect >> 16
        ranks.append(rank)
        logit += effect
    for (left, right), weight in zip(world.pairs.tolist(), world.pair_weights.tolist(), strict=True):
        vectors = [
            [2 * (hashes[side] >> bit & 15) - 15 for bit in (32, 40, 48, 56)] for side in (left, right)
        ]
        logit += sum(one * other for one, other in zip(*vectors, strict=True)) * weight >> 16
    place = min(max(logit + NUM_SIGMOID // 2, 0), NUM_SIGMOID - 1)
    return ranks, logit, int(variable(1) >> 32 < int(world.sigmoid[place]))


@pytest.mark.parametrize(("scale", "seed", "start"), [(1, 0, 0), (1, 2**64 - 1, 2**61), (1000, 7, 12_345)])
def test_samples_agree_with_the_naive_ones(scale: int, seed: int, start: int) -> None:
    world = world_of("criteo-kaggle", scale)
    ranks = np.empty((60, 39), np.int64)
    logits = np.empty(60, np.int64)
    labels = np.empty(60, np.uint8)
    draw_samples(world, np.uint64(seed), start, ranks, logits, labels)
    for sample in range(60):
        wanted = naive_sample(world, seed, start + sample)
        assert (ranks[sample].tolist(), logits[sample], labels[sample]) == wanted


@pytest.mark.parametrize("num_samples", [0, 1, 37])
def test_the_text_is_that_of_the_drawn_samples(num_samples: int) -> None:
    world = world_of("criteo-kaggle", 100)
    lines = []
    for number in range(5, 5 + num_samples):
        ranks, _, label = naive_sample(world, 3, number)
        fields = [str(label)]
        for column, rank in enumerate(ranks):
            if rank < 0:
                fields.append("")
            elif column < 13:
                fields.append(str(world.smallest[column] + rank))
            else:
                fields.append(f"{int(category_value(world.keys[column], rank)):08x}")
        lines.append("\t".join(fields) + "\n")
    out = np.empty(num_samples * MAX_SAMPLE_BYTES, np.uint8)
    num_bytes, num_clicks = write_samples(world, np.uint64(3), 5, num_samples, True, out)
    assert out[:num_bytes].tobytes().decode() == "".join(lines)
    assert num_clicks == sum(line.startswith("1") for line in lines)
    num_bytes, num_clicks = write_samples(world, np.uint64(3), 5, num_samples, False, out)
    assert out[:num_bytes].tobytes().decode() == "".join(line[2:] for line in lines)
    assert num_clicks == 0


@pytest.mark.parametrize("value", [0, 9, 10, -1, -2, 99, 100, 2_071_071, 2**31 - 1, -(2**31)])
def test_integers_are_written_in_decimal(value: int) -> None:
    out = np.zeros(20, np.uint8)
    end = _write_integer(value, out, 1)
    assert out[1:end].tobytes().decode() == str(value)


def test_category_values_can_be_inverted(rng: np.random.Generator) -> None:
    """Distinct ranks get distinct values, because every step can be undone."""

    def undo_shift(bits: int, shift: int) -> int:
        found = bits
        for _ in range(32 // shift + 1):
            found = bits ^ (found >> shift)
        return found

    for rank in [0, 1, 2**32 - 1, *rng.integers(0, 2**32, 200).tolist()]:
        key = rng.integers(0, 2**63, dtype=np.uint64)
        bits = undo_shift(int(category_value(key, rank)), 16)
        bits = undo_shift(bits * pow(0xC2B2AE3D, -1, 2**32) % 2**32, 13)
        bits = undo_shift(bits * pow(0x85EBCA77, -1, 2**32) % 2**32, 15)
        bits = bits * pow(0x9E3779B1, -1, 2**32) % 2**32
        assert bits ^ (int(key) & 0xFFFFFFFF) == rank


def test_tables_have_values_of_their_own() -> None:
    world = world_of("criteo-kaggle")
    firsts = {int(category_value(key, 0)) for key in world.keys[13:]}
    assert len(firsts) == 26


def test_every_category_is_eight_lower_case_digits() -> None:
    out = np.empty(50 * MAX_SAMPLE_BYTES, np.uint8)
    num_bytes, _ = write_samples(world_of("criteo-kaggle"), np.uint64(1), 0, 50, True, out)
    for line in out[:num_bytes].tobytes().decode().splitlines():
        fields = line.split("\t")
        assert len(fields) == 40 and fields[0] in "01"
        assert all(re.fullmatch(r"(-?\d+)?", field) for field in fields[1:14])
        assert all(re.fullmatch(r"([0-9a-f]{8})?", field) for field in fields[14:])


def test_log2_is_the_logarithm_to_base_2(rng: np.random.Generator) -> None:
    values = np.concatenate(
        [[1.0, 2.0, 3.0, 0.5, 1e-300, 1e300, 10_131_227.0], np.exp(rng.normal(0, 9, 5000))]
    )
    wanted = np.array([math.log2(value) for value in values])
    assert np.all(np.abs(log2(values) - wanted) <= 4e-16 * np.maximum(1, np.abs(wanted)))


def test_log2_of_powers_of_two_is_exact() -> None:
    powers = np.float64(2) ** np.arange(-40, 41, dtype=np.float64)
    np.testing.assert_array_equal(log2(powers), np.arange(-40, 41))


def test_log2_of_nothing_is_nothing() -> None:
    assert log2(np.empty(0)).shape == (0,)


@pytest.mark.parametrize("num_knots", [2, 3, 17])
def test_interpolation_agrees_with_numpys(num_knots: int, rng: np.random.Generator) -> None:
    knots = np.sort(rng.random(num_knots))
    values = rng.random(num_knots)
    at = np.concatenate([rng.uniform(-0.2, 1.2, 500), knots])
    np.testing.assert_allclose(interpolate(at, knots, values), np.interp(at, knots, values), atol=1e-14)


SPREAD = 2_654_435_761
Sample = tuple[int, int, list[int], list[int]]


def taobao_world(scale: float = 1000) -> HistoryWorld:
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


def test_the_text_is_that_of_the_drawn_histories() -> None:
    world = taobao_world()
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
    world = taobao_world(scale)
    for size in (world.num_users, int(world.item_edges[-1]), int(world.category_edges[-1])):
        assert np.gcd(size, SPREAD) == 1 and size >= 100 >= world.num_groups


@pytest.mark.parametrize("scale", [1, 100])
def test_ranks_have_the_shares_of_the_profile(scale: float) -> None:
    """The running share of the ranks is drawn backwards: at each edge, and between, where it is linear."""
    world = taobao_world(scale)
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
    world = taobao_world(10_000)
    num_items, num_categories = int(world.item_edges[-1]), int(world.category_edges[-1])
    for item in range(num_items):
        category = category_of_item(world, item)
        assert 0 <= category < num_categories and category % world.num_groups == item % world.num_groups
    for group in range(world.num_groups):
        moved = rank_in_group(num_items - 1, group, world.num_groups, num_items)
        assert 0 <= moved < num_items and moved % world.num_groups == group


def test_histories_are_courses_of_their_users() -> None:
    """Two windows of a user show the same events where they overlap, and candidates follow interests."""
    world = taobao_world(100_000)
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
