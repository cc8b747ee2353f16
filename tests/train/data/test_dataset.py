"""The dataset hands out the trainer's batches, whatever the ranks and workers, and goes on where it was.

Tests `shards`, too.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.real_torchrec import torchrec_or_skip
from hotset.tests.support.resealed import set_in_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import EmbeddingTable, SeededOrder
from hotset.train.data.dataset import MLPERF_SIZES, MultiHotDraws, RankSteps, ShardDataset
from hotset.train.data.shards import ShardSet

SPEC = ShardSpec(num_hot_only=150, num_mixed=330, num_validation=40, multi_hot=(1,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 16 training batches, one of their features with lists, and of both evaluation parts."""
    return write_shards(tmp_path_factory.mktemp("dataset") / "shards", SPEC)


def as_lists(batches: Any) -> list[dict[str, Any]]:
    return [{name: value.tolist() for name, value in batch.items()} for batch in batches]


def order_of(shards: ShardSet, seed: int, epoch: int) -> list[int]:
    order = SeededOrder(shards.is_hot_only, seed, epoch + 1, is_grouped=shards.is_grouped)
    return list(list(order.epochs())[epoch])


def test_batches_are_those_of_the_trainer_in_its_order(folder: Path) -> None:
    shards = ShardSet.open(folder)
    dataset = ShardDataset(folder, seed=3)
    assert len(dataset) == shards.num_training_batches == 16
    for epoch in (0, 2):
        dataset.set_epoch(epoch)
        found = list(dataset)
        for batch, number in zip(found, order_of(shards, 3, epoch), strict=True):
            wanted = shards.training_batch(number)
            assert torch.equal(batch["label"], wanted.label_B)
            assert torch.equal(batch["dense"], wanted.dense_BK)
            one_hot = [table.name for table in shards.tables if not table.is_multi_hot]
            for column, name in enumerate(one_hot):
                assert batch[name].tolist() == wanted.ids_BF[:, column].tolist()
            (bags,) = wanted.bags
            (name,) = [table.name for table in shards.tables if table.is_multi_hot]
            assert batch[name].tolist() == bags.ids_N.tolist()
            assert batch[f"{name}_offsets"].tolist() == bags.offsets_B1.tolist()
            # What EmbeddingBag takes as it is.
            embeddings = torch.nn.EmbeddingBag(300, 4, mode="sum", include_last_offset=True)
            assert embeddings(batch[name].long(), batch[f"{name}_offsets"]).shape == (
                len(bags.offsets_B1) - 1,
                4,
            )


def test_dense_features_begin_with_a_cache_line(folder: Path) -> None:
    """Else the bits of a loop's products would depend on the address that a batch was read to."""
    for dataset in (ShardDataset(folder), ShardDataset(folder, split="valid")):
        for batch in dataset:
            assert batch["dense"].data_ptr() % 64 == 0


