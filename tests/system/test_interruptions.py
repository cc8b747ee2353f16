"""Whatever gets in the way of a run, it ends in one clear line, and the same run ends in the same bytes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import HotsetError, InputError, ManifestError
from hotset.pipeline.folders.disk import BEGUN, PARTIAL, REMOVED, durable_files, remove_folders
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import FOLDERS, INPUTS, StageReport, preprocess, remove_from
from hotset.pipeline.runtime.tasks import Resources
from hotset.tests.support.logs.criteo_text import draw_samples, few_features, text_of, tree_of
from hotset.tests.support.preprocess_runs import CONFIG_OF_FEW as CONFIG
from hotset.tests.support.preprocess_runs import copy_of
from hotset.tests.support.processes.kills import Killed, killed, start_holder
from hotset.workflows.cli import main

STAGES = list(FOLDERS)


@pytest.fixture(scope="module", autouse=True)
def _few_features() -> Iterator[None]:
    with few_features():
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.tsv"
    path.write_bytes(text_of(draw_samples(180, np.random.default_rng(10))))
    return path


@pytest.fixture
def log(original: Path, tmp_path: Path) -> Path:
    """A copy of the log that a test may change."""
    return Path(shutil.copy(original, tmp_path))


@pytest.fixture(scope="module")
def made(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbs; not to be changed."""
    out = tmp_path_factory.mktemp("made") / "dir"
    preprocess([original], CONFIG, out, Resources(workers=1))
    return out


@pytest.fixture(scope="module")
def unbroken(made: Path) -> dict[str, bytes]:
    return tree_of(made)


@dataclass(frozen=True, slots=True)
class Run:
    """A log, the folder it is preprocessed to, and the bytes of one that nothing disturbs."""

    log: Path
    out: Path
    unbroken: dict[str, bytes]

    def refusal(self, kind: type[HotsetError] = ManifestError) -> str:
        """The one line that a run ends in."""
        with pytest.raises(kind) as caught:
            preprocess([self.log], CONFIG, self.out, Resources(workers=2))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def check_goes_on(self) -> None:
        preprocess([self.log], CONFIG, self.out, Resources(workers=2))
        assert tree_of(self.out) == self.unbroken


@pytest.fixture
def stage() -> str:
    """The first stage whose folder is missing; most tests are of each of them."""
    return "ingest"


@pytest.fixture
def run(log: Path, made: Path, unbroken: dict[str, bytes], stage: str, tmp_path: Path) -> Run:
    """A run with the folders of the stages before ``stage``."""
    return Run(log, copy_of(made, tmp_path / "dir", before=stage), unbroken)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("stage", STAGES)
def test_a_second_run_is_told_who_writes_the_folder(run: Run, stage: str) -> None:
    folder = run.out / FOLDERS[stage]
    with start_holder(folder / PARTIAL / "lock") as holder:
        assert run.refusal() == f"{folder} is being written by process {holder.pid}"
        before = tree_of(run.out)
        with pytest.raises(ManifestError, match="is being written"):
            remove_from("ingest", run.out)
        changes = tree_of(run.out).items() ^ before.items()
        assert all(PARTIAL in name for name, _ in changes)
        holder.kill()
    run.check_goes_on()


