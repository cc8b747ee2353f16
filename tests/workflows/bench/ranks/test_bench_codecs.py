"""Ratios of codecs on rows of known repetition; and the whole benchmark on a small log."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

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
