"""``verify``: check a folder of stages, and run every stage again.

Checks the bytes (every file's checksum, no unlisted file), the chain (each folder was made from the folders
next to it) and the numbers of samples. If these have no fault, each stage is run again into a temporary
folder and its rows are compared. A stage is a pure function of its config and its inputs, so this finds any
wrong value, even under recomputed checksums, without a second implementation of each rule. Only one rebuilt
stage is on disk at a time. A folder whose files were discarded has only its manifest checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .errors import HotsetError, ManifestError, MemoryCapError, first_line, raise_system_fault
from .folders.disk import MARK, folder_exists, is_discarded, paths_in
from .folders.manifest import MANIFEST, FileEntry, Manifest, hash_file, is_sealed, note_checksum
from .folders.totals import TOTALS_OF_STAGE, ColumnsSettings, ColumnsTotals
from .formats.arrow_files import DAMAGE, open_mapped
from .formats.batch_checksums import CHECKSUMS, are_merged_in, checksums_of_file
from .preprocess import CONFIGS, FOLDERS, ID_MAP, check_free_disk, later_stage
from .raw.log_files import checksum_of_log, inspect_logs, is_of_group
from .runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks, silent
from .stages.ingest import IngestConfig, ingest
from .stages.rank import adopt, map_ids

_Build = Callable[[Path], Manifest]
"""Runs a stage again into a folder."""


def _faults_of_rebuilt(
    manifests: Mapping[str, Manifest], resources: Resources, raw: Sequence[Path], other: Path | None
) -> Iterator[str]:
    """Run stages again whose inputs are there, and find what differs.

    Args:
        manifests: by the name of the folder; each one's files are whole, and made from the others.
        resources: what stages run with.
        raw: the logs, if columns are parsed again, too.
        other: folder with the vocabulary that was adopted, or that an id map starts from.

    Raises:
        ConfigError: there is too little disk for a stage.
    """
    faulty: set[str] = set()
    for done, (name, made) in enumerate(manifests.items(), 1):
        # A stage trusts its inputs: it is run only on folders without faults, and those it was made from.
        is_stale = any(_check_chain(made, manifests))
        if not is_stale and all(source.get("name") not in faulty for source in made.inputs):
            faults = list(_compare(made, manifests, resources, raw, other))
            faulty |= {name} if faults else set()
            yield from faults
        else:
            faulty.add(name)
        resources.progress("rebuild", done, len(manifests))


def _compare(
    made: Manifest,
    manifests: Mapping[str, Manifest],
    resources: Resources,
    raw: Sequence[Path],
    other: Path | None,
) -> Iterator[str]:
    try:
        build = _build_of(made, manifests, replace(resources, progress=silent), raw, other)
    except (HotsetError, *DAMAGE) as error:
        yield f"{made.folder} cannot be built again: {first_line(error)}"
        return
    if build is None:
        return
    # The copy needs as much space as the folder; check before it begins.
    num_bytes = sum(entry.num_bytes for entry in made.files)
    with TemporaryDirectory(prefix="hotset-verify-") as name:
        copy = Path(name) / made.folder.name
        check_free_disk({copy.name: num_bytes}, copy, "TMPDIR, or --no-rebuild")
        try:
            yield from _differences(made, build(copy))
        except MemoryCapError:  # the cap is at fault, and not the folder
            raise
        except (HotsetError, *DAMAGE) as error:
            yield f"{made.folder} cannot be built again from what it was made from: {first_line(error)}"


def _build_of(
    made: Manifest,
    manifests: Mapping[str, Manifest],
    resources: Resources,
    raw: Sequence[Path],
    other: Path | None,
) -> _Build | None:
    """Return how to build a folder again; None without its inputs."""
    # Only `ingest` reads raw files, which must then be given.
    if made.stage == "ingest":
        schema = made.totals.get("schema") or made.config.get("schema")
        parsed = made.read_config(IngestConfig, schema=schema)
        joins = any(is_of_group(entry.path) for entry in made.files)
        return (lambda out: ingest(raw, parsed, out, resources, joins=joins)) if raw else None
    if made.stage in ("adopt", "map-ids"):
        return _build_from_other_vocabulary(made, manifests, other, resources)
    config: Any = made.read_config(CONFIGS[made.stage])
    # All other stages are built from the folders next to them, which are already checked.
    stage = later_stage(made.stage, config)
    if any(name not in manifests for name in stage.inputs):
        return None
    inputs = {name: manifests[name] for name in stage.inputs}
    return lambda out: stage.run(inputs, out, resources)


def _build_from_other_vocabulary(
    made: Manifest, manifests: Mapping[str, Manifest], other: Path | None, resources: Resources
) -> _Build | None:
    if other is None:
        return None
    # The other vocabulary is inside a folder of stages, or is given directly.
    folder = other / "vocabulary" if folder_exists(other / "vocabulary") else other
    vocabulary = Manifest.read(folder)
    wanted = [each.get("fingerprint") for each in made.inputs if each["name"] in ("old", "model")]
    if vocabulary.fingerprint not in wanted:
        raise ManifestError(
            f"it was not made from the vocabulary {folder}",
            hint="give --other-vocabulary the folder that --like was given, or whose ids id_map maps",
        )
    if made.stage == "map-ids":
        new = manifests.get("vocabulary")
        return None if new is None else lambda out: map_ids(vocabulary, new, out, resources)
    columns = manifests.get("columns")
    if columns is None:
        return None
    return lambda out: adopt(columns, Manifest.read(folder.parent / "columns"), vocabulary, out, resources)


def _differences(made: Manifest, rebuilt: Manifest) -> Iterator[str]:
    """Find differences of files, rows, facts and totals."""
    manifest = made.folder / MANIFEST
    names = made.entries.keys() ^ rebuilt.entries.keys()
    # Shards of older versions have no checksums of batches.
    for name in sorted(names - {CHECKSUMS}):
        whose = "the stage does not write it" if name in made.entries else "it lacks this file"
        yield f"{made.folder / name}: {whose} when run again"
    for entry in made.files:
        wanted = rebuilt.entries.get(entry.path)
        # Those of batches are checked against the bytes of the files here, whatever those of a rebuild are.
        if wanted is None or entry.is_checksums:
            continue
        if entry.xxh3_128 != wanted.xxh3_128:
            # Another version of Arrow may store the same values in other bytes.
            difference = _first_difference(made.folder / entry.path, rebuilt.folder / entry.path)
            if difference is not None:
                yield f"{made.folder / entry.path}: {difference}, when the {made.stage} stage is run again"
        if _facts_of(entry) != _facts_of(wanted):
            yield f"{manifest} says {_facts_of(entry)} of {entry.path}, want {_facts_of(wanted)}"
    # The names and sizes of logs are not compared: a log may have been compressed or moved since.
    for key in sorted((made.totals.keys() | rebuilt.totals.keys()) - {"raw"}):
        if made.totals.get(key) != rebuilt.totals.get(key):
            yield f"{manifest}: its total {key!r} is not what the {made.stage} stage finds when run again"


def _facts_of(entry: FileEntry) -> dict[str, Any]:
    """Return a file's facts that do not depend on compression."""
    return {"samples": entry.num_samples} | entry.facts


