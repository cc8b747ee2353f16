"""Record batches of shards: columns, types and values from the rows of one file.

Shards against the naive shuffle: every sample once, with its label, values and ids, in the right batch.

Tests `shuffle` and `shuffle`, too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.folders.disk import PARTIAL
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig, ShardBatches, needed_bytes, pack
from hotset.pipeline.stages.shuffle import RowLayout, scatter_samples
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.logs.criteo_text import SCHEMA, Sample, draw_samples, tree_of
from hotset.tests.support.naive.naive_stages import (
    NaiveLog,
    ShardSample,
    batches_of,
    naive_log,
    naive_shard_sample,
    run_to,
    shuffled,
)
from hotset.tests.support.preprocess_runs import failing_writer
from hotset.tests.support.processes.memory_caps import count_stages_alone
from hotset.tests.support.resealed import reseal, reseal_later_folders, write_manifest


@dataclass(frozen=True)
class DrawnInputs:
    """As much of `PackInputs` as batches need: names, and where they stand in a row."""

    has_label: bool
    dense: tuple[str, ...]
    lists: tuple[str, ...]
    num_one_hot: int

    @property
    def log(self) -> DrawnInputs:
        return self

    @property
    def layout(self) -> RowLayout:
        return RowLayout(len(self.dense), len(self.lists), self.num_one_hot)


@dataclass(frozen=True)
class DrawnFile:
    """The samples of a file, and the rows they were scattered to."""

    batches: ShardBatches
    label: NDArray[np.float32]
    is_hot: NDArray[np.int32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int32]
    bags: list[list[list[int]]]
    """By sample, then table."""


def drawn_file(inputs: Any, num_rows: int, rng: np.random.Generator, *, is_tagged: bool = True) -> DrawnFile:
    layout = inputs.layout
    label = rng.integers(0, 2, num_rows).astype(np.float32)
    is_hot = rng.integers(0, 2, num_rows).astype(np.int32)
    dense = rng.standard_normal((num_rows, len(inputs.log.dense))).astype(np.float32)
    ids = rng.integers(0, 1000, (num_rows, inputs.layout.num_one_hot)).astype(np.int32)
    bags = [[rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in inputs.lists] for _ in range(num_rows)]
    lengths = np.array([[len(bag) for bag in row] for row in bags], np.int32).reshape(num_rows, -1)
    rows = np.empty((num_rows, layout.width), np.int32)
    rows[:, 0] = is_hot
    rows[:, 1] = label.view(np.int32)
    rows[:, layout.dense] = dense.view(np.int32)
    rows[:, layout.lengths] = lengths
    rows[:, layout.ids] = ids
    starts = np.cumsum([0, *lengths.sum(axis=1)])[:-1] if inputs.lists else np.empty(0, np.int64)
    flat = np.array([one for row in bags for bag in row for one in bag], np.int32)
    batches = ShardBatches(inputs, rows, starts.astype(np.int64), flat, is_tagged)
    return DrawnFile(batches, label, is_hot, dense, ids, bags)


INPUTS = {
    "Criteo": DrawnInputs(True, ("I1", "I2"), (), 3),
    "lists": DrawnInputs(True, ("I1",), ("tags", "seen"), 2),
    "lists only": DrawnInputs(True, (), ("tags",), 0),
    "no label": DrawnInputs(False, ("I1", "I2", "I3"), ("tags",), 1),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("num_samples", [0, 1, 7])
@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_batch_holds_the_samples_in_the_order_asked_for(
    kind: str, num_samples: int, is_tagged: bool, rng: np.random.Generator
) -> None:
    inputs = INPUTS[kind]
    file = drawn_file(inputs, 9, rng, is_tagged=is_tagged)
    order = rng.permutation(9)[:num_samples].astype(np.int64)
    batch = file.batches.batch(order)
    batch.validate(full=True)
    assert batch.schema == file.batches.schema and batch.num_rows == num_samples
    wanted = ["dense", "ids", *inputs.lists]
    assert batch.schema.names == [*["label"] * inputs.log.has_label, *wanted, *["is_hot"] * is_tagged]
    found = batch.to_pydict()
    assert found["dense"] == file.dense[order].tolist() and found["ids"] == file.ids[order].tolist()
    for number, name in enumerate(inputs.lists):
        assert found[name] == [file.bags[row][number] for row in order]
    if inputs.log.has_label:
        assert found["label"] == file.label[order].tolist()
    if is_tagged:
        assert found["is_hot"] == file.is_hot[order].tolist()


def test_floats_keep_every_bit(rng: np.random.Generator) -> None:
    file = drawn_file(INPUTS["Criteo"], 4, rng)
    odd = np.array([-0.0, 1e-45, np.finfo(np.float32).max, 1 / 3], np.float32)
    file.batches.rows[:, file.batches.inputs.layout.dense.start] = odd.view(np.int32)
    batch = file.batches.batch(np.arange(4))
    found = batch.column("dense").values.to_numpy()[::2]
    np.testing.assert_array_equal(found.view(np.int32), odd.view(np.int32))


def test_a_batch_is_overwritten_by_the_next_one_of_its_thread_and_lists_are_not(
    rng: np.random.Generator,
) -> None:
    """The docstring warns of this: the file's writer takes each batch before it asks for the next."""
    file = drawn_file(INPUTS["lists"], 8, rng)
    first = file.batches.batch(np.arange(4))
    kept = first.column("tags").to_pylist()
    file.batches.batch(np.arange(4, 8))
    assert first.column("tags").to_pylist() == kept == [row[0] for row in file.bags[:4]]


