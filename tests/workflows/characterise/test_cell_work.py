"""The work of cells, by hand and against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.workflows.characterise.cell_batches import num_steps_of
from hotset.workflows.characterise.cell_work import STAGED, measured_step, work_of
from hotset.workflows.characterise.cells import Cell

UNIFORM = replace(TINY, skew=0.0, batch_size=100, num_tables=3, rows_of_table=300)
SKEWED = Cell(rows_of_table=5000, num_tables=4, batch_size=512)


def test_the_distinct_rows_of_even_lookups_are_those_of_balls_in_boxes() -> None:
    work = work_of(UNIFORM, 2)
    assert work.distinct_rows == pytest.approx(3 * 300 * (1 - (1 - 1 / 300) ** 100))
    pooled = work_of(replace(UNIFORM, pooling=4), 2)
    assert pooled.distinct_rows == pytest.approx(3 * 300 * (1 - (1 - 1 / 300) ** 400))
    assert (work.lookups, pooled.lookups) == (300, 1200) and pooled.num_bags == work.num_bags == 300
    # A label, three dense features and the ids, all of four bytes.
    assert (work.input_bytes, pooled.input_bytes) == (4 * (400 + 300), 4 * (400 + 1200))


def test_more_skew_means_fewer_distinct_rows() -> None:
    found = [work_of(replace(UNIFORM, skew=skew), 2).distinct_rows for skew in (0.0, 0.8, 1.05, 1.2)]
    assert found == sorted(found, reverse=True)


def test_rows_move_beside_the_loop_or_in_it_by_their_placement() -> None:
    plain = work_of(SKEWED, 2)
    assert (plain.moved_rows, plain.staged_rows, plain.in_place_vectors) == (0, 0, 0)
    found = {
        name: work_of(replace(SKEWED, placement=name), 2) for name in ("hybrid", "hybrid-dedup", *STAGED)
    }
    assert found["hybrid"].in_place_vectors == 2 * 512 * 4
    assert found["hybrid-dedup"].in_place_vectors == pytest.approx(2 * plain.distinct_rows)
    for name, work in found.items():
        is_staged = name in STAGED
        assert (work.staged_rows == plain.distinct_rows) is is_staged
        assert (work.moved_rows > 0) is (work.initialized_rows > 0) is is_staged
        assert (work.in_place_vectors > 0) is not is_staged
        # What the model computes is the same everywhere.
        assert (work.top, work.bottom, work.lookups) == (plain.top, plain.bottom, plain.lookups)
    uva = found["hybrid-uva"]
    # Rows that the batch before had stay, so fewer move than a batch looks up.
    assert uva.initialized_rows < uva.moved_rows + uva.initialized_rows < 2 * plain.distinct_rows
    assert [name for name, work in found.items() if not work.is_ahead] == ["hybrid-uva"]


def test_steps_of_fae_are_those_of_both_kinds_with_the_copies_between_them() -> None:
    cell = replace(SKEWED, placement="fae", fast_share=0.1, optimizer="sgd")
    work, mixed = work_of(cell, 2), work_of(replace(cell, placement="hybrid"), 2)
    hot_only = work_of(replace(cell, placement="hybrid", rows_of_table=500), 2)
    assert work.distinct_rows == pytest.approx((mixed.distinct_rows + hot_only.distinct_rows) / 2)
    # All hot rows are copied there and back in six steps, three of which send their vectors.
    assert work.in_place_vectors == pytest.approx(mixed.in_place_vectors / 2 + 2 * 4 * 500 / 6)
    assert (work.is_read_ahead, mixed.is_read_ahead) == (False, True)
    assert work.moved_rows == work.staged_rows == work.unset_bytes == 0
    # A row's state is copied with it: one number more for sixteen.
    stateful = work_of(replace(cell, optimizer="rowwise-adagrad"), 2)
    copied = stateful.in_place_vectors - mixed.in_place_vectors / 2
    assert copied == pytest.approx(17 / 16 * 2 * 4 * 500 / 6)
    # Vectors of lists that take 32 MiB or more are written to memory that is new each time.
    for pooling, num_bytes in ((255, 0), (256, 4 * 16 * 512 * 4 * 256)):
        wide = replace(cell, pooling=pooling)
        lists = [work_of(replace(wide, placement=name), 2).unset_bytes for name in ("hybrid", "fae")]
        assert lists[0] == 2 * lists[1] == num_bytes
    assert [num_steps_of(replace(cell, batch_size=size)) for size in (64, 2048, 4096, 9000)] == [
        24,
        18,
        12,
        6,
    ]


@pytest.mark.parametrize("placement", ["cache", "lookahead"])
def test_more_slots_never_move_more_rows_and_room_for_all_moves_each_once(placement: str) -> None:
    shares = (0.05, 0.2, 0.5, 1.0)
    works = [work_of(replace(SKEWED, placement=placement, fast_share=share), 2) for share in shares]
    # Slots for less than a batch: the step itself loads its rows twice, writes them back, and leaves none.
    assert [work.passed_rows > 0 for work in works] == [True, False, False, False]
    assert works[0].passed_rows == pytest.approx(works[0].distinct_rows, rel=0.01)
    assert works[0].moved_rows == works[0].initialized_rows == 0
    moved = [3 * work.passed_rows + work.moved_rows for work in works]
    assert moved == sorted(moved, reverse=True) and moved[0] > moved[-1]
    # Every row that a run uses is made once and written back once.
    assert moved[-1] == pytest.approx(works[-1].initialized_rows)
    # Slots for more than a batch never load its rows all anew.
    assert moved[1] < work_of(replace(SKEWED, placement="hybrid-uva"), 2).moved_rows


@pytest.mark.parametrize("placement", ["cache", "lookahead"])
def test_rows_move_ahead_where_slots_for_two_batches_and_their_doubles_are_free(placement: str) -> None:
    rows = work_of(SKEWED, 2).distinct_rows
    share = rows / (SKEWED.num_tables * SKEWED.rows_of_table)
    # A batch ahead takes slots for twice the rows of a large one, and so does the batch itself.
    works = [
        work_of(replace(SKEWED, placement=placement, fast_share=number * share), 2)
        for number in (1.5, 3.5, 5.5, 8.0)
    ]
    assert [work.is_ahead for work in works] == [False, False, True, True]
    # With one rank's share of the batch and of the slots it is as with all of them.
    ranked = work_of(replace(SKEWED, placement=placement, fast_share=3.5 * share, ranks=2), 2)
    assert not ranked.is_ahead


def test_a_measured_cell_keeps_its_times_and_gets_its_work() -> None:
    record = replace(made_up_record(TINY), beside={"load": 0.25, "transfers": 0.5})
    found = measured_step(record)
    assert found.seconds == record.step_seconds and found.work == work_of(TINY, record.threads)
    assert found.parts == record.parts | {"beside load": 0.25, "beside transfers": 0.5}
