"""``hotset advise``: options in the units of people, and advice as tables and sentences."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.runtime.tasks import Resources, num_workers
from hotset.pipeline.statistics.coverage import CHOSEN, DISTINCT, FAE, POOLED, replication_of
from hotset.stats.replication import Network
from hotset.stats.step_times import Machine
from hotset.train.advice import AdviceConfig, MachineSpeeds, advise
from hotset.train.data.shards import Shards
from hotset.train.torchrec.sharding import count_uses
from hotset.workflows.cli import main
from hotset.workflows.commands.advise import show_advice
from hotset.workflows.machine import cpu_model
from hotset.workflows.report.sentences import rounded, splits_sentence
from hotset.workflows.report.tables import predicted_bytes, predicted_seconds

SPEEDS = MachineSpeeds(
    device_name="A CPU",
    threads=2,
    flops=2e11,
    host_rows_per_second=5e7,
    row_bytes=64,
    link_bytes_per_second=9e9,
    loader_samples_per_second=1e6,
)
SIZES = (ByteSize(1 << 20), ByteSize(8 << 20))


@pytest.fixture(scope="module")
def advice(data: Path) -> Any:
    config = AdviceConfig(fast_bytes=SIZES, batch_size=128, model="small")
    return advise(data, config, Machine(), Resources(workers=1))


def printed(advice: Any, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    show_advice(advice, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_every_placement_of_every_size_is_a_row(advice: dict[str, Any]) -> None:
    text = printed(advice)
    assert "Predicted for a typical GPU (not this machine): steps of 128 samples" in text
    assert "These are predictions from counts" in " ".join(text.split())
    for option in advice["options"]:
        for one in [*option["placements"], *option["too_large"]]:
            step = predicted_seconds(one["step_seconds"])
            assert len(step.strip("0,µs .")) <= 2 < len(step)
            assert any(one["placement"] in line and step in line for line in text.splitlines())
    num_lacking = sum(len(option["too_large"]) for option in advice["options"])
    assert text.count("does not fit") == num_lacking


def test_the_columns_of_a_row_are_those_of_its_prediction(advice: dict[str, Any]) -> None:
    """Numbers that differ from each other, in place of those predicted."""
    one = advice["options"][-1]["placements"][0] | {
        "placement": "lookahead",
        "step_seconds": 2e-3,
        "to_fast_bytes": 3 << 20,
        "to_slow_bytes": 5 << 20,
        "prefetch": 7,
        "memory_bytes": 1 << 20,
    }
    slower = one | {"placement": "hybrid", "step_seconds": 4e-3, "prefetch": None}
    lacking = slower | {"placement": "all-fast", "memory_bytes": 9 << 20}
    option = {"fast_bytes": 1 << 20, "placements": [one, slower], "too_large": [lacking]}
    text = printed(advice | {"options": [option]})
    step = predicted_seconds(2e-3).split()
    rows = [line.split() for line in text.splitlines()]
    # A placement may need all of the memory.
    sent = [*predicted_bytes(3 << 20).split(), *predicted_bytes(5 << 20).split()]
    size = ["1", "MiB"]
    assert [*size, "lookahead", *rounded(64_000).split(), *step, *sent, "7", *size] in rows
    step = predicted_seconds(4e-3).split()
    assert [*size, "hybrid", *rounded(32_000).split(), *step, *sent, *size] in rows
    lacks = [step[0], f"{step[1]},", "does", "not", "fit"]
    assert [*size, "all-fast", *rounded(32_000).split(), *lacks, *sent, "9", "MiB"] in rows
    # The use of memory is that of the fastest placement.
    by_use = rows[[" ".join(row) for row in rows].index("Fast memory of the fastest placement, by use") + 2]
    assert by_use[:3] == ["1", "MiB", "lookahead"]


def test_no_number_is_cut_in_a_narrow_terminal(advice: dict[str, Any]) -> None:
    narrow = printed(advice, width=60)
    assert all(len(line) <= 60 for line in narrow.splitlines() if line.startswith("fast memory"))
    assert "…" not in narrow
    for option in advice["options"]:
        for one in option["placements"]:
            assert predicted_seconds(one["step_seconds"]) in narrow


def test_what_does_not_fit_says_so_beside_its_time(advice: dict[str, Any]) -> None:
    rows = [line for line in printed(advice, width=80).splitlines() if "does not fit" in line]
    lacking = [one for option in advice["options"] for one in option["too_large"]]
    assert lacking and len(rows) == len(lacking)
    assert all(predicted_seconds(one["step_seconds"]) in row for row, one in zip(rows, lacking, strict=True))


def test_the_last_lines_say_what_to_do(advice: dict[str, Any]) -> None:
    whole = deepcopy(advice)
    whole["enough"] = {"fast_bytes": 8 << 20, "placement": "all-fast", "step_seconds": 1e-3}
    assert (
        "Everything fits in 8 MiB of fast memory, so no other placement than all-fast is needed."
        in printed(whole)
    )
    part = deepcopy(advice)
    part["enough"] = {"fast_bytes": 1 << 20, "placement": "lookahead", "step_seconds": 2e-3}
    part["compute_seconds"] = 1.5e-3
    assert "lookahead with 1 MiB of fast memory in total" in printed(part)
    known = ": 75% of the speed with every row in fast memory. More memory gains less than 1%."
    assert known in printed(part)
    # Of sizes beyond the largest one that was predicted nothing is known, unless it holds every row.
    most = deepcopy(part)
    most["enough"]["fast_bytes"] = most["options"][-1]["fast_bytes"]
    assert "all-fast" in {one["placement"] for one in most["options"][-1]["placements"]}
    assert known in printed(most)
    most["options"][-1]["placements"] = most["options"][-1]["placements"][:1]
    most["options"][-1]["placements"][0]["placement"] = "lookahead"
    assert " No larger size was compared." in printed(most)
    for advised in (whole, part, most):
        assert printed(advised).rstrip().endswith("the speeds of this machine for --speeds FILE.")


def test_the_title_names_the_speeds_and_where_they_are_from(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SPEEDS.write(tmp_path / "machine.json")
    command = ("advise", str(data), "--fast-bytes", "8MiB", "--model", "small")
    for options, title in (
        ((), "typical speeds (link 20 GB/s, host 10 GB/s, 10 TFLOP/s, 300 µs a step)"),
        (
            ("--speeds", str(tmp_path / "machine.json")),
            "speeds of machine.json (link 9 GB/s, host 3.2 GB/s, 0.2 TFLOP/s, 300 µs a step)",
        ),
    ):
        capsys.readouterr()
        assert main([*command, *options]) == 0
        assert title in " ".join(capsys.readouterr().out.split())
    # Steps wait for a slow loader.
    assert main([*command, "--speeds", str(tmp_path / "machine.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["loader_samples_per_second"] == 1e6
    assert found["best"]["step_seconds"] >= found["workload"]["batch_size"] / 1e6


def test_the_title_names_the_machine_whose_speeds_they_are(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("advise", str(data), "--fast-bytes", "8MiB", "--model", "small")
    here = replace(SPEEDS, device_name=cpu_model(), cores=num_workers(0))
    more_cores = replace(here, cores=num_workers(0) + 1)
    for number, (speeds, device) in enumerate(
        (
            (here, f"this machine ({cpu_model()}, {num_workers(0)} core"),
            (more_cores, f"another machine ({cpu_model()}, {num_workers(0) + 1} cores)"),
            (replace(here, device_name="A CPU", cores=1), "another machine (A CPU, 1 core)"),
            (SPEEDS, "another machine (A CPU, an unknown number of cores)"),
        )
    ):
        path = tmp_path / f"machine-{number}.json"
        speeds.write(path)
        capsys.readouterr()
        assert main([*command, "--speeds", str(path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"Predicted for {device}" in shown and "typical" not in shown
    assert main(command) == 0
    assert "Predicted for a typical GPU (not this machine): " in " ".join(capsys.readouterr().out.split())


def test_the_command_prints_what_the_function_returns(
    data: Path, advice: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "advise",
        str(data),
        "--fast-bytes",
        "1MiB",
        "8MiB",
        "--batch-size",
        "128",
        "--model",
        "small",
    ]
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(advice))
    assert main(arguments) == 0
    assert "Fast memory of the fastest placement, by use" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--devices", "2"), "--devices needs --engine torchrec"),
        (("--engine", "torchrec", "--devices", "0"), "--devices must be from 1 to 1024"),
        (
            ("--engine", "torchrec", "--batch-size", "64"),
            "--batch-size changes nothing with --engine torchrec",
        ),
        (("--engine", "torchrec", "--model", "small"), "--model changes nothing with --engine torchrec"),
        (("--engine", "torchrec", "--fast-bytes", "1MiB", "2MiB"), "give one size of --fast-bytes"),
    ],
)
def test_options_of_the_other_engine_are_refused(
    data: Path, options: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["advise", str(data), *options])
    assert error in capsys.readouterr().err


def test_splits_are_compared_without_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["advise", str(data), "--engine", "torchrec"]) == 0
    shown = capsys.readouterr().out
    for name in ("chosen split", "all sharded, distinct", "all sharded ", "FAE: all hot rows"):
        assert shown.count(f"\n{name} ") == 3
    assert [f"On {number} devices" in shown for number in (2, 4, 8)] == [True] * 3
    # A file of speeds has those between devices if somebody wrote them into it.
    replace(SPEEDS, exchange_seconds=5e-4).write(tmp_path / "machine.json")
    command = ["advise", str(data), "--engine", "torchrec", "--devices", "4", "--fast-bytes", "64MiB"]
    assert main([*command, "--speeds", str(tmp_path / "machine.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["network"]["exchange_seconds"] == 5e-4
    network = Network(exchange_seconds=5e-4)
    shards = Shards.open(data)
    uses = count_uses(shards, [4])
    wanted = replication_of(shards.manifest, uses, device_bytes=64 << 20, network=network)
    assert found["devices"] == json.loads(json.dumps(wanted))


def split_row(**changes: float) -> dict[str, Any]:
    """Return a comparison in which FAE's rule takes twice the time and saves half of the steps."""
    seconds = {CHOSEN: 0.9e-4, DISTINCT: 1e-4, POOLED: 3e-4, FAE: 2e-4} | changes
    splits = [
        {"split": name, "step_seconds": each, "hot_only_share": 0.5 if name == FAE else 0.0}
        for name, each in seconds.items()
    ]
    return {"devices": 8, "splits": splits}


def test_a_verdict_says_whether_the_split_pays() -> None:
    pays = splits_sentence(split_row(), Network())
    assert pays.startswith("On 8 devices the chosen split saves 10.0% of the bytes that leave a device.")
    # FAE's rule takes 110 µs more for half of the steps.
    assert (
        "makes 50% of the steps hot-only. That pays if the all-to-alls of a step take more than 220 µs"
        in pays
    )
    fails = splits_sentence(split_row(**{CHOSEN: 0.999e-4}), Network())
    assert fails.startswith("On 8 devices the split does not pay: it saves 0.1% of the bytes that leave")
    lists = splits_sentence(split_row(**{POOLED: 0.45e-4}), Network())
    assert "saves 10.0% of the bytes" in lists and "all sharded, take 50.0% less: they send" in lists
    slow = splits_sentence(split_row(**{FAE: 0.5e-4}), Network(exchange_seconds=1e-4))
    assert slow == "On 8 devices the chosen split saves 10.0% of the time of the exchange."
    assert splits_sentence({"devices": 1, "splits": []}, Network()).startswith(
        "A single device exchanges nothing"
    )
