"""``count``: columns/ -> counts/, how often each category is looked up in the training part.

Exact. Memory holds the distinct categories, never the log; where even they do not fit, the largest table is
emptied into a run on disk, and a table's runs are merged at the end: one pass over the log, whatever the
cap. Which samples are for evaluation is decided here, once: the last ones in log order, so that nothing of
them reaches counts, ids or the hot set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.counting import BYTES_PER_TABLE_BYTE, SMALLEST_ENTRIES, CategoryCounter, merge_runs
from .arrow_files import read_batch, validity_of, values_of, write_batch
from .errors import ConfigError
from .manifest import FileEntry, Manifest
from .memory import array_in, room_for, spill_errors_explained
from .output import Output, input_of
from .sizes import MIB
from .tables import lookups_of, mark_of
from .tasks import Advance, ProgressCallback, num_workers, run_tasks, silent

VERSION = 1
_GROUPS_PER_WORKER = 2
_LEAST_ROOM = 8 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class CountConfig:
    """What a run of the count stage may vary; part of its fingerprint."""

    eval_fraction: float = 1 / 7
    """Share of the log, its last samples, kept for evaluation, in [0, 1). 0 keeps none."""

    eval_files: int = 0
    """Keep this many of the last raw files for evaluation instead of a fraction of the log."""

    def __post_init__(self) -> None:
        if not 0 <= self.eval_fraction < 1:
            raise ConfigError(f"eval_fraction must be in [0, 1), got {self.eval_fraction}")
        if self.eval_files < 0:
            raise ConfigError(f"eval_files must be 0 or more, got {self.eval_files}")


def count(
    config: CountConfig,
    columns: Manifest,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns -> counts: occurrences of each category of each table in the training samples.

    Reads:   ``*.arrow``, C* uint32 or uint64 with nulls, or lists of uint64
    Writes:  ``{feature}.arrow``: category uint32 or uint64, ascending; count int64, look-ups
    """
    output = Output.begin("count", VERSION, config, [input_of(columns)], out)
    if isinstance(output, Manifest):
        return output
    num_train = num_training_samples(config, columns)
    names = [name for name in columns.totals["sparse"] if not output.has(f"{name}.arrow")]
    num_groups = _GROUPS_PER_WORKER * num_workers(workers)
    groups = [group for first in range(num_groups) if (group := names[first::num_groups])]
    needed = needed_bytes(len(columns.totals["sparse"]), workers)
    room = room_for("count", memory_bytes, needed, workers=workers) // num_workers(workers)
    total, done = num_train * len(names), 0

    def advance(num_lookups: int) -> None:
        nonlocal done
        done += num_lookups
        progress("count", done, total)

    tasks = ((group, num_train, columns, output, room, Advance(advance)) for group in groups)
    for _ in run_tasks(_count_group, tasks, workers=workers):
        pass
    tables = [_facts_of(name, columns, output.finished[f"{name}.arrow"]) for name in columns.totals["sparse"]]
    totals = {"num_samples": columns.num_samples, "num_train_samples": num_train, "tables": tables}
    return output.seal(totals)


def _facts_of(name: str, columns: Manifest, entry: FileEntry) -> dict[str, Any]:
    kept = {key: fact for key, fact in entry.facts.items() if key in ("num_missing", "num_lookups")}
    return {"name": name, "num_categories": entry.num_samples} | kept | mark_of(name, columns)


def needed_bytes(num_features: int, workers: int) -> int:
    """The least that `count` can do with: some room for each worker, and small tables of all features."""
    return num_workers(workers) * _LEAST_ROOM + 16 * 5 * SMALLEST_ENTRIES * num_features


