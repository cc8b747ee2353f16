"""Ratios of codecs on rows of known repetition; and the whole benchmark on a small log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs.bounded_codec import BoundedCodec
from hotset.stats.codecs.entropy_sizes import huffman_bytes, levels_of, vector_lz_bytes
from hotset.stats.codecs.row_codec import MessageShape
from hotset.workflows.bench.ranks.bench_codecs import (
    PUBLISHED,
    BenchCodecsConfig,
    bench_codecs,
    ratios_of,
    show_codecs,
)


def test_ratios_are_of_volumes_with_and_without_repeated_rows(rng: np.random.Generator) -> None:
    tables = [rng.normal(size=(num_rows, 16)).astype(np.float32) for num_rows in (2, 5_000)]
    ids = np.stack([rng.integers(0, 2, 400), rng.permutation(5_000)[:400]], axis=1).astype(np.int32)
    found = ratios_of(tables, [ids], 400)
    # 402 rows of 800 lookups are distinct.
    assert found["distinct rows, none"] == pytest.approx(800 / 402)
    assert found["distinct rows, int8"] == pytest.approx(800 * 64 / (402 * 18))
    assert found["distinct rows, bounded:0.03"] == pytest.approx(800 * 64 / (402 * 10 + 16))
    # Random mantissas cannot be packed; repeated rows can.
    assert found["distinct rows, zstd"] < 800 / 402 * 1.2
    for bound in ("0.01", "0.03", "0.05"):
        assert found[f"better of both {bound}"] >= max(found[f"vector-LZ {bound}"], found[f"Huffman {bound}"])
        # One table is repetition alone, and vector-LZ packs it 64 bytes a row into 2 for up to 255 of them.
        assert found[f"better of both {bound}"] > found[f"Huffman {bound}"]
    # Quarters of a batch repeat fewer rows.
    assert ratios_of(tables, [ids], 100)["distinct rows, none"] < 800 / 402


@pytest.mark.slow
def test_fixed_widths_after_deduplication_beat_both_coders() -> None:
    result = bench_codecs(BenchCodecsConfig(samples=60_000, batches=3, slices=(512,)))
    ratios = result["slices"][0]["ratios"]
    for bound in ("0.01", "0.03", "0.05"):
        assert ratios[f"distinct rows, bounded:{bound}"] >= 1.2 * ratios[f"better of both {bound}"]
    console = Console(record=True, width=100)
    show_codecs(result, console)
    shown = console.export_text()
    assert "512 samples" in shown and f"{PUBLISHED['Criteo Kaggle']['quicker of both']}" in shown


def test_sizes_of_coders_add_up_over_messages_before_the_better_is_taken(rng: np.random.Generator) -> None:
    tables = [rng.normal(size=(num_rows, 8)).astype(np.float32) for num_rows in (1, 3, 700)]
    # Two batches of 50 samples in messages of 20; the last 10 of each are left out.
    batches = [
        np.stack([rng.integers(0, table.shape[0], 50) for table in tables], axis=1).astype(np.int32)
        for _ in "ab"
    ]
    messages = [ids[first : first + 20] for ids in batches for first in (0, 20)]
    plain = 4 * 20 * 3 * 8 * 4
    found = ratios_of(tables, batches, 20)
    for bound in (0.01, 0.03, 0.05):
        sizes = np.zeros((3, 2))
        distinct = fixed = 0
        for ids in messages:
            starts = [0]
            for number, table in enumerate(tables):
                codes = levels_of(table[ids[:, number]], bound)
                sizes[number] += vector_lz_bytes(codes), huffman_bytes(codes)
                rows = table[sorted(set(ids[:, number].tolist()))]
                distinct += huffman_bytes(levels_of(rows, bound))
                starts.append(starts[-1] + len(rows))
            fixed += BoundedCodec(bound).num_bytes(MessageShape(np.array(starts), 8))
        assert found[f"vector-LZ {bound:g}"] == pytest.approx(plain / sizes[:, 0].sum())
        assert found[f"Huffman {bound:g}"] == pytest.approx(plain / sizes[:, 1].sum())
        # For each table one of both, over all messages.
        assert found[f"better of both {bound:g}"] == pytest.approx(plain / sizes.min(axis=1).sum())
        assert found[f"distinct rows, Huffman {bound:g}"] == pytest.approx(plain / distinct)
        assert found[f"distinct rows, bounded:{bound:g}"] == pytest.approx(plain / fixed)
    assert list(found) == sorted(found)


def test_a_batch_smaller_than_a_message_is_one() -> None:
    tables = [np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2)]
    ids = np.arange(30, dtype=np.int32)[:, None]
    # Each row is distinct: nothing is saved but by the codec, 4 bytes in place of 8.
    found = ratios_of(tables, [ids[:12], ids], 30)
    assert found["distinct rows, none"] == 1 and found["distinct rows, bf16"] == 2
    assert found["distinct rows, int8"] == found["distinct rows, fp8"] == 2
    assert found["distinct rows, int4"] == pytest.approx(8 / 3)
    assert ratios_of(tables, [ids, ids[:12]], 30) == found


@pytest.mark.parametrize(
    "fields", [{"samples": 0}, {"embedding_dim": 0}, {"batches": 0}, {"slices": (512, 0)}]
)
def test_settings_that_measure_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(fields))} must be 1 or more, got 0"):
        BenchCodecsConfig(**fields)


def test_each_size_of_messages_has_a_column() -> None:
    ratios = {"distinct rows, none": 1.5, "zstd": 12.345}
    slices = [
        {"samples": 512, "ratios": ratios},
        {"samples": 2048, "ratios": {"distinct rows, none": 2, "zstd": 4}},
    ]
    console = Console(record=True, width=100)
    show_codecs({"slices": slices, "published": PUBLISHED}, console)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["512", "samples", "2,048", "samples"] in lines
    assert ["distinct", "rows,", "none", "1.50", "2.00"] in lines and ["zstd", "12.35", "4.00"] in lines
    assert sum(line[0] == "published," for line in lines) == len(PUBLISHED)
