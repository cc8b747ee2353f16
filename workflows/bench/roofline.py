"""The stages of `preprocess` compared with the time that moving their bytes alone would take.

A stage cannot be faster than memory moves the bytes it reads and writes; that is its lower bound. The page
cache accepts new bytes several times more slowly than memory copies old ones, because it has to find pages
for them. So its rate is measured too, and so is the rate at which the disk finally takes them.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.stage_totals import ColumnsTotals, CountsTotals, VocabularyTotals
from ...pipeline.sizes import GIB, KIB, MIB

_COPIED_BYTES = 32 * MIB
"""Bytes that each thread copies to measure memory: more than caches hold."""
_ROUNDS = 3
_MOST_WRITTEN_BYTES = GIB
"""Most bytes written to measure the page cache and the disk."""
_PIECE_BYTES = 256 * KIB
"""Bytes read at a time, as raw logs are."""
_NEW_BYTES = 8 * MIB
"""Bytes of a new array: large enough for NumPy to ask for large pages."""


def bytes_of_stages(manifests: Mapping[str, Manifest], log_bytes: int) -> dict[str, dict[str, int]]:
    """Return ``bytes_read`` and ``bytes_written`` by stage of a Criteo log, each input byte counted once.

    Only what a stage needs counts as read: of columns/ the categories alone, or everything else.
    """
    written = {stage: sum(entry.num_bytes for entry in found.files) for stage, found in manifests.items()}
    columns = ColumnsTotals.of(manifests["ingest"])
    rows = VocabularyTotals.of(manifests["rank"]).num_rows
    # A column of four-byte values: 32 bits and one validity bit per sample.
    bits_of_value = 8 * 4 + 1
    sparse_bits = bits_of_value * len(columns.sparse)
    dense_bits = bits_of_value * len(columns.dense) + 8 * columns.has_label
    num_train = CountsTotals.of(manifests["count"]).num_train_samples
    # What each stage must read, were every input read once and nothing else.
    read = {
        "ingest": log_bytes,
        "count": num_train * sparse_bits // 8,
        "rank": written["count"],
        "encode": columns.num_samples * sparse_bits // 8 + 4 * rows,
        "split": written["encode"] + 8 * rows,
        "pack": columns.num_samples * dense_bits // 8 + written["encode"] + written["split"],
    }
    return {stage: {"bytes_read": read[stage], "bytes_written": written[stage]} for stage in read}


def measure_rates(
    folder: Path, workers: int, log_bytes: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return bytes per second of ``workers`` threads together, the best of a few rounds (disk: the first).

    Seconds are those of ``clock``, such as time.process_time.

    Returns:
        ``memory``: read and written while large arrays that were touched before are copied; ``page_cache``:
        written to new files in ``folder``; ``disk``: the same until the disk has them; ``page_cache_read``:
        read from these files into a small buffer; ``new_memory``: of arrays touched for the first time.
    """
    num_bytes = min(max(log_bytes, _COPIED_BYTES), _MOST_WRITTEN_BYTES) // workers
    files = [folder / f"rate{number}" for number in range(workers)]
    written = read = synced = float("inf")
    # The best of a few rounds, since noise only adds time.
    for number in range(_ROUNDS):
        try:
            written = min(written, _seconds_of([partial(_write, file, num_bytes) for file in files], clock))
            if number == 0:  # one round: the disk is slow, and its rate is not what is compared
                synced = _seconds_of([partial(_sync, file) for file in files], clock)
            read = min(read, _seconds_of([partial(_read, file) for file in files], clock))
        finally:
            for file in files:
                file.unlink(missing_ok=True)
    # Touched once by np.ones, so that copying finds its pages.
    arrays = [np.ones((2, _COPIED_BYTES // 8), np.uint64) for _ in range(workers)]
    copied = min(_seconds_of([partial(np.copyto, *pair) for pair in arrays], clock) for _ in range(_ROUNDS))
    touched = min(_seconds_of([partial(_touch, num_bytes)] * workers, clock) for _ in range(_ROUNDS))
    return {
        "memory": 2 * workers * _COPIED_BYTES / copied,
        "page_cache": workers * num_bytes / written,
        "disk": workers * num_bytes / (written + synced),
        "page_cache_read": workers * num_bytes / read,
        "new_memory": workers * num_bytes / touched,
    }


def _seconds_of(jobs: Sequence[Callable[[], object]], clock: Callable[[], float]) -> float:
    """Return the seconds that the jobs take in parallel."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        start = clock()
        for future in [pool.submit(job) for job in jobs]:
            future.result()
        return clock() - start


def _write(path: Path, num_bytes: int) -> None:
    block = np.ones(min(MIB, num_bytes), np.uint8)
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-num_bytes // block.nbytes)):
            file.write(block.data)


def _read(path: Path) -> None:
    piece = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def _touch(num_bytes: int) -> None:
    arrays = []
    for _ in range(-(-num_bytes // _NEW_BYTES)):
        arrays.append(np.empty(_NEW_BYTES, np.uint8))
        arrays[-1][:: mmap.PAGESIZE] = 1


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def against_roofline(
    stages: Mapping[str, Mapping[str, float]], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return a record for each stage: its seconds, its bytes, and its time over its lower bound.

    ``floor_seconds`` is the lower bound: all bytes at the rate of memory. ``page_cache_floor_seconds`` is the
    bound with written bytes at the rate of the page cache. (These are keys of published result files.)
    """
    records = []
    for name, stage in stages.items():
        read = stage["bytes_read"]
        written = stage["bytes_written"]
        # No stage can be faster than its bytes pass through memory once.
        bound_seconds = (read + written) / rates["memory"]
        records.append(
            {
                "stage": name,
                "seconds": stage["wall_seconds"],
                "cpu_seconds": stage["cpu_seconds"],
                "bytes_read": read,
                "bytes_written": written,
                "floor_seconds": bound_seconds,
                "times_floor": stage["wall_seconds"] / bound_seconds,
                "page_cache_floor_seconds": read / rates["memory"] + written / rates["page_cache"],
            }
        )
    return records
