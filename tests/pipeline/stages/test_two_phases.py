"""Two phases write the bytes that passes write, whatever the memory, the workers and the moment of a kill."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders import pieces as piece_files
from hotset.pipeline.folders.disk import PARTIAL, remove_folders
from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.formats.arrow_files import OpenedParts
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages import pack as pack_stage
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig, needed_bytes, pack
from hotset.pipeline.stages.shuffle import Buffers, PackInputs, PackSizes, bytes_of_parts
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.stages.two_phases import TwoPhases
from hotset.tests.support.logs.criteo_text import draw_samples, tree_of
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_csv
from hotset.tests.support.naive.naive_stages import run_to
from hotset.tests.support.preprocess_runs import failing_writer
from hotset.tests.support.processes.memory_caps import count_stages_alone

MIB = 2**20
SIZES = PackSizes(inputs=100, rows=80, largest_part=5, room=20, cache=99)


@pytest.mark.parametrize(
    ("changes", "is_two_phases"),
    [
        ({}, True),
        ({"cache": 100}, False),  # the page cache holds all
        ({"room": 27}, False),  # three passes
        ({"room": 26}, True),
        ({"room": 5}, True),
        ({"room": 4}, False),  # less than a part
        ({"rows": 0}, False),
        ({"rows": 60}, False),
        ({"rows": 61}, True),
    ],
)
def test_two_phases_serve_where_passes_are_many_and_read_the_disk(
    changes: dict[str, int], is_two_phases: bool
) -> None:
    assert replace(SIZES, **changes).is_two_phases is is_two_phases


@dataclass(frozen=True)
class Case:
    """Folders before `pack`, its settings and the bytes of an output file."""

    folder: Path
    config: PackConfig
    file_bytes: int

    @property
    def inputs(self) -> PackInputs:
        columns, samples, plan = (
            Manifest.read(self.folder / name) for name in ("columns", "samples", "plan")
        )
        return PackInputs(columns, samples, plan)

    @property
    def part_bytes(self) -> int:
        return max(bytes_of_parts(self.inputs))

    def pack(self, out: Path, spare: int, workers: int = 1, scratch: Path | None = None) -> Manifest:
        """Pack with the least memory and ``spare`` bytes."""
        inputs = self.inputs
        largest = max(entry.num_samples for entry in inputs.columns.files)
        least = needed_bytes(self.config, inputs.words_per_sample, largest, workers)
        resources = Resources(workers=workers, memory_bytes=least + spare, scratch=scratch)
        return pack(self.config, inputs.columns, inputs.samples, inputs.plan, out, resources)


LISTS = {
    "number": "whole",
    "click": "maybe label",
    "tags": "list text",
    "site": "hex8",
    "w": "weight",
    "like it": "maybe label",
    "user": "group integer",
    "seen": "list integer",
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("two-phases")
    split = SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 110))
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.2), split=split)
    (folder / "criteo").mkdir()
    run_to("split", folder / "criteo", draw_samples(200, np.random.default_rng(9)), config)
    log = draw_log(240, LISTS, np.random.default_rng(5))
    write_csv(folder / "log.csv", log)
    ingest = IngestConfig(schema=schema_text(log), block_bytes=ByteSize(2000))
    config = replace(config, ingest=ingest, split=replace(split, hot_bytes=ByteSize(64 * 20)))
    preprocess([folder / "log.csv"], config, folder / "lists", until="split")
    return {
        "criteo": Case(folder / "criteo", PackConfig(batch_size=8, seed=3), 4 * 41 * 16),
        "original": Case(folder / "criteo", PackConfig(batch_size=5, order="original"), 4 * 41 * 10),
        "lists": Case(folder / "lists", PackConfig(batch_size=4, seed=1), 3000),
    }


@contextmanager
def cache_of(num_bytes: int, case: Case) -> Iterator[list[str]]:
    """Let the page cache be of a size, and files and caps small; yields which ways are taken."""
    ways: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            ways.append(name)
            return function(*arguments)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        count_stages_alone(patch)
        patch.setattr(pack_stage, "_FILE_BYTES", case.file_bytes)
        patch.setattr(pack_stage, "page_cache_bytes", lambda _: num_bytes)
        patch.setattr(TwoPhases, "groups", noting("phases", TwoPhases.groups))
        patch.setattr(TwoPhases, "_map_run", noting("map", TwoPhases._map_run))
        patch.setattr(pack_stage, "_groups_in_passes", noting("passes", pack_stage._groups_in_passes))
        yield ways


@pytest.fixture(scope="module")
def trees(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files that passes write."""
    found = {}
    for name, case in cases.items():
        out = tmp_path_factory.mktemp("passes") / "shards"
        with cache_of(2**60, case) as ways:
            case.pack(out, 10**6)
        assert ways == ["passes"]
        found[name] = tree_of(out)
    return found


