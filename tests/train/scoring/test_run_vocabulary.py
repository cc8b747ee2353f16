"""The vocabulary that a run keeps: linked at its beginning, found again, and that of another log refused.

Tests `shard_origin`, too.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.pipeline.errors import ConfigError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.support.scored_runs import ScoredRun, run_on_criteo, run_on_lists
from hotset.train.config import TrainConfig
from hotset.train.data.shard_origin import ShardOrigin, vocabulary_of
from hotset.train.data.shards import Shards
from hotset.train.run import train
from hotset.train.run_folder.run_reader import read_config
from hotset.train.run_folder.verify_run import verify_run
from hotset.train.scoring.run_vocabulary import RunVocabulary


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"))


def copy_of(scored: ScoredRun, folder: Path) -> ScoredRun:
    shutil.copytree(scored.data, folder / "data")
    shutil.copytree(scored.run, folder / "run")
    return ScoredRun(folder / "run", folder / "data", scored.log)


def test_a_run_keeps_links_of_the_vocabulary_and_seals_them(scored: ScoredRun) -> None:
    kept = Manifest.read(scored.run / "vocabulary")
    inputs = {source["name"]: source["fingerprint"] for source in Manifest.read(scored.run).inputs}
    assert inputs["vocabulary"] == kept.fingerprint == vocabulary_of(Shards.open(scored.data))
    for entry in kept.files:
        assert (scored.run / "vocabulary" / entry.path).samefile(scored.data / "vocabulary" / entry.path)
    assert verify_run(scored.run) == []


def test_the_vocabulary_is_opened_with_its_schema_and_tables(scored: ScoredRun) -> None:
    found = RunVocabulary.open(scored.run, read_config(scored.run))
    assert [table.name for table in found.tables] == list(found.schema.sparse)
    assert {table.name for table in found.tables if table.is_multi_hot} == {"tags", "seen", "codes"}
    assert {table.embedding_dim for table in found.tables} == {4, 8}
    given = RunVocabulary.open(scored.run, read_config(scored.run), scored.data)
    assert (given.schema, given.tables) == (found.schema, found.tables)


@pytest.mark.parametrize("name", ["tags.arrow", "manifest.json", "all"])
def test_verify_finds_what_is_damaged_or_gone(scored: ScoredRun, tmp_path: Path, name: str) -> None:
    own = copy_of(scored, tmp_path)
    if name == "all":
        shutil.rmtree(own.run / "vocabulary")
    else:
        (own.run / "vocabulary" / name).write_bytes(b"{}")
    assert any("vocabulary" in fault for fault in verify_run(own.run))


def test_shards_alone_leave_no_vocabulary(scored: ScoredRun, tmp_path: Path) -> None:
    shutil.copytree(scored.data / "shards", tmp_path / "shards")
    train(tmp_path / "shards", TrainConfig(threads=1), tmp_path / "run")
    config = read_config(tmp_path / "run")
    assert (config.schema, config.vocabulary) == (None, None)
    with pytest.raises(ConfigError, match="keeps no vocabulary"):
        RunVocabulary.open(tmp_path / "run", config)
    given = RunVocabulary.open(tmp_path / "run", config, scored.data)
    assert given.tables == RunVocabulary.open(scored.run, read_config(scored.run)).tables


@pytest.mark.parametrize("stage", ["vocabulary", "columns", "plan"])
def test_folders_of_another_log_are_not_kept(scored: ScoredRun, tmp_path: Path, stage: str) -> None:
    """They were written again since: their ids, or their columns, are others by now."""
    own = copy_of(scored, tmp_path)
    manifest = json.loads((own.data / stage / "manifest.json").read_text())
    (tmp_path / "other").mkdir()
    other = run_on_lists(tmp_path / "other", seed=1)
    shutil.rmtree(own.data / stage)
    shutil.copytree(other.data / stage, own.data / stage)
    assert Manifest.read(own.data / stage).fingerprint != manifest["checksum"]
    assert ShardOrigin.of(Shards.open(own.data)) is None


def test_the_vocabulary_of_another_run_is_refused(scored: ScoredRun, tmp_path: Path) -> None:
    other = run_on_criteo(tmp_path)
    config = read_config(scored.run)
    with pytest.raises(ManifestError, match="is not the vocabulary of"):
        RunVocabulary.open(scored.run, config, other.data)
    # One of the same tables may still have other ids.
    with pytest.raises(ManifestError, match=r"its fingerprint is .*, want 00000000"):
        RunVocabulary.open(scored.run, replace(config, vocabulary="0" * 32))
    shutil.copytree(scored.data / "shards", tmp_path / "shards")
    train(tmp_path / "shards", TrainConfig(threads=1), tmp_path / "alone")
    with pytest.raises(ManifestError, match=r"it has \d+ rows of C1, the run \d+ of tags"):
        RunVocabulary.open(tmp_path / "alone", read_config(tmp_path / "alone"), other.data)
