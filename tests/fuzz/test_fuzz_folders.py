"""Some crafted folders in every run of the tests; and that no fault of a reader is overlooked.

Tests `crafted_files` and `folder_readers`, too.
"""

from __future__ import annotations

import random

import pytest

from hotset.tests.fuzz import fuzz_folders
from hotset.tests.fuzz.crafted_files import edit_bytes, edit_values
from hotset.tests.fuzz.fuzz_folders import Crafter

IS_RIGHT = {"same", "refused", "other"}


@pytest.fixture(scope="module")
def crafter(tmp_path_factory: pytest.TempPathFactory) -> Crafter:
    """Every kind of folder, put back as it was after each case."""
    return Crafter(tmp_path_factory.mktemp("crafted"), 0)


def test_crafted_folders_are_refused_by_name_or_harmless(crafter: Crafter) -> None:
    whole = {path: (crafter.root / path).read_bytes() for path in crafter.files}
    cases = [crafter.run(number) for number in range(4)]
    assert {outcome for case in cases for outcome in case.outcomes.values()} <= IS_RIGHT
    assert {path: (crafter.root / path).read_bytes() for path in crafter.files} == whole


@pytest.mark.slow
def test_many_crafted_folders_are_refused_by_name_or_harmless() -> None:
    result = fuzz_folders.fuzz_folders(60, 1)
    assert result["wrong"] == [] and result["inputs"] == 60


def test_every_kind_of_file_is_edited_and_equal_seeds_edit_equally(crafter: Crafter) -> None:
    for suffix in (".arrow", ".npy", ".safetensors", ".json", ".toml"):
        path = next(path for path in crafter.files if path.suffix == suffix)
        whole = (crafter.root / path).read_bytes()
        edited = [edit_values(path, whole, random.Random(seed)) for seed in [*range(20)] * 2]
        assert edited[:20] == edited[20:] and len(set(edited)) > 10
        assert edit_bytes(whole, random.Random(3)) == edit_bytes(whole, random.Random(3)) != whole
