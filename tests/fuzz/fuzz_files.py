"""Mutated files and manifests of a preprocessed folder through everything that reads them.

    python -m hotset.tests.fuzz.fuzz_files --files 1000

A child process mutates one file at a time, lets every reader and the stages after it at the folder, and puts
the file back. Each must give what it gave before, or raise one of the project's own errors; where a payload
without redundancy changed, it may give other data, and `verify` must name the file. A child that crashes or
hangs is counted, and another one continues with the next file.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotset.pipeline.errors import ByteSize, HotsetError
from hotset.pipeline.folders.checksum import hash_file
from hotset.pipeline.folders.manifest import MANIFEST, Manifest, checksum_of
from hotset.pipeline.formats.arrow_files import read_batch
from hotset.pipeline.formats.columns import read_texts
from hotset.pipeline.preprocess import FOLDERS, INPUTS, PreprocessConfig, preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.tests.support.preprocess_runs import CONFIG

_HANG_SECONDS = 60
_BLOCK_BYTES = ByteSize(24_000)
_EXTREMES = [0, 1, 2, 3, 7, 8, 255, 2**16, 2**31 - 1, -(2**31), -1, 2**40, 2**62, 2**63 - 1, -(2**63)]
_JSON: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    1e308,
    "x",
    "../x",
    "",
    [],
    {},
    [1],
    [[]],
    {"name": 3},
]


def mutate_bytes(whole: bytes, luck: random.Random) -> bytes:
    """Make one to three edits, most of them where Arrow keeps its schema and its offsets."""
    mutated = bytearray(whole)
    for _ in range(luck.choice([1, 1, 1, 2, 3])):
        _edit_bytes(mutated, luck)
    return bytes(mutated)


def _edit_bytes(mutated: bytearray, luck: random.Random) -> None:
    length = len(mutated)
    if not length:
        return mutated.extend(luck.randbytes(8))
    first, stop = luck.choice([(0, min(length, 2500)), (max(0, length - 2500), length), (0, length)])
    place = luck.randrange(first, stop)
    match luck.randrange(10):
        case 0 | 1 | 2:
            mutated[place] ^= 1 << luck.randrange(8)
        case 3:
            mutated[place] = luck.randrange(256)
        case 4 | 5:
            width = luck.choice([2, 4, 4, 8])
            number = luck.choice(_EXTREMES) % (1 << 8 * width)
            place -= place % width
            mutated[place : min(place + width, length)] = number.to_bytes(8, "little")[
                : min(width, length - place)
            ]
        case 6:
            count = min(luck.randint(1, 64), length - place)
            mutated[place : place + count] = luck.choice(
                [luck.randbytes(count), bytes(count), b"\xff" * count]
            )
        case 7:
            other = luck.randrange(first, stop)
            for i in range(min(8, length - max(place, other))):
                mutated[place + i], mutated[other + i] = mutated[other + i], mutated[place + i]
        case 8:
            other = luck.randrange(first, stop)
            count = min(luck.choice([4, 8, 16, 64]), length - max(place, other))
            mutated[place : place + count] = mutated[other : other + count]
        case _:
            if luck.random() < 0.5:
                del mutated[place:]
            else:
                mutated.extend(luck.randbytes(luck.choice([1, 8, 100])))


def mutate_parts(parts: dict[str, Any], luck: random.Random) -> None:
    """Change one value somewhere in a manifest: remove it, or put another in its place."""
    where, key = luck.choice(list(_places(parts)))
    match luck.randrange(4):
        case 0:
            del where[key]
        case 1 if type(where[key]) is int:
            where[key] += luck.choice([-1, 1, 1000, -1000])
        case 2 if isinstance(where, list):
            where.insert(key, copy.deepcopy(where[luck.randrange(len(where))]))
        case _:
            where[key] = copy.deepcopy(luck.choice(_JSON))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def reseal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and give it the checksum that fits."""
    parts = json.loads((folder / MANIFEST).read_bytes())
    parts.pop("checksum")
    change(parts)
    (folder / MANIFEST).write_text(json.dumps(parts | {"checksum": checksum_of(parts)}))


def digest_of(*arrays: Any) -> str:
    """Return a checksum of arrays."""
    digest = hashlib.sha1()
    for array in arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_stages(folder: Path) -> dict[str, str]:
    """Return checksums of every column of every stage's files."""
    found = {}
    for name in list(FOLDERS.values())[:-1]:
        manifest = Manifest.read(folder / name)
        for entry in manifest.files:
            batch = (read_texts if entry.is_texts else read_batch)(manifest, entry)
            found[f"{name}/{entry.path}"] = str([batch.column(key).to_pylist() for key in batch.schema.names])
    return {path: hashlib.sha1(text.encode()).hexdigest() for path, text in found.items()}


