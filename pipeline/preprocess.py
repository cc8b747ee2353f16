"""Raw logs to shards: run the stages in order, except sealed ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import ConfigError
from .folders.disk import DISCARDABLE, discard_files, folder_exists, remove_folders
from .folders.manifest import Manifest, is_sealed
from .raw.raw_file import RawFile
from .runtime.memory import refuse_small_caps
from .runtime.tasks import DEFAULT_RESOURCES, Resources
from .schema.schema import FeatureSettings, numbers_of
from .schema.schema_file import schema_of
from .stages.count import CountConfig, count
from .stages.encode import EncodeConfig, encode
from .stages.ingest import IngestConfig, ingest, ingest_identity
from .stages.other_vocabulary import ID_MAP, adopt, map_ids
from .stages.pack import PackConfig, pack
from .stages.preflight import disk_needed, memory_needs, refuse_full_disk, refuse_stage, refuse_without_inputs
from .stages.rank import RankConfig, rank
from .stages.split import SplitConfig, row_widths, split
from .stages.stage_order import (
    FOLDERS,
    INPUTS,
    OLD_VOCABULARY,
    folders_beside,
    inputs_of,
    refuse_extension,
    remove_stale,
    stages_from,
)

_STAGES: dict[str, Callable[..., Manifest]] = {
    "count": count,
    "rank": rank,
    "encode": encode,
    "split": split,
    "pack": pack,
}
"""The stages of `preprocess` after `ingest`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreprocessConfig:
    """The configs of all stages."""

    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Parse raw logs, check every field, and write columns."""
    count: CountConfig = field(default_factory=CountConfig)
    """Count how often each category occurs."""
    rank: RankConfig = field(default_factory=RankConfig)
    """Give each category an id, the most important one first."""
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    """Replace the categories of each sample by their ids."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Choose the hot rows within a byte budget."""
    pack: PackConfig = field(default_factory=PackConfig)
    """Shuffle the samples and write them as batches."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run."""

    stage: str
    manifest: Manifest
    seconds: float
    num_samples: int
    """Number of samples in the log."""
    was_sealed: bool
    """Whether an earlier run finished the stage, and this one only read the folder."""


def preprocess(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    on_stage: Callable[[StageReport], None] = lambda report: None,
    until: str = "pack",
    shards_only: bool = False,
    like: Path | None = None,
    extend: bool = False,
    on_removed: Callable[[list[Path]], None] = lambda removed: None,
) -> Manifest:
    """Run every stage into its folder in ``out``; return the last manifest, or that of the shards.

    Args:
        raw: logs, in order.
        config: a recipe, or a variant of one.
        out: the folder that is DIR elsewhere.
        resources: workers, memory cap and progress of every stage.
        on_stage: called after each stage.
        until: the last stage to run.
        shards_only: remove the files of columns/ and samples/ at the end, see `folders.disk`.
        like: a folder whose vocabulary provides the ids; nothing is counted, all samples are for evaluation.
        extend: if ``out`` was made from the first of these logs, read only the logs after them, count what
            is new, rebuild later stages, and write the new id of each old row to ``id_map/``, see
            `stages.map_ids`. All other bytes are those of a run from scratch.
        on_removed: called with the folders that were removed because they were made from fewer logs.

    Raises:
        HotsetError: the disk is too small or a stage cannot keep within the cap, before anything is written;
            or a stage refused its inputs; ``out`` stays resumable.
    """
    config = settled(config)
    # Everything that can be refused is refused before the first folder is touched.
    check_resources(raw, config, out, resources, extend=extend)
    if extend:
        refuse_extension(out, {"ingest": ingest_identity(config.ingest), "count": config.count})
    for stage in FOLDERS:
        if like is not None and stage == "count":
            continue
        started = time.perf_counter()
        # Compared with the fingerprint afterwards, it shows whether the stage had work to do.
        before = _fingerprint_of(out / FOLDERS[stage])
        if stage == "ingest":
            made = ingest(raw, config.ingest, out / "columns", resources, extend=extend)
            if extend:  # what was made from fewer logs goes before the next stage looks at it
                on_removed(remove_stale(out, keep_vocabulary=True))
            num_samples = made.num_samples
        elif stage == "rank" and like is not None:
            model_columns, model = (Manifest.read(like / name) for name in ("columns", "vocabulary"))
            made = adopt(made, model_columns, model, out / "vocabulary", resources)
        else:
            made = run_stage(stage, getattr(config, stage), out, resources)
        if stage == "rank" and folder_exists(out / OLD_VOCABULARY):
            _map_old_ids(made, out, resources)
        was_sealed = made.fingerprint == before
        on_stage(StageReport(made.stage, made, time.perf_counter() - started, num_samples, was_sealed))
        if stage == until:
            break
    # Discard last: every stage above may need the files.
    if shards_only:
        for name in DISCARDABLE:
            discard_files(out / name)
    return made


def _fingerprint_of(folder: Path) -> str | None:
    return Manifest.read(folder).fingerprint if is_sealed(folder) else None


