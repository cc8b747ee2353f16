"""Rows copied between later steps are those of the step at which the copy began, under every placement."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import KIB, ByteSize
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.build import build_trainer
from hotset.train.checkpoints.writer import RowsCopy
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.loop import Trainer, run_steps
from hotset.train.rows.embeddings import RowsPart, changed_of, settle

SPEC = ShardSpec(
    num_rows=(300, 400, 7),
    num_hot=(3, 5, 2),
    num_hot_only=200,
    num_mixed=200,
    skew=1.2,
    batch_size=20,
    multi_hot=(1,),
    table_dims=(4, 4, 2),
)
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "all-fast"},
    {"placement": "hybrid"},
    {"placement": "fae"},
    {"placement": "lookahead"},
    {"placement": "cache", "cache_policy": "lfu"},
    {"placement": "lookahead", "slow_bytes": ByteSize(60 * KIB)},
)
Rows = dict[tuple[int, int], bytes]
"""Weights and state of rows by table and id."""


def rows_of(parts: list[RowsPart]) -> Rows:
    found: Rows = {}
    for part in parts:
        for i, name in enumerate(zip(part.tables_N.tolist(), part.ids_N.tolist(), strict=True)):
            assert name not in found, "a row is copied once"
            found[name] = part.weights_ND[i].tobytes() + part.state_NW[i].tobytes()
    return found


def changed_rows(trainer: Trainer) -> Rows:
    """All changed rows at once."""
    found: Rows = {}
    embeddings = trainer.embeddings
    with embeddings.rows_written_back():
        for width in embeddings.groups:
            changed = changed_of(width)
            tables_N, ids_N = changed.layout.rows_at(np.flatnonzero(changed._marks_R & 1))
            for position, table in enumerate(width.tables):
                own_N = ids_N[tables_N == position]
                numbers_N = np.full(own_N.size, table, np.int32)
                weights, state = (
                    embeddings.table(table, state=state)[own_N].numpy() for state in (False, True)
                )
                found |= rows_of([RowsPart(numbers_N, own_N.astype(np.int32), weights, state)])
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return ShardSet.open(folder)


def build(shards: ShardSet, folder: Path, threads: int = 1, **fields: Any) -> Trainer:
    torch.set_num_threads(1)
    config = TrainConfig(
        embedding_optimizer="adagrad",
        epochs=2,
        staging_bytes=ByteSize(2_500),
        prefetch=1,
        threads=threads,
        **fields,
    )
    return build_trainer(shards, config, spill_folder=folder, tracks_changes=True)


class Copies:
    """Takes a copy every few steps, and compares it with what `wanted` says at its beginning."""

    def __init__(self, trainer: Trainer, wanted: Callable[[Trainer], Rows], seed: int) -> None:
        self._wanted_of = wanted
        self._random = random.Random(seed)
        self._parts: list[RowsPart] = []
        self._wanted: Rows | None = None
        self.all_wanted: list[Rows] = []
        self.all_found: list[Rows] = []
        self.copy = RowsCopy(trainer.embeddings, 800, trainer.threads, self._put)
        trainer.before_step = [self.copy.before_update]

    def _put(self, part: RowsPart, release: Callable[[], None]) -> None:
        # As the writer does: once a part is written, its memory belongs to others.
        self._parts.append(part.chosen(np.ones(part.ids_N.size, np.bool_)))
        part.weights_ND[:] = np.nan
        release()

    def __call__(self, trainer: Trainer, *_: object) -> None:
        if self._wanted is None and self._random.random() < 0.5:
            self._wanted = self._wanted_of(trainer)
            self.copy.begin()
        elif self._wanted is not None:
            self.copy.copy_part()
            if not self.copy.is_under_way:
                self.all_wanted.append(self._wanted)
                self.all_found.append(rows_of(self._parts))
                settle(trainer.embeddings, is_lost=False)
                self._parts = []
                self._wanted = None


@pytest.mark.parametrize("fields", PLACEMENTS[:-1])
def test_rows_are_copied_as_they_were_when_the_copy_began(
    shards: ShardSet, tmp_path: Path, fields: dict[str, Any]
) -> None:
    trainer = build(shards, tmp_path, threads=2, **fields)
    copies = Copies(trainer, changed_rows, seed=1)
    run_steps(trainer, copies)
    assert len(copies.all_found) >= 2 and all(copies.all_wanted)
    assert copies.all_found == copies.all_wanted


def test_rows_in_a_file_are_copied_too(shards: ShardSet, tmp_path: Path) -> None:
    filed = build(shards, tmp_path, **PLACEMENTS[-1])
    found: list[Rows] = []
    steps = iter(range(100))

    def after_step(trainer: Trainer, *_: object) -> None:
        if next(steps) == 9:
            parts: list[RowsPart] = []
            copy = RowsCopy(
                trainer.embeddings, 800, trainer.threads, lambda part, release: parts.append(part)
            )
            copy.begin()
            while copy.is_under_way:
                copy.copy_part()
            found.append(rows_of(parts))

    run_steps(filed, after_step)
    again = build(shards, tmp_path, placement="all-fast")
    steps = iter(range(100))
    expected: list[Rows] = []
    run_steps(again, lambda trainer, *_: expected.append(changed_rows(trainer)) if next(steps) == 9 else None)
    assert found == expected


def test_a_copy_that_is_given_up_leaves_its_rows_to_the_next(shards: ShardSet, tmp_path: Path) -> None:
    trainer = build(shards, tmp_path, placement="all-fast")
    run_steps(trainer, lambda *_: None)
    parts: list[RowsPart] = []
    copy = RowsCopy(trainer.embeddings, 800, trainer.threads, lambda part, release: parts.append(part))
    wanted = changed_rows(trainer)
    copy.begin()
    copy.copy_part()
    copy.give_up()
    settle(trainer.embeddings, is_lost=True)
    assert not copy.is_under_way and rows_of(parts) != wanted
    parts.clear()
    copy.begin()
    while copy.is_under_way:
        copy.copy_part()
    assert rows_of(parts) == wanted