def test_an_iteration_that_was_left_costs_the_next_one_no_batch(folder: Path) -> None:
    dataset = ShardDataset(folder, seed=3)
    whole = as_lists(dataset)
    assert as_lists([next(iter(dataset))]) == whole[:1]
    assert as_lists(dataset) == whole


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_share_an_epoch_evenly(folder: Path, world_size: int) -> None:
    """All ranks take as many steps, and each sample is in one of them."""
    whole = as_lists(ShardDataset(folder, seed=1))
    datasets = [ShardDataset(folder, seed=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    parts = [as_lists(dataset) for dataset in datasets]
    each, rest = divmod(len(whole), world_size)
    steps = each + (rest > 0)
    assert [len(part) for part in parts] == [steps] * world_size == [len(dataset) for dataset in datasets]
    assert [part[step] for step in range(each) for part in parts] == whole[: each * world_size]
    last = [part[each]["dense"] for part in parts] if rest else []
    shared = [batch["dense"] for batch in whole[each * world_size :]]
    assert [*itertools.chain(*last)] == [*itertools.chain(*shared)]
    assert max(map(len, last), default=0) - min(map(len, last), default=0) <= 1


@pytest.mark.parametrize("last_batch", ["drop", "merge"])
def test_the_rest_of_an_epoch_follows_the_last_batch(folder: Path, last_batch: Any) -> None:
    """Of 16 batches two are short; 14 are two for each of five ranks, and four."""
    found = [
        [
            len(batch["label"])
            for batch in ShardDataset(folder, rank=rank, world_size=5, last_batch=last_batch)
        ]
        for rank in range(5)
    ]
    assert [len(sizes) for sizes in found] == [2] * 5
    whole = sorted(len(batch["label"]) for batch in ShardDataset(folder))
    assert sum(map(sum, found)) == (10 * whole[-1] if last_batch == "drop" else sum(whole))


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    world_size=st.integers(1, 7),
    last_batch=st.sampled_from(["keep", "drop", "merge"]),
    is_even=st.booleans(),
)
# What is left is less than a sample for each rank.
@example(sizes=[5, 1, 1, 3, 5, 2], world_size=5, last_batch="keep", is_even=True)
def test_steps_of_ranks_have_each_sample_once(
    sizes: list[int], world_size: int, last_batch: Any, is_even: bool
) -> None:
    ranks = [RankSteps(sizes, rank, world_size, last_batch, is_even) for rank in range(world_size)]
    if is_even:
        assert len({steps.num_steps for steps in ranks}) == 1
    seen: list[tuple[int, int]] = []
    try:
        for steps in ranks:
            for step in range(steps.num_steps):
                seen += [(place, at) for place in steps.own(step) for at in range(sizes[place])]
                rest = [(place, at) for place in steps.shared(step) for at in range(sizes[place])]
                if rest:
                    first, stop = steps.part(len(rest))
                    assert first < stop or steps.own(step)
                    seen += rest[first:stop]
    except ConfigError:
        assert sum(sizes) < world_size
        return
    whole = sizes
    if is_even and last_batch == "drop":
        whole = sizes[: len(sizes) // world_size * world_size]
    assert sorted(seen) == [(place, at) for place, size in enumerate(whole) for at in range(size)]


@given(world_sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)), workers=st.integers(1, 3), data=st.data())
@settings(max_examples=25)
def test_an_epoch_goes_on_with_other_ranks(
    folder: Path, world_sizes: tuple[int, int], workers: int, data: st.DataObject
) -> None:
    """Stop at any step, of any ranks and workers; other ranks read what is left, in the same order."""
    before, after = world_sizes
    whole = [sample for batch in ShardDataset(folder, seed=2) for sample in batch["dense"].tolist()]
    ranks = [ShardDataset(folder, seed=2, rank=rank, world_size=before) for rank in range(before)]
    stop = data.draw(st.integers(0, len(ranks[0]) - 1))
    batches = [list(itertools.islice(dataset, stop)) for dataset in ranks]
    seen = [
        sample for step in zip(*batches, strict=True) for batch in step for sample in batch["dense"].tolist()
    ]
    # Workers take steps in turn, and a loader keeps the state of each.
    plain = ranks[-1].state_dict()
    counts = [len(range(worker, stop, workers)) for worker in range(workers)]
    states = [plain | {"position": count, "workers": workers} for count in counts]
    loader = {"worker_snapshots": {str(worker): {"dataset": state} for worker, state in enumerate(states)}}
    rest: list[list[Any]] = []
    for rank in range(after):
        resumed = ShardDataset(folder, seed=2, rank=rank, world_size=after)
        resumed.load_state_dict(loader)
        rest.append(list(resumed))
    assert len({len(each) for each in rest}) == 1
    # The samples that ranks share at the end are theirs in turn too.
    seen += [
        sample for step in zip(*rest, strict=True) for batch in step for sample in batch["dense"].tolist()
    ]
    assert seen == whole


def test_evaluation_parts_are_of_equal_length_on_request(folder: Path) -> None:
    for split in ("valid", "test"):
        whole = [sample for batch in ShardDataset(folder, split=split) for sample in batch["dense"].tolist()]
        parts = [
            list(ShardDataset(folder, split=split, rank=rank, world_size=4, equal_parts=True))
            for rank in range(4)
        ]
        assert len({len(part) for part in parts}) == 1
        found = [sample for part in parts for batch in part for sample in batch["dense"].tolist()]
        assert sorted(found) == sorted(whole)


def test_a_part_that_leaves_less_than_a_sample_for_each_rank_is_read_whole(tmp_path: Path) -> None:
    spec = ShardSpec(multi_hot=(1,), batch_size=8, num_evaluation=4 * 8 + 2)
    folder = write_shards(tmp_path / "shards", spec)
    parts = [
        list(ShardDataset(folder, split="test", rank=rank, world_size=4, equal_parts=True))
        for rank in range(4)
    ]
    assert sorted(len(batch["label"]) for (batch,) in parts) == [8, 8, 9, 9]


