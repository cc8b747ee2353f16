"""Raw logs to shards: run the stages in order, except sealed ones.

Disk and memory caps of all stages are checked before the first one starts. A stage that refuses in the middle
of a run names the memory that is enough for that stage alone, and a user who follows its hint may meet the
refusal of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..stats.compile_notice import working_clock
from .errors import MIB, STAGE_OF, ConfigError, format_byte_size
from .folders.disk import (
    DISCARDABLE,
    bytes_in,
    check_not_discarded,
    check_writable,
    discard_files,
    folder_exists,
    free_bytes,
    is_discarded,
    remove_folders,
    rename_folder,
)
from .folders.manifest import Manifest, is_sealed
from .folders.resume import FolderState, check_config
from .formats.ids import PartSize, largest_part
from .raw.log_files import examples_of, identity_of, inspect_logs, log_files
from .raw.log_parts import COLUMNAR
from .raw.raw_file import RawFile
from .runtime.tasks import DEFAULT_RESOURCES, Resources, check_caps, least_cap
from .schema.schema import FeatureSettings, numbers_of
from .schema.schema_file import schema_of
from .stages import count as count_stage
from .stages import encode as encode_stage
from .stages import ingest as ingest_stage
from .stages import pack as pack_stage
from .stages import rank as rank_stage
from .stages import split as split_stage
from .stages.count import CountConfig
from .stages.encode import EncodeConfig
from .stages.ingest import IngestConfig, ingest, ingest_identity
from .stages.pack import PackConfig
from .stages.rank import RankConfig
from .stages.shuffle import RowLayout
from .stages.split import SplitConfig, bytes_of_rows

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FOLDERS = {stage: folder for folder, stage in STAGE_OF.items()}
"""Stages of `preprocess` in order, and the folder each writes inside DIR."""

INPUTS = {
    "count": ("columns",),
    "rank": ("counts",),
    "encode": ("columns", "vocabulary"),
    "split": ("vocabulary", "samples"),
    "pack": ("columns", "samples", "plan"),
}
"""Folders each stage after `ingest` reads with its default settings."""

_LATER: dict[str, tuple[Callable[..., Manifest], Callable[..., object], int]] = {
    "count": (count_stage.count, count_stage.check_count, count_stage.VERSION),
    "rank": (rank_stage.rank, rank_stage.check_rank, rank_stage.VERSION),
    "encode": (encode_stage.encode, encode_stage.check_encode, encode_stage.VERSION),
    "split": (split_stage.split, split_stage.check_split, split_stage.VERSION),
    "pack": (pack_stage.pack, pack_stage.check_pack, pack_stage.VERSION),
}
"""Stages after `ingest`: the stage, what raises HotsetError where it would refuse, and its version."""

ID_MAP = "id_map"
"""Folder of the new id of each row of the vocabulary before an extension."""
OLD_VOCABULARY = "old_vocabulary"
"""Folder of the previous vocabulary in an extension, until its ids are mapped."""


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


CONFIGS: dict[str, Any] = {own.name: own.default_factory for own in fields(PreprocessConfig)}
"""The config class of each stage, in order."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage with its settings and the folders that it reads."""

    name: str
    """Name among FOLDERS."""
    made_by: str
    """Name of the stage in the manifest: `adopt` writes a vocabulary, too."""
    version: int
    config: DataclassInstance
    """Settings, as the manifest has them."""
    inputs: tuple[str, ...]
    """Names of the folders that it reads."""
    others: tuple[dict[str, Any], ...] = ()
    """Inputs from elsewhere: raw files, or a model's vocabulary."""

    def run(self, inputs: Mapping[str, Manifest], out: Path, resources: Resources) -> Manifest:
        """Run a stage after `ingest` into ``out``, wherever it is, from the folders that it reads."""
        run, *_ = _LATER[self.name]
        return run(self.config, out=out, resources=resources, **inputs)


