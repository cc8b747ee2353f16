"""Files of a stage changed after it sealed them, with a manifest and later manifests that agree."""

from __future__ import annotations

import contextlib
import json
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from hotset.pipeline.folders.manifest import TABLE_FACT, Manifest, checksum_of, hash_file
from hotset.pipeline.formats.batch_checksums import (
    CHECKSUMS,
    checksum_in,
    checksums_of_file,
    merged_head,
    records_in,
)
from hotset.pipeline.preprocess import FOLDERS, ID_MAP
from hotset.train.run_folder.files import CHECKPOINTS


def reseal(folder: Path, change: Any, name: str | None = None) -> Path:
    """Change the columns of a file, the first with samples, and make its manifest agree."""
    manifest = folder / "manifest.json"
    parts = json.loads(manifest.read_text())
    entry = next(e for e in parts["files"] if (e["path"] == name if name else e["samples"] > 3))
    path: Path = folder / entry["path"]
    batches = pa.ipc.open_file(path.read_bytes()).read_all().to_batches()
    columns = {name: batches[0].column(name).to_pylist() for name in batches[0].schema.names}
    change(columns)
    arrays = [pa.array(columns[field.name], field.type) for field in batches[0].schema]
    batches[0] = pa.record_batch(arrays, schema=batches[0].schema)
    with open(path, "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    entry["bytes"], entry["xxh3_128"] = hash_file(path)
    reseal_checksums(folder, parts)
    write_manifest(folder, parts)
    return path


def reseal_checksums(folder: Path, parts: dict[str, Any]) -> None:
    """Take the checksums of batches of a folder that has some anew; ``parts`` is its manifest."""
    for entry in parts["files"]:
        if entry["path"] == CHECKSUMS:
            others = [
                checksums_of_file(folder / each["path"]) for each in parts["files"] if each is not entry
            ]
            head = merged_head(others)
            (folder / CHECKSUMS).write_bytes(b"".join([head, *map(records_in, others)]))
            entry["bytes"], entry["xxh3_128"] = hash_file(folder / CHECKSUMS)
            entry[TABLE_FACT] = checksum_in(head)


def write_manifest(folder: Path, parts: dict[str, Any]) -> None:
    """Write a manifest with the checksum of its parts."""
    parts.pop("checksum")
    text = json.dumps(parts | {"checksum": checksum_of(parts)})
    (folder / "manifest.json").write_text(text)


def set_in_manifest(folder: Path, keys: str, value: Any) -> None:
    """Give the place that ``keys`` lead to, such as ``totals.tables.0.name``, another value."""
    parts = json.loads((folder / "manifest.json").read_text())
    *outer, last = (int(key) if key.isdigit() else key for key in keys.split("."))
    reduce(getitem, outer, parts)[last] = value
    write_manifest(folder, parts)


def reseal_later_folders(folder: Path) -> None:
    """Make the folders inside ``folder`` name the fingerprints that the others have now, in their order."""
    names = [name for name in [*FOLDERS.values(), ID_MAP] if (folder / name).is_dir()]
    fingerprints: dict[str, str] = {}
    for name in names:
        parts = json.loads((folder / name / "manifest.json").read_text())
        for made_from in parts["inputs"]:
            if made_from["name"] in fingerprints:
                made_from["fingerprint"] = fingerprints[made_from["name"]]
        write_manifest(folder / name, parts)
        fingerprints[name] = Manifest.read(folder / name).fingerprint


def reseal_checkpoints(run: Path) -> None:
    """Make the records of checkpoints agree with the files that they list, and with those of best weights."""
    folder = run / CHECKPOINTS
    for path in folder.glob("step-*.json"):
        parts = json.loads(path.read_bytes())
        if not isinstance(parts, dict):
            continue
        _reseal_entries(parts, run)
        parts.pop("checksum", None)
        path.write_text(json.dumps(parts | {"checksum": checksum_of(parts)}))


def _reseal_entries(value: Any, run: Path) -> None:
    """Hash again whatever file is named with a checksum, anywhere in a record."""
    if isinstance(value, list):
        for element in value:
            _reseal_entries(element, run)
    if not isinstance(value, dict):
        return
    for element in value.values():
        _reseal_entries(element, run)
    if "xxh3_128" not in value:
        return
    # Best weights are named by their step, other files by their path; an edit may have taken either.
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
        is_best = "path" not in value
        path = run / (f"best-{value['step']:09}.safetensors" if is_best else f"{CHECKPOINTS}/{value['path']}")
        num_bytes, checksum = hash_file(path)
        value |= {"xxh3_128": checksum} | ({} if is_best else {"bytes": num_bytes})