@pytest.mark.parametrize("name", ["criteo", "original", "lists"])
def test_two_phases_write_the_bytes_of_passes(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], name: str
) -> None:
    _assert_equal_bytes(cases[name], trees[name], 0, 2)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(["criteo", "original", "lists"]),
    spare=st.integers(0, 30_000),
    workers=st.integers(1, 4),
)
def test_two_phases_write_the_bytes_of_passes_whatever_the_memory_and_the_workers(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], name: str, spare: int, workers: int
) -> None:
    _assert_equal_bytes(cases[name], trees[name], spare, workers)


def _assert_equal_bytes(case: Case, wanted: dict[str, bytes], spare: int, workers: int) -> None:
    with tempfile.TemporaryDirectory() as folder, cache_of(0, case) as ways:
        out = Path(folder) / "shards"
        case.pack(out, case.part_bytes + spare, workers)
        assert tree_of(out) == wanted
        assert ways[0] == "phases" or spare > 3_000


@pytest.mark.parametrize("name", ["criteo", "lists"])
def test_every_part_is_read_once(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    case = cases[name]
    opened: Counter[str] = Counter()

    def counting(parts: OpenedParts, folder: Manifest, entry: FileEntry) -> Any:
        opened[f"{folder.stage}/{entry.path}"] += 1
        return read(parts, folder, entry)

    read = OpenedParts.read
    with cache_of(0, case) as ways, pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenedParts, "read", counting)
        case.pack(tmp_path / "shards", case.part_bytes, 2)
    assert ways[0] == "phases" and ways.count("map") > 3
    # Tags are read for the keys, and the lengths of lists ahead of their ids.
    reads = {
        stage: {opened[key] for key in opened if key.startswith(stage)} for stage in ("ingest", "encode")
    }
    assert reads == {"ingest": {1}, "encode": {2 if case.inputs.lists else 1}}


