"""A sealed folder in another place: linked or copied, whole or not there, and independent of the first."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.linked_folder import link_folder
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