def test_evaluation_parts_keep_the_order_of_the_log(folder: Path) -> None:
    shards = ShardSet.open(folder)
    labels = [
        shards.evaluation_batch(number).label_B.tolist() for number in range(shards.num_evaluation_batches)
    ]
    log = [label for batch in labels for label in batch]
    parts = {
        split: [label for batch in ShardDataset(folder, split=split) for label in batch["label"].tolist()]
        for split in ("valid", "test")
    }
    assert parts["valid"] == log[:40] and parts["test"] == log[40:]


def test_workers_change_neither_batches_nor_their_order(folder: Path) -> None:
    dataset = ShardDataset(folder, seed=2)
    dataset.set_epoch(1, first_batch=4)
    alone = as_lists(DataLoader(dataset, batch_size=None))
    assert alone == as_lists(dataset) and len(alone) == 12
    assert as_lists(DataLoader(dataset, batch_size=None, num_workers=2)) == alone


def test_persistent_workers_follow_the_epoch_and_skip_batches(folder: Path) -> None:
    dataset = copy.deepcopy(ShardDataset(folder, seed=1))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch, first_batch in ((0, 0), (1, 0), (5, 3), (1, 0)):
        reference = ShardDataset(folder, seed=1)
        reference.set_epoch(epoch, first_batch)
        dataset.set_epoch(epoch, first_batch)
        assert as_lists(loader) == as_lists(reference)
    # A loop that was left early does not hold the next epoch back.
    for _ in loader:
        break
    dataset.set_epoch(2)
    reference.set_epoch(2)
    assert as_lists(loader) == as_lists(reference)


def test_a_state_goes_on_with_the_next_batch(folder: Path) -> None:
    dataset = ShardDataset(folder, seed=5)
    dataset.set_epoch(1, first_batch=2)
    batches = iter(dataset)
    seen = as_lists(next(batches) for _ in range(6))
    state = pickle.loads(pickle.dumps(dataset.state_dict()))
    other = ShardDataset(folder, seed=5)
    other.load_state_dict(state)
    rest = as_lists(other)
    whole = ShardDataset(folder, seed=5)
    whole.set_epoch(1)
    assert as_lists(whole)[2:] == seen + rest
    # Without another choice, the next iteration is that of a dataset that went on.
    assert as_lists(other) == as_lists(dataset) == seen + rest
    # The epoch behind it is whole again.
    other.set_epoch(2)
    assert len(as_lists(other)) == 16


def test_states_and_settings_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    state = ShardDataset(folder, seed=5).state_dict()
    for key, value in {"seed": 4, "split": "test", "version": 3, "shards": "x"}.items():
        with pytest.raises(ConfigError, match=f"^the state is of {key} {value!r}, want "):
            ShardDataset(folder, seed=5).load_state_dict(state | {key: value})
    with pytest.raises(ConfigError, match=r"^the state is of 1 of 3 workers, want all"):
        ShardDataset(folder, seed=5).load_state_dict(state | {"workers": 3})
    with pytest.raises(ConfigError, match=r"^there is no state of a ShardDataset in it"):
        ShardDataset(folder, seed=5).load_state_dict({"position": 3})
    with pytest.raises(ConfigError, match="position must be 0 or more, got -1"):
        ShardDataset(folder, seed=5).load_state_dict(state | {"position": -1})
    with pytest.raises(ConfigError, match=r"rank must be in \[0, 2\), got 2"):
        ShardDataset(folder, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="split must be train, valid or test, got 'all'"):
        ShardDataset(folder, split="all")  # type: ignore[arg-type]
    files = ShardSet.open(folder).manifest.files
    path = next(tmp_path / "shards" / entry.path for entry in files if entry.path.startswith("mixed"))
    write_shards(tmp_path / "shards", SPEC)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(HotsetError, match="is damaged: its checksum is"):
        ShardDataset(tmp_path / "shards")


def test_a_keyed_jagged_tensor_needs_torchrec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec.sparse.jagged_tensor", None)
    with pytest.raises(ConfigError, match="keyed_jagged needs torchrec"):
        next(iter(ShardDataset(folder, keyed_jagged=True)))


@pytest.mark.slow
def test_ids_are_a_keyed_jagged_tensor_for_torchrec(folder: Path) -> None:
    torchrec = torchrec_or_skip()
    plain, jagged = (next(iter(ShardDataset(folder, keyed_jagged=flag))) for flag in (False, True))
    assert list(jagged) == ["label", "dense", "sparse"]
    sparse = jagged["sparse"]
    names = [table.name for table in ShardSet.open(folder).tables]
    assert isinstance(sparse, torchrec.KeyedJaggedTensor) and sparse.keys() == names
    num_samples = len(plain["label"])
    assert sparse.stride() == num_samples
    for name, found in sparse.to_dict().items():
        assert found.values().tolist() == plain[name].tolist()
        wanted = plain[f"{name}_offsets"].diff() if f"{name}_offsets" in plain else torch.ones(num_samples)
        assert found.lengths().tolist() == wanted.tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("workers", [0, 2, 4])
