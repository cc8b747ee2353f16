"""A schedule is not trusted: what was changed in it is refused by name, sealed again or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest, checksum_of
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.tests.support.resealed import reseal
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import TIGHT, trained
from hotset.train.data.shards import Shards

SETTINGS: dict[str, Any] = {"staging_bytes": ByteSize(1500), "prefetch": 1, "epochs": 2}
Columns = dict[str, list[Any]]
Edit = Callable[[Columns], None]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    shards = write_shards(folder / "shards", TIGHT)
    schedule(ScheduleConfig(split_batches=True, **SETTINGS), Manifest.read(shards), folder / "schedule")
    return folder


@pytest.fixture
def data(sealed: Path, tmp_path: Path) -> Path:
    shutil.copytree(sealed, tmp_path / "data")
    return tmp_path / "data"


def first_step_with(columns: Columns, name: str) -> int:
    """The first step after step 0 whose list is not empty."""
    return next(step for step, values in enumerate(columns[name]) if step and values)


def set_one(name: str, value: int) -> Edit:
    """An edit of the first value of one list."""

    def edit(columns: Columns) -> None:
        columns[name][first_step_with(columns, name)][0] = value

    return edit


def set_all(name: str, value: int) -> Edit:
    """An edit of all values of all lists."""

    def edit(columns: Columns) -> None:
        columns[name] = [[value] * len(values) for values in columns[name]]

    return edit


def set_number(name: str, value: int, step: int = 3) -> Edit:
    """An edit of one number of one step."""

    def edit(columns: Columns) -> None:
        columns[name][step] = value

    return edit


def swap_slots(columns: Columns) -> None:
    """Two rows of a batch read each other's slots: all numbers are in range and all slots filled."""
    slots = columns["slots"][4]
    slots[0], slots[1] = slots[1], slots[0]


def wait_for_nothing(columns: Columns) -> None:
    """Transfers start at once, while earlier batches use their slots."""
    columns["after"] = [-1] * len(columns["after"])


def offset_steps(columns: Columns) -> None:
    columns["step"] = [step + 5 for step in columns["step"]]


def drop_write_back(columns: Columns) -> None:
    """A row that was updated is forgotten."""
    step = first_step_with(columns, "write_back_rows")
    columns["write_back_rows"][step].pop()
    columns["write_back_slots"][step].pop()


def drop_last_step(columns: Columns) -> None:
    for values in columns.values():
        values.pop()


def swap_batches(columns: Columns) -> None:
    batches = columns["batch"]
    batches[0], batches[1] = batches[1], batches[0]


EDITS: dict[str, Edit] = {
    "slot -1": set_one("slots", -1),
    "slot far above": set_one("slots", 2**31 - 1),
    "slots all 0": set_all("slots", 0),
    "slots swapped": swap_slots,
    "fetch slot negative": set_one("fetch_slots", -5),
    "fetch slot above": set_one("fetch_slots", 10**9),
    "fetch slots all 7": set_all("fetch_slots", 7),
    "fetch row far above": set_one("fetch_rows", 2**31 - 1),
    "fetch row negative": set_one("fetch_rows", -1),
    "another fetch row": set_one("fetch_rows", 1),
    "all first uses": set_all("fetch_is_first", 1),
    "no first use": set_all("fetch_is_first", 0),
    "a first use that is no bool": set_one("fetch_is_first", 255),
    "write-back slot above": set_one("write_back_slots", 2**30),
    "write-back slot negative": set_one("write_back_slots", -1),
    "write-back row above": set_one("write_back_rows", 2**30),
    "write-back row negative": set_one("write_back_rows", -3),
    "a write-back dropped": drop_write_back,
    "after far below": set_number("after", -(2**62)),
    "after too late": set_number("after", 3),
    "after at once": wait_for_nothing,
    "marked as split": set_number("is_split", 1),
    "split is no bool": set_number("is_split", 2),
    "steps offset": offset_steps,
    "the last step dropped": drop_last_step,
    "batches swapped": swap_batches,
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_is_sealed_again_is_refused(name: str, data: Path) -> None:
    # In the first epoch of this log each row is loaded once, so all its uses are first ones.
    epoch = 1 if name == "all first uses" else 0
    reseal(data / "schedule", EDITS[name], f"epoch-{epoch:05}.width-00004-00000.arrow")
    with pytest.raises(ManifestError, match=r"schedule.* is damaged: ") as refused:
        trained(Shards.open(data), placement="lookahead", **SETTINGS)
    assert refused.value.hint is not None and str(data / "schedule") in refused.value.hint


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(
    ("column", "value"), [("row", 2**31 - 1), ("row", -1), ("slot", -7), ("slot", 2**30)]
)
def test_residents_elsewhere_are_refused(column: str, value: int, epoch: int, data: Path) -> None:
    def edit(columns: Columns) -> None:
        columns[column][0] = value

    reseal(data / "schedule", edit, f"epoch-{epoch:05}.width-00004-residents.arrow")
    with pytest.raises(ManifestError, match=f"epoch {epoch} of width 4: .*other rows are left in the slots"):
        trained(Shards.open(data), placement="lookahead", **SETTINGS)


def test_a_flipped_bit_in_any_file_is_refused_before_training(data: Path) -> None:
    shards = Shards.open(data)
    for entry in Manifest.read(data / "schedule").files:
        path = data / "schedule" / entry.path
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(ManifestError, match=f"is damaged: the checksum of {entry.path} is"):
            trained(shards, placement="lookahead", **SETTINGS)
        path.write_bytes(whole)


def drop_residents(parts: dict[str, Any]) -> None:
    parts["files"] = [entry for entry in parts["files"] if entry["kind"] != "residents"]


def other_rows(parts: dict[str, Any]) -> None:
    parts["totals"]["widths"][0]["num_rows"] += 1


def no_widths(parts: dict[str, Any]) -> None:
    parts["totals"]["widths"] = []


def no_seed(parts: dict[str, Any]) -> None:
    del parts["config"]["seed"]


def older_version(parts: dict[str, Any]) -> None:
    parts["version"] -= 1


def epochs_in_words(parts: dict[str, Any]) -> None:
    parts["config"]["epochs"] = "two"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop_residents, "0 files of residents, want 1"),
        (other_rows, "cold rows of width 4, the shards have"),
        (no_widths, "cold rows of width 4, the shards have"),
        (no_seed, "config.seed is missing"),
        (older_version, "holds 'schedule' of version 1"),
        (epochs_in_words, "config.epochs is 'two', want a whole number"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(
    edit: Callable[[dict[str, Any]], None], message: str, data: Path
) -> None:
    manifest = data / "schedule" / "manifest.json"
    parts = json.loads(manifest.read_text())
    parts.pop("checksum")
    edit(parts)
    manifest.write_text(json.dumps(parts | {"checksum": checksum_of(parts)}))
    with pytest.raises(ManifestError, match=message):
        trained(Shards.open(data), placement="lookahead", **SETTINGS)
