"""Locks, writes and removals of folders.

Discarded folders: the stages count as done, verify says so, and what needs their files refuses. One writer a
folder: the second run is refused by name, and a dead one is in nobody's way. Small files are written whole or
not at all. Only the workers of the run that holds a folder write into it.

Tests `tasks`, too.

A sealed folder in another place is linked or copied, whole or not there, and independent of the first. A
single file, or a folder, appears whole or not at all, whoever else writes it and whenever its writer dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ByteSize, HotsetError, ManifestError
from hotset.pipeline.folders.disk import (
    BEGUN,
    LOCK,
    MARK,
    PARTIAL,
    REMOVED,
    WORKERS,
    FolderLock,
    bytes_in,
    check_target,
    discard_files,
    durable_files,
    empty_folder,
    folder_exists,
    free_bytes,
    held_by_worker,
    is_discarded,
    is_durable,
    link_folder,
    num_recorded,
    paths_in,
    remove_folders,
    rename_folder,
    start_generation,
    whole_file,
    whole_folder,
    write_errors_explained,
    write_json,
    write_synced,
)
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.resume import FolderState
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess, remove_from, run_stage
from hotset.pipeline.runtime.tasks import Resources, pack_call, run_packed
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.pipeline.verify import verify
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.processes.kills import HOLDER, Killed, killed, start_holder
from hotset.tests.support.shard_factory import PackConfig, write_shards
from hotset.workflows.cli import main

CONFIG = PreprocessConfig(split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(20_000)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("discard")
    generate(GenerateConfig(samples=800, scale=500), folder / "log.tsv", workers=1)
    preprocess([folder / "log.tsv"], CONFIG, folder / "dir", Resources(workers=1))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same with columns and samples discarded."""
    shutil.copytree(whole / "dir", tmp_path / "dir")
    preprocess([whole / "log.tsv"], CONFIG, tmp_path / "dir", shards_only=True)
    return tmp_path / "dir"


def test_only_the_files_of_the_folders_named_go(whole: Path, folder: Path) -> None:
    before, after = tree_of(whole / "dir"), tree_of(folder)
    for name in ("columns", "samples"):
        assert {path.name for path in (folder / name).iterdir()} == {MANIFEST, MARK}
        assert is_discarded(folder / name) and not is_discarded(folder / "shards")
    kept = {
        name for name in before if name.endswith(MANIFEST) or name.split("/")[0] not in ("columns", "samples")
    }
    assert {name: before[name] for name in kept} == {
        name: text for name, text in after.items() if not name.endswith(MARK)
    }


def test_the_same_command_sees_every_stage_as_done(whole: Path, folder: Path) -> None:
    before, sealed = tree_of(folder), []
    for shards_only in (True, False):
        preprocess(
            [whole / "log.tsv"],
            CONFIG,
            folder,
            shards_only=shards_only,
            on_stage=lambda r: sealed.append(r.was_sealed),
        )
    assert sealed == [True] * 12 and tree_of(folder) == before


def test_verify_checks_what_is_there(whole: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder, raw=[whole / "log.tsv"]) == []
    assert main(["verify", str(folder)]) == 0
    assert "columns was discarded, so only its manifest was checked" in capsys.readouterr().err
    (folder / "columns" / "stray").touch()
    assert any("stray" in fault for fault in verify(folder))


def test_other_settings_say_what_they_miss_and_remove_nothing(whole: Path, folder: Path) -> None:
    before = tree_of(folder)
    other = replace(CONFIG, split=replace(CONFIG.split, embedding_dim=8))
    with pytest.raises(ManifestError, match="embedding_dim = 16, now 8"):
        preprocess([whole / "log.tsv"], other, folder)
    for stage, missed in {"split": "samples", "encode": "columns", "count": "columns"}.items():
        with pytest.raises(ManifestError, match=f"{missed} was discarded, and .* needs its files") as caught:
            remove_from(stage, folder)
        assert "--redo ingest" in str(caught.value.hint)
    assert tree_of(folder) == before
    remove_from("ingest", folder)
    preprocess([whole / "log.tsv"], CONFIG, folder)
    assert tree_of(folder) == tree_of(whole / "dir")


