"""``verify``: every manifest, checksum and invariant of a folder of stages.

Three kinds of checks: the bytes (every file's checksum, no file that no manifest lists), the chain (each
folder was made from the folders beside it), and the meaning (counts add up from stage to stage, ids are in
range, tags agree with ids). Reads everything once, through the page cache. Of a folder whose files were
discarded only the manifest is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from ..errors import ManifestError
from ..folders.discard import MARK, is_discarded
from ..folders.manifest import MANIFEST, FileEntry, Manifest, first_line
from ..folders.output import hash_file
from ..formats.arrow_files import DAMAGE, read_batch, values_of
from ..formats.category_texts import is_texts
from ..formats.tables import is_multi_hot, offsets_of
from ..raw.raw_blocks import RawFile, iterate_blocks
from ..runtime.tasks import ProgressCallback, run_tasks, silent
from ..stages.map_ids import ID_MAP, check_id_map
from ..stages.stage_order import ALL_FOLDERS
from .check_counts import check_counts
from .check_ids import check_samples, check_shards, check_tags
from .check_plan import faults_of_plan
from .check_schedule import check_schedule, check_schedule_file
from .check_texts import check_texts

STAGE_FOLDERS = {name: stage for stage, name in ALL_FOLDERS.items()} | {ID_MAP: "map-ids"}
"""Folders in the order they are made, and the stage each holds."""


def verify(
    folder: Path,
    *,
    raw: Sequence[Path] = (),
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> list[str]:
    """Check every stage folder inside ``folder``; returns the faults found, a line each, in order.

    Args:
        folder: as `preprocess` made it, perhaps not all of it; or the folder of one stage.
        raw: the logs it was made from, to be hashed again; empty checks none.
        workers: threads; 0 takes every core.
        progress: told how many files are done.

    Raises:
        ManifestError: there is no stage folder at all.
    """
    found = {name: folder / name for name in STAGE_FOLDERS if (folder / name).is_dir()}
    if (folder / MANIFEST).exists():  # one stage's folder, wherever it is
        stage = Manifest.read(folder).stage
        found = {name: folder for name, made_by in STAGE_FOLDERS.items() if made_by == stage}
    if not found:
        raise ManifestError(f"{folder} holds no stage folder", hint="name the folder preprocess --out made")
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
    faults += [fault for manifest in manifests.values() for fault in _check_chain(manifest, manifests)]
    faults += [fault for manifest in manifests.values() for fault in _check_totals(manifest)]
    there = {name: manifest for name, manifest in manifests.items() if not is_discarded(manifest.folder)}
    tasks = [(entry, manifest, there) for manifest in there.values() for entry in manifest.files]
    for done, file_faults in enumerate(run_tasks(_check_file, tasks, workers=workers), 1):
        faults += file_faults
        progress("verify", done, len(tasks))
    if not faults:
        faults += _check_sums(manifests)
        if "schedule" in there:
            faults += check_schedule(there["schedule"], there.get("shards"))
        faults += _check_raw(manifests["columns"], raw) if raw and "columns" in manifests else []
    return faults


def _check_totals(manifest: Manifest) -> list[str]:
    """What the manifest says of the tables fits together."""
    try:
        return [f"{manifest.folder / MANIFEST}: {fault}" for fault in _faults_of_totals(manifest)]
    except DAMAGE as error:
        return [f"{manifest.folder / MANIFEST} is not what a stage writes: {first_line(error)}"]


def _faults_of_totals(manifest: Manifest) -> Iterator[str]:
    for table in manifest.totals.get("tables", []):
        ids = {key: table[key] for key in ("oov_id", "missing_id", "num_hot") if key in table}
        num_rows = table.get("num_rows", max(ids.values(), default=0))
        if any(not 0 <= number <= num_rows for number in ids.values()):
            yield f"{table['name']} has {num_rows} rows, and {ids}"
    if manifest.stage == "split":
        yield from faults_of_plan(manifest)


def _check_chain(manifest: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """The folder holds what it lists, and its inputs are the folders beside it."""
    listed = {entry.path for entry in manifest.files} | {MANIFEST}
    if is_discarded(manifest.folder):
        listed = {MANIFEST, MARK}
    for path in sorted(manifest.folder.iterdir()):
        if path.name not in listed:
            yield f"{path} is no part of the folder: its manifest does not list it"
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
        check = check_texts if is_texts(entry) else _CHECKS[manifest.stage]
        return [f"{path}: {fault}" for fault in check(entry, manifest, manifests)]
    except ManifestError as error:
        return [str(error)]
    except DAMAGE as error:
        return [f"{manifest.folder / entry.path} is not what {MANIFEST} says: {first_line(error)}"]


def _check_columns(entry: FileEntry, columns: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    batch = read_batch(columns, entry)
    for name in columns.totals.get("lists", ()):
        num_lookups = int(offsets_of(batch.column(name))[-1])
        if num_lookups != entry.facts["lookups"][name]:
            yield f"its lists of {name} have {num_lookups} elements, want {entry.facts['lookups'][name]}"
    for name in columns.totals.get("floats", ()):
        if not np.isfinite(values_of(batch.column(name).fill_null(0), np.float64)).all():
            yield f"a value of {name} is not finite"
    if columns.totals["has_label"] and entry.num_samples:
        if values_of(batch.column("label"), np.uint8).max() > 1:
            yield "a label is neither 0 nor 1"


def _check_vocabulary(entry: FileEntry, vocabulary: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    batch = read_batch(vocabulary, entry)
    counts, places = (values_of(batch.column(name), np.int64) for name in ("count", "place"))
    keys = ("num_counted_samples", "num_model_samples", "num_train_samples")
    num_counted = next(vocabulary.totals[key] for key in keys if key in vocabulary.totals)
    tables = {f"{table['name']}.arrow": table for table in vocabulary.totals["tables"]}
    wanted = tables[entry.path].get("num_lookups", num_counted)
    rank_by = vocabulary.totals.get("rank_by", "frequency")
    if rank_by == "sampled":
        sampled = values_of(batch.column("sampled"), np.int64)
        if (sampled[1:] > sampled[:-1]).any():
            yield "its sampled counts rise from one id to the next"
    if rank_by == "frequency" and (counts[1:] > counts[:-1]).any():
        yield "its counts rise from one id to the next"
    if int(counts.sum()) != wanted:
        yield f"its rows have {int(counts.sum())} look-ups, want {wanted}"
    if (places[1:] <= places[:-1]).any() or places.max() >= vocabulary.totals["num_rows"]:
        yield "its places are no order over all tables"


_CHECKS: dict[str, Callable[[FileEntry, Manifest, dict[str, Manifest]], Iterator[str]]] = {
    "ingest": _check_columns,
    "count": check_counts,
    "rank": _check_vocabulary,
    "adopt": _check_vocabulary,
    "encode": check_samples,
    "split": check_tags,
    "pack": check_shards,
    "map-ids": check_id_map,
    "schedule": lambda entry, schedule, _: check_schedule_file(entry, schedule),
}


def _check_sums(manifests: dict[str, Manifest]) -> Iterator[str]:
    """The number of samples is the same from stage to stage."""
    yield from _check_lookups(manifests)
    per_sample = [name for name in ("columns", "samples", "plan", "shards") if name in manifests]
    for before, name in pairwise(per_sample):
        want, have = manifests[before].num_samples, manifests[name].num_samples
        if want != have:
            yield f"{manifests[name].folder} has {have} samples, {before} has {want}"


def _check_lookups(manifests: dict[str, Manifest]) -> Iterator[str]:
    """Multi-hot tables have as many look-ups in samples as in shards, and in a vocabulary of all days."""
    vocabulary, samples, shards = (manifests.get(name) for name in ("vocabulary", "samples", "shards"))
    if samples is None:
        return
    for number, table in enumerate(samples.totals["tables"]):
        if not is_multi_hot(table):
            continue
        name, train = table["name"], table["lookups_train"]
        if vocabulary and vocabulary.stage == "rank" and "num_counted_samples" not in vocabulary.totals:
            want = vocabulary.totals["tables"][number]["num_lookups"]
            if want != train:
                yield f"{samples.folder} trains on {train} look-ups of {name}, vocabulary has {want}"
        if shards:
            found = sum(entry.facts["lookups"][name] for entry in shards.files)
            if found != train + table["lookups_evaluation"]:
                want = train + table["lookups_evaluation"]
                yield f"{shards.folder} has {found} look-ups of {name}, samples has {want}"


def _check_raw(columns: Manifest, raw: Sequence[Path]) -> Iterator[str]:
    """Hash the logs again, block by block, as `ingest` did."""
    recorded = columns.totals["raw"]
    if len(raw) != len(recorded):
        yield f"{len(raw)} logs were given, {columns.folder} was made from {len(recorded)}"
        return
    for path, log in zip(raw, recorded, strict=True):
        digest = xxhash.xxh3_128()
        for read in iterate_blocks(RawFile.look_at(path), columns.config["block_bytes"], in_scratch=True):
            block = read()
            if block.num_bytes:
                digest.update(xxhash.xxh3_128_digest(block.lines.data))
        if digest.hexdigest() != log["xxh3_128_of_blocks"]:
            yield f"{path} is not the log {columns.folder} was made from"
