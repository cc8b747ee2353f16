"""Files of a stage changed after it sealed them, with a manifest and later manifests that agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from hotset.pipeline.folders.checksum import hash_file
from hotset.pipeline.folders.manifest import Manifest, checksum_of
from hotset.pipeline.stages.map_ids import ID_MAP
from hotset.pipeline.stages.stage_order import ALL_FOLDERS


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
    write_manifest(folder, parts)
    return path


def write_manifest(folder: Path, parts: dict[str, Any]) -> None:
    """Write a manifest with the checksum of its parts."""
    parts.pop("checksum")
    text = json.dumps(parts | {"checksum": checksum_of(parts)})
    (folder / "manifest.json").write_text(text)


def reseal_later_folders(folder: Path) -> None:
    """Make the folders inside ``folder`` name the fingerprints that the others have now, in their order."""
    names = [name for name in [*ALL_FOLDERS.values(), ID_MAP] if (folder / name).is_dir()]
    fingerprints: dict[str, str] = {}
    for name in names:
        parts = json.loads((folder / name / "manifest.json").read_text())
        for made_from in parts["inputs"]:
            if made_from["name"] in fingerprints:
                made_from["fingerprint"] = fingerprints[made_from["name"]]
        write_manifest(folder / name, parts)
        fingerprints[name] = Manifest.read(folder / name).fingerprint
