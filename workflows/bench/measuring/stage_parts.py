"""Parsing and packing on one core, part by part, beside what moving their bytes takes at least.

A part is bound by one thing that the machine does: the system copies text from the page cache, clears new
memory or finds pages for a file that grows; memory copies arrays. The rate of each is measured on one core.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from ....pipeline.folders.manifest import Manifest
from ....pipeline.folders.stage_totals import ColumnsTotals
from ....pipeline.runtime.resources import Resources
from ....pipeline.stages.pack import pack
from ....pipeline.stages.preprocess import PreprocessConfig, StageReport, preprocess
from ...console import plain_table
from ..hotset_candidates import hotset_parse, hotset_parse_kept
from ..roofline import bytes_of_stages, measure_rates
from .frame_samples import seconds_of_parts
from .rounds import take_turns

_READ, _TALLIED, _DECODED = "text from the page cache", "lines counted, text hashed", "fields decoded"
_PARTS_OF_PARSING = {"ByteSource._fill": _READ, "TextTally.add": _TALLIED, "parse_block": _DECODED}
_KEYS, _ORDERED = "samples assigned to files", "rows of a file ordered"
_TRANSFORMED, _SCATTERED = "dense values transformed", "rows scattered to files"
_GATHERED, _WRITTEN = "rows gathered into batches", "batches hashed and written"
_PARTS_OF_PACKING = {
    "Shuffle.keys_and_kinds": _KEYS,
    "ShufflePlan.choose": _KEYS,
    "plan_shuffle": _KEYS,
    "transform_column": _TRANSFORMED,
    "_scatter_part": _SCATTERED,
    "Buffers.order": _ORDERED,
    "ShardBatches.batch": _GATHERED,
    "HashedFile.write": _WRITTEN,
}
"""Parts of a job by the functions whose time is theirs, in the order of the job."""
_HALF = 2


@dataclass(frozen=True, slots=True)
class PartBound:
    """The least work of a part."""

    num_bytes: float
    """Bytes per sample, read or written."""
    rate: str
    """Name of the rate that bounds it."""


def measure_stage_parts(log: Path, recipe: PreprocessConfig, scratch: Path, rounds: int) -> dict[str, Any]:
    """Run parsing and packing on one core, ``rounds`` times in turn; return plain data, ready for JSON.

    Args:
        log: raw log of Criteo's format, in the page cache.
        recipe: settings of all stages.
        scratch: an empty folder of the file system that shards are written to.
        rounds: each median is over so many.

    Returns:
        ``rates`` of one core, bytes per CPU second; of each job, and of each of its parts,
        ``cpu_nanoseconds`` and ``bound_nanoseconds`` per sample.
    """
    manifests: dict[str, Manifest] = {}

    def keep(report: StageReport) -> None:
        manifests[report.stage] = report.manifest

    preprocess([log], recipe, scratch / "out", Resources(), on_stage=keep)
    inputs = (manifests["ingest"], manifests["encode"], manifests["split"])

    def pack_alone() -> None:
        pack(recipe.pack, *inputs, scratch / "packed", Resources(workers=1))

    def packing() -> dict[str, float]:
        try:
            return seconds_of_parts(pack_alone, _PARTS_OF_PACKING)
        finally:
            shutil.rmtree(scratch / "packed", ignore_errors=True)

    def parsing(candidate: Callable[..., Any]) -> Callable[[], dict[str, float]]:
        return lambda: seconds_of_parts(lambda: candidate(scratch, log, 1), _PARTS_OF_PARSING)

    jobs = {"parse": parsing(hotset_parse), "parse, kept": parsing(hotset_parse_kept), "pack": packing}
    seconds = take_turns(jobs, rounds)
    rates = measure_rates(scratch, 1, log.stat().st_size, time.process_time)
    num_samples = manifests["ingest"].num_samples
    bounds = _bounds(manifests, log.stat().st_size)
    shutil.rmtree(scratch / "out")
    return {
        "rates": rates,
        "jobs": {
            name: _describe_job(found, bounds[name], rates, num_samples) for name, found in seconds.items()
        },
    }


def _bounds(manifests: Mapping[str, Manifest], log_bytes: int) -> dict[str, dict[str, PartBound]]:
    """Return what each part of each job must do, per sample."""
    num_samples = manifests["ingest"].num_samples
    moved = bytes_of_stages(manifests, log_bytes)
    columns = ColumnsTotals.of(manifests["ingest"])
    text = log_bytes / num_samples
    shards = moved["pack"]["bytes_written"] / num_samples
    dense = 4 * len(columns.dense)
    # A row in the buffers: tag, label, dense values, ids and key.
    row = 8 + dense + 4 * len(columns.sparse) + 8
    parsed = moved["ingest"]["bytes_written"] / num_samples
    parsing = {_READ: PartBound(text, "page_cache_read"), _TALLIED: PartBound(text, "memory")}
    return {
        "parse": parsing | {_DECODED: PartBound(text + parsed, "memory")},
        "parse, kept": parsing | {_DECODED: PartBound(parsed, "new_memory")},
        "pack": {
            _KEYS: PartBound(8, "memory"),
            _TRANSFORMED: PartBound(_HALF * dense, "memory"),
            _SCATTERED: PartBound(_HALF * row, "memory"),
            _ORDERED: PartBound(_HALF * 8, "memory"),
            _GATHERED: PartBound(row + shards, "memory"),
            _WRITTEN: PartBound(shards, "page_cache"),
        },
    }


def _describe_job(
    rounds: list[dict[str, float]],
    bounds: Mapping[str, PartBound],
    rates: Mapping[str, float],
    num_samples: int,
) -> dict[str, Any]:
    """Return the medians of a job's parts and of the whole, per sample."""
    parts: list[dict[str, Any]] = []
    for part in rounds[0]:
        bound = bounds.get(part)
        parts.append(
            {
                "part": part,
                "cpu_nanoseconds": 1e9 * median(found[part] for found in rounds) / num_samples,
                "bytes": bound.num_bytes if bound else None,
                "rate": bound.rate if bound else None,
                "bound_nanoseconds": 1e9 * bound.num_bytes / rates[bound.rate] if bound else 0.0,
            }
        )
    whole = 1e9 * median(sum(found.values()) for found in rounds) / num_samples
    least = sum(part["bound_nanoseconds"] for part in parts)
    return {
        "cpu_nanoseconds": whole,
        "bound_nanoseconds": least,
        "times_bound": whole / least,
        "parts": parts,
    }


def print_stage_parts(found: Mapping[str, Any], console: Console) -> None:
    """Print a row for each part, and one for each job."""
    columns = ("job", "part", "CPU ns per sample", "bytes", "bound by", "bound ns")
    table = plain_table("Parts on one core", columns, texts=("job", "part", "bound by"))
    for name, job in found["jobs"].items():
        for part in job["parts"]:
            cells = ("", "", "")
            if part["rate"] is not None:
                bound = f"{part['bound_nanoseconds']:.1f}"
                cells = (f"{part['bytes']:.0f}", part["rate"].replace("_", " "), bound)
            table.add_row(name, part["part"], f"{part['cpu_nanoseconds']:.1f}", *cells)
        whole = (f"{job['cpu_nanoseconds']:.1f}", "", "", f"{job['bound_nanoseconds']:.1f}")
        table.add_row(name, "all", *whole)
    console.print(table)
