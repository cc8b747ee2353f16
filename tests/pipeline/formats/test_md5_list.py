"""Raw logs are compared with the checksums that their publisher gives."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hotset.pipeline.errors import InputError
from hotset.pipeline.formats.md5_list import md5_faults, read_md5_list
from hotset.workflows.cli import main


def test_files_are_those_of_the_list_or_are_named(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_bytes(b"a,b\n1,2\n" * 5000)
    test.write_bytes(b"")
    listed = tmp_path / "MD5"
    lines = [
        f"{hashlib.md5(path.read_bytes()).hexdigest().upper()}  data/{path.name}" for path in (train, test)
    ]
    listed.write_text("\n\n".join(lines) + "\n")
    assert md5_faults([train, test], listed) == []
    train.write_bytes(b"a,b\n1,2\n" * 4999 + b"a,b\n1,3\n")
    (fault,) = md5_faults([test, train], listed)
    assert fault.startswith(f"{train} has the md5 ") and fault.endswith(f" of {listed}")
    assert md5_faults([listed], listed) == [f"{listed} has no checksum of MD5"]
    with pytest.raises(InputError, match=r"test\.csv cannot be read: No such file"):
        test.unlink()
        md5_faults([test], listed)


@pytest.mark.parametrize("content", [b"", b"\n", b"d41d8cd98f00b204e9800998ecf8427e *a b.csv\n"])
def test_a_list_may_be_empty_and_names_may_have_spaces(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list").write_bytes(content)
    assert list(read_md5_list(tmp_path / "list")) == (["a b.csv"] if content.strip() else [])


@pytest.mark.parametrize("content", [b"train.csv\n", b"d41d8cd9  train.csv\n", b"\xff"])
def test_what_is_no_list_of_checksums_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(InputError, match=r"list(, line 1: want a checksum|.* cannot be read)"):
        read_md5_list(tmp_path / "list")


def test_verify_compares_the_inputs_with_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.csv"
    log.write_text("label,feat_1\n" + "1,2\n0,3\n" * 20)
    schema = tmp_path / "s.toml"
    schema.write_text('format = "csv"\nlabel = "label"\ndense = []\n[sparse]\nfeat_1 = "integer"\n')
    assert main(["ingest", str(log), "--schema", str(schema), "--out", str(tmp_path / "d")]) == 0
    (tmp_path / "MD5").write_text(f"{'0' * 32}  train.csv\n")
    checked = ["verify", str(tmp_path / "d"), "--md5sums", str(tmp_path / "MD5")]
    assert main(checked) == 1
    assert "error: md5sums are of raw logs: name them by --inputs" in capsys.readouterr().err
    assert main([*checked, "--inputs", str(log)]) == 1
    assert "train.csv has the md5 " in capsys.readouterr().out


def test_names_are_those_without_folders_in_every_form_of_the_list(tmp_path: Path) -> None:
    empty = "d41d8cd98f00b204e9800998ecf8427e"
    forms = (f"{empty}  a.csv", f"{empty} *sub/b.csv", f"{empty}\t./c.csv", f"  {empty.upper()}  d.csv  ")
    (tmp_path / "list").write_text("\r\n".join(forms))
    assert read_md5_list(tmp_path / "list") == dict.fromkeys(("a.csv", "b.csv", "c.csv", "d.csv"), empty)
    # The same file twice is one file.
    (tmp_path / "list").write_text(f"{empty}  a.csv\n{empty.upper()}  old/a.csv\n")
    assert read_md5_list(tmp_path / "list") == {"a.csv": empty}


def test_two_checksums_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"{'0' * 32}  day_1/log.csv\n\n{'1' * 32}  day_2/log.csv\n")
    with pytest.raises(InputError, match=r"list, line 3: a second checksum of log\.csv$"):
        read_md5_list(tmp_path / "list")
