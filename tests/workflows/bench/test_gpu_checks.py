"""Checks of a GPU day name what is broken; shards of the Kaggle shape have the rows and batches asked for."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.tests.support.late_runs import keep_slow
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.device import LateDevice, StreamName
from hotset.train.run import train
from hotset.workflows import characterise
from hotset.workflows.bench import gpu_checks
from hotset.workflows.bench.gpu_checks import KaggleSamples, draw_kaggle, write_kaggle_shards
from hotset.workflows.bench.gpu_day import PartSettings, Records


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def checks_of_verbs(folder: Path) -> dict[str, bool]:
    found = folder / "verbs.jsonl"
    found.unlink(missing_ok=True)
    gpu_checks.try_verbs(PartSettings("late:3", folder, True), Records(found, 60))
    return {record["check"]["name"]: record["check"]["is_right"] for record in records_of(found)}


@pytest.mark.parametrize(
    ("verb", "slow", "name"),
    [
        ("wait", "copies", "pinned memory is copied up and down"),
        ("wait", "compute", "a stream waits for the event of another"),
        ("capture", "moves", "work of moves is recorded and replayed"),
        ("capture", "compute", "work of compute is recorded and replayed"),
        ("pin", "moves", "kernels read and write pinned rows of the host"),
        ("close", "moves", "the device is closed"),
    ],
)
def test_a_verb_that_does_not_do_its_work_is_named(
    verb: str, slow: StreamName, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_slow(monkeypatch, slow)
    right = checks_of_verbs(tmp_path)
    assert len(right) == 7 and all(right.values())

    def refuse(*_: object) -> None:
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(LateDevice, verb, refuse if verb == "close" else lambda *_: None)
    found = checks_of_verbs(tmp_path)
    assert found.keys() == right.keys() and not found[name]


def test_pieces_and_parts_share_the_samples_of_a_size(tmp_path: Path) -> None:
    settings = PartSettings("late", tmp_path, True)
    samples = gpu_checks.drawn_samples(settings)
    first, second = (gpu_checks.packed_shards(settings, samples, 64, 16) for _ in range(2))
    assert first.manifest.folder == second.manifest.folder and second.num_training_samples > 0


_TESTS = """
import time
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "as it should"
@pytest.mark.skipif(True, reason="no GPU")
def test_is_skipped(): pass
@pytest.fixture
def broken():
    yield
    raise ZeroDivisionError("a kernel")
