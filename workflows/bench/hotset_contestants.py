"""hotset's side of ``bench preprocess``: what runs, in a process of its own, while the clock runs.

A contestant takes an empty folder, a raw log and a number of threads, and returns at least ``num_samples``.
The other side is in `polars_baseline`, so that this one's memory holds no Polars.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...pipeline.folders.manifest import Manifest
from ...pipeline.raw.criteo_blocks import parse_block
from ...pipeline.raw.raw_blocks import Block, RawFile, iterate_blocks
from ...pipeline.runtime.tasks import run_tasks
from ...pipeline.schema.schema import schema_named
from ...pipeline.stages.ingest import IngestConfig, ingest
from ...pipeline.stages.preprocess import PreprocessConfig, StageReport, preprocess
from .stage_floors import bytes_of_stages

Facts = dict[str, Any]
_CONFIG = IngestConfig()
_SCHEMA = schema_named(_CONFIG.schema)


def hotset_preprocess(folder: Path, log: Path, workers: int, recipe: PreprocessConfig) -> Facts:
    """Raw log to shards with every stage sealed on the way; seconds and bytes of each in ``stages``."""
    stages: dict[str, dict[str, float]] = {}
    manifests: dict[str, Manifest] = {}
    cpu = time.process_time()

    def on_stage(report: StageReport) -> None:
        nonlocal cpu
        before, cpu = cpu, time.process_time()
        stages[report.stage] = {"wall_seconds": report.seconds, "cpu_seconds": cpu - before}
        manifests[report.stage] = report.manifest

    shards = preprocess([log], recipe, folder / "out", workers=workers, on_stage=on_stage)
    for stage, num_bytes in bytes_of_stages(manifests, log.stat().st_size).items():
        stages[stage] |= num_bytes
    num_hot = [table["num_hot"] for table in shards.totals["tables"]]
    samples = shards.totals["samples"]
    return {"num_samples": shards.num_samples, "samples": samples, "num_hot": num_hot, "stages": stages}


def hotset_parse(folder: Path, log: Path, workers: int) -> Facts:
    """Arrow columns of each block, handed on and forgotten."""
    return {"num_samples": sum(_parse_blocks(_count, log, workers))}


def hotset_parse_kept(folder: Path, log: Path, workers: int) -> Facts:
    """Arrow columns of each block, all kept in memory."""
    return {"num_samples": sum(batch.num_rows for batch in _parse_blocks(_keep, log, workers))}


def hotset_ingest(folder: Path, log: Path, workers: int) -> Facts:
    """The whole stage: Arrow columns written, hashed and sealed, raw text hashed."""
    return {"num_samples": ingest([log], _CONFIG, folder / "columns", workers=workers).num_samples}


def _parse_blocks(function: Callable[..., Any], log: Path, workers: int) -> list[Any]:
    blocks = iterate_blocks(RawFile.look_at(log), _CONFIG.block_bytes, in_scratch=True)
    return list(run_tasks(function, ((read,) for read in blocks), workers=workers))


def _count(read: Callable[[], Block]) -> int:
    return parse_block(read(), _SCHEMA, has_label=True).num_samples


def _keep(read: Callable[[], Block]) -> Any:
    """A copy: the parser's memory is used again for the thread's next block."""
    batch = pa.record_batch(parse_block(read(), _SCHEMA, has_label=True).columns)
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
