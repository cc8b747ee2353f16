"""Raw logs to shards: the stages in order, what is sealed already being skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ManifestError
from ..folders.discard import discard_files, is_discarded, refuse_discarded
from ..folders.manifest import MANIFEST, Manifest
from ..folders.removal import remove_folders
from ..formats.part_ids import PartSize
from ..runtime.memory import refuse_small_cap
from ..runtime.tasks import ProgressCallback, silent
from ..schema.feature_settings import FeatureSettings, numbers_of
from ..schema.schema_file import schema_of
from . import count as count_stage
from . import encode as encode_stage
from . import pack as pack_stage
from . import rank as rank_stage
from .adopt import adopt
from .count import CountConfig, count
from .encode import EncodeConfig, encode
from .ingest import IngestConfig, ingest, ingest_identity
from .map_ids import ID_MAP, map_ids
from .pack import PackConfig, pack
from .preflight import disk_needed, refuse_full_disk, samples_of_block
from .rank import RankConfig, rank
from .schedule import schedule
from .split import SplitConfig, split, widths_of
from .stage_order import ALL_FOLDERS as ALL_FOLDERS
from .stage_order import ALL_INPUTS, OLD_VOCABULARY, folders_beside, inputs_of, refuse_extension, remove_stale
from .stage_order import FOLDERS as FOLDERS
from .stage_order import INPUTS as INPUTS

_STAGES: dict[str, Callable[..., Manifest]] = {
    "count": count,
    "rank": rank,
    "encode": encode,
    "split": split,
    "pack": pack,
    "schedule": schedule,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreprocessConfig:
    """The configs of all stages."""

    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Raw logs to typed columns."""
    count: CountConfig = field(default_factory=CountConfig)
    """How often each category is looked up."""
    rank: RankConfig = field(default_factory=RankConfig)
    """Ids in the order of importance."""
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    """Categories to ids."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Hot rows under a byte budget."""
    pack: PackConfig = field(default_factory=PackConfig)
    """Shuffled batches."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run."""

    stage: str
    manifest: Manifest
    seconds: float
    num_samples: int
    """Samples of the log."""
    was_sealed: bool
    """Made by an earlier run and only looked at now."""


def preprocess(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
    on_stage: Callable[[StageReport], None] = lambda report: None,
    until: str = "pack",
    discard: Sequence[str] = (),
    like: Path | None = None,
    extend: bool = False,
    maps_ids: bool = False,
    on_removed: Callable[[list[Path]], None] = lambda removed: None,
) -> Manifest:
    """Run every stage into its folder inside ``out``; returns the manifest of the last.

    Args:
        raw: logs, in order.
        config: a recipe, or a variant of one.
        out: the folder that is DIR elsewhere.
        workers: threads; 0 takes every core. Does not change a byte of the output.
        memory_bytes: anonymous resident memory `count`, `rank`, `encode` and `pack` keep within; None takes a
            quarter of the machine's.
        progress: told how far each stage is.
        on_stage: told when a stage is done.
        until: the last stage to run.
        discard: folders to empty when the last stage is done, see `pipeline.discard`.
        like: a folder whose vocabulary gives the ids; nothing is counted and every sample is for evaluation.
        extend: where ``out`` was made from the first of these logs, read those behind them alone, count what
            is new, and make again what follows. The bytes are those of a run from scratch.
        maps_ids: when extending, write the new id of each old row to ``id_map/``, see `pipeline.id_map`.
        on_removed: told which folders were removed because they were made from fewer logs.

    Raises:
        HotsetError: the disk is too small or the cap cannot be kept, before anything is done; or whatever a
            stage refuses; ``out`` stays resumable.
    """
    config = settled(config)
    check_resources(raw, config, out, workers=workers, memory_bytes=memory_bytes, extend=extend)
    if extend:
        refuse_extension(out, {"ingest": ingest_identity(config.ingest), "count": config.count})
    for stage in FOLDERS:
        if like is not None and stage == "count":
            continue
        started, before = time.perf_counter(), _fingerprint_of(out / FOLDERS[stage])
        if stage == "ingest":
            with_files = partial(
                ingest,
                raw,
                config.ingest,
                out / "columns",
                workers=workers,
                progress=progress,
                extend=extend,
            )
            made = _even_without_files(with_files, out / "columns")
            if extend:
                on_removed(remove_stale(out, keep_vocabulary=maps_ids))
            num_samples = made.num_samples
        elif stage == "rank" and like is not None:
            model_columns, model = (Manifest.read(like / name) for name in ("columns", "vocabulary"))
            made = adopt(made, model_columns, model, out / "vocabulary", progress=progress)
        else:
            stage_config = getattr(config, stage)
            made = run_stage(
                stage, stage_config, out, workers=workers, memory_bytes=memory_bytes, progress=progress
            )
        if stage == "rank" and (out / OLD_VOCABULARY).exists():
            _map_old_ids(made, out, workers=workers, memory_bytes=memory_bytes, progress=progress)
        was_sealed = made.fingerprint == before
        on_stage(StageReport(made.stage, made, time.perf_counter() - started, num_samples, was_sealed))
        if stage == until:
            break
    for name in discard:
        discard_files(out / name)
    return made