def test_more_lookups_than_an_offset_can_say_are_refused(rng: np.random.Generator) -> None:
    file = drawn_file(INPUTS["lists only"], 3, rng)
    file.batches.rows[:, file.batches.inputs.layout.lengths] = 2**30
    with pytest.raises(ConfigError, match=r"2\*\*31 lookups in one table") as caught:
        file.batches.batch(np.arange(3))
    assert caught.value.hint == "lower --batch-size"


NUM_SAMPLES, NUM_TRAIN = 200, 160
NUM_HOT_ROWS = 110
WORDS = 2 + 13 + 26
"""int32 words of a sample while it is dealt."""


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return draw_samples(NUM_SAMPLES, np.random.default_rng(9))


@pytest.fixture(scope="module")
def naive(samples: list[Sample]) -> NaiveLog:
    return naive_log(samples, NUM_TRAIN, min_count=1, num_hot_rows=NUM_HOT_ROWS)


def split_folder(folder: Path, samples: list[Sample], num_hot_rows: int, *, label: bool = True) -> Path:
    config = PreprocessConfig(
        ingest=IngestConfig(label=label),
        count=CountConfig(eval_fraction=0.2),
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * num_hot_rows)),
    )
    run_to("split", folder, samples, config)
    return folder


@pytest.fixture(scope="module")
def folder(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything before pack, made once."""
    return split_folder(tmp_path_factory.mktemp("pack"), samples, NUM_HOT_ROWS)


def pack_in(folder: Path, out: Path, config: PackConfig, **options: Any) -> Manifest:
    columns, encoded, plan = (Manifest.read(folder / name) for name in ("columns", "samples", "plan"))
    return pack(config, columns, encoded, plan, out, Resources(**({"workers": 1} | options)))


def naive_batches(
    samples: list[Sample], naive: NaiveLog, numbers: list[int], batch_size: int, *, label: bool = True
) -> list[list[ShardSample]]:
    rows = [naive_shard_sample(samples[n], naive.ids[n]) for n in numbers]
    rows = rows if label else [(0.0, dense, ids) for _, dense, ids in rows]
    return [rows[first : first + batch_size] for first in range(0, len(rows), batch_size)]


def naive_orders(naive: NaiveLog, seed: int, order: str) -> dict[str, list[int]]:
    """Sample numbers of each kind, in order."""
    is_hot = [order == "grouped" and hot for hot in naive.is_hot[:NUM_TRAIN]]
    hot_only = [n for n in range(NUM_TRAIN) if is_hot[n]]
    mixed = [n for n in range(NUM_TRAIN) if not is_hot[n]]
    evaluation = list(range(NUM_TRAIN, len(naive.ids)))
    return {"hot_only": shuffled(hot_only, seed), "mixed": shuffled(mixed, seed), "evaluation": evaluation}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("order", ["grouped", "original"])
@pytest.mark.parametrize(("batch_size", "seed"), [(1, 0), (7, 1), (64, 0), (64, 2**63 - 1), (10_000, 5)])
def test_shards_agree_with_the_naive_shuffle(
    tmp_path: Path,
    folder: Path,
    samples: list[Sample],
    naive: NaiveLog,
    batch_size: int,
    seed: int,
    order: Any,
) -> None:
    config = PackConfig(batch_size=batch_size, order=order, seed=seed)
    shards = pack_in(folder, tmp_path / "shards", config, workers=2)
    counted = {}
    for kind, numbers in naive_orders(naive, seed, order).items():
        found = list(batches_of(shards, kind))
        assert [batch for batch, _ in found] == naive_batches(samples, naive, numbers, batch_size)
        counted[kind] = (len(numbers), len(found))
        if kind == "evaluation":
            tags = [tag for _, batch_tags in found for tag in batch_tags or []]
            assert tags == naive.is_hot[NUM_TRAIN:]
    totals = shards.totals
    assert totals["samples"] == {kind: num_samples for kind, (num_samples, _) in counted.items()}
    if order == "grouped":
        assert totals["batches"] == {kind: num_batches for kind, (_, num_batches) in counted.items()}
        assert 0 < totals["samples"]["hot_only"] < NUM_TRAIN
    for _, entry in shards.parts():
        is_unsorted = kind_of(entry) == "mixed" and order == "original"
        assert ("hot_only_batches" in entry.facts) == is_unsorted


def kind_of(entry: Any) -> str:
    return str(entry.facts["kind"])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_original_order_says_which_batches_happen_to_be_hot_only(
    tmp_path: Path, folder: Path, naive: NaiveLog, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 4 * WORDS * 30)
    shards = pack_in(folder, tmp_path / "shards", PackConfig(batch_size=batch_size, order="original"))
    numbers = naive_orders(naive, 0, "original")["mixed"]
    batches = [numbers[first : first + batch_size] for first in range(0, len(numbers), batch_size)]
    is_hot_only = [all(naive.is_hot[n] for n in batch) for batch in batches]
    found, mixed = [], [entry for _, entry in shards.parts() if kind_of(entry) == "mixed"]
    for entry in mixed:
        found += [n in entry.facts["hot_only_batches"] for n in range(entry.facts["batches"])]
    assert len(mixed) > 3 and found == is_hot_only and any(is_hot_only)
    num_hot_only, num_evaluation = sum(is_hot_only), -(-(NUM_SAMPLES - NUM_TRAIN) // batch_size)
    num_batches = {"hot_only": num_hot_only, "mixed": len(batches) - num_hot_only}
    assert shards.totals["batches"] == num_batches | {"evaluation": num_evaluation}


def test_totals_hold_what_a_trainer_needs(tmp_path: Path, folder: Path, naive: NaiveLog) -> None:
    shards = pack_in(folder, tmp_path / "shards", PackConfig())
    plan, totals = Manifest.read(folder / "plan"), shards.totals
    assert totals["tables"] == plan.totals["tables"]
    assert [table["num_hot"] for table in totals["tables"]] == naive.num_hot
    assert {"name", "num_rows", "num_hot", "oov_id"} <= set(totals["tables"][0])
    assert totals["dense"] == list(SCHEMA.dense) and totals["has_label"] is True
    assert (totals["embedding_dim"], totals["embedding_optimizer"], totals["row_bytes"]) == (16, "sgd", 64)
    assert (totals["hot_bytes"], totals["num_hot_rows"]) == (64 * NUM_HOT_ROWS, NUM_HOT_ROWS)
    assert totals["num_rows"] == sum(map(len, naive.tables))
    assert [entry["name"] for entry in shards.inputs] == ["columns", "samples", "plan"]
    assert shards.inputs[2]["fingerprint"] == plan.fingerprint


@pytest.mark.parametrize(("num_hot_rows", "absent"), [(0, "hot_only"), (100_000, "mixed")])
def test_without_a_hot_or_a_cold_row_a_kind_is_absent(
    tmp_path: Path, samples: list[Sample], num_hot_rows: int, absent: str
) -> None:
    folder = split_folder(tmp_path, samples, num_hot_rows)
    shards = pack_in(folder, tmp_path / "shards", PackConfig(batch_size=16))
    assert {kind_of(entry) for _, entry in shards.parts()} == {"hot_only", "mixed", "evaluation"} - {absent}
    assert shards.totals["samples"][absent] == shards.totals["batches"][absent] == 0


def test_a_log_without_labels_has_none(tmp_path: Path, samples: list[Sample], naive: NaiveLog) -> None:
    folder = split_folder(tmp_path, samples, NUM_HOT_ROWS, label=False)
    shards = pack_in(folder, tmp_path / "shards", PackConfig(batch_size=32))
    assert shards.totals["has_label"] is False
    for kind, numbers in naive_orders(naive, 0, "grouped").items():
        found = [batch for batch, _ in batches_of(shards, kind)]
        assert found == naive_batches(samples, naive, numbers, 32, label=False)


@pytest.mark.parametrize("order", ["grouped", "original"])
def test_files_and_passes_change_nothing_but_where_batches_stand(
    tmp_path: Path, folder: Path, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PackConfig(batch_size=8, order=order)
    whole = pack_in(folder, tmp_path / "whole", config)
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 4 * WORDS * 8 * 2 + 5)
    count_stages_alone(monkeypatch)
    trees, least = [], least_bytes(folder, config, workers=2)
    for name, memory_bytes, workers in (("large", None, 1), ("tiny", least, 2), ("small", least + 4000, 2)):
        shards = pack_in(folder, tmp_path / name, config, memory_bytes=memory_bytes, workers=workers)
        trees.append(tree_of(tmp_path / name))
    assert trees[0] == trees[1] == trees[2]
    assert {entry.num_samples for _, entry in shards.parts() if kind_of(entry) == "mixed"} >= {16}
    assert len(shards.files) > 12 > len(whole.files)
    for kind in ("hot_only", "mixed", "evaluation"):
        assert list(batches_of(shards, kind)) == list(batches_of(whole, kind))


def least_bytes(folder: Path, config: PackConfig, *, workers: int = 1) -> int:
    largest = max(entry.num_samples for entry in Manifest.read(folder / "columns").files)
    return needed_bytes(config, WORDS, largest, workers)


@pytest.mark.parametrize("spare_bytes", [0, 8_000, 20_000])
def test_what_is_held_at_a_time_fits_in_the_memory_given(
    tmp_path: Path, folder: Path, spare_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_stages_alone(monkeypatch)
    config = PackConfig(batch_size=16)
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 4 * WORDS * 16)
    held: list[tuple[list[int], Any]] = []

    def recording(group: list[Any], *others: Any) -> Any:
        memory = others[3]
        held.append(([file.num_samples for file in group], memory))
        buffers = scatter_samples(group, *others)
        assert all(np.shares_memory(memory, array) for array in (buffers.rows, buffers.keys))
        return buffers

    monkeypatch.setattr("hotset.pipeline.stages.pack.scatter_samples", recording)
    memory_bytes = least_bytes(folder, config) + spare_bytes
    pack_in(folder, tmp_path / "shards", config, memory_bytes=memory_bytes)
    assert sum(sum(group) for group, _ in held) == NUM_SAMPLES
    assert len(held) > 1
    for group, memory in held:
        assert memory is held[0][1]
        assert memory.nbytes <= 16 * (4 * WORDS + 8) + spare_bytes
        assert len(group) == 1 or spare_bytes


def test_a_long_log_is_packed_in_passes_however_much_memory_there_is(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PackConfig(batch_size=8)
    pack_in(folder, tmp_path / "once", config)
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 4 * WORDS * 8)
    passes: list[int] = []

    def recording(group: list[Any], *others: Any) -> Any:
        passes.append(sum(file.num_samples for file in group))
        return scatter_samples(group, *others)

    monkeypatch.setattr("hotset.pipeline.stages.pack.scatter_samples", recording)
    shards = pack_in(folder, tmp_path / "shards", config)
    assert sum(passes) == NUM_SAMPLES and 3 <= len(passes) <= 4 < len(shards.files)
    assert max(passes) <= NUM_SAMPLES / 3
    once = Manifest.read(tmp_path / "once")
    for kind in ("hot_only", "mixed", "evaluation"):
        assert list(batches_of(shards, kind)) == list(batches_of(once, kind))


def test_a_resumed_run_leaves_finished_files_between_others_as_they_are(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_stages_alone(monkeypatch)
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 4 * WORDS * 8 * 3)
    config = PackConfig(batch_size=8)
    pack_in(folder, tmp_path / "whole", config)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.pack.write_shard", failing_writer(7, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pack_in(folder, out, config)
    # Of the files finished only every second one is left, so that those to write lie before and behind them.
    finished = sorted(out.glob("*.arrow"))
    assert len(finished) == 7
    for path in finished[::2]:
        path.unlink()
        (out / PARTIAL / f"{path.name}.json").unlink()
    # Checksums of batches that a power cut or another version left out are taken of the files.
    notes = [out / PARTIAL / f"{path.name}.checksums" for path in finished[1::2]]
    notes[0].unlink()
    notes[1].write_bytes(notes[1].read_bytes()[:-3])
    notes[2].write_bytes((out / PARTIAL / f"{finished[0].name}.checksums").read_bytes()[::-1])
    pack_in(folder, out, config)
    assert tree_of(out) == tree_of(tmp_path / "whole")


@pytest.mark.parametrize("changes", [{"batch_size": 0}, {"order": "groupd"}, {"seed": -1}, {"seed": 2**63}])
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        PackConfig(**changes)


def put_id(row: int, number: int, columns: dict[str, Any]) -> None:
    columns["ids"][row] = [number, *columns["ids"][row][1:]]


EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "an id of -1": ("samples", partial(put_id, 3, -1), "id -1 in table C1 of "),
    "an id behind its table": ("samples", partial(put_id, 3, 2**31 - 1), "id 2147483647 in table C1 of "),
    "a tag of 2": ("plan", lambda columns: columns["is_hot"].__setitem__(5, 2), "a tag is 2, want 0 or 1"),
    "a tag of 255": ("plan", lambda columns: columns["is_hot"].__setitem__(0, 255), "a tag is 255, want"),
}


@pytest.mark.parametrize("name", EDITS)
def test_ids_and_tags_out_of_range_are_refused_whatever_the_checksums_say(
    name: str, folder: Path, tmp_path: Path
) -> None:
    edited, change, message = EDITS[name]
    copied = Path(shutil.copytree(folder, tmp_path / "dir"))
    path = reseal(copied / edited, change)
    reseal_later_folders(copied)
    with pytest.raises(ManifestError, match=message) as refused:
        pack_in(copied, tmp_path / "shards", PackConfig(batch_size=8))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("edited", ["columns", "samples"])
def test_folders_of_other_parts_are_refused(edited: str, folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "dir"))
    parts = json.loads((copied / edited / MANIFEST).read_text())
    parts["files"][0]["samples"] += 1
    write_manifest(copied / edited, parts)
    with pytest.raises(ManifestError, match=f"{edited} and .*plan have other parts"):
        pack_in(copied, tmp_path / "shards", PackConfig(batch_size=8))
    parts = json.loads((folder / "samples" / MANIFEST).read_text())
    parts["totals"]["tables"][3]["name"] = "x"
    shutil.copy(folder / edited / MANIFEST, copied / edited / MANIFEST)
    write_manifest(copied / "samples", parts)
    with pytest.raises(ManifestError, match="have other tables"):
        pack_in(copied, tmp_path / "shards", PackConfig(batch_size=8))