def _arrays_of(bags: Any) -> list[Any]:
    return [array for each in bags for array in (each.offsets_B1, each.ids_N)]


def read_shards(folder: Path) -> list[str]:
    """Return checksums of every batch, as a trainer gets them."""
    from hotset.train.data.shards import Shards

    shards = Shards.open(folder)
    batches = [shards.training_batch(number) for number in range(shards.num_training_batches)]
    batches += [shards.evaluation_batch(number) for number in range(shards.num_evaluation_batches)]
    arrays = [
        [b.label_B.numpy(), b.dense_BK.numpy(), b.ids_BF, b.is_hot_B, *_arrays_of(b.bags)] for b in batches
    ]
    return [digest_of(*(array for array in several if array is not None)) for several in arrays]


def kind_of(path: Path) -> str:
    """Classify a file of a preprocessed folder: manifest, shard or stage."""
    if path.name == MANIFEST:
        return "manifest"
    return "shard" if path.parts[0] == "shards" else "stage"


LISTS = {"y": "label", "tags": "list text", "site": "hex8", "price": "float", "codes": "list integer"}


def _write_log(path: Path, seed: int, *, lists: bool) -> PreprocessConfig:
    """Write a log in Criteo's format, or one with lists; returns how to preprocess it.

    Into a few parts: reading takes as long as opening their files, and tests no more with many.
    """
    luck = np.random.default_rng(seed)
    if not lists:
        path.write_bytes(text_of(draw_samples(300, luck)))
        return replace(CONFIG, ingest=replace(CONFIG.ingest, block_bytes=_BLOCK_BYTES))
    log = draw_log(200, LISTS, luck, empty_lists=True)
    write_parquet(path, log)
    schema = schema_text(log, format="parquet")
    return replace(CONFIG, ingest=replace(CONFIG.ingest, schema=schema, block_bytes=_BLOCK_BYTES))


class Fuzzer:
    """A preprocessed folder whose files are mutated one by one."""

    def __init__(self, folder: Path, seed: int, *, lists: bool = False) -> None:
        self.folder = folder
        self.seed = seed
        self.config = _write_log(folder / "log.tsv", seed, lists=lists)
        if not (folder / "dir").exists():
            preprocess([folder / "log.tsv"], self.config, folder / "whole", Resources(workers=1))
            shutil.copytree(folder / "whole", folder / "dir")
        self.dir = folder / "dir"
        self.readers: dict[str, Callable[[Path], Any]] = {
            "read_batch": read_stages,
            "frequency_statistics": lambda path: frequency_statistics(path, Resources(workers=1)),
            "Shards": read_shards,
            "verify": lambda path: verify(path, Resources(workers=1)),
        }
        self.wanted = {name: read(folder / "whole") for name, read in self.readers.items()}
        for stage in INPUTS:
            files = Manifest.read(folder / "whole" / FOLDERS[stage]).files
            self.wanted[stage] = {entry.path: (entry.num_bytes, entry.xxh3_128) for entry in files}

    def run(self, number: int) -> dict[str, Any]:
        """Mutate file ``number`` of the run; returns what each reader made of it."""
        luck = random.Random(f"{self.seed} {number}")
        paths = sorted(path.relative_to(self.dir) for path in self.dir.rglob("*") if path.is_file())
        kind = luck.choice(["manifest", "stage", "stage", "shard"])
        paths = [path for path in paths if kind_of(path) == kind]
        folder = luck.choice(sorted({path.parts[0] for path in paths}))  # some have many more files
        path = luck.choice([path for path in paths if path.parts[0] == folder])
        is_manifest = kind == "manifest"
        is_resealed = luck.random() < 0.4
        before = {name: (self.dir / name).read_bytes() for name in (path, path.parent / MANIFEST)}
        try:
            self._mutate(path, is_manifest, is_resealed, luck)
            changed = (self.dir / path).read_bytes() != before[path]
            outcomes = {name: self._judge(name, read) for name, read in self.readers.items()}
            if not (is_manifest and is_resealed):
                outcomes |= self._judge_stages(path.parts[0])
        finally:
            for name, whole in before.items():
                (self.dir / name).write_bytes(whole)
        if changed and not is_resealed and "other" in outcomes.values() and outcomes["verify"] == "right":
            outcomes["verify"] = "wrong: other data, and no fault found"
        return {"path": str(path), "kind": kind, "is_resealed": is_resealed, "outcomes": outcomes}

    def _mutate(self, path: Path, is_manifest: bool, is_resealed: bool, luck: random.Random) -> None:
        target = self.dir / path
        if is_manifest and is_resealed:
            return reseal(target.parent, lambda parts: mutate_parts(parts, luck))
        target.write_bytes(mutate_bytes(target.read_bytes(), luck))
        if not is_resealed:
            return None

        def change(parts: dict[str, Any]) -> None:
            entry = next(entry for entry in parts["files"] if entry["path"] == path.name)
            entry["bytes"], entry["xxh3_128"] = hash_file(target)

        return reseal(target.parent, change)

    def _judge(self, name: str, read: Callable[[Path], Any]) -> str:
        try:
            found = read(self.dir)
        except HotsetError as error:
            return "refused" if "\n" not in str(error) else f"wrong: several lines: {error}"
        except Exception as error:
            return f"wrong: {type(error).__name__}: {str(error)[:300]}"
        if name == "verify":
            return "refused" if found else "right"
        return "right" if found == self.wanted[name] else "other"

    def _judge_stages(self, name: str) -> dict[str, str]:
        """Run the stages that read the folder ``name`` again, beside the others."""
        outcomes = {}
        for stage, inputs in INPUTS.items():
            if name not in inputs:
                continue
            made = self.folder / "made"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            for folder in inputs:
                (made / folder).symlink_to(self.dir / folder)
            outcomes[stage] = self._judge(stage, partial(_make, made, stage, getattr(self.config, stage)))
        return outcomes


