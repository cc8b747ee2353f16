"""``verify``: every manifest, checksum and invariant of a folder of stages.

Four kinds of checks: the bytes (every file's checksum, no file that no manifest lists), the chain (each
folder was made from the folders beside it), the meaning (counts add up from stage to stage, ids are in
range, tags agree with ids), and, where these find nothing, the stages themselves: each is run again and
gives what its folder has, see `rebuild`. Of a folder whose files were discarded only the manifest is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import xxhash

from ..errors import ManifestError, first_line, refuse_system_fault
from ..folders.checksum import hash_file, note_checksum
from ..folders.discard import MARK, is_discarded
from ..folders.disk import folder_exists, paths_in
from ..folders.file_facts import ShardFacts
from ..folders.manifest import MANIFEST, FileEntry, Manifest, is_sealed
from ..folders.stage_totals import (
    TOTALS_OF_STAGE,
    ColumnsTotals,
    PlanTotals,
    SamplesTotals,
    ShardsTotals,
    VocabularyTotals,
)
from ..folders.table_info import PlannedTable
from ..formats.arrow_files import DAMAGE
from ..formats.stage_settings import ColumnsSettings
from ..raw.raw_blocks import iterate_blocks
from ..raw.raw_file import RawFile
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import run_tasks
from ..stages.map_ids import ID_MAP, check_id_map
from ..stages.pack import PackConfig, first_sample_trained_on
from ..stages.stage_order import ALL_FOLDERS
from .check_files import check_columns, check_counts, check_texts, check_vocabulary, faults_of_plan
from .check_ids import check_samples, check_shards, check_tags
from .check_lookups import check_lookups
from .check_schedule import check_schedule, check_schedule_file
from .rebuild import Rebuilding, faults_of_rebuilt

STAGE_FOLDERS = {name: stage for stage, name in ALL_FOLDERS.items()} | {ID_MAP: "map-ids"}
"""Folders in the order they are made, and the stage each holds."""


def verify(
    folder: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    raw: Sequence[Path] = (),
    rebuild: bool = True,
    scratch: Path | None = None,
    other_vocabulary: Path | None = None,
) -> list[str]:
    """Check every stage folder inside ``folder``; returns the faults found, a line each, in order.

    Args:
        folder: as `preprocess` made it, perhaps not all of it; or the folder of one stage.
        raw: the logs it was made from, to be hashed and parsed again; empty checks none.
        rebuild: run each stage again and compare what it writes.
        scratch: folder in which one stage at a time is run again; None takes the system's temporary folder.
        other_vocabulary: folder whose vocabulary was adopted, or from whose ids ``id_map`` maps; without it
            neither is built again.
        resources: progress is told how many bytes of the files are checked.

    Raises:
        ManifestError: there is no stage folder at all.
    """
    # DIR holds a folder for each stage; a stage's folder alone is checked as whatever stage its manifest
    # names.
    found = {name: folder / name for name in STAGE_FOLDERS if folder_exists(folder / name)}
    if is_sealed(folder):  # one stage's folder, wherever it is
        stage = Manifest.read(folder).stage
        found = {name: folder for name, made_by in STAGE_FOLDERS.items() if made_by == stage}
    if not found:
        raise ManifestError(
            f"{folder} contains nothing that a stage wrote",
            hint="give the folder that preprocess or train wrote (its --out)",
        )
    faults: list[str] = []
    manifests: dict[str, Manifest] = {}
    for name, path in found.items():
        try:
            manifest = Manifest.read(path)
        except ManifestError as error:
            faults.append(str(error))
            continue
        if manifest.stage == STAGE_FOLDERS[name] or (name, manifest.stage) == ("vocabulary", "adopt"):
            manifests[name] = manifest
        else:
            faults.append(f"{path} holds stage {manifest.stage!r}, want {STAGE_FOLDERS[name]!r}")
    # First what manifests alone tell, then every file, then sums that need all files to be whole.
    faults += [fault for manifest in manifests.values() for fault in _check_chain(manifest, manifests)]
    faults += [fault for manifest in manifests.values() for fault in _check_totals(manifest)]
    # Discarded folders have a manifest only.
    there = {name: manifest for name, manifest in manifests.items() if not is_discarded(manifest.folder)}
    tasks = [(entry, manifest, there) for manifest in there.values() for entry in manifest.files]
    done = 0
    total = sum(entry.num_bytes for entry, *_ in tasks)
    with closing(run_tasks(_check_file, tasks, workers=resources.workers)) as checked:
        for (entry, *_), file_faults in zip(tasks, checked, strict=True):
            faults += file_faults
            done += entry.num_bytes
            resources.progress("verify", done, total)
    # Sums over damaged files would only repeat their faults in other words.
    if not faults:
        faults += _check_sums(manifests)
        if "schedule" in there:
            faults += check_schedule(there["schedule"], there.get("shards"))
        faults += _check_raw(manifests["columns"], raw) if raw and "columns" in manifests else []
    # Running the stages again takes longest and needs whole inputs, so it comes last.
    if rebuild and not faults:
        faults += faults_of_rebuilt(there, Rebuilding(resources, scratch, raw, other_vocabulary))
    return faults


def _check_totals(manifest: Manifest) -> list[str]:
    """Find numbers of rows in the manifest that do not fit together."""
    try:
        return [f"{manifest.folder / MANIFEST}: {fault}" for fault in _faults_of_totals(manifest)]
    except ManifestError as error:
        return [str(error)]
    except DAMAGE as error:
        refuse_system_fault(manifest.folder, error)
        return [f"{manifest.folder / MANIFEST} is not what a stage writes: {first_line(error)}"]


def _faults_of_totals(manifest: Manifest) -> Iterator[str]:
    totals = TOTALS_OF_STAGE[manifest.stage].of(manifest)
    # Ids that stand in the totals must be rows of their tables.
    if isinstance(totals, (VocabularyTotals, PlanTotals, ShardsTotals)):
        for table in totals.tables:
            ids = {"oov_id": table.oov_id, "missing_id": table.missing_id}
            if isinstance(table, PlannedTable):
                ids["num_hot"] = table.num_hot
            if any(not 0 <= number <= table.num_rows for number in ids.values()):
                yield f"{table.name} has {table.num_rows} rows, and {ids}"
    if manifest.stage == "split":
        yield from faults_of_plan(manifest)


def _check_chain(manifest: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """The folder holds what it lists, and its inputs are the folders beside it."""
    # A discarded folder holds its manifest and its mark alone.
    listed = {entry.path for entry in manifest.files} | {MANIFEST}
    if is_discarded(manifest.folder):
        listed = {MANIFEST, MARK}
    for path in paths_in(manifest.folder):
        if path.name not in listed:
            yield f"{path} is no part of the folder: its manifest does not list it"
    # Where an input is not beside the folder, its fingerprint cannot be checked.
    for made_from in manifest.inputs:
        other = manifests.get(made_from["name"])
        if other is not None and other.fingerprint != made_from.get("fingerprint"):
            yield f"{manifest.folder} was made from another {made_from['name']} than the one beside it"


def _check_file(entry: FileEntry, manifest: Manifest, manifests: dict[str, Manifest]) -> list[str]:
    """Bytes first; only a file whose bytes are right is looked into."""
    try:
        path = manifest.checked_path(entry)
        _, checksum = hash_file(path)
        if checksum != entry.xxh3_128:
            return [f"{path} is damaged: its checksum is {checksum}, want {entry.xxh3_128}"]
        note_checksum(path, checksum)
        check = check_texts if entry.is_texts else _CHECKS[manifest.stage]
        # The check of the stage looks into the file; its faults are told with the path.
        return [f"{path}: {fault}" for fault in check(entry, manifest, manifests)]
    except ManifestError as error:
        fault = str(error)
        return [fault if str(manifest.folder) in fault else f"{manifest.folder / entry.path}: {fault}"]
    except DAMAGE as error:
        refuse_system_fault(manifest.folder, error)
        return [f"{manifest.folder / entry.path} is not what {MANIFEST} says: {first_line(error)}"]


_CHECKS: dict[str, Callable[[FileEntry, Manifest, dict[str, Manifest]], Iterator[str]]] = {
    "ingest": check_columns,
    "count": check_counts,
    "rank": check_vocabulary,
    "adopt": check_vocabulary,
    "encode": check_samples,
    "split": check_tags,
    "pack": check_shards,
    "map-ids": check_id_map,
    "schedule": lambda entry, schedule, _: check_schedule_file(entry, schedule),
    "transpose": check_lookups,
}


def _check_sums(manifests: dict[str, Manifest]) -> Iterator[str]:
    """The number of samples is the same from stage to stage, and so is that of the validation part."""
    yield from _check_lookups(manifests)
    yield from _check_validation(manifests)
    per_sample = [name for name in ("columns", "samples", "plan", "shards") if name in manifests]
    for before, name in pairwise(per_sample):
        want = manifests[before].num_samples
        if name == "shards":
            want -= _num_left_out(manifests)
        have = manifests[name].num_samples
        if want != have:
            yield f"{manifests[name].folder} has {have} samples, {before} has {want}"


def _num_left_out(manifests: dict[str, Manifest]) -> int:
    """Samples of the training part that the shards do not hold, because they are of earlier files."""
    config = manifests["shards"].read_config(lambda values: PackConfig(**values))
    if config.train_last is None or not {"columns", "plan"} <= manifests.keys():
        return 0
    return first_sample_trained_on(config, manifests["columns"], manifests["plan"])


def _check_validation(manifests: dict[str, Manifest]) -> Iterator[str]:
    """Each folder that says so has as many validation samples as the one before it."""
    stages = [name for name in ("counts", "vocabulary", "plan", "shards") if name in manifests]
    found = {name: TOTALS_OF_STAGE[manifests[name].stage].of(manifests[name]) for name in stages}
    for before, name in pairwise(stages):
        want, have = (getattr(found[each], "num_valid_samples", 0) for each in (before, name))
        # An adopted vocabulary is of another log, all of which is for evaluation.
        if want != have and manifests[name].stage != "adopt":
            yield f"{manifests[name].folder} has {have} validation samples, {before} has {want}"


def _check_lookups(manifests: dict[str, Manifest]) -> Iterator[str]:
    """Multi-hot tables have as many lookups in samples as in shards, and in a vocabulary of all days."""
    vocabulary, samples, shards = (manifests.get(name) for name in ("vocabulary", "samples", "shards"))
    if samples is None:
        return
    for number, table in enumerate(SamplesTotals.of(samples).tables):
        if not table.is_multi_hot:
            continue
        # A window's vocabulary counts fewer samples than train, and an adopted one counts another log.
        ranked = VocabularyTotals.of(vocabulary) if vocabulary and vocabulary.stage == "rank" else None
        if ranked is not None and ranked.num_counted_samples is None:
            want = ranked.tables[number].num_lookups
            if want != table.lookups_train:
                yield (
                    f"{samples.folder} trains on {table.lookups_train} lookups of {table.name}, "
                    f"vocabulary has {want}"
                )
        # All kinds of shards together have the lookups of both parts of the log.
        if shards:
            facts = [ShardFacts.of(shards, entry) for entry in shards.files]
            found = sum(each.lookups.get(table.name, 0) for each in facts)
            want = (table.lookups_train or 0) + (table.lookups_evaluation or 0)
            if found > want or (found < want and not _num_left_out(manifests)):
                yield f"{shards.folder} has {found} lookups of {table.name}, samples has {want}"


def _check_raw(columns: Manifest, raw: Sequence[Path]) -> Iterator[str]:
    """Hash the logs again, block by block, as `ingest` did."""
    recorded = ColumnsTotals.of(columns).raw
    block_bytes = ColumnsSettings.of(columns).block_bytes
    if len(raw) != len(recorded):
        yield f"{len(raw)} logs were given, {columns.folder} was made from {len(recorded)}"
        return
    for path, log in zip(raw, recorded, strict=True):
        # A digest of block digests, because `ingest` hashes blocks in parallel.
        digest = xxhash.xxh3_128()
        blocks = iterate_blocks(RawFile.inspect(path), block_bytes, in_thread_buffer=True)
        for unread in blocks:
            block = unread.read()
            if block.num_bytes:
                digest.update(xxhash.xxh3_128_digest(block.lines.data))
        if digest.hexdigest() != log.xxh3_128_of_blocks:
            yield f"{path} is not the log {columns.folder} was made from"
