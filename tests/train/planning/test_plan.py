"""Plans on a machine that is made up: memory, order, intervals, ranks and what would help.

Also the tests of `plan_record`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import KIB, MIB
from hotset.pipeline.stages.preprocess import preprocess
from hotset.stats.prediction.step_times import shallower_lookahead
from hotset.stats.prediction.workload import Budget, Machine, Prediction, Workload
from hotset.stats.step_model.exchange_work import codec_bytes, reduced_bytes
from hotset.stats.step_model.part_model import PartModel, PartTimes
from hotset.stats.step_model.step_work import StepWork
from hotset.tests.support.planning.made_up_machine import CONSTANTS, ERROR, made_up_machine
from hotset.train.advice import AdviceConfig
from hotset.train.planning import plan as module
from hotset.train.planning.plan import PlanConfig, doubled, parse_link, plan, preferred
from hotset.train.planning.plan_record import MachinePlan
from hotset.workflows.recipes import criteo_kaggle

SMALL = AdviceConfig(fast_bytes=(4 * MIB, 8 * MIB), batch_size=128, model="small")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    generate(GenerateConfig(samples=3000, seed=1, scale=50), folder / "log.tsv", workers=1)
    preprocess([folder / "log.tsv"], criteo_kaggle(), folder / "data", Resources(workers=1), until="split")
    return folder / "data"


def planned(folder: Path, config: PlanConfig | None = None, **changed: Any) -> MachinePlan:
    machine = replace(made_up_machine(), **changed)
    model = machine.fitted_model(Path("machine.json"))
    return plan(folder, config or PlanConfig(advice=SMALL), machine, model, Resources(workers=1))


def test_options_are_ordered_and_fit_and_have_an_interval(folder: Path) -> None:
    found = planned(folder)
    seconds = [one["step_seconds"] for one in found["options"]]
    assert seconds == sorted(seconds)
    for one in found["options"]:
        assert one["memory_bytes"] <= one["fast_bytes"] in SMALL.fast_bytes
        assert one["low_seconds"] == pytest.approx(ERROR.low_ratio * one["step_seconds"])
        assert one["high_seconds"] == pytest.approx(ERROR.high_ratio * one["step_seconds"])
        assert one["samples_per_second"] == pytest.approx(128 / one["step_seconds"])
    assert all(one["memory_bytes"] > one["fast_bytes"] for one in found["too_large"])
    placements = {one["placement"] for one in (*found["options"], *found["too_large"])}
    assert placements == {"all-fast", "lookahead", "cache", "fae", "hybrid", "hybrid-dedup"}


def test_only_sizes_that_were_asked_for_are_planned_and_the_default_ones_say_so(folder: Path) -> None:
    given = planned(folder)
    assert given["fast_bytes"] == list(SMALL.fast_bytes) and given["is_given"]
    default = planned(folder, PlanConfig(advice=replace(SMALL, fast_bytes=())))
    sizes = default["fast_bytes"]
    assert sizes == sorted(set(sizes)) and 2 <= len(sizes) <= 5 and not default["is_given"]
    # Twice of a size is for the question what more memory would bring, and is no plan.
    every = [*default["options"], *default["too_large"]]
    assert {one["fast_bytes"] for one in every} == set(sizes)
    assert "fast memory" in {one["of"] for one in default["sensitivities"]}


def test_of_equally_fast_plans_that_is_taken_which_moves_the_fewest_bytes() -> None:
    def option(seconds: float, moved: float, memory: int = 1) -> Any:
        return {"step_seconds": seconds, "moved_bytes": moved, "memory_bytes": memory}

    cache, lookahead, hybrid = option(1.0, 300.0), option(1.0009, 200.0), option(1.002, 0.0)
    assert preferred([cache, hybrid, lookahead]) is lookahead
    assert preferred([cache, hybrid]) is cache
    # Nothing else apart, the faster one, and then the one that needs less memory.
    smaller = option(1.0, 300.0, memory=0)
    assert preferred([option(1.0001, 300.0), cache, smaller]) is smaller


def test_a_margin_below_the_error_is_too_close_to_tell(folder: Path) -> None:
    found = planned(folder)
    margin = found["margin"]
    assert margin is not None and margin >= 0
    for median, is_close in ((margin + 0.01, True), (max(margin - 0.01, 0.0), False)):
        model = made_up_machine().model
        assert model is not None
        error = replace(ERROR, median_error=median)
        assert planned(folder, model=replace(model, error=error))["is_close"] is is_close


def test_more_memory_is_never_slower_and_twice_of_a_thing_never_hurts(folder: Path) -> None:
    best = {
        size: planned(folder, PlanConfig(advice=replace(SMALL, fast_bytes=(size,))))["options"][0]
        for size in (4 * MIB, 8 * MIB)
    }
    seconds = [one["step_seconds"] for one in best.values()]
    assert seconds == sorted(seconds, reverse=True)
    found = planned(folder)["sensitivities"]
    assert {one["of"] for one in found} == {"compute", "host bandwidth", "link", "fast memory"}
    assert all(one["gain"] >= 0 for one in found)
    assert max(one["gain"] for one in found) > 0.01


def test_ranks_have_homes_and_codecs_and_cost_what_their_bytes_cost(folder: Path) -> None:
    config = PlanConfig(advice=SMALL, ranks=(1, 2), link_bytes_per_second=1e5, codecs=("none", "int8"))
    whole = planned(folder, config)
    found = whole["options"]
    assert whole["table_ranks"] == 2 and len(whole["tables"]) == 26
    assert sum(one["fast_bytes"] for one in whole["tables"]) <= found[0]["fast_bytes"]
    assert planned(folder)["tables"] == []
    two = [one for one in found if one["ranks"] == 2 and one["placement"] == "hybrid"]
    assert {(one["homes"], one["codec"]) for one in two} == {
        (homes, codec) for homes in ("striped", "by-use") for codec in ("none", "int8")
    }
    assert all(one["is_arithmetic"] for one in two)
    by_codec = {one["codec"]: one["parts"]["exchange"] for one in two if one["homes"] == "striped"}
    # At this link the bytes are nearly all of it.
    ratio = codec_bytes(1, 16, "none") / codec_bytes(1, 16, "int8")
    assert by_codec["none"] / by_codec["int8"] == pytest.approx(ratio, rel=0.02)
    striped, by_use = (
        next(one["parts"]["exchange"] for one in two if (one["homes"], one["codec"]) == (homes, "none"))
        for homes in ("striped", "by-use")
    )
    assert by_use < striped
    # So slow a link makes one rank the fastest.
    assert found[0]["ranks"] == 1


def test_a_quicker_link_is_never_slower(folder: Path) -> None:
    seconds = []
    for link in (1e5, 1e7, 1e9):
        config = PlanConfig(advice=SMALL, ranks=(2,), link_bytes_per_second=link)
        seconds.append(planned(folder, config)["options"][0]["step_seconds"])
    assert seconds == sorted(seconds, reverse=True)


def test_what_cannot_be_planned_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="cross network"):
        planned(folder, PlanConfig(advice=replace(SMALL, model="dcnv2")))
    with pytest.raises(ConfigError, match="no placement fits in 1 KiB"):
        planned(folder, PlanConfig(advice=replace(SMALL, fast_bytes=(KIB,))))
    with pytest.raises(ConfigError, match="no codec 'zip'"):
        PlanConfig(advice=SMALL, codecs=("zip",))
    with pytest.raises(ConfigError, match="ranks must be numbers from 1 up"):
        PlanConfig(advice=SMALL, ranks=(0,))


@pytest.mark.parametrize(("text", "rate"), [("loopback", None), ("200mbit", 25e6), ("1.6Gbit", 2e8)])
def test_links_are_written_with_their_unit(text: str, rate: float | None) -> None:
    assert parse_link(text) == rate


@pytest.mark.parametrize("text", ["", "200", "mbit", "0mbit", "nanmbit", "-1gbit", "1gbits"])
def test_any_other_link_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no link"):
        parse_link(text)


def test_gradients_of_the_dense_layers_cross_twice() -> None:
    assert reduced_bytes(100, 2) == 400


def test_twice_of_a_thing_halves_its_own_times_alone() -> None:
    found = doubled(CONSTANTS)
    assert found.keys() == {"compute", "host bandwidth", "link"}
    assert found["compute"].products == replace(CONSTANTS.products, flops=2 * CONSTANTS.products.flops)
    host = found["host bandwidth"]
    assert host.rows.seconds(64, 1e7) == pytest.approx(CONSTANTS.rows.seconds(64, 1e7) / 2)
    assert host.updates.seconds(64, 1e12) == pytest.approx(CONSTANTS.updates.seconds(64, 1e12) / 2)
    assert host.copy_bytes_per_second == 2 * CONSTANTS.copy_bytes_per_second
    # Nothing else changes.
    assert replace(found["compute"], products=CONSTANTS.products) == CONSTANTS
    assert found["link"] == replace(
        CONSTANTS,
        message_bytes_per_second=2 * CONSTANTS.message_bytes_per_second,
        gather_bytes_per_second=2 * CONSTANTS.gather_bytes_per_second,
    )
    assert (host.products, host.message_seconds) == (CONSTANTS.products, CONSTANTS.message_seconds)


def test_options_are_told_once_and_staging_only_where_rows_are_staged(folder: Path) -> None:
    found = planned(folder, PlanConfig(advice=SMALL, ranks=(1, 2)))
    keys = [
        (one["placement"], one["ranks"], one["homes"], one["codec"], one["fast_bytes"])
        for one in found["options"]
    ]
    assert len(keys) == len(set(keys))
    for one in found["options"]:
        assert (one["staging_bytes"] > 0) is (one["placement"] in ("cache", "lookahead"))
        assert (one["homes"] is None) is (one["codec"] is None) is (one["ranks"] == 1)
        assert one["is_arithmetic"] is (one["ranks"] > 1 or one["placement"] == "fae")
    model = made_up_machine().model
    assert model is not None
    # On a machine whose cells had two ranks they are measured, but for a link that it does not have.
    among = replace(model, ranks=(1, 2))
    for link in (None, 25e6):
        config = PlanConfig(advice=SMALL, ranks=(1, 2), link_bytes_per_second=link)
        for one in planned(folder, config, model=among)["options"]:
            is_linked = one["ranks"] > 1 and link is not None
            assert one["is_arithmetic"] is (is_linked or one["placement"] == "fae")
    first, second = found["options"][:2]
    assert found["margin"] == pytest.approx(second["step_seconds"] / first["step_seconds"] - 1)


def test_a_machine_without_held_out_cells_has_no_interval_and_calls_nothing_close(folder: Path) -> None:
    model = made_up_machine().model
    assert model is not None
    found = planned(folder, model=replace(model, error=None))
    assert found["is_close"] is False and found["machine"]["error"] is None
    for one in found["options"]:
        assert one["low_seconds"] == one["step_seconds"] == one["high_seconds"]


def test_the_memory_that_the_hint_names_is_enough(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no placement fits") as error:
        planned(folder, PlanConfig(advice=replace(SMALL, fast_bytes=(KIB,))))
    kibibytes = int((error.value.hint or "").split("KiB")[0].removeprefix("--fast-bytes "))
    assert planned(folder, PlanConfig(advice=replace(SMALL, fast_bytes=(kibibytes * KIB,))))["options"]


def test_a_link_of_its_own_leaves_each_rank_all_threads(folder: Path) -> None:
    shared, apart = (
        planned(folder, PlanConfig(advice=SMALL, ranks=(2,), link_bytes_per_second=link))["options"][0]
        for link in (None, CONSTANTS.message_bytes_per_second)
    )
    assert (
        apart["parts"]["bottom"] < shared["parts"]["bottom"]
        or apart["parts"]["lookup"] < shared["parts"]["lookup"]
    )
    assert apart["step_seconds"] < shared["step_seconds"]


def test_the_bytes_of_rows_follow_from_their_codec() -> None:
    assert codec_bytes(100, 16, "none") == pytest.approx(100 * 64, rel=0.01)
    assert codec_bytes(0, 16, "int8") == 0
    assert codec_bytes(10, 64, "int8") < codec_bytes(10, 64, "bf16") < codec_bytes(10, 64, "none")


def test_a_link_that_is_tried_out_here_leaves_the_ranks_to_share_their_threads(folder: Path) -> None:
    # As quick as the loopback device, so that nothing else differs.
    rate = CONSTANTS.message_bytes_per_second
    shared, tried, apart = (
        planned(
            folder, PlanConfig(advice=SMALL, ranks=(2,), link_bytes_per_second=link, is_emulated=emulated)
        )
        for link, emulated in ((None, False), (rate, True), (rate, False))
    )
    parts = [
        {(one["placement"], one["homes"]): one["parts"]["bottom"] for one in found["options"]}
        for found in (shared, tried, apart)
    ]
    assert parts[0] == parts[1] and all(parts[2][key] < parts[0][key] for key in parts[0])


def test_steps_whose_order_is_not_known_wait_for_their_batches(folder: Path) -> None:
    # With one thread there is none that leaves room for others while it works alone.
    for one in planned(folder, threads=1)["options"]:
        if one["placement"] in ("fae", "hybrid"):
            parts = one["parts"]
            loop = sum(seconds for part, seconds in parts.items() if not part.startswith("beside"))
            # What is read ahead costs the loop half of it here, and the whole where it waits.
            share = 1.0 if one["placement"] == "fae" else 0.5
            assert one["step_seconds"] == pytest.approx(loop + share * parts["beside load"])


def test_rows_of_a_batch_that_has_more_than_slots_move_within_its_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[StepWork] = []
    predict = PartModel.predict

    def seen(model: PartModel, work: StepWork) -> PartTimes:
        works.append(work)
        return predict(model, work)

    monkeypatch.setattr(PartModel, "predict", seen)
    # The default sizes begin with a few rows and end with all.
    planned(folder, PlanConfig(advice=replace(SMALL, fast_bytes=(), batch_size=512)))
    staged = [work for work in works if work.staged_rows]
    passed = [work for work in staged if work.passed_rows]
    assert 0 < len(passed) < len(staged)
    for work in passed:
        assert work.moved_rows == work.initialized_rows == 0 and not work.is_ahead
        assert work.passed_rows <= work.distinct_rows
    # Where all rows are hot none is left to move.
    others = [work for work in staged if work not in passed]
    assert any(work.moved_rows > 0 for work in others)


def test_each_rank_keeps_hot_rows_in_memory_of_its_own(folder: Path) -> None:
    found = planned(folder, PlanConfig(advice=SMALL, ranks=(1, 2)))
    hot = {
        (one["ranks"], one["fast_bytes"]): one["hot_bytes"]
        for one in (*found["options"], *found["too_large"])
        if one["placement"] == "hybrid-dedup"
    }
    for size in SMALL.fast_bytes:
        assert hot[2, size] > 2 * hot[1, size] > 0


@pytest.mark.parametrize(("saved", "is_taken"), [(0.5, True), (0.001, False)])
def test_transfers_run_less_far_ahead_where_that_saves_enough(
    folder: Path, saved: float, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = AdviceConfig(fast_bytes=(64 * MIB,), batch_size=128, model="small")
    default = planned(folder, PlanConfig(advice=advice))
    (before,) = (one for one in default["options"] if one["placement"] == "lookahead")
    deepest = before["prefetch"]
    assert deepest is not None and deepest > 0
    asked: list[int] = []
    times = PartModel.predict

    def shallower(workload: Workload, machine: Machine, budget: Budget, deepest: int) -> list[Prediction]:
        asked.append(deepest)
        found = shallower_lookahead(workload, machine, budget, deepest)
        return [replace(one, initialized_bytes=-1.0) for one in found if one.prefetch == 0]

    def quicker(self: PartModel, work: StepWork) -> PartTimes:
        # The made-up prediction is told by what no other one has.
        if work.initialized_rows >= 0:
            return times(self, work)
        found = times(self, replace(work, initialized_rows=0.0))
        return replace(found, seconds=before["step_seconds"] * (1 - saved))

    monkeypatch.setattr(module, "shallower_lookahead", shallower)
    monkeypatch.setattr(PartModel, "predict", quicker)
    options = planned(folder, PlanConfig(advice=advice))["options"]
    (after,) = (one for one in options if one["placement"] == "lookahead")
    assert after["prefetch"] == (0 if is_taken else deepest) and deepest in asked