def _make(made: Path, stage: str, config: Any, _: Path) -> Any:
    run_stage(stage, config, made, Resources(workers=1))
    files = [path for path in sorted((made / FOLDERS[stage]).iterdir()) if path.name != MANIFEST]
    return {path.name: hash_file(path) for path in files}


def run_child(folder: Path, first: int, stop: int, seed: int, *, lists: bool) -> None:
    """Mutate files ``first`` to ``stop``; prints a line of JSON before and after each."""
    fuzzer = Fuzzer(folder, seed, lists=lists)
    for number in range(first, stop):
        print(json.dumps({"begun": number}), flush=True)
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        print(json.dumps(fuzzer.run(number)), flush=True)
        faulthandler.cancel_dump_traceback_later()


def fuzz_files(num_files: int, seed: int, *, lists: bool = False) -> dict[str, Any]:
    """Mutate ``num_files`` files; ``wrong`` lists what was neither right nor refused.

    Args:
        num_files: number of mutations; each file is put back before the next.
        seed: seed of the log and the mutations.
        lists: take a log with lists, floats and texts instead of one in Criteo's format.
    """
    started = time.perf_counter()
    number = 0
    files: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        while number < num_files:
            words = [
                "--child",
                folder,
                "--first",
                str(number),
                "--files",
                str(num_files),
                "--seed",
                str(seed),
                *(["--lists"] if lists else []),
            ]
            command = [sys.executable, "-m", "hotset.tests.fuzz.fuzz_files", *words]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            with child, child.stdout:
                for line in child.stdout:
                    found = json.loads(line)
                    if "begun" in found:
                        number = found["begun"] + 1
                        continue
                    files[found["kind"] + (", sealed again" if found["is_resealed"] else "")] += 1
                    for reader, outcome in found["outcomes"].items():
                        outcomes[f"{reader}: {outcome.partition(':')[0]}"] += 1
                        if outcome.startswith("wrong"):
                            wrong.append(f"file {number - 1}, {found['path']}, {reader}: {outcome}")
            if child.returncode:
                wrong.append(f"file {number - 1}: the process ended with {child.returncode}")
                shutil.rmtree(Path(folder) / "dir", ignore_errors=True)
                if not number:
                    break
                shutil.copytree(Path(folder) / "whole", Path(folder) / "dir")
    return {
        "inputs": sum(files.values()),
        "files": dict(sorted(files.items())),
        "outcomes": dict(sorted(outcomes.items())),
        "wrong": wrong,
        "seed": seed,
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=fuzz_files.__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lists", action="store_true")
    parser.add_argument("--child", type=Path)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        run_child(options.child, options.first, options.files, options.seed, lists=options.lists)
    else:
        print(json.dumps(fuzz_files(options.files, options.seed, lists=options.lists), indent=1))


if __name__ == "__main__":
    main()
