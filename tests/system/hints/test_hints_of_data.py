"""Hints about logs and stage folders that need more than a line of `hints.txt`."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from ray.exceptions import WorkerCrashedError

import hotset
from hotset.pipeline import verify as rebuild
from hotset.pipeline.errors import ByteSize, system_fault
from hotset.pipeline.export import flat_table
from hotset.pipeline.folders import disk
from hotset.pipeline.folders.disk import FolderLock, held_by_worker, start_generation
from hotset.pipeline.folders.manifest import FileEntry, Manifest, read_referenced
from hotset.pipeline.folders.output import Output, spill_errors_explained
from hotset.pipeline.folders.pieces import PieceArrays, PieceFolders, Run
from hotset.pipeline.folders.totals import CountsFacts
from hotset.pipeline.formats.arrow_files import columns_of, fixed_lists, offsets_of, read_file, values_of
from hotset.pipeline.raw.log_parts import beside
from hotset.pipeline.raw.part import iterate_blocks
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.raw.tabular import _array
from hotset.pipeline.runtime import limits, ray_engine, tasks
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages import ingest
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.orders import _appearances
from hotset.pipeline.stages.pack import ShardBatches
from hotset.pipeline.stages.rank import RankConfig, map_ids, rank
from hotset.pipeline.stages.shuffle import PackSizes
from hotset.pipeline.statistics import frequencies
from hotset.tests.support.hints import Killed, Shell, follows, hint_of
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.interrupted import interrupt_after
from hotset.tests.support.processes.kills import start_holder
from hotset.train.data.dataset import ShardDataset

SCHEMA = 'format = "csv"\nlabel = "click"\ndense = ["age"]\n[sparse]\ncountry = "text"\n'


@dataclass(frozen=True)
class AnyConfig:
    """Nothing to vary."""


def damage(path: Path) -> None:
    """Turn a file's bytes round, so that its size stays."""
    path.write_bytes(path.read_bytes()[::-1])


@follows("pipeline/stages/rank.py::map_ids")
def test_what_is_no_vocabulary_is_not_mapped(shell: Shell) -> None:
    shards, vocabulary = (Manifest.read(Path("data", name)) for name in ("shards", "vocabulary"))
    hint = hint_of(lambda: map_ids(shards, vocabulary, Path("map")))
    assert hint == "give a folder that preprocess wrote (its --out)"
    map_ids(vocabulary, vocabulary, Path("map"))


@follows("pipeline/folders/manifest.py::Manifest.hashed_path")
def test_a_changed_file_is_written_again(shell: Shell) -> None:
    damage(Path("data/vocabulary/C1.arrow"))
    manifest = Manifest.read(Path("data/vocabulary"))
    shell.obey(hint_of(lambda: manifest.hashed_path(manifest.entry("C1.arrow"))))
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::read_referenced")
def test_machines_with_other_folders_are_told_what_must_be_equal(shell: Shell) -> None:
    hint = hint_of(lambda: read_referenced(Path("data/vocabulary"), "0"))
    assert "at the same paths" in hint
    read_referenced(Path("data/vocabulary"), Manifest.read(Path("data/vocabulary")).fingerprint)


