"""Findings from cells whose speed is made up: slopes that were put in, and verdicts both ways.

Also the tests of `findings_page` and `torchrec_comparison`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotset.tests.support.planning.made_up_machine import made_up_machine
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.characterise import Characterised
from hotset.workflows.characterise.findings_page import findings_page
from hotset.workflows.characterise.grid import pairs, single_factors
from hotset.workflows.characterise.run_cell import CellRecord
from hotset.workflows.characterise.sweep_findings import (
    FAILS,
    HOLDS,
    UNSEEN,
    best_placements,
    elasticities,
    longest_parts,
    observations,
    saturation_batch,
)
from hotset.workflows.characterise.torchrec_comparison import compare_with_torchrec


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
    found = best_placements(records())
    assert found["base"] == "lookahead" and found["embedding_dim 128"] == "cache"


def test_the_page_has_every_verdict_and_escapes_what_it_shows() -> None:
    machine = replace(made_up_machine(), device_name="<cpu>")
    page = findings_page(Characterised(machine, records()))
    assert "&lt;cpu&gt;" in page and "<cpu>" not in page
    assert page.count("<h2>") == 5 and page.count(HOLDS) == 5
    assert "TorchRec" in page and "</html>" in page


def test_torchrec_is_compared_on_held_out_cells() -> None:
    found: dict[str, Any] = compare_with_torchrec(made_up_machine(), records())
    held_out = sum(one.cell.is_held_out for one in records())
    assert len(found) == 3 and all(error.num_cells == held_out for error in found.values())
    # A formula without dense layers and fixed costs is far off for such steps.
    assert found["TorchRec's formula, its constants"].median_error > 0.5
    assert compare_with_torchrec(replace(made_up_machine(), model=None), records()) == {}