def _count_group(
    names: list[str],
    num_train: int,
    columns: Manifest,
    output: Output,
    room: int,
    advance: Advance,
) -> None:
    tables = _Tables(names, int(room / BYTES_PER_TABLE_BYTE), output)
    left, dtypes = num_train, dict.fromkeys(names, np.dtype(np.uint32))
    for entry in columns.files:
        num_samples = min(entry.num_samples, left)
        if num_samples == 0:
            continue
        left -= num_samples
        batch = read_batch(columns, entry)
        for name in names:
            array, num_lookups = lookups_of(batch.column(name), num_samples)
            dtypes[name] = np.dtype(array.type.to_pandas_dtype())
            tables.add(name, values_of(array, dtypes[name])[:num_lookups], validity_of(array))
        advance(num_samples * len(names))
    for name in names:
        facts = {"num_missing": tables.counters[name].num_missing}
        categories, counts = tables.result(name, dtypes[name])
        if mark_of(name, columns):
            facts["num_lookups"] = facts["num_missing"] + int(counts.sum())
        written = {"category": pa.array(categories), "count": pa.array(counts)}
        name += ".arrow"
        with output.writing(name, categories.shape[0], **facts) as path:
            write_batch(path, written)


class _Tables:
    """The tables one worker counts at a time; what they hold beyond ``max_bytes`` goes to runs on disk."""

    def __init__(self, names: list[str], max_bytes: int, output: Output) -> None:
        self.counters = {name: CategoryCounter() for name in names}
        self._max_bytes, self._output = max_bytes, output
        self._run_lengths: dict[str, list[int]] = {name: [] for name in names}

    def add(self, name: str, categories: NDArray[Any], is_valid: NDArray[np.uint8]) -> None:
        self.counters[name].add(categories, is_valid, lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        """Grow a full table, emptying larger ones before, or empty it."""
        counter = self.counters[name]
        while (
            sum(other.num_bytes for other in self.counters.values()) + 3 * counter.num_bytes > self._max_bytes
        ):
            largest = max(self.counters, key=lambda other: self.counters[other].num_bytes)
            if self.counters[largest].num_bytes == counter.num_bytes:
                return self._spill(name)
            self._spill(largest)
        return counter.grow()

    def _spill(self, name: str) -> None:
        """Append what a table holds to its file of runs: categories, ascending, then their counts."""
        categories, counts = self.counters[name].take()
        lengths = self._run_lengths[name]
        with (
            spill_errors_explained(self._output),
            self._runs_file(name).open("ab" if lengths else "wb") as file,
        ):
            categories.tofile(file)
            counts.tofile(file)
        lengths.append(categories.shape[0])

    def _runs_file(self, name: str) -> Path:
        return self._output.scratch_path(f"{name}.runs")

    def result(self, name: str, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """A table's categories, ascending, and their counts; the table is gone."""
        lengths = self._run_lengths[name]
        if not lengths:
            categories, counts = self.counters.pop(name).take()
            return categories.astype(dtype), counts
        self._spill(name)
        del self.counters[name]
        sizes = np.array(lengths, np.int64)
        starts = 2 * (np.cumsum(sizes) - sizes)
        words = np.memmap(self._runs_file(name), np.uint64, "r")
        share = self._max_bytes // 2
        merged = array_in(share, self._output, (int(sizes.sum()),), dtype)
        totals = array_in(share, self._output, (int(sizes.sum()),), np.int64)
        num_categories = merge_runs(words, starts, sizes, merged, totals)
        self._runs_file(name).unlink()
        return merged[:num_categories], totals[:num_categories]


def num_training_samples(config: CountConfig, columns: Manifest) -> int:
    """Samples of the training part, the first ones of the log.

    Raises:
        ConfigError: every file, or every sample, would be for evaluation.
    """
    num_samples = columns.num_samples
    files = [file["samples"] for file in columns.totals["raw"]]
    if config.eval_files:
        num_train = sum(files[: -config.eval_files])
        wish = f"eval_files {config.eval_files} of {len(files)} files"
    else:
        num_train = num_samples - int(num_samples * config.eval_fraction)
        wish = f"eval_fraction {config.eval_fraction} of {num_samples} samples"
    if num_train == 0:
        raise ConfigError(f"{wish} leaves no sample to train on")
    return int(num_train)