def test_torchdata_resumes_in_the_middle_of_an_epoch(folder: Path, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        dataset = ShardDataset(folder, seed=7)
        dataset.set_epoch(3)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    whole = as_lists(loader())
    for stop in (1, 6, 15):
        begun = loader()
        batches = iter(begun)
        seen = as_lists(next(batches) for _ in range(stop))
        state = pickle.loads(pickle.dumps(begun.state_dict()))
        del batches
        resumed = loader()
        resumed.load_state_dict(state)
        assert seen + as_lists(resumed) == whole
        # Another number of workers takes the state of the loader through the dataset.
        dataset = ShardDataset(folder, seed=7)
        dataset.load_state_dict(state)
        other = stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=3)
        assert seen + as_lists(other) == whole


def test_a_copy_for_another_process_finds_the_shards_from_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    dataset = ShardDataset(folder.name, seed=2)
    sent = pickle.dumps(dataset)
    monkeypatch.chdir("/")
    hashed: list[Any] = []
    monkeypatch.setattr(ShardSet, "refuse_damage", lambda *arguments: hashed.append(arguments))
    assert as_lists(pickle.loads(sent)) == as_lists(dataset)
    assert hashed == [], "the files are those that were hashed"


def test_a_copy_for_another_process_hashes_shards_that_are_not_the_same(folder: Path, tmp_path: Path) -> None:
    """On another machine the folder may be another copy of it, which nobody has hashed."""
    copied = Path(shutil.copytree(folder, tmp_path / "shards"))
    sent = pickle.dumps(ShardDataset(copied))
    file = next(copied.glob("mixed-*"))
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content in (bytes(damaged), whole):
        file.unlink()
        file.write_bytes(content)
        if content == whole:
            assert as_lists(pickle.loads(sent)) == as_lists(ShardDataset(folder))
        else:
            with pytest.raises(HotsetError, match=f"{file} is damaged: its checksum is .*, want"):
                next(iter(pickle.loads(sent)))


