"""Shards as batches, parts of the evaluation samples, and what is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError, ManifestError, ShardError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime import tasks
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.resealed import set_in_manifest
from hotset.tests.support.shard_factory import ShardSpec, training_samples, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.data.batch import Batch, LookupsOfBatch
from hotset.train.data.shards import EvaluationPart, Part, ShardSet, with_hot_bytes

PARTS: tuple[Part, ...] = ("validation", "test")


def samples_of(batch: Batch) -> list[Any]:
    """The samples of a batch, one by one."""
    assert batch.is_hot_B is not None and not batch.is_hot_only
    lists = [
        [bags.ids_N[first:stop].tolist() for first, stop in pairwise(bags.offsets_B1.tolist())]
        for bags in batch.bags
    ]
    columns = [
        batch.label_B.tolist(),
        batch.dense_BK.tolist(),
        batch.ids_BF.tolist(),
        batch.is_hot_B.tolist(),
    ]
    return list(zip(*columns, *lists, strict=True))


def stored_samples(shards: ShardSet) -> list[Any]:
    batches = (shards.evaluation_batch(number) for number in range(shards.num_evaluation_batches))
    return [sample for batch in batches for sample in samples_of(batch)]


@given(
    num_evaluation=st.integers(0, 23),
    share=st.floats(0, 1),
    batch_size=st.integers(1, 9),
    multi_hot=st.sampled_from([(), (0,), (0, 2)]),
    has_other_hot_rows=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_each_part_is_cut_as_a_log_of_its_samples_alone(
    num_evaluation: int, share: float, batch_size: int, multi_hot: tuple[int, ...], has_other_hot_rows: bool
) -> None:
    num_validation = round(share * num_evaluation)
    spec = ShardSpec(
        num_hot_only=0,
        num_mixed=1,
        num_evaluation=num_evaluation,
        num_validation=num_validation,
        batch_size=batch_size,
        multi_hot=multi_hot,
    )
    with tempfile.TemporaryDirectory() as folder:
        shards = ShardSet.open(write_shards(Path(folder) / "shards", spec))
        if has_other_hot_rows:
            shards = shards.with_hot_rows([1 for _ in shards.tables])
        samples = stored_samples(shards)
        wanted = {"validation": samples[:num_validation], "test": samples[num_validation:]}
        for name in PARTS:
            part = EvaluationPart(shards, name)
            found = [samples_of(part.batch(number)) for number in part.numbers]
            log = wanted[name]
            assert found == [log[first : first + batch_size] for first in range(0, len(log), batch_size)]
            assert part.num_samples == len(log)
            # In any order, and from another reader.
            other = EvaluationPart(shards, name)
            assert [samples_of(other.batch(number)) for number in reversed(part.numbers)] == found[::-1]


def test_lookups_of_each_stored_batch_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", num_validation=40))
    read: list[int] = []

    def reading(number: int) -> LookupsOfBatch:
        read.append(number)
        return stored(number)

    stored = shards.evaluation_lookups
    part = EvaluationPart(shards, "test", read_lookups=reading)
    assert [part.batch(number).num_samples for number in (*part.numbers, 2)] == [32, 18, 0]
    assert read == [1, 2]
    # A rank of two reads those of both batches to plan its step, and then its batch.
    monkeypatch.setattr(shards, "num_validation_samples", 20)
    part = EvaluationPart(shards, "test", num_ranks=2, read_lookups=reading)
    assert [part.lookups(number).num_samples for number in range(4)] == [32, 32, 6, 0]
    assert part.batch(1).num_samples == 32
    assert read[2:] == [0, 1, 2]


SPEC = ShardSpec()


def test_batches_hold_what_was_written(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    kinds = training_samples(SPEC, np.random.default_rng(SPEC.seed))
    batches = [shards.training_batch(number) for number in range(shards.num_training_batches)]
    assert [batch.is_hot_only for batch in batches] == shards.is_hot_only.tolist()
    for is_hot_only, kind in ((True, "hot_only"), (False, "mixed")):
        chosen = [batch for batch in batches if batch.is_hot_only == is_hot_only]
        np.testing.assert_array_equal(np.concatenate([b.ids_BF for b in chosen]), kinds[kind]["ids"])
        np.testing.assert_array_equal(torch.cat([b.dense_BK for b in chosen]), kinds[kind]["dense"])
        np.testing.assert_array_equal(torch.cat([b.label_B for b in chosen]), kinds[kind]["label"])
    assert [batch.num_samples for batch in batches] == [32, 32, 6, 32, 32, 32, 32, 22]


def test_evaluation_batches_say_which_samples_are_hot(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    batches = [shards.evaluation_batch(number) for number in range(shards.num_evaluation_batches)]
    is_hot = [np.all(batch.ids_BF < np.array(SPEC.num_hot), axis=1) for batch in batches]
    np.testing.assert_array_equal(
        np.concatenate([batch.is_hot_B for batch in batches]), np.concatenate(is_hot)
    )


def test_the_folder_around_the_shards_will_do(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", SPEC)
    assert (
        ShardSet.open(tmp_path).num_training_batches
        == ShardSet.open(tmp_path / "shards").num_training_batches
    )


def test_arrays_are_taken_by_torch_without_a_warning_and_not_written_back(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", SPEC)
    before = (folder / "mixed-00000.arrow").read_bytes()
    batch = ShardSet.open(folder).training_batch(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_numpy(batch.ids_BF)
    assert not batch.ids_BF.flags.owndata
    batch.ids_BF[:] = 0
    assert (folder / "mixed-00000.arrow").read_bytes() == before


def test_original_order_names_its_hot_only_batches(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", order="original"))
    limits = np.array(SPEC.num_hot)
    hot = [np.all(shards.training_batch(i).ids_BF < limits) for i in range(shards.num_training_batches)]
    assert shards.is_hot_only.tolist() == hot
    assert any(hot) and not all(hot) and not shards.is_grouped


def test_a_log_without_dense_features_has_batches(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", num_dense=0))
    assert shards.training_batch(0).dense_BK.shape == (32, 0)


def test_unlabelled_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"no labels: its log was read without them\n.*label = \"COLUMN\""):
        ShardSet.open(write_shards(tmp_path / "shards", has_label=False))


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="unfinished"):
        ShardSet.open(tmp_path)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("files.0.table_xxh3_128", "0" * 32, "the checksum of its table is .*, want 0000"),
        ("stage", "split", "holds the stage 'split', want 'pack'"),
        ("version", 2, "version 2"),
        ("config", {}, "config.batch_size is missing"),
        ("totals", {}, "totals.tables is missing"),
        ("totals.num_valid_samples", 91, "num_valid_samples is 91, want 0 to 90"),
        ("totals.samples.evaluation", 95, "95 evaluation samples, want 90, those of its files"),
        ("totals.tables.0.name", "dense.top.0.bias", r"'dense\.top\.0\.bias': weights of dense layers begin"),
        ("totals.dense", ["I1"], "it is of other columns than the manifest's"),
        ("files.1.batches", 4, "it is of 11 batches, want 12"),
        ("files.1.samples", 95, "it is not of batch 2 of evaluation-00000.arrow"),
        ("old totals.dense", ["I1"], "it is of other columns than the manifest's"),
        ("old files.0.batches", 4, "it is of 11 batches, want 12"),
        ("old files.0.samples", 69, "it is not of batch 2 of evaluation-00000.arrow"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(keys: str, value: Any, message: str, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", has_checksums=not keys.startswith("old "))
    keys = keys.removeprefix("old ")
    set_in_manifest(folder, keys, value)
    with pytest.raises(HotsetError, match=message):
        shards = ShardSet.open(folder)
        assert [shards.evaluation_batch(number) for number in range(shards.num_evaluation_batches)]
        assert [shards.training_batch(number) for number in range(shards.num_training_batches)]


@pytest.mark.parametrize(("damage", "message"), [("cut", "has"), ("zeros", "is damaged")])
def test_a_damaged_file_is_named(damage: str, message: str, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", has_checksums=False)
    path = folder / "mixed-00000.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] if damage == "cut" else bytes(len(whole)))
    with pytest.raises(ManifestError, match=rf"mixed-00000\.arrow {message}"):
        ShardSet.open(folder)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("ids_BF", -1, "batch 0: id -1 in table C3 of 300 rows"),
        ("ids_BF", 300, "batch 0: id 300 in table C3 of 300 rows"),
        ("ids_BF", 2**31 - 1, "batch 0: id 2147483647 in table C3 of 300 rows"),
        ("hot ids_BF", 20, "batch 0: id 20 in table C3 of 20 hot rows"),
        ("dense_BK", np.nan, "cannot be read: a dense value of batch 0 is not finite"),
        ("dense_BK", -np.inf, "cannot be read: a dense value of batch 0 is not finite"),
        ("label_B", 2.0, "cannot be read: a label of batch 0 is neither 0 nor 1"),
        ("label_B", np.nan, "cannot be read: a label of batch 0 is neither 0 nor 1"),
    ],
)
def test_a_value_outside_its_range_is_named(column: str, value: float, message: str, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", has_checksums=False)
    kind, number = ("hot_only", 0) if column.startswith("hot") else ("mixed", 3)
    values = np.asarray(getattr(ShardSet.open(folder).training_batch(number), column.split()[-1]))
    damaged = values.copy()
    damaged[(7, -1) if column.endswith("BF") else 7] = value
    path = folder / f"{kind}-00000.arrow"
    whole = path.read_bytes()
    assert whole.count(values.tobytes()) == 1
    path.write_bytes(whole.replace(values.tobytes(), damaged.tobytes()))
    with pytest.raises(ShardError, match=rf"{kind}-00000\.arrow:? {message}"):
        ShardSet.open(folder).training_batch(number)


@pytest.mark.parametrize("change", ["cut", "overwritten"])
def test_a_file_that_changes_in_use_is_named(change: str, tmp_path: Path) -> None:
    """A mapped file that is cut would end the process with SIGBUS at the next access."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    first = shards.training_batch(3)
    path = tmp_path / "shards" / "mixed-00000.arrow"
    if change == "cut":
        os.truncate(path, 512)
    else:
        with open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"noise")
        os.utime(path, ns=(1, 1))  # clocks of file systems are coarse, and this test is quick
    assert first.label_B.sum() >= 0 and first.ids_BF.min() >= 0  # in memory, and stays there
    with pytest.raises(ShardError, match=r"mixed-00000\.arrow was changed by another program"):
        shards.training_batch(4)


