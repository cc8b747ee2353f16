"""A sealed folder in another place: linked or copied, whole or not there, and independent of the first.

A single file appears whole or not at all, whoever else writes it and whenever its writer dies.

A folder appears whole and sealed, or not at all.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.whole_file import check_target, link_folder, whole_file, whole_folder, write_json
from hotset.tests.support.shard_factory import write_shards


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
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link", "."):
        with pytest.raises(HotsetError, match="is not a regular file"):
            with whole_file(tmp_path / name, overwrite=True):
                pass
    assert names_in(tmp_path) == ["link", "pipe"]


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
        "import os; from pathlib import Path; from hotset.pipeline.folders.whole_file import whole_file\n"
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