_UNDER_RAY = """
import logging, os, pathlib, ray, shutil, sys
import hotset
dataset = hotset.ShardDataset("shards")
small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
ray.init(**small, log_to_driver=False, logging_level=logging.ERROR)

@ray.remote
def batches(dataset):
    return sum(1 for _ in dataset)

@ray.remote
def opened(folder):
    import hotset
    return len(hotset.ShardDataset(folder))

def told(call, *arguments):
    try:
        return ray.get(call.remote(*arguments))
    except hotset.HotsetError as error:
        return [*str(error.cause).splitlines(), error.hint]

found = [ray.get(batches.remote(dataset)), told(opened, "/nowhere")]
file = next(pathlib.Path("shards").glob("mixed-*"))
whole = bytearray(file.read_bytes())
whole[len(whole) // 2] ^= 1
file.write_bytes(whole)
found += [told(batches, dataset), told(opened, os.path.abspath("shards"))]
shutil.rmtree("shards")
print([*found, told(batches, dataset)])
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'hotset[ray]'")
def test_what_a_worker_of_ray_does_not_find_is_one_line_with_a_hint(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "shards")
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_RAY],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )
    num_batches, absent, *changed, gone = ast.literal_eval(done.stdout.splitlines()[-1])
    hint = "give the folder that preprocess wrote (its --out)"
    assert num_batches == 16 and absent == ["/nowhere does not exist", hint]
    for line, way_out in changed:
        assert line.startswith(f"{copied}/mixed-") and " is damaged: its checksum is " in line
        assert "writes it again" in way_out
    assert gone[0] == f"{copied} does not exist" and "writes it from raw logs" in gone[1] and len(gone) == 2


def naive_lists(num_rows: list[int], sizes: list[int], seed: int) -> list[list[list[int]]]:
    """The list of each row, id by id in the order in which the generator of MLPerf draws them."""
    random = np.random.RandomState(seed)
    lists = []
    for rows, size in zip(num_rows, sizes, strict=True):
        lists.append([[row, *(int(random.randint(0, rows)) for _ in range(size - 1))] for row in range(rows)])
    return lists


@pytest.mark.parametrize("seed", [0, 7])
def test_lists_are_drawn_as_mlperf_draws_them(seed: int) -> None:
    assert (len(MLPERF_SIZES), sum(MLPERF_SIZES)) == (26, 214)
    num_rows, sizes = [5, 40, 3, 300], [3, 1, 2, 4]
    tables = [EmbeddingTable(f"C{number}", rows, 0, 4) for number, rows in enumerate(num_rows)]
    draws = MultiHotDraws(tables, sizes, seed)
    for table, size, lists in zip(tables, sizes, naive_lists(num_rows, sizes, seed), strict=True):
        ids = torch.tensor([0, table.num_rows - 1, 1, 0], dtype=torch.int32)
        none, _ = draws.expand(table.name, ids[:0])
        assert none.shape == (0,)
        found, offsets = draws.expand(table.name, ids)
        assert found.dtype == torch.int32
        assert found.tolist() == [each for row in ids.tolist() for each in lists[row]]
        wanted = None if size == 1 else [size * n for n in range(5)]
        assert (None if offsets is None else offsets.tolist()) == wanted


def test_a_dataset_hands_them_out_the_same_in_every_copy_of_it(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(num_hot_only=0, num_mixed=64))
    plain = next(iter(ShardDataset(folder)))
    dataset = ShardDataset(folder, multi_hot=(1, 3, 2))
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        batch = next(iter(each))
        assert batch["C1"].tolist() == plain["C1"].tolist() and "C1_offsets" not in batch
        assert batch["C2"].reshape(-1, 3)[:, 0].tolist() == plain["C2"].tolist()
        assert batch["C3_offsets"].tolist() == list(range(0, 65, 2))
        assert batch["C2"].tolist() == next(iter(dataset))["C2"].tolist()
        # What EmbeddingBag takes as it is.
        bags = torch.nn.EmbeddingBag(40, 4, include_last_offset=True)
        assert bags(batch["C2"].long(), batch["C2_offsets"]).shape == (32, 4)


def test_sizes_that_do_not_fit_the_log_are_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(multi_hot=(1,)))
    for sizes, message in (
        ((1, 2), "multi_hot has 2 sizes, and the log 3 features"),
        ((1, 1, 0), "must be 1 or more"),
        ((1, 2, 1), "feature 'C2' has lists already"),
    ):
        with pytest.raises(ConfigError, match=message):
            ShardDataset(folder, multi_hot=sizes)


def test_lists_that_a_log_has_already_stay_as_they_are(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(multi_hot=(1,)))
    for split in ("train", "test"):
        for plain, drawn in zip(
            ShardDataset(folder, split=split),
            ShardDataset(folder, split=split, multi_hot=(2, 1, 1)),
            strict=True,
        ):
            assert drawn.keys() == plain.keys() | {"C1_offsets"}
            assert drawn["C1"][::2].tolist() == plain["C1"].tolist()
            assert drawn["C1_offsets"].tolist() == list(range(0, 2 * len(plain["label"]) + 1, 2))
            same = plain.keys() - {"C1"}
            assert all(torch.equal(drawn[name], plain[name]) for name in same)


def test_a_row_has_one_list_in_every_batch_rank_and_epoch(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec())
    list_of: dict[tuple[str, int], list[int]] = {}
    for rank, epoch in ((0, 0), (1, 0), (0, 4)):
        dataset = ShardDataset(folder, seed=2, rank=rank, world_size=2, multi_hot=(2, 3, 4))
        dataset.set_epoch(epoch)
        for batch in dataset:
            for name, size in (("C1", 2), ("C2", 3), ("C3", 4)):
                for ids in batch[name].reshape(-1, size).tolist():
                    assert list_of.setdefault((name, ids[0]), ids) == ids
    num_rows = dict(zip(("C1", "C2", "C3"), ShardSpec().num_rows, strict=True))
    assert {name for name, _ in list_of} == set(num_rows)
    assert all(0 <= found < num_rows[name] for (name, _), ids in list_of.items() for found in ids)


def test_offsets_of_drawn_lists_overwrite_no_feature(tmp_path: Path) -> None:
    """Without draws the names differ."""
    folder = write_shards(tmp_path / "shards", ShardSpec())
    set_in_manifest(folder, "totals.tables.2.name", "C1_offsets")
    assert len(ShardDataset(folder, multi_hot=(1, 2, 2))) > 0
    with pytest.raises(ConfigError, match="a feature is called 'C1_offsets', which a batch holds"):
        ShardDataset(folder, multi_hot=(2, 1, 1))
