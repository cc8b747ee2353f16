"""What the stages of `preprocess` take beside what moving their bytes alone would take.

A stage cannot be faster than memory moves what it reads and writes: its floor. Between the two stands the
page cache, which takes new bytes several times slower than memory copies old ones, because it finds a page
for each; that is measured beside it, and so is the rate at which the device takes them in the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...pipeline.folders.manifest import Manifest
from ...pipeline.sizes import GIB, MIB

_COPIED_BYTES = 32 * MIB
_ROUNDS = 3
_MOST_WRITTEN_BYTES = GIB


def bytes_of_stages(manifests: Mapping[str, Manifest], log_bytes: int) -> dict[str, dict[str, int]]:
    """``bytes_read`` and ``bytes_written`` by stage of a Criteo log, each byte of an input counted once.

    Read is what a stage needs: of columns/ the categories alone, or all but them.
    """
    written = {stage: sum(entry.num_bytes for entry in made.files) for stage, made in manifests.items()}
    columns, rows = manifests["ingest"], manifests["rank"].totals["num_rows"]
    bits_of_value = 8 * 4 + 1  # with its validity
    sparse_bits = bits_of_value * len(columns.totals["sparse"])
    dense_bits = bits_of_value * len(columns.totals["dense"]) + 8 * columns.totals["has_label"]
    num_train = manifests["count"].totals["num_train_samples"]
    read = {
        "ingest": log_bytes,
        "count": num_train * sparse_bits // 8,
        "rank": written["count"],
        "encode": columns.num_samples * sparse_bits // 8 + 4 * rows,
        "split": written["encode"] + 8 * rows,
        "pack": columns.num_samples * dense_bits // 8 + written["encode"] + written["split"],
    }
    return {stage: {"bytes_read": read[stage], "bytes_written": written[stage]} for stage in read}


def measure_rates(folder: Path, workers: int, log_bytes: int) -> dict[str, float]:
    """Bytes a second, of ``workers`` threads together; the best of a few rounds but for the disk.

    Returns:
        ``memory``: read and written while large arrays that are used again are copied; ``page_cache``:
        written to new files in ``folder``; ``disk``: the same until the device has them.
    """
    num_bytes = min(max(log_bytes, _COPIED_BYTES), _MOST_WRITTEN_BYTES) // workers
    files = [folder / f"rate{number}" for number in range(workers)]
    written = synced = float("inf")
    for number in range(_ROUNDS):
        try:
            written = min(written, _seconds_of([partial(_write, file, num_bytes) for file in files]))
            if number == 0:
                synced = _seconds_of([partial(_sync, file) for file in files])
        finally:
            for file in files:
                file.unlink(missing_ok=True)
    arrays = [np.ones((2, _COPIED_BYTES // 8), np.uint64) for _ in range(workers)]
    copied = min(_seconds_of([partial(np.copyto, *pair) for pair in arrays]) for _ in range(_ROUNDS))
    return {
        "memory": 2 * workers * _COPIED_BYTES / copied,
        "page_cache": workers * num_bytes / written,
        "disk": workers * num_bytes / (written + synced),
    }


def _seconds_of(jobs: Sequence[Callable[[], object]]) -> float:
    """Wall seconds that the jobs take side by side."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        started = time.perf_counter()
        for future in [pool.submit(job) for job in jobs]:
            future.result()
        return time.perf_counter() - started


def _write(path: Path, num_bytes: int) -> None:
    block = np.ones(min(MIB, num_bytes), np.uint8)
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-num_bytes // block.nbytes)):
            file.write(block.data)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def against_floor(
    stages: Mapping[str, Mapping[str, float]], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A record for each stage: its seconds, its bytes, and how many times its floor it takes.

    ``floor_seconds`` is all bytes at the rate of memory; ``page_cache_floor_seconds`` takes what is written
    at the page cache's.
    """
    records = []
    for name, stage in stages.items():
        read, written = stage["bytes_read"], stage["bytes_written"]
        floor = (read + written) / rates["memory"]
        records.append(
            {
                "stage": name,
                "seconds": stage["wall_seconds"],
                "cpu_seconds": stage["cpu_seconds"],
                "bytes_read": read,
                "bytes_written": written,
                "floor_seconds": floor,
                "times_floor": stage["wall_seconds"] / floor,
                "page_cache_floor_seconds": read / rates["memory"] + written / rates["page_cache"],
            }
        )
    return records
