"""Bytes of folders, bits of rows and weights, keys of ``--json`` and public names stay as they are.

Where the hashes come from stands in `golden`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hotset
from hotset.tests.support.golden import (
    CASES,
    DELETED_SETTINGS,
    OPTIMIZERS,
    PLACEMENTS,
    cpu_class,
    describe,
    golden,
    json_keys,
    prepare,
    rows_after,
    weights_after,
    write_logs,
)

PUBLIC_NAMES = """FittedRun HotsetError ModelInputs ShardDataset Shards TableInput TrainConfig apply
evaluate export fit load_model nn predict preprocess statistics torchrec"""


EVERY_PLACEMENT_AND_OPTIMIZER = pytest.mark.parametrize(
    ("placement", "optimizer"),
    [
        pytest.param(
            placement,
            optimizer,
            # Quick runs see each placement once and each optimizer with rows that move.
            marks=[] if optimizer == "adagrad" or placement == "lookahead" else pytest.mark.slow,
        )
        for placement in PLACEMENTS
        for optimizer in OPTIMIZERS
    ],
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated logs."""
    folder = tmp_path_factory.mktemp("logs")
    write_logs(folder)
    return folder


@pytest.fixture(scope="module")
def data(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that runs train on."""
    folder = tmp_path_factory.mktemp("golden") / "data"
    prepare(logs, "criteo", folder, 1)
    return folder


def without_deleted(folders: dict[str, Any]) -> dict[str, Any]:
    """Leave out the settings whose options are gone."""
    for folder in folders.values():
        for name in DELETED_SETTINGS:
            folder["config"].pop(name, None)
    return folders


@pytest.mark.parametrize(
    ("case", "workers"), [*((case, 2) for case in CASES), *((case, 1) for case in CASES if " " not in case)]
)
def test_folders_have_the_bytes_that_they_had(case: str, workers: int, logs: Path, tmp_path: Path) -> None:
    prepare(logs, case, tmp_path, workers)
    wanted = json.loads(golden("data").read_text())[case]
    assert without_deleted(describe(tmp_path)) == without_deleted(wanted)


@EVERY_PLACEMENT_AND_OPTIMIZER
def test_rows_end_with_the_bits_that_they_had(placement: str, optimizer: str, data: Path) -> None:
    """Rows follow no matrix product here, so the bits are the same on every CPU."""
    assert rows_after(data, placement, optimizer) == json.loads(golden("rows").read_text())[optimizer]


@EVERY_PLACEMENT_AND_OPTIMIZER
def test_weights_end_with_the_bits_that_they_had(
    placement: str, optimizer: str, data: Path, tmp_path: Path
) -> None:
    wanted = _stored_weights()
    order = "order of fae" if placement == "fae" else "own order"
    assert weights_after(data, tmp_path / "run", placement, optimizer) == wanted[f"{optimizer}, {order}"]


def test_spilled_rows_end_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    wanted = _stored_weights()["adagrad, own order"]
    assert weights_after(data, tmp_path / "run", "lookahead", "adagrad", "--slow-bytes", "512KiB") == wanted


def _stored_weights() -> dict[str, str]:
    stored = json.loads(golden("weights").read_text())
    if stored["cpu"] != cpu_class():
        pytest.skip(f"weights are stored for {stored['cpu']}, not for {cpu_class()}")
    weights: dict[str, str] = stored["weights"]
    return weights


def test_commands_print_the_keys_that_they_did(logs: Path, tmp_path: Path) -> None:
    found, wanted = json_keys(logs, tmp_path), golden("keys").read_text().splitlines()
    assert sorted(set(wanted) - set(found)) == [], "keys that are gone"
    assert sorted(set(found) - set(wanted)) == [], "new keys"


def test_public_names_are_those_that_there_were() -> None:
    assert sorted(hotset.__all__) == PUBLIC_NAMES.split()