def test_ends_badly(broken): pass
def test_is_slow(): time.sleep(SECONDS)
def test_is_left_out(): pass
"""


def run(folder: Path, seconds: float, *done: str) -> list[dict[str, Any]]:
    """Run pytest in pytest: a process that imports what this one has takes longer than the tests."""
    (folder / "records").unlink(missing_ok=True)
    options = ["-q", "--continue-on-collection-errors"]
    options += [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler", "xdist")]
    records = Records(folder / "records", seconds, done)
    pytest.main([*options, "--rootdir", str(folder), str(folder)], plugins=[gpu_checks.CheckWriter(records)])
    return records_of(folder / "records")


@pytest.mark.slow
def test_a_run_without_time_has_the_checks_of_the_tests_before(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS.replace("SECONDS", "2.4"))
    (tmp_path / "test_that_cannot_be_imported.py").write_text("import a_package_that_is_missing")
    found = run(tmp_path, 4.0)
    checks = {each["check"]["name"].partition("::")[2]: each["check"] for each in found if "check" in each}
    assert {name: check["is_right"] for name, check in checks.items()} == {
        "": False,
        "test_passes": True,
        "test_fails": False,
        "test_is_skipped": False,
        "test_ends_badly": False,
        "test_is_slow": True,
    }
    assert "as it should" in checks["test_fails"]["detail"]
    assert "ZeroDivisionError" in checks["test_ends_badly"]["detail"]
    assert "a_package_that_is_missing" in checks[""]["detail"]
    names = [name for each in found for name in each.get("pieces", {}).get("names", [])]
    done = [each["done"]["name"] for each in found if "done" in each]
    assert set(names) - set(done) == {"test_some.py::test_is_left_out"}
    # A second call runs what is left.
    (tmp_path / "test_that_cannot_be_imported.py").unlink()
    found = run(tmp_path, 60.0, *done)
    assert [each["done"]["name"] for each in found if "done" in each] == ["test_some.py::test_is_left_out"]


@pytest.fixture(scope="module")
def samples() -> KaggleSamples:
    return draw_kaggle(9_000, 1000.0)


def test_hot_rows_are_about_the_share_asked_for(samples: KaggleSamples) -> None:
    num_rows = sum(samples.num_rows)
    for share in (0.01, 0.1):
        num_hot = samples.num_hot(share)
        assert 0.3 * share * num_rows < sum(num_hot) <= share * num_rows
        assert all(1 <= hot <= rows for hot, rows in zip(num_hot, samples.num_rows, strict=True))


def naive_num_hot(samples: KaggleSamples, share: float) -> tuple[int, ...]:
    counts = [np.bincount(ids_N) for ids_N in samples.ids_NF.T]
    found = tuple(1 for _ in counts)
    for least in range(int(max(each.max() for each in counts)), 0, -1):
        sizes = tuple(
            1 + max((row for row in range(each.size) if each[row] >= least), default=0) for each in counts
        )
        if sum(sizes) > share * sum(samples.num_rows):
            break
        found = sizes
    return found


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 1.0])
def test_hot_rows_are_the_longest_prefixes_within_the_share(share: float) -> None:
    rng = np.random.default_rng(3)
    ids_NF = np.stack([rng.integers(0, most, 60).astype(np.int32) for most in (1, 9, 40)], axis=1)
    nothing = np.zeros(60, np.float32)
    drawn = KaggleSamples(ids_NF, nothing[:, None], nothing, ("a", "b", "c"), (1, 9, 50))
    assert drawn.num_hot(share) == naive_num_hot(drawn, share)


def test_batches_are_of_one_kind_each_and_train(samples: KaggleSamples, tmp_path: Path) -> None:
    write_kaggle_shards(
        samples, tmp_path / "shards", batch_size=256, embedding_dim=8, hot_share=0.1, num_evaluation=500
    )
    shards = ShardSet.open(tmp_path / "shards")
    shards.refuse_damage()
    num_hot = np.array([table.num_hot for table in shards.tables])
    num_samples = 0
    for number in range(shards.num_training_batches):
        batch = shards.training_batch(number)
        is_hot_B = (batch.ids_BF < num_hot).all(axis=1)
        assert is_hot_B.all() if shards.is_hot_only[number] else not is_hot_B.any()
        num_samples += batch.num_samples
    assert num_samples == shards.num_training_samples == 8_500
    assert 0 < shards.is_hot_only.sum() < shards.num_training_batches
    assert shards.num_evaluation_samples == 500
    summary = train(tmp_path, TrainConfig(), tmp_path / "run")
    assert summary.auc is not None and summary.auc > 0.55


def test_a_sample_depends_on_its_number_alone(
    samples: KaggleSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_checks, "_PART_SAMPLES", 700)
    parts = draw_kaggle(9_000, 1000.0)
    for name in ("ids_NF", "dense_NK", "label_N"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(samples, name))


def test_samples_are_drawn_in_little_more_memory_than_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_kaggle(100, 1000.0)
    monkeypatch.setattr(gpu_checks, "_PART_SAMPLES", 200)
    tracemalloc.start()
    drawn = draw_kaggle(40_000, 1000.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * (drawn.ids_NF.nbytes + drawn.dense_NK.nbytes + drawn.label_N.nbytes)


def test_many_samples_lie_in_several_files_and_the_batches_are_the_same(
    samples: KaggleSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (1 << 22, 1000):
        monkeypatch.setattr(characterise, "_FILE_SAMPLES", most)
        folder = tmp_path / str(most) / "shards"
        write_kaggle_shards(samples, folder, batch_size=256, embedding_dim=8, hot_share=0.1)
        shards = ShardSet.open(folder)
        shards.refuse_damage()
        found.append([shards.training_batch(number).ids_BF for number in range(shards.num_training_batches)])
    assert len(list((tmp_path / "1000/shards").glob("mixed-*.arrow"))) > 2
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_a_full_sized_table_has_all_its_rows() -> None:
    samples = draw_kaggle(2_000)
    assert sum(samples.num_rows) > 33_000_000
    assert (samples.ids_NF < np.array(samples.num_rows)).all() and (samples.ids_NF >= 0).all()