def test_multi_hot_features_are_columns_of_lists(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", multi_hot=(1,), table_dims=(4, 8, 4)))
    assert [table.embedding_dim for table in shards.tables] == [4, 8, 4]
    batch = shards.training_batch(0)
    assert batch.ids_BF.shape == (32, 2)
    (bags,) = batch.bags
    assert bags.offsets_B1.size == 33 and bags.offsets_B1[-1] == bags.ids_N.size


def test_a_stray_id_in_a_bag_is_named(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", multi_hot=(2,), num_hot=(5, 10, 1), skew=1.1)
    shards = ShardSet.open(folder)
    shards._num_rows_F[2] = 3
    with pytest.raises(ShardError, match=r"in table C3 of 300 rows"):
        shards.training_batch(shards.num_training_batches - 1)


@pytest.fixture(scope="module")
def preprocessed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(GenerateConfig(samples=1500), folder / "log.tsv")
    recipe = PreprocessConfig(
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(1000), embedding_dim=4),
        pack=PackConfig(order="original", batch_size=128),
    )
    preprocess([folder / "log.tsv"], recipe, folder / "data")
    return folder / "data"


def num_hot_rows(shards: ShardSet) -> int:
    return sum(table.num_hot for table in shards.tables)


def test_hot_rows_are_those_split_would_choose(preprocessed: Path) -> None:
    packed = ShardSet.open(preprocessed)
    again, more = (with_hot_bytes(packed, num_bytes, "sgd") for num_bytes in (1000, 9000))
    assert again.tables == packed.tables and num_hot_rows(packed) == 1000 // 16
    assert (
        num_hot_rows(more) == 9000 // 16
        and num_hot_rows(with_hot_bytes(packed, 9000, "adagrad")) == 9000 // 32
    )
    assert not more.is_hot_only.any() and packed.has_packed_budget and not more.has_packed_budget


def test_the_budget_moves_rows_and_changes_no_bit(preprocessed: Path) -> None:
    packed = ShardSet.open(preprocessed)
    runs: list[Any] = [
        trained(shards, placement="lookahead", staging_bytes=20_000)
        for shards in (packed, with_hot_bytes(packed, 9000, "sgd"), with_hot_bytes(packed, 0, "sgd"))
    ]
    few, many, none = (sum(run.meter.training_bytes()) for run in runs)
    assert many < few < none
    assert_equal_bits(runs[0], runs[1])
    assert_equal_bits(runs[0], runs[2])


@pytest.mark.parametrize("multi_hot", [(), (0, 2)])
def test_another_budget_tags_evaluation_samples_anew(multi_hot: tuple[int, ...], tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", multi_hot=multi_hot))
    found = []
    for num_hot in (SPEC.num_hot, (5, 30, 100), (0, 0, 0), SPEC.num_rows):
        other = shards.with_hot_rows(num_hot)
        for number in range(other.num_evaluation_batches):
            batch = other.evaluation_batch(number)
            assert batch.is_hot_B is not None
            assert batch.is_hot_B.tolist() == naive_tags(batch, multi_hot, num_hot)
            found += batch.is_hot_B.tolist()
    # Nothing is hot without hot rows (but for a sample of empty bags), and all is with every row.
    assert 0 < sum(found[:90]) < sum(found[90:180]) < 90 == sum(found[270:])


def naive_tags(batch: Batch, multi_hot: tuple[int, ...], num_hot: Sequence[int]) -> list[int]:
    """1 for each sample all of whose lookups are below ``num_hot`` of their table, one lookup at a time."""
    one_hot = [feature for feature in range(len(num_hot)) if feature not in multi_hot]
    tags = []
    for sample in range(batch.num_samples):
        lookups = list(zip(one_hot, batch.ids_BF[sample].tolist(), strict=True))
        for feature, bags in zip(multi_hot, batch.bags, strict=True):
            first, stop = bags.offsets_B1[sample : sample + 2]
            lookups += [(feature, row) for row in bags.ids_N[first:stop].tolist()]
        tags.append(int(all(row < num_hot[feature] for feature, row in lookups)))
    return tags


def test_grouped_shards_and_shards_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="grouped by the budget"):
        with_hot_bytes(ShardSet.open(write_shards(tmp_path / "a" / "shards")), 100, "sgd")
    original = ShardSet.open(write_shards(tmp_path / "b" / "shards", order="original"))
    with pytest.raises(ConfigError, match="needs the order of the rows"):
        with_hot_bytes(original, 100, "sgd")


def test_a_file_that_ends_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "shards", SPEC)
    shards = ShardSet.open(folder)
    read = os.preadv

    def cut_first(descriptor: int, buffers: Any, position: int) -> int:
        os.truncate(folder / "mixed-00000.arrow", position)
        return read(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", cut_first)
    with pytest.raises(ShardError, match=r"mixed-00000\.arrow was changed by another program"):
        shards.training_batch(3)


def test_files_that_are_removed_or_replaced_are_read_as_they_were(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", SPEC)
    before, shards = ShardSet.open(folder), ShardSet.open(folder)
    wanted = [before.training_batch(number) for number in range(before.num_training_batches)]
    shutil.rmtree(folder)
    write_shards(folder, seed=1)
    for number, batch in enumerate(wanted):
        found = shards.training_batch(number)
        assert torch.equal(found.dense_BK, batch.dense_BK)
        np.testing.assert_array_equal(found.ids_BF, batch.ids_BF)


def test_threads_read_different_batches_of_one_file(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=640))
    numbers = list(range(shards.num_training_batches)) * 20
    wanted = [shards.training_batch(number).ids_BF for number in numbers]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: shards.training_batch(number).ids_BF, numbers))
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_error_of_a_damaged_file_keeps_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "usable_cores", lambda: 2)
    folder = write_shards(tmp_path / "shards", SPEC)
    shards = ShardSet.open(folder)
    path = folder / "hot_only-00000.arrow"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = set(threading.enumerate())
    with pytest.raises(ShardError, match=r"hot_only-00000\.arrow is damaged") as caught:
        shards.refuse_damage()
    # The error is held, as in a frame that refers to it, and with it what its traceback refers to.
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), (thread, caught)
