"""Findings from cells whose speed is made up: slopes that were put in, and verdicts both ways.

Also the tests of `findings_page`, `findings_record`, `placement_speeds` and `torchrec_comparison`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from hotset.tests.support.planning.made_up_machine import made_up_machine
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.findings.findings_page import findings_page
from hotset.workflows.characterise.findings.findings_record import findings_record
from hotset.workflows.characterise.findings.placement_speeds import best_placements, placement_speeds
from hotset.workflows.characterise.findings.sweep_findings import (
    FAILS,
    HOLDS,
    UNSEEN,
    elasticities,
    longest_parts,
    observations,
    points_of,
    saturation_batch,
)
from hotset.workflows.characterise.findings.torchrec_comparison import compare_with_torchrec
from hotset.workflows.characterise.fit_machine import Characterised
from hotset.workflows.characterise.grid import FACTORS, pairs, single_factors
from hotset.workflows.characterise.run_cell import CellRecord


def record(cell: Cell, seconds: float) -> CellRecord:
    return CellRecord(
        cell=cell,
        threads=2,
        num_steps=6,
        step_seconds=seconds,
        parts={"lookup": 0.1 * cell.num_tables, "bottom": 0.01 * cell.num_dense},
        beside={"load": 0.0, "transfers": 0.0},
        distinct_rows=1.0,
        to_fast_rows=0.0,
        to_slow_rows=0.0,
        initialized_rows=0.0,
        link_bytes={},
        memory_bytes=1,
    )


def seconds_of(cell: Cell, rows: float = 0.0) -> float:
    """Linear in lookups, with a fixed part; a power of the rows."""
    placed = {"cache": 1.1, "lookahead": 1.0 if cell.embedding_dim < 32 else 1.2}.get(cell.placement, 1.3)
    features = cell.num_dense / 64 + cell.num_tables / 4 * cell.pooling + sum(cell.top_mlp) / 64
    work = 1e-3 + 1e-6 * cell.batch_size * (1 + features)
    slower: float = (cell.rows_of_table / 20_000) ** rows
    return placed * work * slower


def records(rows: float = 0.0) -> list[CellRecord]:
    return [record(cell, seconds_of(cell, rows)) for cell in [*single_factors(), *list(pairs())[:300]]]


def verdicts(found: list[CellRecord]) -> dict[str, str]:
    return {each.text.split()[0] + " " + each.text.split()[1]: each.verdict for each in observations(found)}


def test_slopes_are_those_that_were_put_in() -> None:
    found = {each.factor: each for each in elasticities(records(rows=0.5))}
    assert found["rows_of_table"].slope == pytest.approx(-0.5, abs=1e-6)
    assert found["rows_of_table"].error < 1e-6
    assert found["skew"].slope == pytest.approx(0, abs=1e-6)
    assert found["pooling"].slope < -0.5
    # Widths of two layers are numbers; other depths and names are none.
    assert [width for width, _ in found["mlp"].points] == [32, 64, 128, 256, 512]
    assert "placement" not in found


def test_observations_hold_or_do_not_by_what_was_measured() -> None:
    found = verdicts(records())
    assert found["Speed rises"] == HOLDS and found["Speed is"] == HOLDS
    assert found["Lookups per"] == HOLDS and found["No placement"] == HOLDS
    assert found["Efficiency depends"] == HOLDS
    assert found["A GPU"] == found["Larger batches"] == UNSEEN
    assert verdicts(records(rows=0.5))["Speed is"] == FAILS
    # Where rows leave the fast tier the best placement that holds some of them tells the step.
    (told,) = [each.measured for each in observations(records()) if each.text.startswith("Speed is flat")]
    assert told.endswith("; then lookahead has 1.30 of the speed, both tiers in host memory")
    alone = [one for one in records() if one.cell.placement in ("all-fast", "cache")]
    assert not any("of the speed" in each.measured for each in observations(alone)[2:3])
    fixed = [replace(one, step_seconds=0.01) for one in records()]
    assert verdicts(fixed)["Efficiency depends"] == verdicts(fixed)["Lookups per"] == FAILS
    assert set(verdicts([]).values()) == {UNSEEN}


def test_the_batch_of_nine_tenths_of_the_speed() -> None:
    found = saturation_batch(records())
    assert found is not None and 1024 <= found[0] < found[1] == 16384
    assert saturation_batch([]) is None


def test_the_longest_part_by_dense_and_sparse_features() -> None:
    found = longest_parts(records())
    assert found[1024, 16] == "bottom" and found[16, 64] == "lookup"


def test_the_best_placement_depends_on_the_model() -> None:
    found = best_placements(placement_speeds(records()))
    assert found["base"] == "lookahead" and found["embedding_dim 128"] == "cache"


def test_the_page_has_every_verdict_and_escapes_what_it_shows() -> None:
    machine = replace(made_up_machine(), device_name="<cpu>")
    page = findings_page(Characterised(machine, records()))
    assert (
        page.count('<div class="wide"><table') == page.count("<table") == 7 and "width=device-width" in page
    )
    assert page.count("<table class=cards>") == 2
    assert "&lt;cpu&gt;" in page and "<cpu>" not in page
    assert page.count("<h2>") == 7 and page.count(HOLDS) == 5
    # Titles stand over their numbers, commands are no words, and no number or name is broken into lines.
    assert "<th class=n>hybrid-uva</th>" in page and "<th>model</th>" in page
    assert '<td class=n data-of="dense features">1,024</td>' in page
    assert "<code>hotset bench batch-quality</code>" in page and "`" not in page
    assert "\u00b1 " not in page and re.search(r"<td class=long [^>]*>[\d.]+:\u00a0[\d,]+, ", page)
    assert "TorchRec" in page and "</html>" in page


def test_cells_of_several_ranks_tell_the_share_of_the_exchange_and_nothing_else() -> None:
    parts = {"lookup": 0.5, "exchange": 0.3, "reduce": 0.1}
    ranked = [
        replace(record(replace(one.cell, ranks=2, codec=codec), 1.0), parts=parts)
        for one in records()[:20]
        for codec in ("none", "int8")
    ]
    ranked += [replace(record(Cell(ranks=2, batch_size=size), 2.0), parts=parts) for size in (1, 2)]
    assert points_of(ranked, "batch_size") == [] == elasticities(ranked)
    assert longest_parts(ranked) == {} == placement_speeds(ranked)
    (found,) = [each for each in observations(ranked) if each.text.startswith("The exchange")]
    assert found.verdict == UNSEEN and "on 2 ranks of this machine 20% to 40%" in found.measured


def test_torchrec_is_compared_on_held_out_cells() -> None:
    found: dict[str, Any] = compare_with_torchrec(made_up_machine(), records())
    held_out = sum(one.cell.is_held_out for one in records())
    assert len(found) == 3 and all(error.num_cells == held_out for error in found.values())
    # A formula without dense layers and fixed costs is far off for such steps.
    assert found["TorchRec's formula, its constants"].median_error > 0.5
    assert compare_with_torchrec(replace(made_up_machine(), model=None), records()) == {}


def test_points_are_of_cells_that_differ_in_nothing_else() -> None:
    factor = [record(Cell(batch_size=size), 1.0) for size in (512, 128, 256)]
    others = [
        record(Cell(batch_size=64, preset="M1"), 1.0),
        record(Cell(batch_size=32, skew=0.8), 1.0),
        record(Cell(batch_size=16, placement="cache"), 1.0),
    ]
    assert points_of(factor + others, "batch_size") == [(128, 128), (256, 256), (512, 512)]
    # No logarithm of a skew of zero, and no number in a name.
    assert points_of([record(Cell(skew=0.0), 1.0)], "skew") == []
    assert points_of([record(Cell(placement="cache"), 1.0)], "placement") == []


def test_two_points_have_no_slope_and_noise_widens_its_interval() -> None:
    cells = [Cell(rows_of_table=rows) for rows in (500, 5000, 50_000, 500_000)]
    assert elasticities([record(cell, 1.0) for cell in cells[:2]]) == []
    widths = []
    for noise in (1.0, 1.1, 1.5):
        seconds = [noise if number % 2 else 1.0 for number in range(4)]
        (found,) = elasticities([record(cell, each) for cell, each in zip(cells, seconds, strict=True)])
        widths.append(found.error)
    assert widths[0] == pytest.approx(0, abs=1e-12) and widths == sorted(widths) and widths[1] < widths[2]


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [((1, 2, 4, 4), HOLDS), ((1, 2, 3, 4), FAILS), ((4, 4, 4, 4), FAILS), ((4, 3, 2, 1), FAILS)],
)
def test_speed_saturates_only_where_it_rose_before_the_largest_batch(
    speeds: tuple[int, ...], verdict: str
) -> None:
    batches = (128, 256, 512, 1024)
    found = [record(Cell(batch_size=b), b / speed) for b, speed in zip(batches, speeds, strict=True)]
    assert verdicts(found)["Speed rises"] == verdict


@pytest.mark.parametrize(("power", "verdict"), [(1.0, HOLDS), (2.0, FAILS), (0.3, FAILS), (-1.0, FAILS)])
def test_lookups_are_linear_beyond_a_fixed_part(power: float, verdict: str) -> None:
    found = [record(Cell(pooling=pooling), 5.0 + pooling**power) for pooling in (1, 2, 4, 8, 16, 32)]
    assert verdicts(found)["Lookups per"] == verdict


def test_one_lookup_is_no_list_and_says_nothing_of_lists() -> None:
    # A list costs something beyond its lookups, whatever their number.
    found = [record(Cell(pooling=pooling), 5.0 + (pooling > 1) * 4.0 + pooling) for pooling in (1, 2, 4, 8)]
    (told,) = [each for each in observations(found) if each.text.startswith("Lookups")]
    assert told.verdict == HOLDS and "slope 1.00 beyond the fixed part" in told.measured
    assert verdicts(found[:3])["Lookups per"] == UNSEEN


def test_one_placement_that_is_best_everywhere_is_told() -> None:
    cells = [
        Cell(embedding_dim=dim, placement=placement)
        for dim in (16, 32, 64)
        for placement in ("all-fast", "cache", "hybrid")
    ]
    seconds = {"all-fast": 0.1, "cache": 1.0, "hybrid": 2.0}
    found = [record(cell, seconds[cell.placement]) for cell in cells]
    # All rows on the fast tier is no answer where they do not fit.
    best = best_placements(placement_speeds(found))
    assert set(best.values()) == {"cache"} and len(best) == 3
    assert verdicts(found)["No placement"] == FAILS
    alone = [one for one in found if one.cell.placement != "hybrid"]
    speeds = placement_speeds(alone)
    assert speeds["base"] == {"all-fast": Cell().batch_size / 0.1, "cache": Cell().batch_size}
    assert best_placements(speeds) == {}
    # Models come in the order of what is changed and to which value, however they were measured.
    assert list(placement_speeds(found[::-1])) == ["base", "embedding_dim 32", "embedding_dim 64"]


def test_the_record_has_what_the_page_has_as_plain_data() -> None:
    result = Characterised(made_up_machine(), records())
    found = json.loads(json.dumps(findings_record(result)))
    assert found["median_error"] == 0.1 and found["pairs_in_order"] == 0.97
    assert {each["verdict"] for each in found["observations"]} == {HOLDS, UNSEEN}
    assert {each["factor"] for each in found["elasticities"]} >= {"batch_size", "pooling", "mlp"}
    assert {"num_dense": 1024, "num_tables": 16, "part": "bottom"} in found["longest_parts"]
    assert found["placements"]["base"].keys() == set(FACTORS["placement"])
    ours, *others = found["predictions"].values()
    assert len(others) == 2 and ours["median_error"] < min(each["median_error"] for each in others)
    assert found["machine"]["device_name"] == "made up" and found["machine"]["threads"] == 2
    empty = findings_record(Characterised(replace(made_up_machine(), model=None), []))
    assert empty["median_error"] is None and empty["predictions"] == empty["placements"] == {}


def test_a_page_without_cells_says_that_nothing_can_be_seen() -> None:
    page = findings_page(Characterised(replace(made_up_machine(threads=1), model=None, num_cells=0), []))
    assert "made up, 1 thread<" in page and page.count(UNSEEN) == 9
    assert HOLDS not in page and FAILS not in page and "TorchRec's formula" not in page