def test_a_stage_that_misses_an_input_says_so(folder: Path) -> None:
    shutil.rmtree(folder / "shards")
    with pytest.raises(ManifestError, match="columns was discarded, and pack needs its files"):
        run_stage("pack", CONFIG.pack, folder)


def test_stats_say_what_they_miss(folder: Path) -> None:
    with pytest.raises(ManifestError, match="samples was discarded, and stats needs its files"):
        frequency_statistics(folder)


def test_columns_alone_or_samples_alone(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "dir", tmp_path / "dir")
    assert discard_files(tmp_path / "dir" / "samples") > 800 * 26 * 4
    assert discard_files(tmp_path / "dir" / "samples") == 0
    remove_from("encode", tmp_path / "dir")
    preprocess([whole / "log.tsv"], CONFIG, tmp_path / "dir")
    assert tree_of(tmp_path / "dir") == tree_of(whole / "dir")


def test_stopped_half_way_it_goes_on(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(whole / "dir", tmp_path / "dir")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(ManifestError, match="columns cannot be discarded: Read-only"):
            preprocess([whole / "log.tsv"], CONFIG, tmp_path / "dir", shards_only=True)
    preprocess([whole / "log.tsv"], CONFIG, tmp_path / "dir", shards_only=True)
    assert {path.name for path in (tmp_path / "dir/columns").iterdir()} == {MANIFEST, MARK}


def refuse(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_file_that_is_lost_without_a_mark_is_a_fault(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "dir", tmp_path / "dir")
    next((tmp_path / "dir/columns").glob("*.arrow")).unlink()
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        preprocess([whole / "log.tsv"], CONFIG, tmp_path / "dir")


def test_bytes_are_those_of_the_files_of_a_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bytes(5))
    (tmp_path / "a").write_bytes(bytes(7))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c").write_bytes(bytes(100))
    assert bytes_in(tmp_path) == 12
    assert bytes_in(tmp_path / "none") == 0
    assert [path.name for path in paths_in(tmp_path)] == ["a", "b", "below"]
    assert folder_exists(tmp_path / "below") and not folder_exists(tmp_path / "a")


def test_space_is_that_of_the_first_folder_that_exists(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b" / "c") > 0


def test_a_folder_is_renamed_in_place_or_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "vocabulary").mkdir()
    rename_folder(tmp_path / "vocabulary", "old_vocabulary")
    assert [path.name for path in paths_in(tmp_path)] == ["old_vocabulary"]
    with pytest.raises(ManifestError, match="vocabulary cannot be written: No such file"):
        rename_folder(tmp_path / "none", "vocabulary")


NAMES = ("shards", "plan")


def make(root: Path, name: str) -> Path:
    """A sealed folder of one file."""
    output = Output.begin("pack", 1, PackConfig(batch_size=8), [], root / name)
    if output.sealed is None:
        with output.writing("a.arrow", 1) as path:
            path.write_bytes(name.encode())
        output.seal(AnyRecord(samples=1))
    return root / name


def test_folders_go_whether_finished_begun_or_strange(tmp_path: Path) -> None:
    sealed = make(tmp_path, "shards")
    begun = tmp_path / "plan"
    output = Output.begin("pack", 1, PackConfig(batch_size=8), [], begun)
    with output.writing("a.arrow", 1) as path:
        path.write_bytes(b"a")
    strange = tmp_path / "notes"
    strange.mkdir()
    (strange / "note").touch()
    remove_folders([sealed, begun, strange])
    assert list(tmp_path.iterdir()) == []


def test_killed_at_any_moment_a_new_run_ends_in_the_bytes_of_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tree_of(make(tmp_path, "fresh").parent)
    for after in range(1, 40):
        root = tmp_path / f"kill{after}"
        folders = [make(root, name) for name in NAMES]
        with killed(after, monkeypatch) as calls:
            try:
                remove_folders(folders)
            except Killed:
                pass
        # Never is the first folder whole while the one it was made from is marked or gone.
        states = [FolderState.read(folder) for folder in folders]
        assert states[0].sealed is None or states[1].sealed is not None
        for folder in folders:
            found = tree_of(make(root, folder.name))
            assert found.keys() == {name.removeprefix("fresh/") for name in wanted}
            assert found["a.arrow"] == folder.name.encode()
        if calls[0] < after:
            break
    else:
        pytest.fail("removing takes more changes than were tried")


def test_a_link_to_a_removed_folder_stays_and_is_empty(tmp_path: Path) -> None:
    elsewhere = make(tmp_path, "elsewhere")
    (tmp_path / "shards").symlink_to(elsewhere)
    remove_folders([tmp_path / "shards"])
    assert (tmp_path / "shards").is_symlink() and names_in(elsewhere) == []


def test_one_folder_in_use_refuses_the_removal_of_all(tmp_path: Path) -> None:
    folders = [make(tmp_path, name) for name in NAMES]
    (folders[1] / PARTIAL).mkdir()
    holder = start_holder(folders[1] / PARTIAL / LOCK)
    with pytest.raises(ManifestError, match=f"plan is being written by process {holder.pid}"):
        remove_folders(folders)
    assert all((folder / MANIFEST).exists() for folder in folders)
    holder.communicate("")
    remove_folders(folders)
    assert not any(folder.exists() for folder in folders)


def test_emptying_leaves_the_locks_and_no_mark(tmp_path: Path) -> None:
    partial = tmp_path / PARTIAL
    partial.mkdir()
    for name in (LOCK, REMOVED, BEGUN):
        (partial / name).touch()
    (tmp_path / "a.arrow").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path.parent)
    empty_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PARTIAL]
    assert [path.name for path in partial.iterdir()] == [LOCK]