@follows("pipeline/folders/disk.py::_refusal")
def test_a_folder_in_use_is_free_when_the_other_run_ends(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other"]
    with start_holder(Path("other/columns/.partial/lock")) as holder:
        assert "wait until that run ends" in shell.refused(*arguments)
        holder.communicate()
    shell.works(*arguments)


@follows("pipeline/folders/disk.py::FolderLock.take")
def test_runs_that_remove_each_others_folders(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for name in ("_take_over", "_take_file"):
            patched.setattr(FolderLock, name, lambda *_: None)
        assert hint_of(lambda: FolderLock.take(Path("x/lock"), Path("x"))) == "stop one of the runs"
    FolderLock.take(Path("x/lock"), Path("x")).release()


@follows("pipeline/folders/disk.py::start_generation")
def test_a_worker_that_does_not_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.folders.disk._MOST_SECONDS", 0.05)
    token = start_generation(Path("workers"), shell.folder)
    with held_by_worker(Path("workers"), token, shell.folder):
        assert "wait until it ends" in hint_of(lambda: start_generation(Path("workers"), shell.folder))
    start_generation(Path("workers"), shell.folder)


@follows("pipeline/folders/output.py::Output._check_new_file")
def test_features_whose_names_lead_to_one_file(shell: Shell) -> None:
    output = Output.begin("stage", 1, AnyConfig(), [], Path("out"))

    def write(name: str, text: bytes) -> None:
        with output.writing(name, 1, AnyRecord()) as path:
            path.write_bytes(text)

    write("a.arrow", b"one")
    assert "rename one of the features" in hint_of(lambda: write("a.arrow", b"two"))
    write("b.arrow", b"two")


@follows("pipeline/folders/output.py::spill_errors_explained")
def test_a_disk_that_is_full_of_spill_files(shell: Shell) -> None:
    output = Output.begin("stage", 1, AnyConfig(), [], Path("out"))

    def spill() -> None:
        with spill_errors_explained(output.folder):
            raise OSError(28, "No space left on device")

    assert "--memory; the same command resumes" in hint_of(spill)


def rows_of(number: int) -> PieceArrays:
    return PieceArrays(np.zeros(number, np.uint64), np.zeros((number, 3), np.int32), np.zeros(0, np.int32))


def write_pieces(folder: Path) -> PieceFolders:
    """Write the pieces of two files of two rows each, or find them."""
    pieces = PieceFolders([folder] if folder.exists() else [], 2, 3)
    pieces.write_to(folder)
    for parts in pieces.missing(5):
        with pieces.writing(parts, rows_of(4), np.array([2, 2]), np.array([0, 0])) as writer:
            writer.write(0, 2)
    return pieces


def open_run(run: Run) -> None:
    with run.open():
        pass


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@follows("pipeline/folders/pieces.py::Run.open Run.open#2 _errors_explained")
def test_damaged_pieces_are_written_again(shell: Shell) -> None:
    def read() -> None:
        with write_pieces(Path("pieces")).runs[0].open() as reader:
            index = reader.index(range(2))
            targets = [rows_of(2), rows_of(2)]
            reader.read(range(2), index, targets)

    read()
    (run,) = write_pieces(Path("pieces")).runs
    content = run.path.read_bytes()
    run.path.write_bytes(b"\1" + content[1:])
    assert "same command again: it writes" in hint_of(read)
    read()
    pieces = write_pieces(Path("pieces"))
    pieces.runs[0].path.unlink()
    assert "same command again: it writes" in hint_of(lambda: open_run(pieces.runs[0]))
    with shell.patch.context() as patch:
        patch.setattr(os, "posix_fallocate", raising(OSError(28, "No space left on device")))
        assert "another --scratch; the same command" in hint_of(read)
    read()


@follows("pipeline/stages/two_phases.py::two_phases")
def test_a_scratch_folder_without_room(shell: Shell) -> None:
    shell.patch.setattr(PackSizes, "is_two_phases", True)
    with shell.patch.context() as patch:
        patch.setattr("hotset.pipeline.stages.two_phases.lack_of_room", lambda *_: "full is full")
        assert "another --scratch" in shell.refused("pack", "data", "--redo", "--scratch", "full")
    shell.works("pack", "data", "--scratch", "empty")
    assert not any(Path("empty").iterdir())


@follows("pipeline/formats/arrow_files.py::damage_named")
def test_a_damaged_arrow_file_is_written_again(shell: Shell) -> None:
    damage(Path("data/vocabulary/C1.arrow"))
    path = Path("data/vocabulary/C1.arrow")
    shell.obey(hint_of(lambda: read_file(path, 3, {})))
    shell.works("stats", "data", "--feature", "C1")


@follows("pipeline/formats/arrow_files.py::read_file")
def test_an_arrow_file_of_another_length_is_written_again(shell: Shell) -> None:
    columns = Manifest.read(Path("data/columns"))
    path = Path("data/columns") / columns.files[0].path
    hint = hint_of(lambda: read_file(path, 3, columns_of(columns)))
    shell.obey(hint, RAW="log.tsv")


@follows(
    "pipeline/formats/arrow_files.py::values_of values_of#2 fixed_lists "
    "offsets_of pipeline/folders/manifest.py::FileEntry.read_facts"
)
def test_columns_of_another_type_are_damage_of_their_folder(shell: Shell) -> None:
    class Short:
        """An Arrow array of three integers with a buffer for one."""

        type = pa.int32()
        offset = 0

        def __len__(self) -> int:
            return 3

        def buffers(self) -> list[Any]:
            return [None, pa.py_buffer(bytes(4))]

    offsets = pa.py_buffer(np.array([0, 9, 2], np.int32))
    children = [pa.array([1, 2], pa.int32())]
    torn = pa.Array.from_buffers(pa.list_(pa.int32()), 2, [None, offsets], children=children)
    for call in (
        lambda: values_of(pa.array([1.5]), np.int32),
        lambda: values_of(Short(), np.int32),
        lambda: fixed_lists(pa.array([[1, 2]], pa.list_(pa.int32(), 2)), 3, np.int32),
        lambda: offsets_of(torn),
        lambda: FileEntry("a.arrow", 1, 1, "").read_facts(CountsFacts),
    ):
        assert "remove its folder and run its stage again" in hint_of(call)


@follows("pipeline/folders/disk.py::whole_file whole_file#2")
def test_a_file_that_fails_on_the_way(shell: Shell) -> None:
    def write(name: str, fault: OSError) -> None:
        with disk.whole_file(Path(name)) as file:
            file.write(b"x")
            if fault.errno == 28:
                raise fault
            Path(name).write_text("of the other run")

    assert hint_of(lambda: write("a", OSError(17, "exists"))) == "give another --out"
    assert hint_of(lambda: write("b", OSError(28, "full"))) == "give another --out, or free disk space"
    with disk.whole_file(Path("c")) as file:
        file.write(b"x")


def number_in(hint: str, option: str) -> str:
    """Return the value that a hint gives an option."""
    found = re.search(rf"{option} (\S+)", hint)
    assert found, hint
    return found[1]


@follows("pipeline/stages/orders.py::_appearances")
def test_an_order_that_is_none_is_written_again(shell: Shell) -> None:
    vocabulary = Manifest.read(Path("data/vocabulary"))
    table = SimpleNamespace(name="C1")
    shell.obey(hint_of(lambda: _appearances(vocabulary, table, np.array([5, 5]))))  # type: ignore[arg-type]


@follows("pipeline/stages/rank.py::_row_bytes")
def test_widths_of_rows_are_given_for_all_or_none(shell: Shell) -> None:
    def ranked(*features: str) -> None:
        settings = RankConfig(rank_by="peel", peel_row_bytes=FeatureSettings((name, 8) for name in features))
        rank(settings, counts, Path("ranks"), columns=Manifest.read(Path("data/columns")))

    counts = Manifest.read(Path("data/counts"))
    assert hint_of(lambda: ranked("C1")) == "name every feature, or none"
    ranked(*(f"C{number}" for number in range(1, 27)))


@follows("pipeline/stages/pack.py::ShardBatches._bags")
def test_a_batch_with_too_many_lookups(shell: Shell) -> None:
    batches: Any = SimpleNamespace(bag_starts=np.zeros((2, 1), np.int64))
    lengths = np.full((2, 1), 2**30, np.int32)
    assert hint_of(lambda: ShardBatches._bags(batches, np.arange(2), lengths)) == "lower --batch-size"
    shell.works("pack", "data", "--redo", "--batch-size", "64")


@follows("pipeline/stages/rank.py::_pairs _pairs#2")
def test_maps_between_other_schemas(shell: Shell) -> None:
    Path("log.csv").write_text("click,C1\n" + "".join(f"{n % 2},c{n % 7}\n" for n in range(99)))
    Path("one.toml").write_text('format = "csv"\nlabel = "click"\n[sparse]\nC1 = "text"\n')
    shell.works("preprocess", "log.csv", "--schema", "one.toml", "--out", "model")
    data, model = (Manifest.read(Path(name, "vocabulary")) for name in ("data", "model"))
    assert "the same schema" in hint_of(lambda: map_ids(data, model, Path("map")))
    names = "".join(f'C{number} = "text"\n' for number in range(1, 27))
    header = ",".join(["click", *(f"C{number}" for number in range(1, 27))])
    Path("log.csv").write_text(
        header + "\n" + "".join(f"{n % 2}" + f",c{n % 7}" * 26 + "\n" for n in range(99))
    )
    Path("two.toml").write_text(f'format = "csv"\nlabel = "click"\n[sparse]\n{names}')
    shell.works("preprocess", "log.csv", "--schema", "two.toml", "--out", "wide")
    wide = Manifest.read(Path("wide", "vocabulary"))
    assert "the same schema" in hint_of(lambda: map_ids(data, wide, Path("map")))
    map_ids(data, data, Path("map"))


@follows("pipeline/runtime/tasks.py::check_caps")
@pytest.mark.parametrize("workers", [["--workers", "1"], ["--workers", "3"]])
def test_too_little_memory(shell: Shell, workers: list[str]) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other", *workers, "--memory"]
    enough = number_in(shell.refused(*arguments, "1MiB"), "--memory")
    assert not Path("other").exists()
    # One hint does for every stage, and a mebibyte less for one of them at least does not.
    less = f"{int(enough.removesuffix('MiB')) - 1}MiB"
    assert number_in(shell.refused(*arguments, less), "--memory") == enough
    shell.works(*arguments, enough)


@follows("pipeline/runtime/tasks.py::use_engine")
def test_an_engine_is_named(shell: Shell) -> None:
    def use(name: Any) -> None:
        with tasks.use_engine(name):
            pass

    for name in hint_of(lambda: use("tread")).removeprefix("use one of ").split(", ")[:1]:
        use(name)


@follows("pipeline/runtime/ray_engine.py::_check_reachable RayEngine._connect RayEngine.check_workers")
def test_a_cluster_that_does_not_answer(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    hint = shell.refused("preprocess", "log.tsv", "--out", "other", "--engine", "ray")
    assert "unset it to start one on this machine" in hint
    monkeypatch.delenv("RAY_ADDRESS")
    ray_engine._check_reachable("")

    def fail(**_: object) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr("ray.init", fail)
    engine: Any = SimpleNamespace(num_workers=lambda: 2, _tasks={})
    assert "unset it" in hint_of(lambda: ray_engine.RayEngine._connect(engine))
    assert hint_of(lambda: ray_engine.RayEngine.check_workers(engine, 3)) == "give fewer --workers"


@follows("pipeline/runtime/ray_engine.py::RayEngine.result")
def test_workers_that_are_killed_again_and_again(shell: Shell) -> None:
    killed: Future[None] = Future()
    killed.set_exception(WorkerCrashedError())
    engine: Any = SimpleNamespace(_tasks={killed: None})
    hint = hint_of(lambda: ray_engine.RayEngine.result(engine, killed))
    assert "fewer --workers need less; the same command resumes" in hint
    shell.works("preprocess", "log.tsv", "--out", "other", "--workers", "1")


@pytest.mark.parametrize(
    ("error", "commands"),
    [
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"), []),
        (OSError(errno.EMFILE, "Too many open files"), ["ulimit -n 4096"]),
        (RuntimeError("can't start new thread"), ["ulimit -u", "ulimit -v"]),
        (MemoryError(), ["ulimit -v"]),
    ],
)
@follows("")
def test_limits_of_the_system_are_looked_at_as_printed(
    error: BaseException, commands: list[str], shell: Shell
) -> None:
    fault = system_fault("x", error)
    assert fault is not None and fault.hint is not None
    assert re.findall(r"`([^`]+)`", fault.hint) == commands
    for command in commands:
        subprocess.run(["bash", "-c", command], check=True, capture_output=True)


@follows("pipeline/runtime/limits.py::check_addresses lost_library")
def test_a_limit_of_addresses_is_raised(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(limits, "addresses_left", lambda: 2**20)
        hints = [shell.refused("verify", "data", "--no-rebuild")]
        patched.setattr("hotset.pipeline.runtime.limits.check_addresses", lambda *arguments: None)
        patched.setattr("hotset.workflows.commands.data.VerifyCommand.execute", unloaded)
        hints.append(shell.refused("verify", "data", "--no-rebuild"))
    commands = [re.findall(r"`([^`]+)`", hint) for hint in hints]
    assert len(commands[0]) == 1 and commands[1][1:] == ["ulimit -v unlimited"]
    # A process with as many addresses as the hint allows gets as far as its own errors.
    program = f"exec {sys.executable} -m hotset verify {shell.folder / 'missing'}"
    for command in (commands[0][0], commands[1][0]):
        ran = subprocess.run(
            ["bash", "-c", f"{command}; {program}"], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1 and "contains nothing that a stage wrote" in ran.stderr


def unloaded(*_: object) -> int:
    raise OSError("libx.so is lost")


@follows("pipeline/errors.py::system_fault system_fault#2 system_fault#3 system_fault#4 system_fault#5")
def test_what_the_system_refuses_is_renamed_or_raised(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_with(error: Exception) -> str:
        def fail(*_: object) -> Callable[[], None]:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("hotset.workflows.cli._run", fail)
            return shell.refused("stats", "data")

    assert fails_with(UnicodeEncodeError("utf-8", "\udcff", 0, 1, "x")) == "rename the file or its folder"
    hint = fails_with(UnicodeEncodeError("ascii", "é", 0, 1, "x"))
    assert _prints_columns_with({}) is False
    assert _prints_columns_with(dict(each.split("=") for each in re.findall(r"\w+=\S+", hint)))
    assert "fewer --workers" in fails_with(OSError(errno.EMFILE, "Too many open files"))
    assert "fewer --workers" in fails_with(RuntimeError("can't start new thread"))
    assert "fewer --workers" in fails_with(MemoryError())
    shell.works("preprocess", "log.tsv", "--out", "other", "--workers", "1")


def _prints_columns_with(variables: dict[str, str]) -> bool:
    """Whether a schema with a name outside ASCII is proposed to a caller that takes ASCII only."""
    Path("cities.csv").write_text("label,città\n1,x\n0,y\n", encoding="utf-8")
    command = [sys.executable, "-m", "hotset.workflows.cli", "schema", "cities.csv"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"} | variables
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0 or b"error: stdout: '\\xe0' cannot be written" in done.stderr
    return "città" in done.stdout.decode()


def write_csv(path: str = "log.csv", rows: int = 300) -> None:
    """Write a CSV log that SCHEMA describes."""
    lines = [f"{number % 2},{number % 50},c{number % 7}" for number in range(rows)]
    Path(path).write_text("\n".join(["click,age,country", *lines]) + "\n")


def preprocess(log: str, schema: str) -> list[str]:
    """Write the schema file, and return the command that reads ``log`` by it."""
    Path("schema.toml").write_text(schema)
    return ["preprocess", log, "--schema", "schema.toml", "--out", "other"]


@follows("pipeline/raw/raw_file.py::RawFile.changed")
def test_a_log_that_shrinks_is_read_when_it_is_complete(shell: Shell) -> None:
    raw = RawFile.inspect(Path("log.tsv"))
    whole = Path("log.tsv").read_bytes()
    Path("log.tsv").write_bytes(whole[:1000])

    def read() -> None:
        for block in iterate_blocks(raw, 1 << 20):
            block.read()

    assert hint_of(read) == "run again when it is complete"
    Path("log.tsv").write_bytes(whole)
    read()


@follows("pipeline/raw/tabular.py::_array")
def test_a_part_with_too_many_elements_is_made_smaller(shell: Shell) -> None:
    column = SimpleNamespace(kind="text", column="genres")
    values = SimpleNamespace(
        states=np.zeros(1, np.uint8), values=np.zeros(1, np.uint64), offsets=np.array([0, 2**31])
    )
    hint = hint_of(lambda: _array(column, values, None))  # type: ignore[arg-type]
    assert hint == "lower --block-bytes"
    shell.works("preprocess", "log.tsv", "--out", "other", "--block-bytes", "8MiB")


@follows("pipeline/schema/schema.py::check_name check_name#2 taken_name")
def test_a_feature_is_renamed(shell: Shell) -> None:
    for name in ("ids", "dense.x", "x.texts", "file0001-x", "a/b"):
        write_csv()
        Path("log.csv").write_text(Path("log.csv").read_text().replace("country", name))
        schema = SCHEMA.replace("country", f'"{name}"')
        hint = shell.refused(*preprocess("log.csv", schema))
        line = hint.split(": ", 1)[1].split("[dense], ")[-1]
        line = line.replace('"..." = {', f'"{name}" = {{').replace("kind = ...", 'kind = "text"')
        line = line.replace('name = "..."', 'name = "country"')
        shell.works(*preprocess("log.csv", SCHEMA.replace('country = "text"', line)), "--redo", "ingest")


@follows("pipeline/raw/columnar_parts.py::ParquetParts._part")
def test_parts_that_another_version_cut_are_read_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    pa.parquet.write_table(pa.parquet.read_table("log.parquet"), "log.parquet", row_group_size=10)
    command = preprocess("log.parquet", SCHEMA.replace('"csv"', '"parquet"'))
    with monkeypatch.context() as patched:
        patched.setattr("hotset.pipeline.raw.columnar_parts._FEW_GROUPS", 1000)
        patched.setattr(ingest, "write_batch", interrupt_after(2, Killed))
        with pytest.raises(Killed):
            shell.run(*command, "--workers", "1")
    assert shell.refused(*command) == "--redo ingest reads the log from its start"
    shell.works(*command, "--redo", "ingest")


@follows("pipeline/statistics/frequencies.py::frequency_statistics frequency_statistics#2")
def test_a_series_is_named_and_damage_is_looked_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(inspected: object) -> None:
        raise KeyError("C1")

    with monkeypatch.context() as patched:
        patched.setitem(frequencies.SERIES, "features", fail)
        shell.obey(shell.refused("stats", "data"))
    hint = hint_of(lambda: frequencies.frequency_statistics(Path("data"), Resources(), series=["x"]))
    frequencies.frequency_statistics(
        Path("data"), Resources(), series=hint.removeprefix("use one of ").split(", ")[:1]
    )


@follows("pipeline/verify.py::_build_from_other_vocabulary")
def test_the_vocabulary_of_the_model_is_given(shell: Shell) -> None:
    shell.works("preprocess", "log.tsv", "--like", "data", "--out", "adopted")
    shell.works("preprocess", "log.tsv", "--min-count", "3", "--out", "third")
    status, out, _ = shell.run("verify", "adopted", "--other-vocabulary", "third")
    assert status == 1 and "was not made from the vocabulary" in out
    made = Manifest.read(Path("adopted/vocabulary"))
    hint = hint_of(lambda: rebuild._build_from_other_vocabulary(made, {}, Path("third"), Resources()))
    assert "--other-vocabulary the folder that --like" in hint
    shell.works("verify", "adopted", "--other-vocabulary", "data")


def preprocessed(shell: Shell, schema: str, rows: list[dict[str, object]]) -> None:
    """Preprocess ``rows`` into ``mine``."""
    pa.parquet.write_table(pa.Table.from_pylist(rows), "mine.parquet")
    Path("mine.toml").write_text(f'format = "parquet"\n{schema}')
    shell.works("preprocess", "mine.parquet", "--schema", "mine.toml", "--out", "mine")


@follows("pipeline/export.py::flat_table")
def test_empty_lists_go_into_parquet() -> None:
    table = pa.table({"tags": pa.array([[1], []], pa.list_(pa.int32()))})
    # Shards of such a log come from Parquet only, where a list without elements is one.
    assert hint_of(lambda: flat_table(table)) == "take --to parquet"


@follows("train/data/dataset.py::_refuse_equal_names")
def test_a_feature_called_like_the_offsets_of_another_is_renamed(shell: Shell) -> None:
    rows: list[dict[str, object]] = [{"y": n % 2, "tags": [n, n + 1], "tags_offsets": n} for n in range(40)]
    lists = 'label = "y"\n[sparse]\ntags = { kind = "integer", list = true }\n'
    preprocessed(shell, f'{lists}tags_offsets = "integer"\n', rows)
    hint = hint_of(lambda: ShardDataset("mine"))
    assert hint == "give the feature another name in the schema: `name`"
    shutil.rmtree("mine")
    preprocessed(shell, f'{lists}tags_offsets = {{ kind = "integer", name = "first" }}\n', rows)
    assert {"tags_offsets", "first"} < set(next(iter(ShardDataset("mine"))))


@follows("train/data/dataset.py::_keyed_jagged")
def test_torchrec_is_installed_by_the_script(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # The module itself, which another test may have imported.
    monkeypatch.setitem(sys.modules, "torchrec.sparse.jagged_tensor", None)
    hint = hint_of(lambda: next(iter(ShardDataset("data", keyed_jagged=True))))
    assert hint == "scripts/install-torchrec installs it"
    assert (Path(hotset.__file__).parent / hint.split()[0]).exists()


@follows("pipeline/stages/ingest.py::_changed")
def test_a_log_replaced_after_a_kill_is_read_from_its_start(shell: Shell) -> None:
    command = ["ingest", "log.tsv", "--block-bytes", "16KiB", "--out", "other"]
    with shell.patch.context() as patch:
        patch.setattr(ingest, "write_batch", interrupt_after(2, Killed))
        with pytest.raises(Killed):
            config = IngestConfig(block_bytes=ByteSize(16 << 10))
            ingest.ingest([Path("log.tsv")], config, Path("other/columns"), Resources(workers=1))
    text = bytearray(Path("log.tsv").read_bytes())
    text[0] ^= 1
    Path("log.tsv").write_bytes(text)
    shell.refused(*command)
    assert shell.hint.startswith("--redo ingest reads it from its start")
    shell.works(*command, "--redo")


@follows("pipeline/raw/log_parts.py::_as_first")
def test_columns_whose_types_differ_between_files_are_copied_file_by_file(shell: Shell) -> None:
    raw = RawFile.inspect(Path("log.tsv"))
    scores = [pa.record_batch({"probability": [0.5]})]
    files = [pa.record_batch({"age": [1]}), pa.record_batch({"age": ["x"]})]
    hint = hint_of(lambda: list(beside(scores * 2, iter(files), [raw])))
    assert hint == "leave the column out of --keep, or predict the files one by one"
    for file in files:
        assert [each.num_rows for each in beside(scores, iter([file]), [raw])] == [1]