def _first_difference(found: Path, wanted: Path) -> str | None:
    """Return where two Arrow files first differ; None where they do not."""
    readers = [open_mapped(path) for path in (found, wanted)]
    schemas = [reader.schema for reader in readers]
    sizes = [reader.num_record_batches for reader in readers]
    if schemas[0] != schemas[1]:
        return "its columns have other names or types"
    if sizes[0] != sizes[1]:
        return f"it has {sizes[0]} record batches instead of {sizes[1]}"
    # Batch by batch and column by column, so that the place of the first difference can be named.
    for number in range(sizes[0]):
        batches = [reader.get_batch(number) for reader in readers]
        for name in schemas[0].names:
            ours, theirs = (batch.column(name) for batch in batches)
            if not ours.equals(theirs):
                rows = range(min(len(ours), len(theirs)))
                unequal = (n for n in rows if not ours.slice(n, 1).equals(theirs.slice(n, 1)))
                row = next(unequal, len(rows))
                return f"{name} in row {row} of record batch {number} is another value"
    return None


STAGE_FOLDERS = {name: stage for stage, name in FOLDERS.items()} | {ID_MAP: "map-ids"}
"""Folders in the order they are made, and the stage each holds."""


def verify(
    folder: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    raw: Sequence[Path] = (),
    rebuild: bool = True,
    other_vocabulary: Path | None = None,
) -> list[str]:
    """Check every stage folder inside ``folder``; return a line per fault.

    Args:
        folder: all or some of the folders that `preprocess` makes, or the folder of one stage.
        raw: the logs it was made from, to be hashed and parsed again; empty checks none.
        rebuild: run each stage again in the system's temporary folder, and compare what it writes.
        other_vocabulary: folder whose vocabulary was adopted, or from whose ids ``id_map`` maps; without it
            neither is built again.
        resources: progress reports the bytes of the files that are checked.

    Raises:
        ManifestError: there is no stage folder at all.
    """
    manifests, faults = _read_manifests(folder)
    # First the manifests alone, then every file.
    faults += [fault for manifest in manifests.values() for fault in _check_listed(manifest)]
    chain = [fault for manifest in manifests.values() for fault in _check_chain(manifest, manifests)]
    # Discarded folders have a manifest only.
    there = {name: manifest for name, manifest in manifests.items() if not is_discarded(manifest.folder)}
    tasks = [(entry, manifest) for manifest in there.values() for entry in manifest.files]
    done = 0
    total = sum(entry.num_bytes for entry, _ in tasks)
    with closing(run_tasks(_check_file, tasks, workers=resources.workers)) as checked:
        for (entry, _), file_faults in zip(tasks, checked, strict=True):
            faults += file_faults
            done += entry.num_bytes
            resources.progress("verify", done, total)
    of_batches = list(_check_batches(there["shards"], resources)) if not faults and "shards" in there else []
    # Sums over damaged files would only repeat their faults in other words.
    if not faults and not chain:
        faults += _check_sums(manifests)
    if not faults:
        faults += _check_raw(manifests["columns"], raw) if raw and "columns" in manifests else []
    # Running the stages again takes longest and needs complete inputs, so it is last.
    if rebuild and not faults:
        faults += _faults_of_rebuilt(there, resources, raw, other_vocabulary)
    return chain + of_batches + faults


