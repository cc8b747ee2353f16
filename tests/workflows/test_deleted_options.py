"""Options that were deleted are refused by name."""

from __future__ import annotations

import pytest

from hotset.workflows.cli import main
from hotset.workflows.command_list import REMOVED, REMOVED_OPTIONS

DELETED_OPTIONS = """
    advise --machine --ranks --link --codecs --device --threads --step-us
    advise --workers
    demo --seed --workers
    characterise --sweep --fit --ranks --device
    train --homes --shares --sync-rows --sync-every --exchange-back --exchange-dense
    train --exchange-decay --exchange-early --rank-timeout --kernels --mover --no-save-states
    train --id-map --plan --window --cross-structure --history-length --attention-mlp
    train --last-mlp --lr-schedule-of --decay-start --decay-power --plateau-factor
    train --plateau-patience --evaluate-time
    preprocess --map-ids --discard --max-bad-fraction --train-last --peel-floor --peel-row-bytes
    preprocess --with-replacement --transpose
    ingest --max-bad-fraction
    pack --train-last
    rank --peel-floor --peel-row-bytes --with-replacement
    verify --md5sums --scratch
"""
"""The options of each command, some to a line."""
LINES = [line.split() for line in DELETED_OPTIONS.strip().splitlines()]
EACH = [(command, option) for command, *options in LINES for option in options]
NEEDED = {
    "train": ("data", "--out", "run"),
    "advise": ("data",),
    "characterise": ("--out", "machine.json"),
    "preprocess": ("log", "--out", "data"),
    "ingest": ("log", "--out", "data"),
    "pack": ("data",),
    "rank": ("data",),
    "verify": ("data",),
    "predict": ("run", "log", "--out", "scores.parquet"),
    "generate": ("--out", "log.tsv"),
}
"""Arguments that a command needs before it looks at options."""


@pytest.mark.parametrize(("command", "option"), EACH)
def test_a_deleted_option_is_refused_by_name(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, *NEEDED.get(command, ()), option, "1"])
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(("removed", "instead"), REMOVED_OPTIONS.items())
def test_a_deleted_option_is_refused_with_what_replaces_it(
    removed: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, option = removed.split()
    assert main([command, *NEEDED.get(command, ("data",)), option, "1"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.endswith(f"has no option {option}") and hint == f"hint: {instead}"


@pytest.mark.parametrize(("command", "instead"), REMOVED.items())
def test_a_deleted_command_is_refused_with_what_replaces_it(
    command: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "data"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert repr(command) in error and hint == f"hint: {instead}"
