"""The check that every stage, run again on the folders beside it, gives the rows that its folder has.

A stage is a pure function of its config and its inputs. So no rule about counts, ids, labels or the order
of a shuffle has to be written a second time: the stage is run into a temporary folder and compared, and any
value that the inputs do not give is found, even where every checksum was computed anew. One stage is on disk
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import HotsetError, ManifestError, MemoryCapError, first_line
from ..folders.disk import folder_exists, temporary_folder
from ..folders.manifest import MANIFEST, FileEntry, Manifest
from ..formats.arrow_files import DAMAGE, open_mapped
from ..runtime.resources import Resources, silent
from ..sizes import ByteSize
from ..stages.adopt import adopt
from ..stages.count import CountConfig
from ..stages.encode import EncodeConfig
from ..stages.ingest import IngestConfig, ingest
from ..stages.map_ids import map_ids
from ..stages.pack import PackConfig
from ..stages.preflight import refuse_full_disk
from ..stages.preprocess import build_stage
from ..stages.rank import RankConfig
from ..stages.split import SplitConfig
from ..stages.stage_order import inputs_of

_Build = Callable[[Path], Manifest]
"""Runs a stage again into a folder."""


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The inputs and resources that stages are run again with."""

    resources: Resources
    scratch: Path | None = None
    """Folder for the temporary folders; None takes the system's."""
    raw: Sequence[Path] = ()
    """The logs, if columns are parsed again, too."""
    other_vocabulary: Path | None = None
    """Folder with the vocabulary that was adopted, or that an id map starts from."""


def faults_of_rebuilt(manifests: Mapping[str, Manifest], rebuilding: Rebuilding) -> Iterator[str]:
    """Find what differs from what the stages write; a stage whose inputs are not there is left out.

    Args:
        manifests: by the name of the folder; each one's files are whole, and made from the others.
        rebuilding: what to run stages with.

    Raises:
        ConfigError: there is too little disk for a stage.
    """
    faulty: set[str] = set()
    for done, (name, made) in enumerate(manifests.items(), 1):
        # A stage trusts its inputs: it is run only on folders without faults, and those it was made from.
        if all(_is_input(source, manifests) and source.get("name") not in faulty for source in made.inputs):
            faults = list(_faults_of(made, manifests, rebuilding))
            faulty |= {name} if faults else set()
            yield from faults
        else:
            faulty.add(name)
        rebuilding.resources.progress("rebuild", done, len(manifests))


def _is_input(source: Mapping[str, Any], manifests: Mapping[str, Manifest]) -> bool:
    """Whether a folder that a stage was made from is the one next to it, or is not there."""
    beside = manifests.get(source["name"]) if "name" in source else None
    return beside is None or beside.fingerprint == source.get("fingerprint")


def _faults_of(made: Manifest, manifests: Mapping[str, Manifest], rebuilding: Rebuilding) -> Iterator[str]:
    try:
        build = _build_of(made, manifests, rebuilding)
    except (HotsetError, *DAMAGE) as error:
        yield f"{made.folder} cannot be built again: {first_line(error)}"
    else:
        yield from _compare(made, build, rebuilding.scratch) if build is not None else ()


def _build_of(made: Manifest, manifests: Mapping[str, Manifest], rebuilding: Rebuilding) -> _Build | None:
    """Return how to build a folder again; None where something that it was made from is not given."""
    resources = replace(rebuilding.resources, progress=silent)
    # Only `ingest` reads raw files, which must then be given.
    if made.stage == "ingest":
        raw = rebuilding.raw
        return (lambda out: ingest(raw, _ingest_config(made), out, resources)) if raw else None
    if made.stage in ("adopt", "map-ids"):
        return _build_from_other_vocabulary(made, manifests, rebuilding.other_vocabulary, resources)
    config = _CONFIGS[made.stage](made)
    # All other stages are built from the folders beside them, which are checked by then.
    names = inputs_of(made.stage, config)
    if any(name not in manifests for name in names):
        return None
    inputs = [manifests[name] for name in names]
    return lambda out: build_stage(made.stage, config, inputs, out, resources)


def _build_from_other_vocabulary(
    made: Manifest, manifests: Mapping[str, Manifest], other: Path | None, resources: Resources
) -> _Build | None:
    if other is None:
        return None
    # The other vocabulary lies in a folder of stages, or is given itself.
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


def _ingest_config(columns: Manifest) -> IngestConfig:
    """Return the config that columns were parsed with, its schema as the text that they keep."""

    def build(config: dict[str, Any]) -> IngestConfig:
        config["schema"] = columns.totals.get("schema") or config["schema"]
        config["block_bytes"] = ByteSize(config["block_bytes"])
        return IngestConfig(**config)

    return columns.read_config(build)


_CONFIGS: dict[str, Callable[[Manifest], Any]] = {
    "count": lambda counts: counts.read_config(lambda config: CountConfig(**config)),
    "rank": RankConfig.of,
    "encode": lambda _: EncodeConfig(),
    "split": SplitConfig.of,
    "pack": lambda shards: shards.read_config(lambda config: PackConfig(**config)),
}
"""The config that each folder was made with, from its manifest."""


def _compare(made: Manifest, build: _Build, scratch: Path | None) -> Iterator[str]:
    # The copy needs as much room as the folder, which is asked for before it is begun.
    num_bytes = sum(entry.num_bytes for entry in made.files)
    with temporary_folder("verify", scratch) as folder:
        refuse_full_disk({made.folder.name: num_bytes}, folder, "--scratch, or --no-rebuild")
        try:
            rebuilt = build(folder / made.folder.name)
            yield from _differences(made, rebuilt)
        except MemoryCapError:  # the cap is at fault, and not the folder
            raise
        except (HotsetError, *DAMAGE) as error:
            yield f"{made.folder} cannot be built again from what it was made from: {first_line(error)}"


def _differences(made: Manifest, rebuilt: Manifest) -> Iterator[str]:
    """Find what one folder has and the other not: files, their rows and facts, totals."""
    manifest = made.folder / MANIFEST
    for name in sorted(made.entries.keys() ^ rebuilt.entries.keys()):
        whose = "the stage does not write it" if name in made.entries else "it lacks this file"
        yield f"{made.folder / name}: {whose} when run again"
    for entry in made.files:
        wanted = rebuilt.entries.get(entry.path)
        if wanted is None:
            continue
        if entry.xxh3_128 != wanted.xxh3_128:
            # Another version of Arrow may lay the same values out in other bytes.
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
    """The facts of a file that do not depend on how its log is compressed."""
    return {"samples": entry.num_samples} | entry.facts


def _first_difference(found: Path, wanted: Path) -> str | None:
    """Return in words where two Arrow files first differ; None where all values are the same."""
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
            columns = [batch.column(name) for batch in batches]
            if not columns[0].equals(columns[1]):
                row = _first_unequal_row(*columns)
                return f"{name} in row {row} of record batch {number} is another value"
    return None


def _first_unequal_row(found: pa.Array, wanted: pa.Array) -> int:
    """Return the first row in which two arrays differ, by halving the rows before which they are equal."""
    low = 0
    high = min(len(found), len(wanted))
    while low < high:
        middle = (low + high + 1) // 2
        if found.slice(low, middle - low).equals(wanted.slice(low, middle - low)):
            low = middle
        else:
            high = middle - 1
    return low
