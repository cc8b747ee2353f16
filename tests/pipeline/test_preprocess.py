"""Raw logs to shards as a whole: against a naive run, whatever the workers, the files and the kills.

Tests `stage_order`, too.
"""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.checksum import hash_file
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.preprocess import StageReport, preprocess, remove_from, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.stages.stage_order import FOLDERS, INPUTS
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import Sample, draw_samples, text_of, tree_of
from hotset.tests.support.preprocess_runs import CONFIG, assert_equals_naive_run, copy_of, failing_writer

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


@pytest.mark.parametrize("workers", [1, 2, 3])
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
    writer = "open_writer" if stage == "pack" else "write_batch"
    for stop_at in (0, num_files // 2):
        with monkeypatch.context() as patch:
            module = "stages.row_order" if stage == "rank" else f"stages.{stage}"
            patch.setattr(f"hotset.pipeline.{module}.{writer}", failing_writer(stop_at, error))
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
    writer = "open_writer" if stage == "pack" else "write_batch"
    with monkeypatch.context() as patch:
        module = "stages.row_order" if stage == "rank" else f"stages.{stage}"
        patch.setattr(f"hotset.pipeline.{module}.{writer}", failing_writer(1, RuntimeError))
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
