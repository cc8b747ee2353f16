"""Check disk and memory caps of all stages before `preprocess` starts.

A stage that refuses in the middle of a run names the memory that is enough for that stage alone, and a user
who follows its hint may meet the refusal of the next one. So all stages are checked first, and before a run
removes a finished folder to write it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import MIB, ConfigError, format_byte_size
from ..folders.disk import bytes_in, free_bytes, is_discarded, refuse_discarded
from ..folders.manifest import Manifest, is_sealed
from ..formats.ids import PartSize, largest_part
from ..raw.raw_file import RawFile
from ..runtime.memory import StageNeed, need_of, need_of_worker
from ..runtime.tasks import DEFAULT_RESOURCES, Resources
from ..schema.schema_file import schema_of
from . import count, encode, ingest, pack, rank
from .count import refuse_count
from .encode import refuse_encode
from .ingest import IngestConfig, samples_of_block
from .pack import PackConfig, refuse_pack
from .rank import refuse_rank
from .shuffle import RowLayout
from .split import refuse_split
from .stage_order import INPUTS, inputs_of

DISK_FACTORS = {
    "columns": 0.70,
    "counts": 0.10,
    "vocabulary": 0.17,
    "samples": 0.45,
    "plan": 0.01,
    "shards": 0.70,
}
"""Bytes of each folder for a byte of plain Criteo text, measured on generated logs of 0.2 to 4 M samples
(0.66, 0.09, 0.16, 0.43, 0.004 and 0.66 at the most: 2.0 together) and rounded up. What `count` and `encode`
spill where memory is short is removed before the next folders are written, which are larger: the sum at the
end is the most there is at any moment (measured at a cap that spills)."""
COMPRESSION = 3.0
"""Bytes of text for a byte of a compressed log; gzip makes 2.5 of Criteo's."""
_LIST_ELEMENT_BYTES = 8
"""Bytes of a block for each element of a list: a value of Parquet, and about as much text."""


def disk_needed(
    raw: Sequence[Path], out: Path, *, is_columnar: bool = False, extend: bool = False
) -> dict[str, int]:
    """Return the estimated bytes that each folder inside ``out`` still needs; sealed ones need none.

    Args:
        raw: existing logs.
        out: the folder called DIR in help texts.
        is_columnar: the logs are Parquet, compressed inside.
        extend: sealed folders of fewer logs grow too.
    """
    text_bytes = 0.0
    for path in raw:
        file = RawFile.inspect(path)
        text_bytes += file.num_bytes * (COMPRESSION if file.compression or is_columnar else 1)
    columns = out / "columns"
    # With more logs than before, sealed folders grow or are rebuilt, so none of them counts as done.
    grows = extend and is_sealed(columns) and len(Manifest.read(columns).inputs) < len(raw)
    return {
        name: 0
        if is_sealed(out / name) and not grows
        else max(0, int(factor * text_bytes) - bytes_in(out / name))
        for name, factor in DISK_FACTORS.items()
    }


def refuse_full_disk(needed: Mapping[str, int], out: Path, option: str = "--out") -> None:
    """Raise ConfigError if ``needed`` is more than the file system of ``out`` has free."""
    total = sum(needed.values())
    free = free_bytes(out)
    if total <= free:
        return
    parts = ", ".join(f"{name} {format_byte_size(size)}" for name, size in needed.items() if size >= MIB)
    raise ConfigError(
        f"{out} needs about {format_byte_size(total)} of disk ({parts}), {format_byte_size(free)} are free",
        hint=f"free {format_byte_size(total - free)} more there, or give another {option}",
    )


def memory_needs(
    files: Sequence[RawFile],
    configs: tuple[IngestConfig, PackConfig],
    out: Path,
    resources: Resources,
) -> list[StageNeed]:
    """Return what each stage needs, as far as it follows from the logs and settings.

    What follows only from counts and samples is not in it: the rows of `rank` by another order than frequency
    and of FAE's modes of `split`, and the lists of one file of `pack`.

    Args:
        files: the logs that `ingest` has to read.
        configs: of `ingest` and `pack`, whose settings say how large parts and files are.
        out: the folder called DIR in help texts.
        resources: the workers.
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
    found = [need_of(stage, resources, needed) for stage, needed in needs.items()]
    if files:
        worker_bytes = ingest.needed_bytes(files, settings)
        found.append(need_of_worker("ingest", resources, worker_bytes, option="--block-bytes"))
    return found


def _largest_part(files: Sequence[RawFile], config: IngestConfig, out: Path) -> PartSize:
    """Return the size of the largest part of existing columns and of logs to read."""
    schema = schema_of(config.schema)
    # The size of existing parts is known; that of others is estimated from the first lines of their file.
    parts = [PartSize(1)]
    if is_sealed(out / "columns"):
        columns = Manifest.read(out / "columns")
        parts.append(largest_part(columns, columns.files))
    num_elements = config.block_bytes // _LIST_ELEMENT_BYTES if schema.lists else 0
    for file in files:
        samples = samples_of_block(file, schema, config.block_bytes, has_label=config.label)
        parts.append(PartSize(samples, num_elements))
    return PartSize(max(part.num_samples for part in parts), max(part.num_list_lookups for part in parts))


_REFUSALS: dict[str, Callable[..., object]] = {
    "count": refuse_count,
    "rank": refuse_rank,
    "encode": refuse_encode,
    "split": refuse_split,
    "pack": refuse_pack,
}
"""By stage of `preprocess` after `ingest`."""


def refuse_stage(stage: str, config: object, folder: Path, resources: Resources = DEFAULT_RESOURCES) -> None:
    """Raise HotsetError where a stage after `ingest` would refuse its inputs, settings or memory.

    Args:
        stage: name of the stage.
        config: its settings.
        folder: the folder called DIR in help texts, with the folders that the stage reads.
        resources: workers, and the memory cap.
    """
    names = inputs_of(stage, config)
    refuse_without_inputs(stage, folder, names)
    inputs = [Manifest.read(folder / name) for name in names]
    # What a stage reads only with some settings is passed by the name of its folder.
    num_always = len(INPUTS[stage])
    more = dict(zip(names[num_always:], inputs[num_always:], strict=True))
    _REFUSALS[stage](config, *inputs[:num_always], resources, **more)


def refuse_without_inputs(stage: str, folder: Path, names: Sequence[str]) -> None:
    """Raise ManifestError if a folder that ``stage`` would read was discarded."""
    redo = "ingest" if is_discarded(folder / "columns") else "encode"
    for name in names:
        refuse_discarded(folder / name, stage, redo)