def _fingerprint_of(folder: Path) -> str | None:
    return Manifest.read(folder).fingerprint if (folder / MANIFEST).exists() else None


def _map_old_ids(new: Manifest, out: Path, **run: Any) -> None:
    """Map the ids of the vocabulary that an extension put aside, which goes then."""
    old = Manifest.read(out / OLD_VOCABULARY)
    map_ids(old, new, out / ID_MAP, **run)
    remove_folders([old.folder])


def check_resources(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    *,
    workers: int,
    memory_bytes: int | None,
    extend: bool = False,
) -> None:
    """Raise ConfigError where a setting names no feature, the disk is too small, or a cap for one stage."""
    schema = schema_of(config.ingest.schema)
    numbers_of("feature_min_counts", config.rank.feature_min_counts, schema.sparse, config.rank.min_count)
    numbers_of("feature_dims", config.split.feature_dims, schema.sparse, config.split.embedding_dim)
    refuse_full_disk(disk_needed(raw, out, is_columnar=schema.format == "parquet", extend=extend), out)
    if memory_bytes is None:
        return
    num_features, largest = len(schema.sparse), samples_of_block(config.ingest.block_bytes)
    part = PartSize(largest, config.ingest.block_bytes // 8 if schema.lists else 0)
    width = 2 + len(schema.dense) + num_features + part.num_list_lookups // max(1, largest)
    for stage, needed in {
        "count": count_stage.needed_bytes(num_features, workers),
        "rank": rank_stage.needed_bytes(workers),
        "encode": encode_stage.needed_bytes(part, len(schema.one_hot), workers),
        "pack": pack_stage.needed_bytes(config.pack, width, largest, workers),
    }.items():
        refuse_small_cap(stage, memory_bytes, needed, workers=workers)


def _even_without_files(run: Callable[[], Manifest], folder: Path) -> Manifest:
    """What ``run`` makes in ``folder``; its manifest where the files were discarded and all else is equal."""
    try:
        return run()
    except ManifestError as error:
        if is_discarded(folder) and isinstance(error.__cause__, FileNotFoundError):
            return Manifest.read(folder)
        raise


def run_stage(
    stage: str,
    config: object,
    folder: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """Run one stage after `ingest` inside ``folder``, from the folders of the stages before it."""
    if not (folder / ALL_FOLDERS[stage] / MANIFEST).exists():
        _refuse_without_inputs(stage, folder, inputs_of(stage, config))
    inputs = [Manifest.read(folder / name) for name in ALL_INPUTS[stage]]
    more: dict[str, Any] = {} if stage == "split" else {"memory_bytes": memory_bytes}
    for name in inputs_of(stage, config)[len(inputs) :]:
        more[name] = Manifest.read(folder / name)
    out = folder / ALL_FOLDERS[stage]
    run = partial(_STAGES[stage], config, *inputs, out, workers=workers, progress=progress, **more)
    return _even_without_files(run, out)


def settled(config: PreprocessConfig) -> PreprocessConfig:
    """``config`` with what `rank` has to know of `split`: FAE's modes rank by a sample, peeling by widths."""
    rank, split = config.rank, config.split
    if split.mode != "budget" and rank.rank_by == "frequency":
        rank = replace(rank, rank_by="sampled", with_replacement=split.mode == "fae-code")
    if split.mode != "budget" and rank.rank_by != "sampled":
        raise ConfigError(
            f"mode {split.mode} cannot be had with rank_by {rank.rank_by}", hint="--rank-by sampled"
        )
    if rank.rank_by == "peel" and split.feature_dims and not rank.peel_row_bytes:
        features = schema_of(config.ingest.schema).sparse
        widths = zip(features, widths_of(split, features), strict=True)
        found = FeatureSettings((name, width["row_bytes"]) for name, width in widths)
        rank = replace(rank, peel_row_bytes=found)
    return replace(config, rank=rank)


def _refuse_without_inputs(stage: str, folder: Path, names: Sequence[str]) -> None:
    """Raise ManifestError where a folder that ``stage`` would read was discarded."""
    redo = "ingest" if is_discarded(folder / "columns") else "encode"
    for name in names:
        refuse_discarded(folder / name, stage, redo)


def remove_from(stage: str, folder: Path) -> list[Path]:
    """Remove a stage's folder and those of all that follow; returns what was removed.

    Raises:
        ConfigError: there is no such stage.
        ManifestError: they could not be made again, because what they are made from was discarded.
    """
    if stage not in ALL_FOLDERS:
        raise ConfigError(f"no stage {stage!r}", hint=f"one of {', '.join(ALL_FOLDERS)}")
    names = list(ALL_FOLDERS)
    again = names[names.index(stage) :]
    made_again = {ALL_FOLDERS[name] for name in again}
    for name in again:
        kept = [source for source in ALL_INPUTS.get(name, ()) if source not in made_again]
        _refuse_without_inputs(name, folder, kept)
    doomed = [folder / ALL_FOLDERS[name] for name in again] + folders_beside(folder, made_again)
    removed = [path for path in reversed(doomed) if path.exists()]
    remove_folders(removed)
    return removed
