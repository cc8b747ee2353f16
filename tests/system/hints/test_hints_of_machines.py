"""Hints of measured machines: files that are none, links, cells of another machine."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.pipeline.sizes import KIB
from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.tests.support.planning.made_up_machine import made_up_machine
from hotset.tests.support.processes.thread_processes import ThreadContext, echo_rank
from hotset.train.planning.machine_file import MachineFile
from hotset.workflows.bench.ranks import rank_group
from hotset.workflows.bench.ranks.rank_group import RankGroup
from hotset.workflows.characterise import characterise as module
from hotset.workflows.characterise import machine_probes
from hotset.workflows.characterise.cell_file import CellFile
from hotset.workflows.characterise.characterise_config import CharacteriseConfig


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of a few kilobytes and no cells, so that measuring takes a second."""
    monkeypatch.setattr(machine_probes, "WORKING_BYTES", (16 * KIB,))
    monkeypatch.setattr(machine_probes, "PRODUCTS", ((8, 8),))
    monkeypatch.setattr(module, "_MOST_ROUNDS", 1)
    monkeypatch.setattr(module, "grid", lambda most_bytes, num_ranks: [])


@pytest.mark.usefixtures("small_machine")
@follows(
    "train/planning/machine_file.py::_refusal",
    "train/planning/machine_file.py::MachineFile.refuse_other",
    "workflows/commands/planning/advise_command.py::AdviseCommand.__post_init__",
)
def test_a_machine_is_measured_where_there_is_none(shell: Shell) -> None:
    Path("other.json").write_text("{}")
    hint = shell.refused("advise", "data", "--machine", "other.json")
    shell.obey(hint, FILE="machine.json")
    machine = MachineFile.read(Path("machine.json"))
    hint = shell.refused("advise", "data", "--machine", "machine.json", "--threads", str(machine.threads + 1))
    shell.obey(hint, FILE="more.json")
    assert MachineFile.read(Path("more.json")).threads == machine.threads + 1
    hint = shell.refused("advise", "data", "--ranks", "2")
    assert re.search(r"`hotset characterise --out machine.json`, then give --machine machine.json", hint)
    made_up_machine().write(Path("made.json"))
    shell.works("advise", "data", "--ranks", "2", "--machine", "made.json")


@follows("workflows/bench/ranks/rank_group.py::RankGroup._fail")
def test_ranks_start_again_where_one_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "get_context", lambda _: ThreadContext())
    monkeypatch.setattr(rank_group, "_serve", echo_rank)
    with RankGroup(4) as group:
        hint = hint_of(lambda: group.call(echo_rank, replies=[{"found": 1}] * 3 + [None]))
    assert hint == "run the same command again, with fewer ranks where memory is short"
    with RankGroup(2) as group:
        assert group.call(echo_rank, replies=[{"found": 1}] * 2) == [1, 1]


@follows(
    "train/planning/plan.py::parse_link", "train/planning/plan.py::plan", "train/planning/plan.py::plan#2"
)
def test_what_can_be_planned(shell: Shell) -> None:
    made_up_machine().write(Path("machine.json"))
    plan = ("advise", "data", "--machine", "machine.json")
    assert shell.refused(*plan, "--link", "fast") == "write it like 200mbit or 10gbit, or loopback"
    shell.works(*plan, "--link", "200mbit", "--ranks", "1", "2")
    assert shell.refused(*plan, "--model", "dcnv2") == "leave --machine out, or use a preset of DLRM"
    shell.works("advise", "data", "--model", "dcnv2")
    shell.works(*plan, "--model", "small")
    least = re.search(r"--fast-bytes (\w+) would do", shell.refused(*plan, "--fast-bytes", "1KiB"))
    assert least is not None
    shell.works(*plan, "--fast-bytes", least[1])


@pytest.mark.usefixtures("small_machine")
@follows(
    "workflows/characterise/cell_file.py::CellFile.read",
    "workflows/characterise/cell_file.py::CellFile._begun_otherwise",
    "workflows/characterise/characterise_config.py::CharacteriseConfig.__post_init__",
)
def test_cells_of_another_machine(shell: Shell) -> None:
    measure = ("characterise", "--minutes", "0.01", "--out")
    cells = Path("machine.cells.jsonl")
    cells.write_text('{"format": "hotset cells"}\n')
    assert shell.refused(*measure, "machine.json") == "give another --out, or delete the file"
    shell.works(*measure, "another.json")
    cells.write_text("{\n")
    assert shell.refused(*measure, "machine.json") == "delete it, and measure its cells again"
    cells.unlink()
    shell.works(*measure, "machine.json")
    assert hint_of(lambda: CharacteriseConfig(device="cuda")) == "use --device cpu"
    CharacteriseConfig(device="cpu")


@pytest.mark.usefixtures("small_machine")
@follows(
    "train/planning/machine_file.py::_read_fields",
    "workflows/characterise/cell_file.py::read_measured_cells",
    "workflows/commands/planning/characterise_command.py::_refuse_to_measure",
)
def test_what_was_measured_is_fitted_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "grid", lambda most_bytes, num_ranks: [TINY])
    monkeypatch.setattr(module, "run_cell", lambda cell, *_: made_up_record(cell))
    shell.works("characterise", "--minutes", "0.01", "--sweep", "--out", "machine.json")
    fields = json.loads(Path("machine.json").read_text())
    Path("machine.json").write_text(json.dumps(fields | {"version": 2}))
    hint = shell.refused("advise", "data", "--machine", "machine.json")
    shell.obey(hint, FILE="again.json")
    assert MachineFile.read(Path("again.json")).num_cells == fields["num_cells"]
    fit = ("characterise", "--fit", "machine.json", "--out", "other.json")
    assert shell.refused(*fit, "--minutes", "3") == "give --fit with --out, --html and --json alone"
    shell.works(*fit, "--json", "--html", "page.html")
    # A machine file without its cells, which were measured with it.
    Path("machine.cells.jsonl").unlink()
    hint = shell.refused("characterise", "--fit", "machine.json", "--out", "more.json")
    shell.obey(hint, FILE="new.json")
    shell.works("characterise", "--fit", "new.json", "--out", "more.json")


@follows("workflows/characterise/cell_file.py::CellFile.add")
def test_cells_are_kept_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CellFile(tmp_path / "machine.cells.jsonl", {"threads": 1})
    records = [made_up_record(replace(TINY, batch_size=size)) for size in (16, 32)]
    file.add(records[0])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "open", refuse)
        hint = hint_of(lambda: file.add(records[1]))
    assert hint == "free disk space, and run the same command: finished cells are kept"
    assert file.read() == records[:1]
    file.add(records[1])
    assert file.read() == records
