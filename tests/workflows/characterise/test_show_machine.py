"""What is printed of a machine: units of constants, and sentences for what there is."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from hotset.tests.support.planning.made_up_machine import ERROR, made_up_machine
from hotset.train.planning.machine_file import MachineFile
from hotset.workflows.characterise.fit_machine import Characterised
from hotset.workflows.characterise.show_machine import facts_of, sentences, show_machine, summary


def printed(machine: MachineFile, width: int = 160) -> str:
    console = Console(file=StringIO(), width=width)
    show_machine(Characterised(machine, []), console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("seconds", 1.5, "1.5 s"),
        ("seconds", 2e-3, "2 ms"),
        ("seconds", 3.25e-6, "3.25 µs"),
        ("seconds", 4e-9, "4 ns"),
        ("seconds", 0.0, "0 ns"),
        ("seconds per byte", 1e-10, "10 GB/s"),
        ("seconds per byte", 0.0, " - "),
        ("watts", 12.34, "12.3 W"),
    ],
)
def test_constants_are_printed_in_units_that_read_well(unit: str, value: float, shown: str) -> None:
    machine = made_up_machine()
    (constant,) = machine.constants
    same = replace(constant, unit=unit, median=value, low=value, high=value, facts={"inputs": 12345.0})
    text = printed(replace(machine, constants=(same,)))
    assert shown in text and "inputs 12,345" in text


def test_a_constant_is_one_row_of_a_narrow_terminal_and_keeps_what_it_was_measured_on() -> None:
    (constant,) = made_up_machine().constants
    facts = {"dim": 128.0, "row_bytes": 512.0, "working_bytes": 2.0**30, "lookups_per_row": 16.0}
    same = replace(constant, name="update row", unit="seconds", median=2e-9, low=1e-9, high=3e-9, facts=facts)
    assert facts_of(same) == "dim 128, 512 B in 1 GiB, 16 per row"
    lines = printed(replace(made_up_machine(), constants=(same,)), width=80).splitlines()
    rows = [line.split() for line in lines if line.startswith("update row ")]
    told = ["update", "row", *facts_of(same).split()]
    shown = [row[len(told) :] for row in rows]
    assert all(row[: len(told)] == told for row in rows)
    assert [word for row in shown for word in row] == [
        "2",
        "ns",
        "1",
        "to",
        "3",
        "ns",
        str(constant.repetitions),
    ]


def test_facts_of_codecs_are_sizes() -> None:
    (constant,) = made_up_machine().constants
    sizes = {"dim": 16.0, "bytes": 40960.0, "bytes_of_float32": 262144.0}
    assert facts_of(replace(constant, facts=sizes)) == "dim 16, 40 KiB for 256 KiB"


def test_sentences_say_only_what_was_found() -> None:
    machine = made_up_machine()
    assert machine.model is not None
    plain = replace(machine, not_measured={})
    assert len(sentences(Characterised(plain, []))) == 2
    unordered = replace(machine.model, error=replace(ERROR, num_pairs=0, pairs_in_order=None))
    told = sentences(Characterised(replace(plain, model=unordered), []))[1]
    assert told.endswith("on the other 60.")
    # Neither a fit nor one without held-out cells tells an error.
    for model in (None, replace(machine.model, error=None)):
        result = Characterised(replace(plain, model=model), [])
        # A file that is there is not written over, and its cells go on.
        advised = "delete this machine file, and run the command again with more --minutes"
        assert f"too few to predict from: {advised}" in sentences(result)[1]
        assert summary(result)["num_held_out"] == summary(result)["num_pairs"] == 0


def test_one_reason_for_several_things_is_said_once() -> None:
    reasons = {"GPU rows": "no GPU was found", "power": "it is not told", "GPU products": "no GPU was found"}
    (told,) = sentences(Characterised(replace(made_up_machine(), not_measured=reasons), []))[2:]
    assert told == "Not measured: GPU rows, power, GPU products (it is not told; no GPU was found)."
