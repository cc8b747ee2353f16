"""Raw logs to shards as a whole: against a naive run, whatever the workers, the files and the kills."""

from __future__ import annotations

import gzip
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import GIB, MIB, ByteSize, ConfigError, HotsetError, ManifestError
from hotset.pipeline.folders.disk import bytes_in, discard_files
from hotset.pipeline.folders.manifest import MANIFEST, Manifest, hash_file
from hotset.pipeline.preprocess import (
    COMPRESSION,
    DISK_FACTORS,
    FOLDERS,
    INPUTS,
    PreprocessConfig,
    StageReport,
    check_free_disk,
    check_stage,
    disk_needed,
    preprocess,
    remove_from,
    run_stage,
)
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.encode import EncodeConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import NUM_SPARSE, Sample, draw_samples, text_of, tree_of
from hotset.tests.support.preprocess_runs import CONFIG, assert_equals_naive_run, copy_of, failing_writer
from hotset.tests.support.processes.made_up_cluster import made_up_cluster
from hotset.workflows.cli import main

NUM_SAMPLES = 180


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return draw_samples(NUM_SAMPLES, np.random.default_rng(10))


@pytest.fixture(scope="module")
def log(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.tsv"
    path.write_bytes(text_of(samples))
    return path


@pytest.fixture(scope="module")
def made(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one worker that nothing disturbs; not to be changed."""
    out = tmp_path_factory.mktemp("made") / "dir"
    preprocess([log], CONFIG, out, Resources(workers=1))
    return out


@pytest.fixture(scope="module")
def unbroken(made: Path) -> dict[str, bytes]:
    """The bytes of that run."""
    return tree_of(made)


@pytest.mark.parametrize(("schema", "min_count"), [("criteo-kaggle", 1), ("criteo-1tb", 3)])
def test_every_folder_agrees_with_the_naive_run(
    tmp_path: Path, log: Path, samples: list[Sample], schema: str, min_count: int
) -> None:
    ingest = replace(CONFIG.ingest, schema=schema)
    config = replace(CONFIG, ingest=ingest, rank=RankConfig(min_count=min_count))
    preprocess([log], config, tmp_path / "dir", Resources(workers=2))
    assert_equals_naive_run(tmp_path / "dir", samples, NUM_SAMPLES - int(0.3 * NUM_SAMPLES), config)


def test_days_in_files_of_their_own_agree_with_the_naive_run(tmp_path: Path, samples: list[Sample]) -> None:
    days = [samples[:70], [], samples[70:121], samples[121:]]
    raw = [tmp_path / f"day_{number}" for number in range(len(days))]
    for number, (path, day) in enumerate(zip(raw, days, strict=True)):
        text = text_of(day, line_end=b"\r\n" if number == 2 else b"\n").removesuffix(b"\n")
        path.write_bytes(gzip.compress(text) if number == 0 else text)
    config = replace(CONFIG, count=CountConfig(eval_files=1))
    preprocess(raw, config, tmp_path / "dir", Resources(workers=2))
    assert_equals_naive_run(tmp_path / "dir", samples, 121, config)


def test_a_validation_part_is_known_to_every_folder_that_follows(
    tmp_path: Path, log: Path, samples: list[Sample]
) -> None:
    config = replace(CONFIG, count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    preprocess([log], config, tmp_path / "dir", Resources(workers=2))
    # Counts, ids and hot rows come from the training part alone.
    assert_equals_naive_run(tmp_path / "dir", samples, NUM_SAMPLES - 36 - 18, config)
    for name in ("counts", "vocabulary", "samples", "plan", "shards"):
        assert Manifest.read(tmp_path / "dir" / name).totals["num_valid_samples"] == 18
    assert verify(tmp_path / "dir", Resources(workers=1), raw=[log], rebuild=True) == []


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_no_byte(
    tmp_path: Path, log: Path, unbroken: dict[str, bytes], workers: int
) -> None:
    preprocess([log], CONFIG, tmp_path / "dir", Resources(workers=workers))
    assert tree_of(tmp_path / "dir") == unbroken


def test_a_gzip_copy_gives_the_same_files(
    tmp_path: Path, samples: list[Sample], unbroken: dict[str, bytes]
) -> None:
    path = tmp_path / "log.tsv.gz"
    path.write_bytes(gzip.compress(text_of(samples[:50])) + gzip.compress(text_of(samples[50:])))
    preprocess([path], CONFIG, tmp_path / "dir", Resources(workers=2))
    found = tree_of(tmp_path / "dir")
    assert found.keys() == unbroken.keys()
    assert all(text == unbroken[name] for name, text in found.items() if not name.endswith(MANIFEST))


def test_a_folder_holds_its_listed_files_and_a_manifest(tmp_path: Path, log: Path) -> None:
    preprocess([log], CONFIG, tmp_path / "dir")
    assert {path.name for path in (tmp_path / "dir").iterdir()} == set(FOLDERS.values())
    for stage, name in FOLDERS.items():
        manifest = Manifest.read(tmp_path / "dir" / name)
        listed = {entry.path for entry in manifest.files}
        assert manifest.stage == stage and listed
        assert {path.name for path in manifest.folder.iterdir()} == {*listed, MANIFEST}
        for entry in manifest.files:
            assert hash_file(manifest.folder / entry.path) == (entry.num_bytes, entry.xxh3_128)
        for wanted, found in zip(INPUTS.get(stage, ()), manifest.inputs, strict=stage != "ingest"):
            assert found == {
                "name": wanted,
                "fingerprint": Manifest.read(tmp_path / "dir" / wanted).fingerprint,
            }
        for word in (str(tmp_path), "workers", "seconds", "host"):
            assert word not in (manifest.folder / MANIFEST).read_text()


def test_what_is_sealed_is_only_looked_at(
    tmp_path: Path, log: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[StageReport] = []
    first = preprocess([log], CONFIG, tmp_path / "dir", on_stage=reports.append)
    monkeypatch.setattr("hotset.pipeline.folders.output.Output.writing", None)
    again = preprocess([log], CONFIG, tmp_path / "dir", on_stage=reports.append)
    assert first == again and tree_of(tmp_path / "dir") == unbroken
    assert [report.stage for report in reports] == [*FOLDERS, *FOLDERS]
    assert [report.was_sealed for report in reports] == [False] * 6 + [True] * 6
    assert {report.num_samples for report in reports} == {NUM_SAMPLES}
    assert [report.manifest.stage for report in reports] == [*FOLDERS, *FOLDERS]


def test_the_progress_of_every_stage_ends_at_its_total(tmp_path: Path, log: Path) -> None:
    told: dict[str, tuple[int, int]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        told[stage] = (done, total)

    preprocess([log], CONFIG, tmp_path / "dir", Resources(progress=progress))
    lookups = (NUM_SAMPLES - int(0.3 * NUM_SAMPLES)) * NUM_SPARSE
    wanted = {"ingest": log.stat().st_size, "count": lookups, "rank": lookups}
    wanted |= dict.fromkeys(("encode", "split", "pack"), NUM_SAMPLES)
    assert told == {stage: (total, total) for stage, total in wanted.items()}


def test_another_budget_batch_size_or_seed_keeps_what_comes_before(
    tmp_path: Path, log: Path, made: Path, unbroken: dict[str, bytes]
) -> None:
    out = copy_of(made, tmp_path / "dir")
    config = replace(CONFIG, split=SplitConfig(hot_bytes=ByteSize(640), embedding_optimizer="sgd"))
    with pytest.raises(ManifestError, match=r"plan was written with hot_bytes = 2400, now 640"):
        preprocess([log], config, out)
    assert tree_of(out) == unbroken
    assert remove_from("split", out) == [out / "shards", out / "plan"]
    preprocess([log], config, out)
    found = tree_of(out)
    kept = tuple(FOLDERS[stage] for stage in ("ingest", "count", "rank", "encode"))
    assert all(found[name] == text for name, text in unbroken.items() if name.startswith(kept))
    assert found[f"plan/{MANIFEST}"] != unbroken[f"plan/{MANIFEST}"]


def test_a_stage_made_again_makes_those_after_it_stale(tmp_path: Path, log: Path, made: Path) -> None:
    out = copy_of(made, tmp_path / "dir")
    for name in ("counts", "vocabulary"):
        for path in (out / name).iterdir():
            path.unlink()
    config = replace(CONFIG, rank=RankConfig(min_count=9))
    with pytest.raises(ManifestError, match="samples was written from other inputs"):
        preprocess([log], config, out)


def test_no_task_of_a_cluster_carries_more_than_a_few_kilobytes(
    tmp_path: Path, samples: list[Sample], unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(gzip.compress(text_of(samples), mtime=0))
    monkeypatch.setattr("hotset.pipeline.stages.count_tasks._MAP_BYTES", 9000)
    with made_up_cluster(Node(2, 1 << 36), Node(2, 1 << 36)) as engine:
        preprocess([log], CONFIG, tmp_path / "dir")
    # All but the raw log's own name and size is as it was made here from the plain text.
    made = {name: data for name, data in tree_of(tmp_path / "dir").items() if "manifest" not in name}
    assert made == {name: data for name, data in unbroken.items() if "manifest" not in name}
    functions = {function for function, _ in engine.sent}
    assert functions >= {
        "_ingest_unit",
        "map_parts",
        "_merge_range",
        "load_piece",
        "_encode_part",
        "_tag_part",
    }
    assert max(size for _, size in engine.sent) < 16_384


WRITERS = {"count": "count_tasks", "rank": "row_order"}
"""Modules that write the files of a stage, where they are not called like it."""


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("stage", FOLDERS)
@pytest.mark.parametrize(("workers", "error"), [(2, KeyboardInterrupt), (1, RuntimeError)])
def test_stopped_half_way_in_any_stage_the_same_run_goes_on_to_the_same_bytes(
    tmp_path: Path,
    log: Path,
    made: Path,
    unbroken: dict[str, bytes],
    stage: str,
    workers: int,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = copy_of(made, tmp_path / "dir", before=stage)
    num_files = sum(name.startswith(FOLDERS[stage] + "/") for name in unbroken) - 1
    writer = "write_shard" if stage == "pack" else "write_batch"
    for stop_at in (0, num_files // 2):
        with monkeypatch.context() as patch:
            patch.setattr(
                f"hotset.pipeline.stages.{WRITERS.get(stage, stage)}.{writer}", failing_writer(stop_at, error)
            )
            with pytest.raises(error):
                preprocess([log], CONFIG, out, Resources(workers=workers))
        assert not (out / FOLDERS[stage] / MANIFEST).exists()
        assert (out / FOLDERS[stage]).exists()
    preprocess([log], CONFIG, out, Resources(workers=3 - workers))
    assert tree_of(out) == unbroken


CHANGES: dict[str, tuple[Any, str]] = {
    "ingest": (replace(CONFIG.ingest, on_bad_line="skip:0.5"), "on_bad_line = error, now skip:0.5"),
    "count": (CountConfig(eval_fraction=0.2), "eval_fraction = 0.3, now 0.2"),
    "rank": (RankConfig(min_count=3), "min_count = 2, now 3"),
    "split": (replace(CONFIG.split, embedding_dim=8), "embedding_dim = 4, now 8"),
    "pack": (replace(CONFIG.pack, seed=5), "seed = 4, now 5"),
}


@pytest.mark.parametrize("stage", CHANGES)
def test_a_stage_begun_with_other_settings_is_refused_by_name(
    tmp_path: Path, log: Path, made: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy_of(made, tmp_path / "dir", before=stage)
    writer = "write_shard" if stage == "pack" else "write_batch"
    with monkeypatch.context() as patch:
        patch.setattr(
            f"hotset.pipeline.stages.{WRITERS.get(stage, stage)}.{writer}", failing_writer(1, RuntimeError)
        )
        with pytest.raises(RuntimeError):
            preprocess([log], CONFIG, out, Resources(workers=1))
    before = tree_of(out)
    changed, message = CHANGES[stage]
    with pytest.raises(ManifestError) as caught:
        preprocess([log], replace(CONFIG, **{stage: changed}), out)
    assert f"{FOLDERS[stage]} was written with {message}" in str(caught.value)
    assert f"--redo {stage}" in str(caught.value.hint)
    assert tree_of(out) == before


def test_a_log_that_changed_is_refused(tmp_path: Path, log: Path, made: Path, samples: list[Sample]) -> None:
    out, raw = copy_of(made, tmp_path / "dir"), tmp_path / log.name
    raw.write_bytes(log.read_bytes())
    assert preprocess([raw], CONFIG, out).stage == "pack"
    raw.write_bytes(text_of(samples[:-1]))
    with pytest.raises(ManifestError, match="columns was written from other inputs"):
        preprocess([raw], CONFIG, out)


@pytest.mark.parametrize("name", FOLDERS.values())
@pytest.mark.parametrize("damage", ["cut manifest", "flipped manifest", "cut file", "no file"])
def test_damage_in_any_folder_is_named(tmp_path: Path, log: Path, made: Path, name: str, damage: str) -> None:
    folder = copy_of(made, tmp_path / "dir") / name
    path = folder / (MANIFEST if "manifest" in damage else Manifest.read(folder).files[0].path)
    text = path.read_bytes()
    if damage == "no file":
        path.unlink()
    else:
        path.write_bytes(text.replace(b"1", b"2", 1) if "flipped" in damage else text[:-7])
    with pytest.raises(ManifestError) as caught:
        preprocess([log], CONFIG, tmp_path / "dir")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint


KILLED = """
import os, sys
from pathlib import Path
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.preprocess import preprocess
from hotset.tests.support.preprocess_runs import CONFIG
replace, left = os.replace, int(sys.argv[3])
def replace_or_wait(*names):
    global left
    left -= 1
    if left < 0:
        os.write(1, b"waiting\\n")
        sys.stdin.read()
    replace(*names)
os.replace = replace_or_wait
preprocess([Path(sys.argv[1])], CONFIG, Path(sys.argv[2]), Resources(workers=2))
"""


def test_killed_at_any_moment_the_same_run_goes_on_to_the_same_bytes(
    tmp_path: Path, log: Path, unbroken: dict[str, bytes]
) -> None:
    out = tmp_path / "dir"
    # One of its threads is about to rename a file; the other is wherever it is.
    for num_renames in (10, 90):
        command = [sys.executable, "-c", KILLED, str(log), str(out), str(num_renames)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "waiting\n"
            process.kill()
        assert process.returncode == -signal.SIGKILL
    preprocess([log], CONFIG, out, Resources(workers=1))
    assert tree_of(out) == unbroken


def test_a_stage_alone_needs_the_folders_it_reads(tmp_path: Path, log: Path) -> None:
    with pytest.raises(ManifestError, match="columns does not exist"):
        run_stage("count", CountConfig(), tmp_path)
    preprocess([log], CONFIG, tmp_path, until="count")
    assert {path.name for path in tmp_path.iterdir()} == {"columns", "counts"}
    with pytest.raises(ManifestError, match="vocabulary does not exist") as caught:
        run_stage("encode", CONFIG.encode, tmp_path)
    assert caught.value.hint == f"`hotset rank {tmp_path}` writes it"


def test_only_a_stage_can_be_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stage 'columns'") as caught:
        remove_from("columns", tmp_path)
    assert "ingest, count" in str(caught.value.hint)
    assert remove_from("ingest", tmp_path) == []


def test_the_estimate_is_the_factors_times_the_text(log: Path, tmp_path: Path) -> None:
    num_bytes = log.stat().st_size
    needed = disk_needed([log, log], tmp_path / "dir")
    assert needed == {name: int(2 * factor * num_bytes) for name, factor in DISK_FACTORS.items()}
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    columns = int(DISK_FACTORS["columns"] * COMPRESSION * packed.stat().st_size)
    assert disk_needed([packed], tmp_path / "dir")["columns"] == columns
    pq.write_table(pa.table({"a": [1]}), tmp_path / "log.parquet")
    num_bytes = (tmp_path / "log.parquet").stat().st_size
    assert disk_needed([tmp_path / "log.parquet"], tmp_path)["plan"] == int(0.01 * COMPRESSION * num_bytes)


def test_what_is_there_is_not_needed_again(log: Path, tmp_path: Path) -> None:
    preprocess([log], PreprocessConfig(), tmp_path / "dir", until="count")
    whole, left = disk_needed([log], tmp_path / "other"), disk_needed([log], tmp_path / "dir")
    assert left == whole | {"columns": 0, "counts": 0}
    (tmp_path / "dir" / "vocabulary").mkdir()
    (tmp_path / "dir" / "vocabulary" / "C1.arrow").write_bytes(b"x" * 100)
    assert disk_needed([log], tmp_path / "dir")["vocabulary"] == max(0, whole["vocabulary"] - 100)


def test_folders_that_grow_need_what_is_new(log: Path, tmp_path: Path) -> None:
    preprocess([log], PreprocessConfig(), tmp_path / "dir", until="count")
    whole = disk_needed([log, log], tmp_path / "other")
    grown = disk_needed([log, log], tmp_path / "dir", extend=True)
    there = bytes_in(tmp_path / "dir" / "columns")
    assert grown["columns"] == max(0, whole["columns"] - there) and grown["shards"] == whole["shards"]
    assert disk_needed([log], tmp_path / "dir", extend=True)["columns"] == 0


def test_a_disk_that_is_too_small_is_refused_before_any_work(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    out = tmp_path / "a" / "dir"
    assert main(["preprocess", str(log), "--out", str(out)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert f"{out} needs about" in error and "9.8 KiB are free" in error
    assert hint.startswith("hint: free") and not out.parent.exists()


def test_the_refusal_says_which_folder_needs_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=GIB))
    needed = {"columns": 2 * GIB, "plan": 10 * MIB, "counts": 0}
    with pytest.raises(
        ConfigError, match=r"about 2 GiB of disk \(columns 2 GiB, plan 10 MiB\), 1 GiB are free"
    ):
        check_free_disk(needed, tmp_path / "dir")
    check_free_disk({"columns": GIB}, tmp_path / "dir")
    with pytest.raises(ConfigError, match="1 GiB are free"):
        check_free_disk({"columns": GIB, "plan": 1}, tmp_path / "dir")


def test_where_nothing_can_be_written_no_space_is_asked_for() -> None:
    # There even root can create no file.
    with pytest.raises(ManifestError, match="/proc/x cannot be written: No such file") as refused:
        check_free_disk({"columns": GIB}, Path("/proc/x"))
    assert refused.value.hint == "give a folder that can be written"


def test_a_cap_that_a_later_stage_cannot_keep_is_refused_before_any_work(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(log), "--out", str(tmp_path / "dir"), "--workers", "1", "--memory"]
    assert main([*words, "185MiB"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "cannot stay within 185 MiB of memory" in error and not (tmp_path / "dir").exists()
    enough = hint.split()[2]
    assert enough.endswith("MiB") and 185 < int(enough[:-3]) < 300
    assert main([*words, "300MiB"]) == 0


@pytest.mark.parametrize("suffix", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_one_hint_does_for_every_stage_of_a_log_of_short_lines(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block has many more samples than one of Criteo's, so `encode` and `pack` need more for them."""
    log = tmp_path / f"log.{suffix}"
    features = {f"f{number}": np.arange(120_000) % (number % 9 + 1) for number in range(39)}
    table = pa.table({"y": np.arange(120_000) % 2} | features)
    if suffix == "parquet":
        pq.write_table(table, log)
    else:
        csv.write_csv(table, log)
    schema = tmp_path / "schema.toml"
    names = "".join(f'{name} = "integer"\n' for name in features)
    schema.write_text(f'format = "{suffix}"\nlabel = "y"\n[sparse]\n{names}')
    words = ["preprocess", str(log), "--schema", str(schema), "--out", str(tmp_path / "dir"), "--memory"]
    assert main([*words, "1MiB", "--workers", "8"]) == 1
    enough = capsys.readouterr().err.split("--memory ")[1].split(" ")[0]
    assert main([*words, enough, "--workers", "8"]) == 0


DEFAULTS: dict[str, Any] = {
    "count": CountConfig(),
    "rank": RankConfig(),
    "encode": EncodeConfig(),
    "split": SplitConfig(),
    "pack": PackConfig(),
}


@pytest.mark.parametrize("stage", DEFAULTS)
def test_a_small_memory_cap_is_refused_before_the_folder_is_begun(
    stage: str, made: Path, tmp_path: Path
) -> None:
    for path in made.iterdir():
        if path.name != FOLDERS[stage]:
            (tmp_path / path.name).symlink_to(path)
    for run in (check_stage, run_stage):
        with pytest.raises(HotsetError, match=f"{stage} cannot stay within 1 MiB of memory") as caught:
            run(stage, DEFAULTS[stage], tmp_path, Resources(workers=1, memory_bytes=MIB))
    enough = int(str(caught.value.hint).removeprefix("--memory ").partition("MiB would do")[0]) * MIB
    with pytest.raises(HotsetError, match="cannot stay within"):
        check_stage(stage, DEFAULTS[stage], tmp_path, Resources(workers=1, memory_bytes=enough - MIB))
    check_stage(stage, DEFAULTS[stage], tmp_path, Resources(workers=1, memory_bytes=enough))
    assert not (tmp_path / FOLDERS[stage]).exists()
    run_stage(stage, DEFAULTS[stage], tmp_path, Resources(workers=1, memory_bytes=enough))


def test_a_small_log_of_long_lists_needs_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("y,tags\n" + "".join(f"{row % 2},{'|'.join(['123456'] * 2000)}\n" for row in range(70)))
    schema = 'format = "csv"\nheader = true\nlabel = "y"\nsparse = { tags = { kind = "text", list = true } }'
    config = replace(PreprocessConfig(), ingest=IngestConfig(schema=schema))
    for _ in range(2):  # the second time by the parts that are there, next to which are their texts
        preprocess([log], config, tmp_path / "out", Resources(workers=2, memory_bytes=400 * MIB))


def test_discarded_inputs_are_refused(made: Path, tmp_path: Path) -> None:
    out = copy_of(made, tmp_path / "dir")
    discard_files(out / "samples")
    with pytest.raises(ManifestError, match="samples was discarded"):
        check_stage("pack", PackConfig(), out)