@pytest.mark.parametrize("is_killed", [False, True])
def test_another_process_is_named_until_it_is_gone(tmp_path: Path, is_killed: bool) -> None:
    path = tmp_path / "out" / "lock"
    with start_holder(path) as holder:
        with pytest.raises(ManifestError) as caught:
            FolderLock.take(path, tmp_path / "out")
        assert str(caught.value) == f"{tmp_path / 'out'} is being written by process {holder.pid}"
        assert caught.value.hint
        if is_killed:
            holder.send_signal(signal.SIGKILL)
        else:
            holder.communicate()
        holder.wait()
    FolderLock.take(path, tmp_path / "out").release()
    assert int(path.read_text()) == os.getpid()


def test_another_thread_is_refused_and_the_next_run_of_this_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FolderLock.take(path, tmp_path)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ManifestError, match="another thread of this process"):
        pool.submit(FolderLock.take, path, tmp_path).result()
    second = FolderLock.take(path, tmp_path)
    first.release()  # no longer its to let go of
    with start_refused(path) as refused:
        assert refused.wait() != 0
    second.release()
    start_holder(path).communicate()


def start_refused(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_what_a_thread_that_ended_left_locked_is_taken_over(tmp_path: Path) -> None:
    left = []
    thread = threading.Thread(target=lambda: left.append(FolderLock.take(tmp_path / "lock", tmp_path)))
    thread.start()
    thread.join()
    FolderLock.take(tmp_path / "lock", tmp_path).release()
    assert left


def test_a_lock_file_that_was_removed_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FolderLock.take(path, tmp_path)
    path.unlink()
    second = FolderLock.take(path, tmp_path)
    assert first.inode != second.inode
    first.release()
    second.release()


def test_a_file_that_goes_while_it_is_being_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, num_left = tmp_path / "lock", 2
    lockf = fcntl.lockf

    def sealed_meanwhile(descriptor: int, operation: int) -> None:
        nonlocal num_left
        lockf(descriptor, operation)
        num_left -= 1
        if num_left >= 0:
            path.unlink()

    monkeypatch.setattr("fcntl.lockf", sealed_meanwhile)
    lock = FolderLock.take(path, tmp_path)
    assert lock.inode == (path.stat().st_dev, path.stat().st_ino) and num_left == -1
    lock.release()


def test_a_lock_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        FolderLock.take(tmp_path / "file" / "lock", tmp_path / "file")


def test_durable_files_nest_and_end_even_after_an_error() -> None:
    assert not is_durable()
    with durable_files():
        with durable_files(False):
            assert not is_durable()
        assert is_durable()
    with pytest.raises(KeyError), durable_files():
        raise KeyError
    assert not is_durable()


def test_killed_before_the_rename_the_old_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "begun.json"
    write_synced(path, b"old", sync=False)
    with killed(1, monkeypatch), pytest.raises(Killed):
        write_synced(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    write_synced(path, b"newer", aside=tmp_path / "aside", sync=True)
    assert path.read_bytes() == b"newer" and not (tmp_path / "aside").exists()


def test_a_system_error_is_explained_and_others_pass(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"out cannot be written: No space left") as caught:
        with write_errors_explained(tmp_path / "out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.hint == "make room or fix the cause, and run the same command again"
    with pytest.raises(ManifestError, match="out cannot be written: by hand"):
        with write_errors_explained(tmp_path / "out"):
            raise OSError("by hand")
    with pytest.raises(KeyError), write_errors_explained(tmp_path):
        raise KeyError


def test_only_records_of_data_files_are_counted(tmp_path: Path) -> None:
    assert num_recorded(tmp_path) == 0
    (tmp_path / PARTIAL).mkdir()
    for name in ("a.arrow.json", "b.arrow.json", "begun.json", "c.arrow"):
        (tmp_path / PARTIAL / name).touch()
    assert num_recorded(tmp_path) == 2


@dataclass(frozen=True)
class NoConfig:
    """Nothing to vary."""


def test_a_later_run_waits_for_the_workers_of_the_one_before(tmp_path: Path) -> None:
    path, raised = tmp_path / "workers", []
    token = start_generation(path, tmp_path)
    with held_by_worker(path, token, tmp_path), held_by_worker(path, token, tmp_path):
        later = threading.Thread(target=lambda: raised.append(start_generation(path, tmp_path)))
        later.start()
        later.join(0.1)
        assert not raised
    later.join()
    assert raised and raised[0] != token
    with pytest.raises(ManifestError, match="another run"), held_by_worker(path, token, tmp_path):
        pass
    with held_by_worker(path, raised[0], tmp_path):
        pass


def test_a_worker_that_does_not_end_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.folders.disk._MOST_SECONDS", 0.05)
    token = start_generation(tmp_path / "workers", tmp_path)
    with held_by_worker(tmp_path / "workers", token, tmp_path):
        with pytest.raises(ManifestError, match="still being written by a worker of an earlier run"):
            start_generation(tmp_path / "workers", tmp_path)


def write(output: Output, name: str) -> bool:
    """A task that writes a file where it is not there, and says whether it was."""
    if output.has(name):
        return True
    with output.writing(name, 3, AnyRecord(fact=1)) as path:
        path.write_bytes(b"abc")
    return False


def begin(folder: Path) -> Output:
    output = Output.begin("stage", 1, NoConfig(), [], folder)
    return output


def test_what_a_copy_finished_is_known_at_home(tmp_path: Path) -> None:
    output = begin(tmp_path / "out")
    for was_there in (False, True):  # the second worker is sent what the first did and could not tell of
        packed, originals = pack_call(write, (output, "a.arrow"))
        result, (report,) = run_packed(packed, os.getcwd())
        assert result is was_there and not output.has("a.arrow") and originals == [output]
    output.apply_report(report)
    assert output.has("a.arrow") and output.finished["a.arrow"].facts == {"fact": 1}
    assert [entry.path for entry in output.seal(AnyRecord()).files] == ["a.arrow"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.arrow", "manifest.json"]


def test_a_copy_of_an_earlier_run_writes_nothing(tmp_path: Path) -> None:
    early, _ = pack_call(write, (begin(tmp_path / "out"), "a.arrow"))
    output = begin(tmp_path / "out")
    with pytest.raises(ManifestError, match="another run"):
        run_packed(early, os.getcwd())
    assert not (tmp_path / "out" / "a.arrow").exists()
    output.seal(AnyRecord())
    with pytest.raises(ManifestError, match="another run"):
        run_packed(early, os.getcwd())


def test_what_killed_workers_left_aside_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    copy = Output.in_worker(*begin(tmp_path / "out").state_for_worker())
    # An error would remove the file, but a worker that is killed sees none.
    copy.temporary_path("a.arrow").write_bytes(b"half")
    assert len(list((tmp_path / "out" / PARTIAL).glob("*.aside"))) == 1
    begin(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / PARTIAL).iterdir()} == {"begun.json", "lock", WORKERS}


@pytest.fixture
def sealed(tmp_path: Path) -> Manifest:
    return Manifest.read(write_shards(tmp_path / "shards"))


def assert_whole(folder: Path, wanted: Manifest) -> None:
    found = Manifest.read(folder)
    assert found.fingerprint == wanted.fingerprint
    for entry in found.files:
        found.hashed_path(entry)
    names = {entry.path for entry in wanted.files} | {"manifest.json"}
    assert {path.name for path in folder.iterdir()} == names


def no_links(*_: Any, **__: Any) -> None:
    raise OSError("no links here")


@pytest.mark.parametrize("has_links", [True, False])
def test_the_folder_stays_when_the_first_goes(
    sealed: Manifest, tmp_path: Path, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    link_folder(sealed, tmp_path / "kept")
    first = sealed.files[0].path
    assert (tmp_path / "kept" / first).samefile(sealed.folder / first) == has_links
    shutil.rmtree(sealed.folder)
    assert_whole(tmp_path / "kept", sealed)


def test_a_folder_of_a_killed_run_or_of_other_bytes_is_replaced(sealed: Manifest, tmp_path: Path) -> None:
    (tmp_path / ".kept.tmp").mkdir()
    (tmp_path / ".kept.tmp" / "half.arrow").write_bytes(b"half")
    link_folder(Manifest.read(write_shards(tmp_path / "other", seed=1)), tmp_path / "kept")
    link_folder(sealed, tmp_path / "kept")
    assert_whole(tmp_path / "kept", sealed)
    assert not (tmp_path / ".kept.tmp").exists()
    before = (tmp_path / "kept").stat()
    link_folder(sealed, tmp_path / "kept")  # the same bytes: kept as it is
    assert (tmp_path / "kept").stat() == before


def test_a_file_that_is_missing_is_named(sealed: Manifest, tmp_path: Path) -> None:
    os.unlink(sealed.folder / sealed.files[0].path)
    with pytest.raises(ManifestError, match=sealed.files[0].path):
        link_folder(sealed, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.fixture(params=["nameless", "hidden"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """File systems with and without nameless files."""
    if request.param == "hidden":
        open_file = os.open

        def without_nameless(path: Any, flags: int, *args: Any, **fields: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return open_file(path, flags, *args, **fields)

        monkeypatch.setattr(os, "open", without_nameless)
    return str(request.param)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path: Path, system: str) -> None:
    with whole_file(tmp_path / "out") as file:
        file.write(b"whole")
        file.flush()
        assert "out" not in names_in(tmp_path)
    assert (tmp_path / "out").read_bytes() == b"whole" and names_in(tmp_path) == ["out"]


def test_nothing_is_left_of_a_file_that_fails(tmp_path: Path, system: str) -> None:
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "out") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert names_in(tmp_path) == []


def test_a_full_disk_is_explained(tmp_path: Path, system: str) -> None:
    with pytest.raises(HotsetError, match="out cannot be written: No space left on device"):
        with whole_file(tmp_path / "out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names_in(tmp_path) == []


def test_of_two_writers_the_slower_is_refused(tmp_path: Path, system: str) -> None:
    with pytest.raises(HotsetError, match="written by another run"):
        with whole_file(tmp_path / "out") as slow:
            slow.write(b"slow")
            with whole_file(tmp_path / "out") as fast:
                fast.write(b"fast")
    assert (tmp_path / "out").read_bytes() == b"fast" and names_in(tmp_path) == ["out"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, system: str) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with whole_file(tmp_path / "out", overwrite=True) as file:
        file.write(b"new")
        assert (tmp_path / "out").read_bytes() == b"old"
    assert (tmp_path / "out").read_bytes() == b"new" and names_in(tmp_path) == ["out"]


def test_the_longest_name_will_do_and_a_longer_one_is_refused(tmp_path: Path, system: str) -> None:
    with whole_file(tmp_path / ("n" * 255)):
        pass
    assert names_in(tmp_path) == ["n" * 255]
    with pytest.raises(HotsetError, match="File name too long"), whole_file(tmp_path / ("n" * 256)):
        pass


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")  # as /dev/stdout, where the output goes to a file
    for name, found in (("pipe", "not a regular file"), ("link", "a link"), (".", "not a regular file")):
        with pytest.raises(HotsetError, match=f"is {found}"):
            with whole_file(tmp_path / name, overwrite=True):
                pass
    assert names_in(tmp_path) == ["file", "link", "pipe"] and (tmp_path / "link").is_symlink()


def test_a_read_only_folder_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_access(path: Any, mode: int) -> bool:
        assert path == tmp_path
        return not mode & os.W_OK

    # A superuser may write anywhere but on a device that is mounted so.
    monkeypatch.setattr(os, "access", has_access)
    with pytest.raises(HotsetError, match=r"out cannot be written: .* is read-only") as refused:
        check_target(tmp_path / "out", overwrite=True, option="--html")
    assert refused.value.hint == "give another --html"


def test_the_new_file_has_the_usual_permissions(tmp_path: Path, system: str) -> None:
    with whole_file(tmp_path / "out"):
        pass
    (tmp_path / "usual").touch()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from hotset.pipeline.folders.disk import whole_file\n"
        f"with whole_file(Path({str(tmp_path / 'out')!r})) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert names_in(tmp_path) == []


def test_what_a_killed_writer_left_hidden_is_removed_by_the_next(tmp_path: Path, system: str) -> None:
    (tmp_path / ".hotset-0123.tmp").write_bytes(b"abandoned")
    with whole_file(tmp_path / "first"):
        with whole_file(tmp_path / "second"):  # which leaves the first one's alone
            pass
    assert names_in(tmp_path) == ["first", "second"]


INPUTS = [{"name": "run", "fingerprint": "0" * 32}]


def test_files_are_sealed_under_the_final_name(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial/half").write_text("of a killed run")
    with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS) as folder:
        (folder / "b.txt").write_bytes("naïve ☃\n".encode())
        write_json(folder / "a.json", {"name": "☃"})
        assert not (tmp_path / "out").exists()
    manifest = Manifest.read(tmp_path / "out")
    assert (manifest.stage, manifest.version, manifest.inputs) == ("export", 2, INPUTS)
    assert [entry.path for entry in manifest.files] == ["a.json", "b.txt"]
    for entry in manifest.files:
        manifest.hashed_path(entry)
    assert (tmp_path / "out/b.txt").read_text() == "naïve ☃\n"
    assert json.loads((tmp_path / "out/a.json").read_text()) == {"name": "☃"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS):
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(HotsetError, match="out"):
        with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS):
            pass
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_of_two_writers_the_second_is_refused(tmp_path: Path) -> None:
    """They would mix their files, and seal what the other one is still writing."""

    def write_second() -> None:
        with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS) as folder:
            (folder / "b.txt").write_text("second")

    with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS) as folder:
        (folder / "a.txt").write_text("first")
        # A run of the same thread would take the place of one that failed.
        with ThreadPoolExecutor(1) as pool, pytest.raises(HotsetError, match="out is being written"):
            pool.submit(write_second).result()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["a.txt", "manifest.json"]