def _read_manifests(folder: Path) -> tuple[dict[str, Manifest], list[str]]:
    """Read the manifest of each stage's folder; return faults too."""
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
            raise_system_fault(path, error)
            faults.append(f"{path / MANIFEST} is not what a stage writes: {first_line(error)}")
            continue
        if manifest.stage == STAGE_FOLDERS[name] or (name, manifest.stage) == ("vocabulary", "adopt"):
            manifests[name] = manifest
        else:
            faults.append(f"{path} holds stage {manifest.stage!r}, want {STAGE_FOLDERS[name]!r}")
    return manifests, faults


def _check_listed(manifest: Manifest) -> Iterator[str]:
    """The folder holds what it lists, and nothing else."""
    # A discarded folder holds its manifest and its mark alone.
    listed = {entry.path for entry in manifest.files} | {MANIFEST}
    if is_discarded(manifest.folder):
        listed = {MANIFEST, MARK}
    for path in paths_in(manifest.folder):
        if path.name not in listed:
            yield f"{path} is no part of the folder: its manifest does not list it"


def _check_chain(manifest: Manifest, manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Check that the folder's inputs are the folders next to it."""
    for made_from in manifest.inputs:
        other = manifests.get(made_from["name"])
        if other is not None and other.fingerprint != made_from.get("fingerprint"):
            yield f"{manifest.folder} was made from another {made_from['name']} than the one next to it"


def _check_file(entry: FileEntry, manifest: Manifest) -> list[str]:
    """Find the faults of one file."""
    try:
        path = manifest.checked_path(entry)
        _, checksum = hash_file(path)
        if checksum != entry.xxh3_128:
            return [f"{path} is damaged: its checksum is {checksum}, want {entry.xxh3_128}"]
        note_checksum(path, checksum)
        return []
    except ManifestError as error:
        fault = str(error)
        return [fault if str(manifest.folder) in fault else f"{manifest.folder / entry.path}: {fault}"]
    except DAMAGE as error:
        raise_system_fault(manifest.folder, error)
        return [f"{manifest.folder / entry.path} is not what {MANIFEST} says: {first_line(error)}"]


def _check_batches(shards: Manifest, resources: Resources) -> Iterator[str]:
    """Check that the checksums of batches are those of the files' bytes."""
    found = next((entry for entry in shards.files if entry.is_checksums), None)
    if found is None:
        return
    try:
        path = shards.folder / found.path
        tasks = ((shards.folder / entry.path,) for _, entry in shards.parts())
        with closing(run_tasks(checksums_of_file, tasks, workers=resources.workers)) as of_files:
            is_theirs = are_merged_in(path, found, of_files)
        if not is_theirs:
            yield f"{path} is not of the batches in the files next to it"
    except (HotsetError, *DAMAGE) as error:
        raise_system_fault(shards.folder, error)
        yield f"{shards.folder} has files that are not of batches: {first_line(error)}"


def _check_sums(manifests: dict[str, Manifest]) -> Iterator[str]:
    """Check that all stages have the same number of samples."""
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
    files = inspect_logs(raw)
    if len(files) != len(recorded):
        yield f"{len(files)} logs were given, {columns.folder} was made from {len(recorded)}"
        return
    for file, log in zip(files, recorded, strict=True):
        if checksum_of_log(file, block_bytes) != log.xxh3_128_of_blocks:
            yield f"{file.path} is not the log {columns.folder} was made from"
