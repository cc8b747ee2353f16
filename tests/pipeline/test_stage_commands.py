"""The commands in hints about stage folders; `tests/system/test_hints_of_folders.py` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.stage_commands import STAGE_OF, hint_to_rewrite, hint_to_write
from hotset.pipeline.stages.stage_order import FOLDERS


def test_every_folder_has_its_stage() -> None:
    assert {stage: folder for folder, stage in STAGE_OF.items()} == FOLDERS


@pytest.mark.parametrize(
    ("folder", "hint"),
    [
        ("vocabulary", "`hotset rank {dir}` writes it"),
        ("columns", "`hotset ingest RAW --out {dir}` writes it"),
        ("other", "give the folder that preprocess wrote (its --out)"),
    ],
)
def test_a_missing_folder_names_the_command_that_writes_it(folder: str, hint: str, tmp_path: Path) -> None:
    assert hint_to_write(tmp_path / folder, is_alone=False) == hint.format(dir=tmp_path)


def test_where_no_stage_has_run_all_are_to_be_run(tmp_path: Path) -> None:
    hint = hint_to_write(tmp_path / "no such" / "plan", is_alone=True)
    assert hint == f"`hotset preprocess RAW --out '{tmp_path}/no such'` writes it from raw logs"


def test_a_damaged_folder_is_removed_and_written_again() -> None:
    hint = hint_to_rewrite(Path("my data/shards"))
    assert hint.startswith("`rm -r 'my data/shards' && hotset pack 'my data'` writes it again")
    assert hint_to_rewrite(Path("x/run")).startswith("take the folder from a copy")
