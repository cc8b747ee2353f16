"""The memory that the stages of a run need at least, asked before the first of them begins.

A stage that is refused in the middle of a run names the memory that would do for itself alone: who follows
its hint may meet the refusal of the next one. So `preprocess` asks all of them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..folders.manifest import Manifest, is_sealed
from ..formats.part_ids import PartSize, largest_part
from ..packing.row_layout import RowLayout
from ..raw.raw_file import RawFile
from ..runtime.memory import StageNeed, need_of, need_of_worker
from ..runtime.resources import Resources
from ..schema.schema_file import schema_of
from . import count, encode, ingest, pack, rank
from .ingest import IngestConfig
from .pack import PackConfig
from .part_memory import samples_of_block

_LIST_ELEMENT_BYTES = 8
"""Bytes of a block for each element of a list: a value of Parquet, and about as much text."""


def memory_needs(
    files: Sequence[RawFile],
    configs: tuple[IngestConfig, PackConfig],
    out: Path,
    resources: Resources,
    *,
    transposes: bool,
) -> list[StageNeed]:
    """Return what each stage needs, as far as it follows from the logs and settings.

    What follows only from counts and samples is not in it: the rows of `rank` by another order than frequency
    and of FAE's modes of `split`, and the lists of one file of `pack`.

    Args:
        files: the logs that `ingest` has to read.
        configs: of `ingest` and `pack`, whose settings say how large parts and files are.
        out: the folder called DIR in help texts.
        resources: the workers.
        transposes: `transpose` is run, too.
    """
    settings, packing = configs
    schema = schema_of(settings.schema)
    part = _largest_part(files, settings, out)
    layout = RowLayout(len(schema.dense), len(schema.lists), len(schema.one_hot))
    list_width = part.num_list_lookups // max(1, part.num_samples)
    width = layout.width + list_width
    workers = resources.workers
    needs = {
        "count": count.needed_bytes(len(schema.sparse), workers),
        "rank": rank.needed_bytes(workers),
        "encode": encode.needed_bytes(part, len(schema.one_hot), workers),
        "pack": pack.needed_bytes(packing, width, part.num_samples, workers),
    }
    if transposes:
        # `preprocess` starts sooner without this stage where it is not wanted.
        from . import transpose

        samples = pack.samples_per_file(packing, width)
        lookups = packing.batch_size * len(schema.one_hot) + samples * list_width
        needs["transpose"] = transpose.needed_bytes(samples * 4 * (width + 1), lookups, workers)
    found = [need_of(stage, resources, needed) for stage, needed in needs.items()]
    if files:
        worker_bytes = ingest.needed_bytes(files, settings)
        found.append(need_of_worker("ingest", resources, worker_bytes, option="--block-bytes"))
    return found


def _largest_part(files: Sequence[RawFile], config: IngestConfig, out: Path) -> PartSize:
    """Return the size of the largest part of the columns that exist and of those that are to be read."""
    schema = schema_of(config.schema)
    # Parts that exist tell their size; of others the first lines of their file tell it, about.
    parts = [PartSize(1)]
    if is_sealed(out / "columns"):
        columns = Manifest.read(out / "columns")
        parts.append(largest_part(columns, columns.files))
    num_elements = config.block_bytes // _LIST_ELEMENT_BYTES if schema.lists else 0
    for file in files:
        samples = samples_of_block(file, schema, config.block_bytes, has_label=config.label)
        parts.append(PartSize(samples, num_elements))
    return PartSize(max(part.num_samples for part in parts), max(part.num_list_lookups for part in parts))