def later_stage(name: str, config: Any) -> Stage:
    """Return a stage after `ingest`; orders other than by frequency read columns, too."""
    if isinstance(config, RankConfig):
        columns = () if config.rank_by == "frequency" else ("columns",)
        return Stage(name, name, rank_stage.version_of(config), config, INPUTS[name] + columns)
    *_, version = _LATER[name]
    return Stage(name, name, version, config, INPUTS[name])


def stages_of(raw: Sequence[Path], config: PreprocessConfig, like: Path | None = None) -> list[Stage]:
    """Return the stages that turn logs into shards, in order; ``config``: resolved settings.

    With ``like``, a folder whose vocabulary provides the ids, nothing is counted.
    """
    logs = tuple(identity_of(inspect_logs(raw), schema_of(config.ingest.schema)))
    stages = [Stage("ingest", "ingest", ingest_stage.VERSION, ingest_identity(config.ingest), (), logs)]
    stages += [later_stage(name, getattr(config, name)) for name in INPUTS]
    if like is None:
        return stages
    from .stages.rank import VERSION_OF_ADOPT, AdoptConfig

    model = ({"name": "model", "fingerprint": Manifest.read(like / "vocabulary").fingerprint},)
    adopt = Stage("rank", "adopt", VERSION_OF_ADOPT, AdoptConfig(), ("columns",), model)
    return [adopt if stage.name == "rank" else stage for stage in stages if stage.name != "count"]


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
    trust_names: bool = False,
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
            `stages.rank`. All other bytes are those of a run from scratch.
        trust_names: compare logs that were read before by names and sizes only, not by their content.
        on_removed: called with the folders that were removed because they were made from fewer logs.

    Raises:
        HotsetError: the disk is too small or a stage cannot keep within the cap, before anything is written;
            or a stage refused its inputs; ``out`` stays resumable.
    """
    config = resolved(config)
    # Everything that can be refused is refused before the first folder is touched.
    check_resources(raw, config, out, resources, extend=extend, like=like)
    if extend:
        check_extension(out, {"ingest": ingest_identity(config.ingest), "count": config.count})
    for stage in stages_of(raw, config, like):
        started = working_clock()
        # Compared with the fingerprint afterwards, it shows whether the stage had work to do.
        before = Manifest.read_sealed(out / FOLDERS[stage.name])
        if stage.name == "ingest":
            columns = out / "columns"
            made = ingest(raw, config.ingest, columns, resources, extend=extend, trust_names=trust_names)
            if extend:  # what was made from fewer logs goes before the next stage looks at it
                on_removed(remove_stale(out, keep_vocabulary=True))
            num_samples = made.num_samples
        elif like is not None and stage.name == "rank":
            made = _adopt(made, like, out, resources)
        else:
            made = run_stage(stage.name, stage.config, out, resources)
        if stage.name == "rank" and folder_exists(out / OLD_VOCABULARY):
            _map_old_ids(made, out, resources)
        was_sealed = before is not None and made.fingerprint == before.fingerprint
        on_stage(StageReport(made.stage, made, working_clock() - started, num_samples, was_sealed))
        if stage.name == until:
            break
    # Discard last: every stage above may need the files.
    if shards_only:
        for name in DISCARDABLE:
            discard_files(out / name)
    return made


def _adopt(columns: Manifest, like: Path, out: Path, resources: Resources) -> Manifest:
    from .stages.rank import adopt

    model_columns, model = (Manifest.read(like / name) for name in ("columns", "vocabulary"))
    return adopt(columns, model_columns, model, out / "vocabulary", resources)


def _map_old_ids(new: Manifest, out: Path, resources: Resources) -> None:
    """Map the ids of the vocabulary that an extension set aside, then remove it."""
    from .stages.rank import map_ids

    old = Manifest.read(out / OLD_VOCABULARY)
    map_ids(old, new, out / ID_MAP, resources)
    remove_folders([old.folder])


def run_stage(name: str, config: Any, folder: Path, resources: Resources = DEFAULT_RESOURCES) -> Manifest:
    """Run one stage after `ingest` inside ``folder``, from the folders of the stages before it."""
    stage = later_stage(name, config)
    # A finished stage reads only manifests, which a discarded folder still has.
    if not is_sealed(folder / FOLDERS[name]):
        check_inputs(name, folder, stage.inputs)
    return stage.run(_read_inputs(stage, folder), folder / FOLDERS[name], resources)


def check_stage(name: str, config: Any, folder: Path, resources: Resources = DEFAULT_RESOURCES) -> None:
    """Raise HotsetError where a stage after `ingest` would refuse its inputs, settings or memory."""
    stage = later_stage(name, config)
    check_inputs(name, folder, stage.inputs)
    _, check, _ = _LATER[name]
    check(config, resources=resources, **_read_inputs(stage, folder))


def _read_inputs(stage: Stage, folder: Path) -> dict[str, Manifest]:
    return {name: Manifest.read(folder / name) for name in stage.inputs}


def check_inputs(stage: str, folder: Path, names: Iterable[str]) -> None:
    """Raise ManifestError if a folder that ``stage`` would read was discarded."""
    redo = "ingest" if is_discarded(folder / "columns") else "encode"
    for name in names:
        check_not_discarded(folder / name, stage, redo)


def resolved(config: PreprocessConfig) -> PreprocessConfig:
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
        tables = [*schema_of(config.ingest.schema).features_of_tables]
        widths = zip(tables, bytes_of_rows(split, tables), strict=True)
        rank = replace(rank, peel_row_bytes=FeatureSettings(widths))
    return replace(config, rank=rank)


def stages_from(stage: str) -> list[str]:
    """Return a stage and all that follow.

    Raises:
        ConfigError: there is no such stage.
    """
    stages = list(FOLDERS)
    if stage not in stages:
        raise ConfigError(f"there is no stage {stage!r}", hint=f"use one of {', '.join(stages)}")
    return stages[stages.index(stage) :]


def remove_from(stage: str, folder: Path) -> list[Path]:
    """Remove the folders of a stage and of all that follow; return those removed.

    Raises:
        ConfigError: there is no such stage.
        ManifestError: they could not be rebuilt, because folders they are made from were discarded.
    """
    rebuilt = {name: FOLDERS[name] for name in stages_from(stage)}
    for name in rebuilt:
        # Folders that are rebuilt in this run may be discarded; those that stay must have their files.
        check_inputs(name, folder, {*INPUTS.get(name, ())} - {*rebuilt.values()})
    # The last stage first, so that an interruption leaves no folder without those it was made from.
    doomed = _with_id_map([folder / name for name in rebuilt.values()])
    removed = [path for path in reversed(doomed) if folder_exists(path)]
    remove_folders(removed)
    return removed


def _with_id_map(doomed: list[Path]) -> list[Path]:
    """Return folders to remove with the map of ids, which no stage reads, where the vocabulary goes."""
    maps = [path.with_name(ID_MAP) for path in doomed if path.name == "vocabulary"]
    return doomed + [path for path in maps if folder_exists(path)]


def stale_folders(folder: Path) -> list[Path]:
    """Return the folders inside ``folder`` whose inputs are not the folders now next to them.

    Counts that can be continued are not among them, but what was made from them is.
    """
    stale: list[Path] = []
    outdated: set[str] = set()
    for stage, name in FOLDERS.items():
        path = folder / name
        state = FolderState.read(path)
        if state.is_removed:  # a kill interrupted the removal
            stale.append(path)
            continue
        identity = state.sealed or state.begun
        if stage == "ingest" or identity is None:
            continue
        # A folder is outdated if one it was made from is another now, or is outdated and will be another.
        made_from = [made for made in identity["inputs"] if "name" in made]
        if any(_is_other(folder / made["name"], made, outdated) for made in made_from):
            outdated.add(name)
            # Counts add up, so old ones are continued; but only those that a run finished once.
            can_continue = state.sealed is not None or state.before is not None
            if stage != "count" or not can_continue:
                stale.append(path)
    return _with_id_map(stale)


def _is_other(path: Path, made: dict[str, Any], outdated: set[str]) -> bool:
    if path.name not in STAGE_OF:
        return False  # the model's folder inside another DIR
    if path.name in outdated or not is_sealed(path):
        return True
    return Manifest.read(path).fingerprint != made.get("fingerprint")


def remove_stale(folder: Path, *, keep_vocabulary: bool = False) -> list[Path]:
    """Remove what `stale_folders` finds, the last stage first; return what was removed.

    With ``keep_vocabulary`` a finished one is set aside as OLD_VOCABULARY, unless an older one is there.
    """
    # Last stage first: a folder must never outlive what it was made from.
    doomed = stale_folders(folder)[::-1]
    vocabulary = folder / "vocabulary"
    is_kept = keep_vocabulary and vocabulary in doomed and is_sealed(vocabulary)
    if is_kept and not folder_exists(folder / OLD_VOCABULARY):
        rename_folder(vocabulary, OLD_VOCABULARY)
        doomed.remove(vocabulary)
    # The extension goes on with their settings, even where it is interrupted before it begins them again.
    remove_folders(doomed, keeps_marks=True)
    remove_folders([path for path in doomed if path.name == ID_MAP])
    return doomed


def check_extension(folder: Path, configs: Mapping[str, DataclassInstance]) -> None:
    """Raise ManifestError if a log cannot be added to DIR ``folder``, before anything is changed.

    ``configs``: of the stages that continue from what they wrote, `ingest` and `count`.
    """
    check_not_discarded(folder / "columns", "--extend", "ingest")
    for stage, config in configs.items():
        if is_sealed(folder / FOLDERS[stage]):
            check_config(Manifest.read(folder / FOLDERS[stage]), stage, config)


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


def check_resources(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources,
    *,
    extend: bool = False,
    redo: str | None = None,
    like: Path | None = None,
) -> None:
    """Raise ConfigError if a setting names no feature, or the disk or the memory cap is too small.

    ``extend``: read only the logs after those that ``out`` was made from; ``redo``: a stage to remove first,
    with all later ones; ``like``: a folder whose ids are taken, so that nothing is counted.
    """
    config = resolved(config)
    if like is None:
        count_stage.check_num_files(config.count, len(log_files(raw)))
    # What the stage to redo reads is there already, so its own settings can be tried before it is removed.
    if redo in INPUTS:
        stage = later_stage(redo, getattr(config, redo))
        if all(is_sealed(out / name) for name in stage.inputs):
            check_stage(redo, stage.config, out, resources)
    schema = schema_of(config.ingest.schema)
    names, tables = [*schema.features_of_tables], dict(schema.tables)
    default = config.rank.min_count
    numbers_of("feature_min_counts", config.rank.feature_min_counts, names, default, tables=tables)
    default = config.split.embedding_dim
    numbers_of("feature_dims", config.split.feature_dims, names, default, tables=tables)
    check_free_disk(disk_needed(raw, out, extend=extend), out)
    if resources.scratch is not None:
        check_writable(resources.scratch)
    if resources.memory_bytes is None:
        return
    # One refusal for all stages: its hint must be enough for the later ones, too.
    is_read = extend or redo == "ingest" or not is_sealed(out / "columns")
    files = inspect_logs(raw) if is_read else []
    check_caps(resources, _memory_needs(files, config, out, resources))


def disk_needed(raw: Sequence[Path], out: Path, *, extend: bool = False) -> dict[str, int]:
    """Return the estimated bytes that each folder inside ``out`` still needs; sealed ones need none.

    ``extend``: sealed folders of fewer logs grow.
    """
    text_bytes = 0.0
    files = inspect_logs(raw)
    for file in files:
        is_packed = file.compression or file.read_format() in COLUMNAR
        text_bytes += file.num_bytes * (COMPRESSION if is_packed else 1)
    columns = out / "columns"
    # With more logs than before, sealed folders grow or are rebuilt, so none of them counts as done.
    grows = extend and is_sealed(columns) and len(Manifest.read(columns).inputs) < len(files)
    return {
        name: 0
        if is_sealed(out / name) and not grows
        else max(0, int(factor * text_bytes) - bytes_in(out / name))
        for name, factor in DISK_FACTORS.items()
    }


def check_free_disk(needed: Mapping[str, int], out: Path, option: str = "--out") -> None:
    """Raise ConfigError if ``needed`` is more than the file system of ``out`` has free."""
    total = sum(needed.values())
    free = free_bytes(out)
    if total <= free:
        return
    # Where nothing can be written, no space would help.
    check_writable(out)
    parts = ", ".join(f"{name} {format_byte_size(size)}" for name, size in needed.items() if size >= MIB)
    detail = f" ({parts})" if parts else ""
    raise ConfigError(
        f"{out} needs about {format_byte_size(total)} of disk{detail}, {format_byte_size(free)} are free",
        hint=f"free {format_byte_size(total - free)} more there, or give another {option}",
    )


def _memory_needs(
    files: Sequence[RawFile], config: PreprocessConfig, out: Path, resources: Resources
) -> dict[str, int]:
    """Return the least cap of each stage, as far as it follows from the logs to read and settings.

    What follows only from counts and samples is not in it: the rows of `rank` by another order than frequency
    and of FAE's modes of `split`, and the lists of one file of `pack`.
    """
    schema = schema_of(config.ingest.schema)
    part = _largest_part(files, config.ingest, out)
    layout = RowLayout(len(schema.dense), len(schema.lists), len(schema.one_hot))
    width = layout.width + part.num_list_lookups // max(1, part.num_samples)
    workers = resources.workers
    needs = {
        "count": count_stage.needed_bytes(len(schema.features_of_tables), workers),
        "rank": rank_stage.needed_bytes(workers),
        "encode": encode_stage.needed_bytes(part, len(schema.one_hot), workers),
        "pack": pack_stage.needed_bytes(config.pack, width, part.num_samples, workers),
    }
    # The stages that run in threads here have no other processes.
    found = {stage: least_cap(resources, needed, here=stage == "pack") for stage, needed in needs.items()}
    if files:
        found["ingest"] = least_cap(
            replace(resources, workers=1), ingest_stage.needed_bytes(files, config.ingest)
        )
    return found


def _largest_part(files: Sequence[RawFile], config: IngestConfig, out: Path) -> PartSize:
    """Return the size of the largest part of existing columns and of logs to read."""
    schema = schema_of(config.schema)
    # The size of existing parts is known; that of others is estimated from the first lines of their file.
    parts = [PartSize(1)]
    if is_sealed(out / "columns"):
        columns = Manifest.read(out / "columns")
        parts.append(largest_part(columns, [entry for _, entry in columns.parts()]))
    for file, num_bytes in examples_of(files, config.block_bytes):
        # A block of a small log has no more elements than its bytes allow.
        is_text = not file.compression and file.read_format() not in COLUMNAR
        most_bytes = min(config.block_bytes, num_bytes) if is_text else config.block_bytes
        num_elements = most_bytes // _LIST_ELEMENT_BYTES if schema.lists else 0
        samples = ingest_stage.samples_of_block(
            file, schema, config.block_bytes, has_label=config.label, num_bytes=num_bytes
        )
        parts.append(PartSize(samples, num_elements))
    return PartSize(max(part.num_samples for part in parts), max(part.num_list_lookups for part in parts))
