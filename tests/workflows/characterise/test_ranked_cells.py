"""Cells of several ranks: what they send is what is expected; their grid, and a measurement with them.

Also the tests of `collective_probes` and `fit_machine`. Ranks are threads here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.sizes import KIB
from hotset.stats.exchange.rank_masks import MOST_RANKS
from hotset.stats.step_model.step_parts import LOOP_PARTS
from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.tests.support.processes.thread_processes import ThreadGroup
from hotset.train.planning.machine_file import Constant, MachineFile
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.workflows.characterise import characterise as module
from hotset.workflows.characterise import collective_probes, machine_probes
from hotset.workflows.characterise.cell_batches import WARM_UP_STEPS
from hotset.workflows.characterise.cell_work import work_of
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.characterise_config import CharacteriseConfig
from hotset.workflows.characterise.collective_probes import COLLECTIVES, time_collectives
from hotset.workflows.characterise.fit_machine import work_constants
from hotset.workflows.characterise.grid import grid, ranked
from hotset.workflows.characterise.run_cell import CellRecord, run_cell
from hotset.workflows.cli import main

SMALL = replace(TINY, ranks=2, rows_of_table=2000, batch_size=256, num_tables=4, skew=0.8)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(
    "cell",
    [
        SMALL,
        replace(SMALL, codec="int8", skew=1.05, pooling=3),
        replace(SMALL, placement="hybrid", codec="bf16"),
        replace(SMALL, placement="lookahead", fast_share=1.0),
        replace(SMALL, placement="fae", codec="int8"),
    ],
)
def test_what_a_rank_sends_and_moves_is_what_is_expected(cell: Cell, tmp_path: Path) -> None:
    group: Any = ThreadGroup(2)
    record = run_cell(cell, 2, tmp_path, group)
    assert record.threads == 1 and group.calls == ["run_cell_of_rank"]
    work = work_of(cell, record.threads)
    sent = record.link_bytes
    assert work.exchanged_bytes == pytest.approx(sent["vectors"] + sent["gradients"], rel=0.08)
    # Slices of whole blocks, with the loss behind each: a few hundred bytes for any model.
    assert 0 <= sent["dense"] - work.reduced_bytes <= 2 * 4 * 128 + 8
    assert work.distinct_rows == pytest.approx(record.distinct_rows, rel=0.06)
    moved = record.to_fast_rows + record.to_slow_rows
    if cell.placement == "fae":
        # Steps of the warm-up are of mixed batches, and hot rows are copied with their state.
        moved = (sent["to fast"] + sent["to slow"]) / (4 * cell.embedding_dim)
        mixed = work_of(replace(cell, placement="hybrid"), record.threads).in_place_vectors
        moved = (moved * (record.num_steps + WARM_UP_STEPS) - mixed * WARM_UP_STEPS) / record.num_steps
    assert work.moved_rows + work.in_place_vectors == pytest.approx(moved, rel=0.08)
    assert (sent["to slow"] > 0) is (cell.placement != "all-fast")
    assert {"exchange", "reduce"} <= set(record.parts) <= set(LOOP_PARTS)
    assert record.parts["exchange"] > 0 and record.parts["reduce"] > 0
    assert CellRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_collectives_are_timed_at_the_slowest_rank_and_all_know_the_same() -> None:
    found, other = run_thread_ranks(2, lambda ranks: time_collectives(ranks, 0.0))
    assert found == other and {each["name"] for each in found} == set(COLLECTIVES)
    assert all(seconds > 0 for each in found for seconds in each["seconds"])
    assert len({len(each["seconds"]) for each in found}) == 1


def constant(name: str, seconds: float, **facts: float) -> Constant:
    return Constant(
        name=name, unit="seconds", facts=facts, median=seconds, low=seconds, high=seconds, repetitions=1
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_delays_bandwidths_and_codecs_are_those_that_the_constants_lie_on(ranks: int) -> None:
    products = [
        constant("product fp32", 1e-5 * (n + b) * n, batch=b, inputs=n, outputs=n)
        for n in (8, 64)
        for b in (8, 64)
    ]
    rows = [
        constant(name, 1e-8 * size, row_bytes=size, working_bytes=1e6)
        for name in ("copy row", "update row")
        for size in (64, 256)
    ]
    messages = [
        constant(name, delay + size * (ranks - 1) / rate, ranks=ranks, bytes=size)
        for name, delay, rate in (("all-to-all", 3e-4, 1e9), ("all-gather", 5e-4, 5e8))
        for size in (1024, 65_536, 4 << 20)
    ]
    codecs = [
        constant(f"{way} int8", (2e-8 + 4 * dim * 1e-10) / (4 * dim), dim=dim)
        for way in ("encode", "decode")
        for dim in (16, 64)
    ]
    plain = [*products, *rows, constant("copy", 1e-10)]
    found = work_constants([*plain, *messages, *codecs])
    assert found.message_seconds == pytest.approx(3e-4, rel=1e-3)
    assert found.message_bytes_per_second == pytest.approx(1e9, rel=1e-3)
    assert found.gather_seconds == pytest.approx(5e-4, rel=1e-3)
    assert found.gather_bytes_per_second == pytest.approx(5e8, rel=1e-3)
    assert found.codecs["int8"] == pytest.approx((4e-8, 2e-10), rel=1e-3)
    assert found.codecs["none"] == (0, 0)
    # Without messages they are taken for copies.
    alone = work_constants(plain)
    assert (alone.message_seconds, alone.gather_seconds) == (0, 0)
    assert alone.message_bytes_per_second == alone.gather_bytes_per_second == pytest.approx(1e10)


def test_a_grid_of_ranks_has_cells_of_either_kind_from_the_beginning() -> None:
    alone, both = grid(1 << 26), grid(1 << 26, 2)
    assert [cell for cell in both if cell.ranks == 1] == alone
    among = [cell for cell in both if cell.ranks == 2]
    assert len({cell.key for cell in both}) == len(both) and len(among) > 100
    assert {cell.codec for cell in among} >= {"none", "fp16", "int8", "int4"}
    assert {cell.codec for cell in alone} == {"none"}
    assert 0.4 < np.mean([cell.is_held_out for cell in among]) < 0.6
    assert sum(cell.ranks == 2 for cell in both[:60]) == 20
    assert min(cell.batch_size for cell in ranked(4)) >= 4 * 64


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> list[ThreadGroup]:
    groups: list[ThreadGroup] = []

    def group_of(num_ranks: int) -> ThreadGroup:
        groups.append(ThreadGroup(num_ranks))
        return groups[-1]

    def cells(most_bytes: int, num_ranks: int) -> list[Cell]:
        return [TINY, replace(TINY, batch_size=32, ranks=num_ranks)]

    monkeypatch.setattr(machine_probes, "WORKING_BYTES", (16 * KIB,))
    monkeypatch.setattr(machine_probes, "PRODUCTS", ((8, 8),))
    monkeypatch.setattr(machine_probes, "_COPIED_BYTES", 16 * KIB)
    monkeypatch.setattr(machine_probes, "_ROWS", 64)
    monkeypatch.setattr(collective_probes, "SIZES", (KIB, 16 * KIB))
    monkeypatch.setattr(module, "_MOST_ROUNDS", 1)
    monkeypatch.setattr(module, "RankGroup", group_of)
    monkeypatch.setattr(module, "grid", cells)
    return groups


def test_a_measurement_with_ranks_has_their_constants_and_cells(
    small_machine: list[ThreadGroup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "machine.json"
    command = ["characterise", "--minutes", "0.01", "--sweep", "--threads", "2", "--out", str(out)]
    assert main([*command, "--ranks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    machine = MachineFile.read(out)
    assert found["num_cells"] == machine.num_cells == 2
    own = [each for each in machine.constants if each.name in COLLECTIVES]
    assert {(each.name, each.facts["bytes"]) for each in own} == {
        (name, size) for name in COLLECTIVES for size in (KIB, 16 * KIB)
    }
    assert all(each.facts["ranks"] == 2 and each.unit == "seconds" for each in own)
    assert not {*COLLECTIVES, "cells of several ranks"} & set(machine.not_measured)
    assert [group.calls for group in small_machine] == [["time_collectives", "run_cell_of_rank", "closed"]]
    # Without them what is missing is named, with what would measure it.
    alone = tmp_path / "alone.json"
    assert main([*command[:-1], str(alone)]) == 0
    reasons = MachineFile.read(alone).not_measured
    assert {reasons[name] for name in (*COLLECTIVES, "cells of several ranks")} == {module._NO_RANKS}
    assert "--ranks 2" in module._NO_RANKS and len(small_machine) == 1
    # Their cells are of another sweep.
    out.unlink()
    capsys.readouterr()
    assert main(command) == 1
    assert "begun with ranks 2 instead of 1" in capsys.readouterr().err


@pytest.mark.parametrize(("ranks", "message"), [(0, "ranks must be 1 or more"), (MOST_RANKS + 1, "or fewer")])
def test_ranks_that_are_none_are_refused(ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CharacteriseConfig(ranks=ranks)


def test_a_cell_of_a_codec_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="codec: no codec 'zip'"):
        Cell.from_json({"codec": "zip"})
    assert made_up_record(SMALL).parts["exchange"] > 0