def _map_old_ids(new: Manifest, out: Path, resources: Resources) -> None:
    """Map the ids of the vocabulary that an extension set aside, then remove it."""
    old = Manifest.read(out / OLD_VOCABULARY)
    map_ids(old, new, out / ID_MAP, resources)
    remove_folders([old.folder])


def check_resources(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources,
    *,
    extend: bool = False,
    redo: str | None = None,
) -> None:
    """Raise ConfigError if a setting names no feature, or the disk or the memory cap is too small.

    Args:
        raw: logs, in order.
        config: settings of every stage.
        out: the folder that is DIR elsewhere.
        resources: the cap, and the workers.
        extend: read only the logs after those that ``out`` was made from.
        redo: the stage to remove before the run, with all later ones.
    """
    config = settled(config)
    # What the stage to redo reads is there already, so its own settings can be tried before it is removed.
    if redo in INPUTS and all(is_sealed(out / name) for name in inputs_of(redo, getattr(config, redo))):
        refuse_stage(redo, getattr(config, redo), out, resources)
    schema = schema_of(config.ingest.schema)
    numbers_of("feature_min_counts", config.rank.feature_min_counts, schema.sparse, config.rank.min_count)
    numbers_of("feature_dims", config.split.feature_dims, schema.sparse, config.split.embedding_dim)
    refuse_full_disk(disk_needed(raw, out, is_columnar=schema.format == "parquet", extend=extend), out)
    if resources.memory_bytes is None:
        return
    # One refusal for all stages: its hint must be enough for the later ones, too.
    is_read = extend or redo == "ingest" or not is_sealed(out / "columns")
    files = [RawFile.inspect(path) for path in raw] if is_read else []
    configs = (config.ingest, config.pack)
    refuse_small_caps(resources, memory_needs(files, configs, out, resources))


def run_stage(stage: str, config: object, folder: Path, resources: Resources = DEFAULT_RESOURCES) -> Manifest:
    """Run one stage after `ingest` inside ``folder``, from the folders of the stages before it."""
    # A finished stage reads only manifests, which a discarded folder still has.
    if not is_sealed(folder / FOLDERS[stage]):
        refuse_without_inputs(stage, folder, inputs_of(stage, config))
    inputs = [Manifest.read(folder / name) for name in inputs_of(stage, config)]
    return build_stage(stage, config, inputs, folder / FOLDERS[stage], resources)


def build_stage(
    stage: str,
    config: object,
    inputs: Sequence[Manifest],
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
) -> Manifest:
    """Run one stage after `ingest` into ``out``, wherever it is, from the folders that `inputs_of` names."""
    # What a stage reads only with some settings is passed by the name of its folder.
    num_always = len(INPUTS[stage])
    more = dict(zip(inputs_of(stage, config)[num_always:], inputs[num_always:], strict=True))
    return _STAGES[stage](config, *inputs[:num_always], out, resources, **more)


def settled(config: PreprocessConfig) -> PreprocessConfig:
    """Return ``config`` with what `rank` must know of `split`: FAE ranks by a sample, peeling by widths."""
    rank = config.rank
    split = config.split
    # Both modes of FAE choose from sampled counts, so rows must be ranked by the same sample.
    if split.mode != "budget" and rank.rank_by == "frequency":
        rank = replace(rank, rank_by="sampled", with_replacement=split.mode == "fae-code")
    if split.mode != "budget" and rank.rank_by != "sampled":
        raise ConfigError(
            f"mode {split.mode} does not work with rank_by {rank.rank_by}", hint="use --rank-by sampled"
        )
    # Peeling weighs rows by their bytes, which follow from the widths that `split` is to give them.
    if rank.rank_by == "peel" and split.feature_dims and not rank.peel_row_bytes:
        features = schema_of(config.ingest.schema).sparse
        widths = zip(features, row_widths(split, features), strict=True)
        found = FeatureSettings((name, width.row_bytes) for name, width in widths)
        rank = replace(rank, peel_row_bytes=found)
    return replace(config, rank=rank)


def remove_from(stage: str, folder: Path) -> list[Path]:
    """Remove the folders of a stage and of all that follow; return those removed.

    Raises:
        ConfigError: there is no such stage.
        ManifestError: they could not be rebuilt, because folders they are made from were discarded.
    """
    if stage not in FOLDERS:
        raise ConfigError(f"there is no stage {stage!r}", hint=f"use one of {', '.join(FOLDERS)}")
    rebuilt_stages = stages_from(stage)
    rebuilt = {FOLDERS[name] for name in rebuilt_stages}
    for name in rebuilt_stages:
        # Folders that are rebuilt in this run may be discarded; those that stay must have their files.
        kept = [source for source in INPUTS.get(name, ()) if source not in rebuilt]
        refuse_without_inputs(name, folder, kept)
    # The last stage first, so that an interruption leaves no folder without those it was made from.
    doomed = [folder / FOLDERS[name] for name in rebuilt_stages] + folders_beside(folder, rebuilt)
    removed = [path for path in reversed(doomed) if folder_exists(path)]
    remove_folders(removed)
    return removed
