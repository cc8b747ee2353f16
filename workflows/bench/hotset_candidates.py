"""hotset's side of ``bench preprocess``: the functions that are timed, each in a separate process.

A candidate takes an empty folder, a raw log and a number of threads, and returns at least ``num_samples``.
The other side is in `polars_baseline`, so that Polars does not count towards hotset's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.stage_totals import ShardsTotals
from ...pipeline.raw.criteo.criteo_blocks import parse_block
from ...pipeline.raw.raw_blocks import Block, PlainBlock, iterate_blocks
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.runtime.resources import Resources
from ...pipeline.runtime.tasks import run_tasks
from ...pipeline.schema.schema import schema_named
from ...pipeline.stages.ingest import IngestConfig, ingest
from ...pipeline.stages.preprocess import PreprocessConfig, StageReport, preprocess
from .roofline import bytes_of_stages

Facts = dict[str, Any]
"""Result of a candidate."""
_Result = TypeVar("_Result")
_CONFIG = IngestConfig()
_SCHEMA = schema_named(_CONFIG.schema)


def hotset_preprocess(folder: Path, log: Path, workers: int, recipe: PreprocessConfig) -> Facts:
    """Preprocess a raw log to shards, every stage sealed; ``stages`` has seconds and bytes of each."""
    stages: dict[str, dict[str, float]] = {}
    manifests: dict[str, Manifest] = {}
    cpu_before = time.process_time()

    def on_stage(report: StageReport) -> None:
        nonlocal cpu_before
        cpu_now = time.process_time()
        stages[report.stage] = {"wall_seconds": report.seconds, "cpu_seconds": cpu_now - cpu_before}
        cpu_before = cpu_now
        manifests[report.stage] = report.manifest

    # Stages run one after another, so what the process used between two reports is the later stage's.
    shards = preprocess([log], recipe, folder / "out", Resources(workers=workers), on_stage=on_stage)
    # Bytes come from the manifests, so nothing is measured twice.
    for stage, num_bytes in bytes_of_stages(manifests, log.stat().st_size).items():
        stages[stage] |= num_bytes
    totals = ShardsTotals.of(shards)
    num_hot = [table.num_hot for table in totals.tables]
    samples = totals.samples.to_json()
    return {"num_samples": shards.num_samples, "samples": samples, "num_hot": num_hot, "stages": stages}


def hotset_parse(folder: Path, log: Path, workers: int) -> Facts:
    """Parse each block to Arrow columns and drop them."""
    return {"num_samples": sum(_parse_blocks(_count, log, workers))}


def hotset_parse_kept(folder: Path, log: Path, workers: int) -> Facts:
    """Parse each block to Arrow columns and keep all in memory."""
    return {"num_samples": sum(batch.num_rows for batch in _parse_blocks(_keep, log, workers))}


def hotset_ingest(folder: Path, log: Path, workers: int) -> Facts:
    """Run the whole stage: Arrow columns written, hashed and sealed, raw text hashed."""
    return {"num_samples": ingest([log], _CONFIG, folder / "columns", Resources(workers=workers)).num_samples}


def _parse_blocks(function: Callable[..., _Result], log: Path, workers: int) -> list[_Result]:
    """Apply ``function`` to each block of the log."""
    blocks = iterate_blocks(RawFile.inspect(log), _CONFIG.block_bytes, in_thread_buffer=True)
    return list(run_tasks(function, ((block,) for block in blocks), workers=workers))


def _count(block: PlainBlock | Block) -> int:
    return parse_block(block.read(), _SCHEMA, has_label=True).num_samples


def _keep(block: PlainBlock | Block) -> pa.RecordBatch:
    """Return the columns of a block, in memory of their own."""
    return pa.record_batch(parse_block(block.read(), _SCHEMA, has_label=True, is_kept=True).columns)
