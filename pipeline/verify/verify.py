"""``verify``: every manifest and checksum of a folder of stages, and every stage run again.

Checked are the bytes (every file's checksum, no file that no manifest lists), the chain (each folder was made
from the folders next to it) and the numbers of samples. Where these have no fault, each stage is run again
and its rows are compared, see `rebuild`. Of a folder whose files were discarded only the manifest is checked.
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
from ..folders.manifest import MANIFEST, FileEntry, Manifest, is_sealed
from ..folders.stage_totals import TOTALS_OF_STAGE, ColumnsTotals
from ..formats.arrow_files import DAMAGE
from ..formats.stage_settings import ColumnsSettings
from ..raw.raw_blocks import iterate_blocks
from ..raw.raw_file import RawFile
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import run_tasks
from ..stages.map_ids import ID_MAP, check_id_map
from ..stages.stage_order import FOLDERS
from .check_files import check_columns
from .rebuild import Rebuilding, faults_of_rebuilt

STAGE_FOLDERS = {name: stage for stage, name in FOLDERS.items()} | {ID_MAP: "map-ids"}
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
            TOTALS_OF_STAGE[manifest.stage].of(manifest)
        except ManifestError as error:
            faults.append(str(error))
            continue
        except DAMAGE as error:
            refuse_system_fault(path, error)
            faults.append(f"{path / MANIFEST} is not what a stage writes: {first_line(error)}")
            continue
        if manifest.stage == STAGE_FOLDERS[name] or (name, manifest.stage) == ("vocabulary", "adopt"):
            manifests[name] = manifest
        else:
            faults.append(f"{path} holds stage {manifest.stage!r}, want {STAGE_FOLDERS[name]!r}")
    # First the manifests alone, then every file.
    faults += [fault for manifest in manifests.values() for fault in _check_listed(manifest)]
    chain = [fault for manifest in manifests.values() for fault in _check_chain(manifest, manifests)]
    # Discarded folders have a manifest only.
    there = {name: manifest for name, manifest in manifests.items() if not is_discarded(manifest.folder)}
    tasks = [(entry, manifest, manifests) for manifest in there.values() for entry in manifest.files]
    done = 0
    total = sum(entry.num_bytes for entry, *_ in tasks)
    with closing(run_tasks(_check_file, tasks, workers=resources.workers)) as checked:
        for (entry, *_), file_faults in zip(tasks, checked, strict=True):
            faults += file_faults
            done += entry.num_bytes
            resources.progress("verify", done, total)
    # Sums over damaged files would only repeat their faults in other words.
    if not faults and not chain:
        faults += _check_sums(manifests)
    if not faults:
        faults += _check_raw(manifests["columns"], raw) if raw and "columns" in manifests else []
    # Running the stages again takes longest and needs whole inputs, so it comes last.
    if rebuild and not faults:
        faults += faults_of_rebuilt(there, Rebuilding(resources, scratch, raw, other_vocabulary))
    return chain + faults


def _check_listed(manifest: Manifest) -> Iterator[str]:
    """The folder holds what it lists, and nothing else."""
    # A discarded folder holds its manifest and its mark alone.
    listed = {entry.path for entry in manifest.files} | {MANIFEST}
    if is_discarded(manifest.folder):
        listed = {MANIFEST, MARK}
    for path in paths_in(manifest.folder):
        if path.name not in listed:
            yield f"{path} is no part of the folder: its manifest does not list it"


def _check_chain(manifest: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """The inputs of the folder are the folders next to it; of others no fingerprint can be checked."""
    for made_from in manifest.inputs:
        other = manifests.get(made_from["name"])
        if other is not None and other.fingerprint != made_from.get("fingerprint"):
            yield f"{manifest.folder} was made from another {made_from['name']} than the one beside it"


def _check_file(entry: FileEntry, manifest: Manifest, manifests: dict[str, Manifest]) -> list[str]:
    """Find the faults of one file: its bytes first, then what no other folder can tell."""
    try:
        path = manifest.checked_path(entry)
        _, checksum = hash_file(path)
        if checksum != entry.xxh3_128:
            return [f"{path} is damaged: its checksum is {checksum}, want {entry.xxh3_128}"]
        note_checksum(path, checksum)
        check = _CHECKS.get(manifest.stage)
        return [f"{path}: {fault}" for fault in check(entry, manifest, manifests)] if check else []
    except ManifestError as error:
        fault = str(error)
        return [fault if str(manifest.folder) in fault else f"{manifest.folder / entry.path}: {fault}"]
    except DAMAGE as error:
        refuse_system_fault(manifest.folder, error)
        return [f"{manifest.folder / entry.path} is not what {MANIFEST} says: {first_line(error)}"]


_CHECKS: dict[str, Callable[[FileEntry, Manifest, dict[str, Manifest]], Iterator[str]]] = {
    "ingest": check_columns,
    "map-ids": check_id_map,
}
"""Checks of files that often cannot be built again: their log, or the old vocabulary, is gone."""


def _check_sums(manifests: dict[str, Manifest]) -> Iterator[str]:
    """The number of samples is the same from stage to stage, and so is that of the validation part."""
    per_sample = [name for name in ("columns", "samples", "plan", "shards") if name in manifests]
    for before, name in pairwise(per_sample):
        want, have = (manifests[each].num_samples for each in (before, name))
        if want != have:
            yield f"{manifests[name].folder} has {have} samples, {before} has {want}"
    stages = [name for name in ("counts", "vocabulary", "plan", "shards") if name in manifests]
    found = {name: TOTALS_OF_STAGE[manifests[name].stage].of(manifests[name]) for name in stages}
    for earlier, later in pairwise(stages):
        want, have = (getattr(found[each], "num_valid_samples", 0) for each in (earlier, later))
        # An adopted vocabulary is of another log, all of which is for evaluation.
        if want != have and manifests[later].stage != "adopt":
            yield f"{manifests[later].folder} has {have} validation samples, {earlier} has {want}"


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
