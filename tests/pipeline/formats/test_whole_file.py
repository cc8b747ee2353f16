"""A single file appears whole or not at all, whoever else writes it and whenever its writer dies."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.formats.whole_file import refuse_target, whole_file


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
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null", "."):
        with pytest.raises(HotsetError, match="is not a regular file"):
            with whole_file(tmp_path / name, overwrite=True):
                pass
    assert names_in(tmp_path) == ["null", "pipe"]


def test_a_read_only_folder_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_access(path: Any, mode: int) -> bool:
        assert path == tmp_path
        return not mode & os.W_OK

    # A superuser may write anywhere but on a device that is mounted so.
    monkeypatch.setattr(os, "access", has_access)
    with pytest.raises(HotsetError, match=r"out cannot be written: .* is read-only") as refused:
        refuse_target(tmp_path / "out", overwrite=True, option="--html")
    assert refused.value.hint == "give another --html"


def test_the_new_file_has_the_usual_permissions(tmp_path: Path, system: str) -> None:
    with whole_file(tmp_path / "out"):
        pass
    (tmp_path / "usual").touch()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from hotset.pipeline.formats.whole_file import whole_file\n"
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
