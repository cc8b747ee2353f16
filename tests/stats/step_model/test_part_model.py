"""The parts of a step: fits that recover known weights, and predictions that never reward more work.

Also the tests of `step_work`, `step_features` and `step_parts`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotset.stats.batches.work_division import MOST_TILE_SAMPLES
from hotset.stats.step_model.part_model import SUMMED_PARTS, MeasuredStep, PartModel, fit_parts
from hotset.stats.step_model.step_features import (
    ALONE,
    DIVIDED,
    NUM_FEATURES,
    TILE_PARTS,
    features_of,
    idle_features,
    wasted_seconds,
)
from hotset.stats.step_model.step_parts import LOOP_PARTS
from hotset.stats.step_model.step_work import StepWork
from hotset.tests.support.planning.made_up_cells import measured_parts
from hotset.tests.support.planning.made_up_machine import CONSTANTS, WEIGHTS, WORK

MODEL = PartModel(CONSTANTS, WEIGHTS, 0.5)
STAGED = replace(WORK, staged_rows=2e4, moved_rows=1e4, initialized_rows=5e3)
RANKED = replace(WORK, num_ranks=2, exchanged_rows=1e4, exchanged_bytes=1e6, reduced_bytes=1e5)


def drawn_works(count: int) -> list[StepWork]:
    rng = np.random.default_rng(0)
    works = []
    for _ in range(count):
        batch = int(2 ** rng.uniform(7, 14))
        tables, dim, width = (int(2 ** rng.uniform(*bounds)) for bounds in ((2, 6), (3, 7), (5, 9)))
        pooling = int(2 ** rng.uniform(0, 5))
        dense = int(2 ** rng.uniform(3, 10))
        works.append(
            replace(
                WORK,
                batch_size=batch,
                bottom=(dense, width, dim),
                top=(tables * (tables + 1) // 2 + dim, width, 1),
                num_vectors=tables + 1,
                embedding_dim=dim,
                num_bags=batch * tables,
                lookups=batch * tables * pooling,
                distinct_rows=batch * tables * float(rng.uniform(0.1, 0.9)),
                table_bytes=float(10 ** rng.uniform(5, 9)),
                input_bytes=4.0 * batch * (dense + tables * pooling),
                moved_rows=float(rng.choice([0, batch])),
            )
        )
    return works


def test_the_parts_of_the_loop_have_features_but_for_its_waits() -> None:
    assert set(SUMMED_PARTS) == set(LOOP_PARTS) - {"load", "transfers"}
    assert set(NUM_FEATURES) == {*SUMMED_PARTS, "load", "beside load", "beside transfers"}
    found = features_of(WORK, CONSTANTS) | {"idle": idle_features(WORK, 1.0)}
    assert {part: values.size for part, values in found.items()} == NUM_FEATURES
    assert set(TILE_PARTS) < set(SUMMED_PARTS)


def test_fitted_times_predict_what_the_same_machine_takes_for_other_work() -> None:
    rng = np.random.default_rng(1)
    # As much work beside the loop as in it, so that what the loop loses to it shows.
    made = replace(MODEL, weights={**MODEL.weights, "beside load": (0.0, 0.0, 1e-7, *[0.0] * 6)})
    cells = []
    for drawn in drawn_works(120):
        # Threads share all rows alike, so that none leaves room for the work beside them.
        work = replace(drawn, lookup_ranges=4, update_ranges=4)
        times = made.predict(work)
        parts = measured_parts(times, work, made.contention)
        noise = {part: seconds * rng.lognormal(0, 0.03) for part, seconds in parts.items()}
        cells.append(MeasuredStep(work, times.seconds * rng.lognormal(0, 0.03), noise))
    fitted = fit_parts(cells[::2], CONSTANTS)
    errors = [abs(fitted.predict(c.work).seconds / c.seconds - 1) for c in cells[1::2]]
    assert np.median(errors) < 0.05 and np.quantile(errors, 0.9) < 0.12
    assert fitted.contention == pytest.approx(made.contention, abs=0.15)


def test_a_fit_takes_off_what_the_loop_lost_and_no_more() -> None:
    # Lists take one thread about as long as the thread beside the loop, which then has a core for itself.
    lookup = (1e-4, 0.0, 0.0, 2e-9, *[0.0] * 10)
    load = (0.0, 0.0, 1e-7, *[0.0] * 6)
    made = replace(MODEL, weights={**MODEL.weights, "lookup": lookup, "beside load": load})
    works = drawn_works(80)
    cells = []
    for work in works:
        times = made.predict(work)
        cells.append(MeasuredStep(work, times.seconds, measured_parts(times, work, made.contention)))
    fitted = fit_parts(cells, CONSTANTS)
    assert fitted.contention == made.contention
    steps, lookups = [], []
    for work in works:
        found, wanted = fitted.predict(work), made.predict(work)
        steps.append(abs(found.seconds / wanted.seconds - 1))
        # Where lookups are a small part of a step they need only be right to a share of it.
        if wanted.parts["lookup"] > 0.2 * wanted.seconds:
            lookups.append(abs(found.parts["lookup"] / wanted.parts["lookup"] - 1))
    assert len(lookups) > 30 and np.quantile(lookups, 0.9) < 0.05 and max(steps) < 0.02


def test_moves_and_copies_that_no_cell_had_take_the_time_they_were_measured_to_take() -> None:
    times = MODEL.predict(WORK)
    fitted = fit_parts([MeasuredStep(WORK, times.seconds, times.parts)], CONSTANTS)
    before = fitted.predict(WORK).parts
    sent = fitted.predict(replace(WORK, in_place_vectors=1e4)).parts
    seconds = 1e4 * 64 / CONSTANTS.copy_bytes_per_second
    for part in ("lookup", "update"):
        assert sent[part] - before[part] == pytest.approx(seconds)
    cleared = fitted.predict(replace(WORK, unset_bytes=1e8)).parts
    assert cleared["lookup"] - before["lookup"] == pytest.approx(1e8 / CONSTANTS.copy_bytes_per_second)
    moved = fitted.predict(replace(WORK, moved_rows=1e4)).parts["beside transfers"]
    assert moved == pytest.approx(1e4 * CONSTANTS.rows.seconds(WORK.row_bytes, WORK.table_bytes))


def test_messages_that_no_cell_had_take_the_time_they_were_measured_to_take() -> None:
    times = MODEL.predict(WORK)
    fitted = fit_parts([MeasuredStep(WORK, times.seconds, times.parts)], CONSTANTS)
    before, found = fitted.predict(WORK).parts, fitted.predict(RANKED).parts
    assert found["exchange"] - before["exchange"] == pytest.approx(2 * 1e-4 + 1e6 / 1e9)
    sums = 1e-4 + 2e-4 + 5e4 / 1e9 + 5e4 / 5e8
    assert found["reduce"] - before["reduce"] == pytest.approx(sums)
    # A codec takes its time for rows that are sent and for as many that are received.
    coded = fitted.predict(replace(RANKED, codec="int8")).parts
    assert coded["exchange"] - found["exchange"] == pytest.approx(1e4 * (1e-8 + 64 * 2e-10))


def test_a_slow_link_adds_the_time_of_its_bytes_whatever_was_fitted_on_a_quick_one() -> None:
    # Where all bytes were sent fast, a fit may find that they take nothing.
    weights = {**WEIGHTS, "exchange": [0.0] * 5, "reduce": [0.0] * 5}
    model = PartModel(CONSTANTS, weights, 0.5)
    slow = replace(model, constants=CONSTANTS.with_link(25e6)).predict(RANKED).parts
    assert slow["exchange"] == pytest.approx(1e6 / 25e6 - 1e6 / 1e9)
    assert slow["reduce"] == pytest.approx(1e5 / 25e6 - 5e4 / 1e9 - 5e4 / 5e8)
    speeds = [1e6, 25e6, 4e8, 7e8, 1e9, 1e12]
    steps = [replace(MODEL, constants=CONSTANTS.with_link(speed)).predict(RANKED) for speed in speeds]
    assert [step.seconds for step in steps] == sorted((step.seconds for step in steps), reverse=True)
    assert steps[-1].seconds < MODEL.predict(RANKED).seconds


@pytest.mark.parametrize("work", [WORK, STAGED, RANKED])
@pytest.mark.parametrize(
    "less",
    [
        {"lookups": WORK.lookups / 2},
        {"distinct_rows": WORK.distinct_rows / 2},
        {"table_bytes": 1e5},
        {"input_bytes": 1.0},
        {"moved_rows": 0.0},
        {"exchanged_bytes": 0.0},
        {"exchanged_rows": 0.0},
        {"reduced_bytes": 0.0},
    ],
)
def test_less_work_is_never_slower(work: StepWork, less: dict[str, Any]) -> None:
    fewer = replace(work, **{name: min(value, getattr(work, name)) for name, value in less.items()})
    assert MODEL.predict(fewer).seconds <= MODEL.predict(work).seconds


@pytest.mark.parametrize("work", [WORK, STAGED, RANKED])
def test_a_quicker_machine_is_never_slower(work: StepWork) -> None:
    rows = replace(CONSTANTS.rows, seconds_per_row=(0.0, 0.0))
    for constants in (
        replace(CONSTANTS, products=replace(CONSTANTS.products, flops=1e11)),
        replace(CONSTANTS, rows=rows),
        replace(CONSTANTS, copy_bytes_per_second=1e11),
        replace(CONSTANTS, message_bytes_per_second=1e11),
        replace(CONSTANTS, gather_bytes_per_second=1e11),
        CONSTANTS.with_link(1e12),
    ):
        assert replace(MODEL, constants=constants).predict(work).seconds <= MODEL.predict(work).seconds


def test_threads_without_a_tile_are_waste() -> None:
    assert replace(WORK, batch_size=256).waste == 1
    assert replace(WORK, batch_size=512).waste == 0
    assert replace(WORK, batch_size=1536, threads=3).waste == pytest.approx(1 / 2)


@pytest.mark.parametrize("threads", [1, 4, 8])
def test_work_that_threads_share_takes_its_part_and_no_more(threads: int) -> None:
    work = replace(STAGED, batch_size=8 * MOST_TILE_SAMPLES, threads=threads)
    work = replace(work, lookup_ranges=2 * threads, update_ranges=2 * threads)
    found, alone = (features_of(each, CONSTANTS) for each in (work, replace(work, threads=1)))
    for part in ("bottom", "top", "backward", "interaction"):
        assert found[part] * threads == pytest.approx(alone[part])
    for part, own in (("lookup", (1, 2)), ("update", (1, 2)), ("reduce", (1,))):
        assert found[part][list(own)] * threads == pytest.approx(alone[part][list(own)])
    # Threads beside the loop are one each.
    for part in ("beside load", "beside transfers", "exchange"):
        assert found[part] == pytest.approx(alone[part])


def test_rows_of_one_range_have_one_thread() -> None:
    works = [replace(WORK, lookup_ranges=count, update_ranges=count) for count in (1, 2, 3)]
    for work, share in zip(works, (1, 1 / 2, 2 / 3), strict=True):
        assert work.lookup_share == work.update_share == pytest.approx(share)
    assert replace(works[0], threads=1).update_share == 1
    for part, work in (
        ("lookup", replace(works[1], lookup_ranges=1)),
        ("update", replace(works[1], update_ranges=1)),
    ):
        one = features_of(work, CONSTANTS)
        two = features_of(works[1], CONSTANTS)
        assert one[part][1:3] == pytest.approx(2 * two[part][1:3])
        # The other of the two stays as it is.
        assert [name for name in one if (one[name] != two[name]).any()] == [part]


def test_a_batch_that_is_read_twice_takes_its_reader_twice_as_long_but_for_the_call() -> None:
    once, twice = (
        features_of(replace(STAGED, num_reads=reads), CONSTANTS)["beside load"] for reads in (1, 2)
    )
    found = twice != once
    assert twice[found] == pytest.approx(2 * once[found]) and found.sum() == 4


def test_narrow_vectors_interact_as_if_they_filled_a_register() -> None:
    narrow, whole = (features_of(replace(WORK, embedding_dim=dim), CONSTANTS) for dim in (8, 16))
    assert narrow["interaction"] == pytest.approx(whole["interaction"])


def test_idling_is_the_time_in_which_others_have_the_last_tile() -> None:
    work = replace(WORK, batch_size=1536, threads=3)
    # Four tiles of a second each: one thread has two of them, and the mean over threads is 4 / 3.
    assert wasted_seconds(work, 4 / 3) == pytest.approx(2 - 4 / 3)
    assert wasted_seconds(replace(work, threads=2), 2.0) == 0
    times = MODEL.predict(work)
    tiles = sum(times.parts[part] for part in TILE_PARTS)
    rest = float(np.asarray(WEIGHTS["idle"]) @ idle_features(work, tiles))
    assert times.parts["idle"] == pytest.approx(rest + tiles / 2)


def test_the_weights_of_the_dense_layers_are_those_of_every_layer_with_its_bias() -> None:
    work = replace(WORK, bottom=(3, 4, 2), top=(5, 6, 1))
    assert work.num_weights == (3 * 4 + 4) + (4 * 2 + 2) + (5 * 6 + 6) + (6 * 1 + 1)
    assert replace(work, bottom=()).num_weights == (5 * 6 + 6) + (6 * 1 + 1)
    found = features_of(replace(work, bottom=()), CONSTANTS)
    assert found["bottom"][1:].tolist() == [0, 0]


@pytest.mark.parametrize(("batch", "tiles"), [(1, 1), (511, 1), (512, 2), (1024, 4), (1537, 4), (4097, 16)])
def test_a_batch_is_cut_in_tiles_that_hold_all_of_it(batch: int, tiles: int) -> None:
    work = replace(WORK, batch_size=batch, threads=3)
    assert work.num_tiles == tiles and tiles * work.tile_samples == pytest.approx(batch)
    # As many turns as the thread with the most tiles has, for each of three threads.
    turns = max(len(range(first, tiles, 3)) for first in range(3))
    assert work.waste == pytest.approx((3 * turns - tiles) / tiles)
    # A single tile has nothing to add up.
    assert bool(features_of(work, CONSTANTS)["reduce"][1]) is (tiles > 1)


def test_one_thread_works_alone_where_lists_are_added_up_and_rows_are_found() -> None:
    lists = replace(WORK, lookups=16.0 * WORK.lookups, unset_bytes=1e8)
    features = features_of(lists, CONSTANTS)
    alone = sum(WEIGHTS[part][number] * features[part][number] for part in ALONE for number in ALONE[part])
    # By hand: sums of vectors, their lookups, slots, and memory that is cleared; then bags and rows again.
    lookups, rows = lists.lookups, lists.distinct_rows
    by_hand = 1e-10 * 16 * lookups + 1e-9 * lookups + 1e-9 * rows + 1e8 / 1e10 + 1e-9 * rows + 1e-9 * lookups
    assert alone == pytest.approx(by_hand)
    # Of three ranges one of two threads has two: the other one has nothing to do in half of its time.
    assert lists.lookup_room == lists.update_room == pytest.approx(1 / 2)
    divided = sum(
        WEIGHTS[part][number] * features[part][number] for part in DIVIDED for number in DIVIDED[part]
    )
    # Either of both idles by itself, so the mean of their idling lies in twice as long a time.
    free_seconds = alone + divided / 2 + 2 * MODEL.predict(lists).parts["idle"]
    # Half of what runs beside the loop is lost by both threads together, beyond what they leave room for.
    for work, free in ((lists, free_seconds), (replace(lists, threads=1), 0.0)):
        times = MODEL.predict(work)
        assert times.alone_seconds == pytest.approx(free)
        loop = sum(times.parts[part] for part in SUMMED_PARTS)
        load = times.parts["beside load"]
        lost = 0.5 / work.threads * max(load - free, 0.0)
        assert times.seconds == pytest.approx(max(loop + lost, load))
    # More of it is never quicker, however much room it leaves.
    seconds = [
        MODEL.predict(replace(STAGED, lookups=count * WORK.num_bags, unset_bytes=3e6 * count)).seconds
        for count in range(1, 40)
    ]
    assert seconds == sorted(seconds)


def test_a_step_is_the_sum_of_its_parts_with_what_runs_beside_it() -> None:
    staged = replace(STAGED, lookup_ranges=4, update_ranges=4)
    times = MODEL.predict(staged)
    loop = sum(times.parts[part] for part in SUMMED_PARTS)
    load, transfers = times.parts["beside load"], times.parts["beside transfers"]
    # Half of what runs beside it is lost, a quarter by either thread, but for what they leave room for.
    room = times.alone_seconds
    assert room == pytest.approx(2e-9 * staged.distinct_rows + 2 * times.parts["idle"])
    assert room < min(load, transfers)
    assert times.seconds == pytest.approx(max(loop + 0.25 * (load + transfers - room), load, transfers))
    # A step whose rows cannot be moved ahead waits for them, and loses nothing else to them.
    waiting = MODEL.predict(replace(staged, is_ahead=False))
    assert waiting.seconds == pytest.approx(max(loop + 0.25 * (load - room) + transfers, load))
    # One whose batch cannot be read ahead waits for that.
    unknown = MODEL.predict(replace(staged, is_read_ahead=False))
    assert unknown.seconds == pytest.approx(max(loop + 0.25 * (transfers - room), transfers) + load)
    # So much to transfer that the loop waits for it.
    late = MODEL.predict(replace(staged, moved_rows=1e8))
    assert late.seconds == pytest.approx(
        max(late.parts["beside transfers"], loop + 0.25 * (load + late.parts["beside transfers"] - room))
    )


def test_several_ranks_join_rows_and_wait_for_a_core_until_a_batch_is_handed_over() -> None:
    alone, found = (MODEL.predict(work).parts for work in (WORK, RANKED))
    near = CONSTANTS.rows.seconds(64, 1.0)
    for part in ("lookup", "update"):
        assert found[part] - alone[part] == pytest.approx(1e-4 + 1e4 * near)
    assert (alone["load"], found["load"]) == (0.0, 1e-3)
    # Its order is not known ahead, so the whole of its reading is waited for, and nothing else.
    assert MODEL.predict(replace(RANKED, is_read_ahead=False)).parts["load"] == 0.0
    # One thread never waits for another.
    assert idle_features(replace(WORK, threads=1), 1.0)[1] == 0.0 < idle_features(WORK, 1.0)[1]
    rest = {part: seconds for part, seconds in found.items() if not part.startswith("beside")}
    # The same terms, added in another order.
    assert MODEL.predict(RANKED).seconds >= sum(rest.values()) * (1 - 1e-12)


def test_columns_that_fill_no_register_take_their_time_one_by_one() -> None:
    features = [features_of(replace(WORK, embedding_dim=dim), CONSTANTS) for dim in (16, 24, 32)]
    found = [each["lookup"][13] for each in features]
    assert found == [each["update"][12] for each in features]
    assert found == pytest.approx([0, 8 * WORK.lookups * WORK.lookup_share, 0])


def test_rows_in_passes_move_once_for_their_lookups_and_twice_for_their_updates() -> None:
    passed = replace(WORK, passed_rows=1e4)
    before, found = MODEL.predict(WORK).parts, MODEL.predict(passed).parts
    once = 1e4 * CONSTANTS.rows.seconds(WORK.row_bytes, WORK.table_bytes)
    assert found["lookup"] - before["lookup"] == pytest.approx(once)
    assert found["update"] - before["update"] == pytest.approx(2 * once)
    assert [part for part in found if found[part] != before[part]] == ["lookup", "update"]
    # A fit that has seen none of them takes the time that rows were measured to take.
    times = MODEL.predict(WORK)
    fitted = fit_parts([MeasuredStep(WORK, times.seconds, times.parts)], CONSTANTS)
    moved = fitted.predict(passed).parts["update"] - fitted.predict(WORK).parts["update"]
    assert moved == pytest.approx(2 * once)


def test_a_part_of_unsteady_times_is_fitted_to_their_middle_and_not_below() -> None:
    rng = np.random.default_rng(2)
    works = drawn_works(60)
    cells = []
    for work in works:
        times = MODEL.predict(work)
        parts = measured_parts(times, work, MODEL.contention)
        # Idling is now half and now twice as long.
        idle = parts["idle"] * 2.0 ** rng.choice([-1.0, 0.0, 1.0])
        seconds = times.seconds + idle - parts["idle"]
        cells.append(MeasuredStep(work, seconds, parts | {"idle": idle}))
    fitted = fit_parts(cells, CONSTANTS)
    ratios = [fitted.predict(work).parts["idle"] / MODEL.predict(work).parts["idle"] for work in works]
    assert np.median(ratios) > 0.8


def test_threads_wait_for_a_part_of_one_tile_however_many_there_are() -> None:
    # Tiles of as many samples each take as long, so a batch of eight times the samples takes eight times.
    small, large = (replace(WORK, batch_size=count * MOST_TILE_SAMPLES) for count in (4, 32))
    assert idle_features(small, 1e-3)[1] == idle_features(large, 8e-3)[1] == pytest.approx(1e-3 / 2 / 2)
    # The only tile is waited for as a whole, which is known.
    alone = replace(WORK, batch_size=MOST_TILE_SAMPLES - 1)
    assert alone.num_tiles == 1 and idle_features(alone, 1e-3)[1] == 0.0
    assert wasted_seconds(alone, 1e-3) == pytest.approx(1e-3)


def test_a_lookup_whose_gradient_is_added_costs_the_same_in_rows_of_any_width() -> None:
    of_count = DIVIDED["update"][2]
    for work in (WORK, replace(WORK, embedding_dim=128), replace(WORK, batch_size=64)):
        found = features_of(work, CONSTANTS)["update"][of_count]
        assert found == work.lookups * work.update_share