@contextmanager
def no_file_beyond(num_bytes: int) -> Iterator[None]:
    """Writes beyond ``num_bytes`` of any file fail, as on a device that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    # Python cuts the bytecode of what it imports short without an error, and later imports break on it.
    kept = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = kept
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("num_bytes", [0, 1500, pytest.param(150, marks=pytest.mark.slow)])
def test_a_full_device_loses_nothing(run: Run, stage: str, num_bytes: int) -> None:
    with no_file_beyond(num_bytes):
        assert "cannot be written: File too large" in run.refusal()
    run.check_goes_on()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing below ``folder`` can be written by this process, which gives up being root for a while."""
    paths = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in paths:
        path.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_folder_is_refused_and_a_finished_one_is_read(run: Run, made: Path, stage: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:  # tmp_path lies in folders that only its owner may enter
        Path(scratch).chmod(0o755)
        run = replace(run, log=Path(shutil.copy(run.log, scratch)), out=Path(scratch) / "dir")
        copy_of(made, run.out, before=stage).mkdir(exist_ok=True)
        with read_only(run.out):
            assert run.refusal() == f"{run.out / FOLDERS[stage]} cannot be written: Permission denied"
        run.check_goes_on()
        with read_only(run.out):
            run.check_goes_on()
            with pytest.raises(ManifestError, match="cannot be written: Permission denied"):
                remove_from("ingest", run.out)
        assert tree_of(run.out) == run.unbroken


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def swap(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path], None]] = {
    "cut": cut,
    "grown": grow,
    "gone": Path.unlink,
    "a folder": swap,
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(
    ("change", "workers"), [("cut", 1), ("cut", 2), ("grown", 2), ("gone", 1), ("gone", 2), ("a folder", 1)]
)
def test_a_log_that_changes_while_it_is_read_is_named(
    run: Run, original: Path, change: str, workers: int
) -> None:
    log = run.log

    def change_it(stage: str, done: int, total: int) -> None:
        if log.is_file() and log.stat().st_size == original.stat().st_size:
            CHANGES[change](log)

    with pytest.raises(InputError) as caught:
        preprocess([log], CONFIG, run.out, Resources(workers=workers, progress=change_it))
    assert str(log) in str(caught.value) and "\n" not in str(caught.value)
    if log.is_dir():
        log.rmdir()
    shutil.copy(original, log)
    run.check_goes_on()


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("stage", "name"), [(stage, name) for stage in INPUTS for name in INPUTS[stage]])
@pytest.mark.parametrize("is_folder", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_input_that_vanishes_between_stages_is_named(
    run: Run, tmp_path: Path, stage: str, name: str, is_folder: bool
) -> None:
    before = STAGES[STAGES.index(stage) - 1]
    gone = run.out / name
    if not is_folder:
        gone /= Manifest.read(gone).files[0].path

    def remove(report: StageReport) -> None:
        if report.stage == before:
            gone.rename(tmp_path / "aside")

    with pytest.raises(ManifestError, match=str(gone)):
        preprocess([run.log], CONFIG, run.out, Resources(workers=2), on_stage=remove)
    (tmp_path / "aside").rename(gone)
    run.check_goes_on()


@pytest.mark.parametrize("stage", ["count", "encode", "split", "pack"])
def test_an_input_that_vanishes_during_a_stage_costs_no_more_than_that_run(
    run: Run, tmp_path: Path, stage: str
) -> None:
    gone = run.out / INPUTS[stage][-1]

    def remove(at: str, done: int, total: int) -> None:
        if at == stage and gone.exists():
            gone.rename(tmp_path / "aside")

    try:
        preprocess([run.log], CONFIG, run.out, Resources(workers=1, progress=remove))
    except ManifestError as error:
        assert str(gone) in str(error)
    (tmp_path / "aside").rename(gone)
    run.check_goes_on()


def test_a_pipe_in_place_of_a_log_is_refused_without_waiting(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a plain file" in replace(run, log=tmp_path / "pipe").refusal(InputError)
    assert "cannot be read: No such file" in replace(run, log=tmp_path / "log.gz").refusal(InputError)


def test_a_clock_that_jumps_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    luck = random.Random(3)
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(f"time.{name}", lambda: luck.uniform(-1e9, 1e10))
    with pytest.raises(RuntimeError):
        preprocess([run.log], CONFIG, run.out, Resources(workers=2), on_stage=fail)
    for _ in range(2):
        for path in [run.log, *run.out.rglob("*")]:
            os.utime(path, (0, luck.choice([0, 2**32])))
        run.check_goes_on()


def fail(report: StageReport) -> None:
    if report.stage == "rank":
        raise RuntimeError


@pytest.mark.parametrize("stage", ["ingest", "encode", "pack"])
def test_a_redo_that_is_killed_goes_on_with_the_plain_command(
    run: Run, tmp_path: Path, made: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed(-1, monkeypatch) as calls:
        remove_from(stage, copy_of(made, tmp_path / "all"))
    for after in sorted({*range(1, 5), calls[0] // 2, calls[0]}):
        out = copy_of(made, tmp_path / f"dir{after}")
        with killed(after, monkeypatch), pytest.raises(Killed):
            remove_from(stage, out)
        replace(run, out=out).check_goes_on()
        shutil.rmtree(out)


@pytest.mark.parametrize("stage", ["pack"])
def test_a_folder_begun_and_removed_is_emptied_by_the_next_run(run: Run, tmp_path: Path) -> None:
    with no_file_beyond(1500):
        run.refusal()
    partial = run.out / "shards" / PARTIAL
    (partial / BEGUN).rename(partial / REMOVED)  # killed there
    (run.out / "shards" / "half.arrow").write_text("half of it")
    run.check_goes_on()
    (tmp_path / "strange").mkdir()
    remove_folders([tmp_path / "strange"])
    assert not (tmp_path / "strange").exists()


def test_a_durable_run_syncs_every_file_and_changes_no_byte(
    tmp_path: Path, log: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_synced, fsync = 0, os.fsync

    def counting(descriptor: int) -> None:
        nonlocal num_synced
        num_synced += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counting)
    preprocess([log], CONFIG, tmp_path / "plain", Resources(workers=2))
    num_plain, num_synced = num_synced, 0
    with durable_files():
        preprocess([log], CONFIG, tmp_path / "dir", Resources(workers=2))
    num_durable, num_synced = num_synced, 0
    assert main(["preprocess", str(log), "--out", str(tmp_path / "asked"), "--durable", "-q"]) == 0
    assert num_plain == 2 * len(FOLDERS)  # each manifest, and the folder it was renamed in
    assert num_durable - num_plain == 2 * (len(unbroken) - len(FOLDERS))  # each file, and its record
    num_files = len(tree_of(tmp_path / "asked"))
    assert num_synced == num_plain + 2 * (num_files - len(FOLDERS))
    assert tree_of(tmp_path / "dir") == tree_of(tmp_path / "plain") == unbroken