@pytest.mark.parametrize("way", ["passes", "phases"])
@pytest.mark.parametrize("name", ["columns", "samples", "plan"])
def test_a_flipped_byte_of_a_part_is_found_before_its_samples_are_written(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], name: str, way: str, tmp_path: Path
) -> None:
    case = replace(cases["criteo"], folder=tmp_path / "criteo")
    shutil.copytree(cases["criteo"].folder, case.folder)
    part = sorted((case.folder / name).glob("*.arrow"))[-1]
    flip(part, part.stat().st_size // 2)
    with cache_of(0 if way == "phases" else 2**60, case) as ways:
        with pytest.raises(ManifestError, match=rf"{part} is damaged: its checksum is"):
            case.pack(tmp_path / "shards", case.part_bytes if way == "phases" else 10**6)
    # Keys follow from all tags, before the way is taken.
    assert name == "plan" or ways[0] == way
    # Files without its samples may be there.
    written = list((tmp_path / "shards").glob("*.arrow"))
    assert all(path.read_bytes() == trees["criteo"][path.name] for path in written)
    assert len(written) < len([path for path in trees["criteo"] if path.endswith(".arrow")])


class Kill(BaseException):
    """The end of a process."""


def killing(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works ``number`` times."""
    left = number

    def killed(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Kill
        return function(*arguments, **named)

    return killed


def kill_in_pack(case: Case, out: Path, where: str, number: int, **options: Any) -> bool:
    """Pack until the ``number``-th call of a function; returns whether it came to that."""
    with pytest.MonkeyPatch.context() as patch:
        module, name = {
            "write": (os, "pwrite"),
            "rename": (os, "replace"),
            "record": (piece_files, "write_synced"),
            "read": (os, "preadv"),
            "map": (TwoPhases, "_map_run"),
            "shard": (pack_stage, "write_shard"),
        }[where]
        patch.setattr(module, name, killing(number, getattr(module, name)))
        try:
            case.pack(out, **options)
        except Kill:
            return True
    return False


@pytest.mark.parametrize(
    "where",
    [
        "write",
        "record",
        "shard",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("rename", "read", "map")),
    ],
)
def test_a_killed_run_is_resumed_to_the_same_bytes(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], where: str, tmp_path: Path
) -> None:
    case = cases["lists"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    kills = 0
    with cache_of(0, case):
        for number in (1, 6):
            out = tmp_path / f"{where}-{number}"
            spare = case.part_bytes
            kills += kill_in_pack(case, out, where, number, spare=spare, scratch=scratch)
            # Another moment, other memory and another number of workers.
            kills += kill_in_pack(case, out, where, number + 3, spare=2 * spare, workers=2, scratch=scratch)
            case.pack(out, spare, scratch=scratch)
            assert tree_of(out) == trees["lists"]
    assert kills > 1
    assert not list(scratch.iterdir())


def test_finished_runs_are_kept_and_no_file_is_written_again(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    case = cases["criteo"]
    out = tmp_path / "shards"
    with cache_of(0, case) as ways:
        assert kill_in_pack(case, out, "map", 3, spare=case.part_bytes)
        num_mapped = len(list((out / PARTIAL / "pieces").glob("*.json")))
        assert num_mapped == 3
        assert kill_in_pack(case, out, "shard", 5, spare=case.part_bytes)
        num_runs = len(list((out / PARTIAL / "pieces").glob("*.json")))
        written = {path.name: path.stat().st_ino for path in out.glob("*.arrow")}
        ways.clear()
        case.pack(out, case.part_bytes)
    assert "map" not in ways and num_runs > num_mapped
    assert len(written) == 5
    assert all((out / name).stat().st_ino == inode for name, inode in written.items())
    assert tree_of(out) == trees["criteo"]


def runs_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.pieces"))


def swap_two(path: Path) -> None:
    """Swap the rows of two pieces of equal length."""
    data = bytearray(path.read_bytes())
    data[:8], data[8:16] = data[8:16], data[:8]
    path.write_bytes(data)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[list[Path]], object]] = {
    "lost": lambda runs: runs[1].unlink(),
    "cut": lambda runs: os.truncate(runs[1], runs[1].stat().st_size - 20),
    "key flipped": lambda runs: flip(runs[0], 3),
    "row flipped": lambda runs: flip(runs[0], runs[0].stat().st_size // 3),
    "index flipped": lambda runs: flip(runs[2], runs[2].stat().st_size - 2),
    "another's": lambda runs: shutil.copy(runs[0], runs[1]),
    "swapped": lambda runs: swap_two(runs[0]),
    "record lost": lambda runs: runs[0].with_suffix(".json").unlink(),
    "record of another": lambda runs: shutil.copy(runs[0].with_suffix(".json"), runs[1].with_suffix(".json")),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_damaged_pieces_are_noticed_and_mapped_again(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], fault: str, tmp_path: Path
) -> None:
    case = cases["criteo"]
    out = tmp_path / "shards"
    with cache_of(0, case) as ways:
        assert kill_in_pack(case, out, "shard", 0, spare=case.part_bytes)
        DAMAGE[fault](runs_in(out))
        ways.clear()
        try:
            case.pack(out, case.part_bytes)
        except ManifestError as error:
            assert "pieces is damaged: the piece of output file" in str(error)
            assert error.hint is not None and "same command again" in error.hint
            case.pack(out, case.part_bytes)
    assert tree_of(out) == trees["criteo"]
    assert ways.count("map") == 1


@pytest.mark.parametrize(("section", "offset"), [(0, 0), (3, 9), (3, 15), (4, 15), (5, 1)])
def test_pieces_that_change_while_they_are_read_are_noticed(
    cases: dict[str, Case], section: int, offset: int, tmp_path: Path
) -> None:
    """The index is checked when a run is found; what is read of it later may be other bytes.

    The bytes are of a key, of where the rows and the bags of the second piece begin, and of a checksum.
    """
    flipped: set[Path] = set()

    def damaging(phases: TwoPhases, *others: Any) -> Any:
        run = phases.pieces.runs[0]
        if run.path not in flipped:
            flip(run.path, run.sections[section] + offset)
            flipped.add(run.path)
        return gathered(phases, *others)

    case = cases["criteo"]
    gathered = TwoPhases._gathered
    with cache_of(0, case), pytest.MonkeyPatch.context() as patch:
        patch.setattr(TwoPhases, "_gathered", damaging)
        with pytest.raises(ManifestError, match=r"pieces (is damaged|cannot be read): "):
            case.pack(tmp_path / "shards", case.part_bytes)


def test_a_full_scratch_disk_is_one_line_and_nothing_is_lost(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    case = cases["criteo"]
    out = tmp_path / "shards"
    for name in "ab":
        (tmp_path / name).mkdir()
    with cache_of(0, case) as ways:
        with pytest.MonkeyPatch.context() as patch:
            full = killing(2, os.posix_fallocate)

            def allocate(*arguments: int) -> None:
                try:
                    full(*arguments)
                except Kill:
                    raise OSError(28, "No space left on device") from None

            patch.setattr(os, "posix_fallocate", allocate)
            with pytest.raises(
                ManifestError, match=r"a/hotset-\w+ cannot hold the pieces: No space"
            ) as caught:
                case.pack(out, case.part_bytes, scratch=tmp_path / "a")
        assert caught.value.hint is not None and "another --scratch" in caught.value.hint
        assert len(runs_in(tmp_path / "a")) == 2
        # What is in the full folder is used, what is missing goes to the other one.
        ways.clear()
        case.pack(out, case.part_bytes, scratch=tmp_path / "b")
    assert ways.count("map") > 2
    assert tree_of(out) == trees["criteo"]
    assert not [*(tmp_path / "a").iterdir(), *(tmp_path / "b").iterdir()]


def test_a_scratch_without_room_is_refused(
    cases: dict[str, Case],
    trees: dict[str, dict[str, bytes]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = cases["criteo"]
    usage = shutil._ntuple_diskusage(10 * MIB, 0, 1000)
    with cache_of(0, case) as ways, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(ConfigError, match="has 1000 B free, and pieces need"):
            case.pack(tmp_path / "out", case.part_bytes, scratch=tmp_path)
        # Nobody asked for pieces: passes do it as before.
        ways.clear()
        case.pack(tmp_path / "other", case.part_bytes)
        assert ways == ["passes"] and "times; --scratch names" in caplog.text
        assert tree_of(tmp_path / "other") == trees["criteo"]


def test_a_scratch_in_memory_is_refused_where_pieces_take_more_than_a_tenth(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases["criteo"]
    monkeypatch.setattr(piece_files, "is_in_memory", lambda _: True)
    bytes_of_pieces = sum(bytes_of_parts(case.inputs))
    for total, is_refused in ((10 * bytes_of_pieces - 10, True), (10 * bytes_of_pieces, False)):
        usage = shutil._ntuple_diskusage(total, 0, total)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        with cache_of(0, case):
            if is_refused:
                with pytest.raises(ConfigError, match=r"in memory, .* more than a tenth"):
                    case.pack(tmp_path / "out", case.part_bytes, scratch=tmp_path)
            else:
                case.pack(tmp_path / "out", case.part_bytes, scratch=tmp_path)


def test_a_removed_folder_takes_its_pieces_elsewhere_along(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["criteo"]
    scratch = tmp_path / "scratch"
    for name in ("removed", "with other settings"):
        out = tmp_path / name
        with cache_of(0, case):
            assert kill_in_pack(case, out, "shard", 1, spare=case.part_bytes, scratch=scratch)
            assert len(list(scratch.iterdir())) == 1
            if name == "removed":
                remove_folders([out])
            else:
                for path in out.glob("*.arrow"):  # a folder with finished files is refused
                    path.unlink()
                    (out / PARTIAL / f"{path.name}.json").unlink()
                replace(case, config=PackConfig(batch_size=8, seed=4)).pack(out, 10**9)
        assert not list(scratch.iterdir())


def test_what_is_held_at_a_time_fits_in_the_room(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["lists"]
    held: set[int] = set()
    least = needed_bytes(case.config, case.inputs.words_per_sample, 0, 1)

    def noting(rows: Any, lookups: Any, inputs: PackInputs, memory: NDArray[np.uint8]) -> Buffers:
        held.add(memory.nbytes)
        return of_files(rows, lookups, inputs, memory)

    of_files = Buffers.of_files
    with cache_of(0, case), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Buffers, "of_files", noting)
        case.pack(tmp_path / "shards", case.part_bytes)
    assert 0 < max(held) <= least + case.part_bytes


def test_a_failing_shard_leaves_a_folder_that_goes_on(
    cases: dict[str, Case], trees: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    case = cases["criteo"]
    out = tmp_path / "shards"
    with cache_of(0, case), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_stage, "write_shard", failing_writer(3, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            case.pack(out, case.part_bytes, 2)
        patch.undo()
    with cache_of(2**60, case) as ways:  # the page cache is empty by now, and pieces are there
        case.pack(out, case.part_bytes, 3)
    assert ways == ["phases"]
    assert tree_of(out) == trees["criteo"]
