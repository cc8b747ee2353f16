"""The kernels that draw and write samples against plain Python on unbounded integers.

Logarithms and interpolation against their obvious forms.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.generate.kernel import (
    MAX_SAMPLE_BYTES,
    NUM_GROUPS,
    NUM_SIGMOID,
    World,
    _write_integer,
    category_value,
    draw_samples,
    interpolate,
    log2,
    write_samples,
)
from hotset.pipeline.generate.world import world_of

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
