"""Plans on a measured machine as they are printed."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.tests.support.planning.made_up_machine import made_up_machine
from hotset.train.planning.plan_record import MachinePlan, PlannedOption
from hotset.workflows.cli import main
from hotset.workflows.printing.show_machine_plan import milliseconds, sentences, show_machine_plan


def option(placement: str, seconds: float, **more: Any) -> PlannedOption:
    found: PlannedOption = {
        "placement": placement,
        "ranks": 1,
        "homes": None,
        "codec": None,
        "fast_bytes": 1 << 20,
        "hot_bytes": 0,
        "staging_bytes": 0,
        "prefetch": None,
        "memory_bytes": 1 << 19,
        "moved_bytes": 0.0,
        "step_seconds": seconds,
        "low_seconds": 0.8 * seconds,
        "high_seconds": 1.25 * seconds,
        "samples_per_second": 128 / seconds,
        "parts": {"lookup": 0.2 * seconds, "backward": 0.5 * seconds, "beside load": 0.9 * seconds},
        "is_arithmetic": False,
    }
    return {**found, **more}  # type: ignore[typeddict-item]


def plan_of(**more: Any) -> MachinePlan:
    error = {"num_cells": 60, "median_error": 0.1, "p90_error": 0.2}
    found: MachinePlan = {
        "fast_bytes": [1 << 20, 1 << 21],
        "is_given": True,
        "machine": {"is_quiet": True, "error": error},
        "batch_size": 128,
        "options": [option("cache", 0.01), option("fae", 0.0105, is_arithmetic=True)],
        "too_large": [option("all-fast", 0.001, memory_bytes=1 << 30)],
        "margin": 0.05,
        "is_close": True,
        "sensitivities": [{"of": "link", "step_seconds": 0.008, "gain": 0.25}],
        "table_ranks": 2,
        "tables": [
            {"table": f"C{number}", "home": home, "seconds": 0.0, "fast_bytes": 0}
            for number, home in enumerate(("host", "replicated", "host"))
        ],
    }
    return {**found, **more}  # type: ignore[typeddict-item]


def test_a_plan_is_a_table_and_says_how_sure_it_is() -> None:
    console = Console(file=StringIO(), width=160)
    show_machine_plan(plan_of(), console)
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "cache 1 MiB 1 10 ms 8 ms 12.5 ms 12,800 512 KiB" in text
    assert "1 GiB, does not fit" in text and "fae *" in text
    assert "Its longest part is backward, 50% of the step." in text
    assert "5% slower: too close to tell." in text and "link +25%" in text
    assert "wrong by 10% (median) and by less than 20% in nine of ten" in text
    assert "Tables on 2 ranks, by arithmetic of what crosses: 2 host, 1 replicated." in text
    assert "disturbed" not in text and "* Arithmetic" in text


def test_a_clear_margin_and_a_disturbed_machine_are_told() -> None:
    text = " ".join(sentences(plan_of(is_close=False, machine={"is_quiet": False, "error": None})))
    assert "5% slower." in text and "measure again when it is quiet" in text
    ranked = option("cache", 0.01, ranks=2, homes="by-use", codec="int8")
    assert "on 2 ranks (homes by-use, codec int8)" in sentences(plan_of(options=[ranked], margin=None))[1]
    staged = option("lookahead", 0.01, prefetch=0)
    assert "lookahead with 1 MiB, --prefetch 0." in sentences(plan_of(options=[staged], margin=None))[1]


@pytest.mark.parametrize(("seconds", "text"), [(0.01, "10 ms"), (1.5, "1,500 ms"), (1e-5, "0.01 ms")])
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


def test_sizes_are_those_that_were_asked_for_or_by_default() -> None:
    given, default = (sentences(plan_of(is_given=is_given))[0] for is_given in (True, False))
    assert given == "Planned for 1 MiB, 2 MiB of fast memory, as --fast-bytes asks."
    assert default == "Planned for 1 MiB, 2 MiB of fast memory, by default: --fast-bytes names others."


def test_the_command_plans_with_the_file(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    made_up_machine().write(path)
    assert main(["advise", str(data), "--machine", str(path), "--model", "small", "--workers", "1"]) == 0
    assert "The fastest is" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["advise", str(data), "--ranks", "2"])
    assert "are planned on a measured machine" in capsys.readouterr().err
