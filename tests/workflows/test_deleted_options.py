"""Options that were deleted are refused by name."""

from __future__ import annotations

import pytest

from hotset.workflows.cli import main
from hotset.workflows.command_list import REMOVED

DELETED_OPTIONS = [
    ("advise", "--machine"),
    ("advise", "--ranks"),
    ("advise", "--link"),
    ("advise", "--codecs"),
    ("advise", "--device"),
    ("advise", "--threads"),
    ("advise", "--step-us"),
    ("characterise", "--sweep"),
    ("characterise", "--fit"),
    ("characterise", "--ranks"),
    ("characterise", "--device"),
    ("train", "--homes"),
    ("train", "--shares"),
    ("train", "--sync-rows"),
    ("train", "--sync-every"),
    ("train", "--exchange-back"),
    ("train", "--exchange-dense"),
    ("train", "--exchange-decay"),
    ("train", "--exchange-early"),
    ("train", "--rank-timeout"),
    ("train", "--kernels"),
    ("train", "--mover"),
    ("train", "--no-save-states"),
    ("train", "--id-map"),
    ("preprocess", "--map-ids"),
    ("preprocess", "--discard"),
    ("preprocess", "--max-bad-fraction"),
    ("preprocess", "--train-last"),
    ("preprocess", "--peel-floor"),
    ("preprocess", "--peel-row-bytes"),
    ("preprocess", "--with-replacement"),
    ("ingest", "--max-bad-fraction"),
    ("pack", "--train-last"),
    ("rank", "--peel-floor"),
    ("rank", "--peel-row-bytes"),
    ("rank", "--with-replacement"),
    ("preprocess", "--transpose"),
    ("train", "--plan"),
    ("train", "--window"),
    ("verify", "--md5sums"),
    ("verify", "--scratch"),
    ("train", "--cross-structure"),
    ("train", "--history-length"),
    ("train", "--attention-mlp"),
    ("train", "--last-mlp"),
    ("train", "--lr-schedule-of"),
    ("train", "--decay-start"),
    ("train", "--decay-power"),
    ("train", "--plateau-factor"),
    ("train", "--plateau-patience"),
    ("train", "--evaluate-time"),
]
"""Command and option of each, one a line."""
NEEDED = {
    "schedule": ("data",),
    "train": ("data", "--out", "run"),
    "advise": ("data",),
    "characterise": ("--out", "machine.json"),
    "preprocess": ("log", "--out", "data"),
    "ingest": ("log", "--out", "data"),
    "pack": ("data",),
    "rank": ("data",),
    "verify": ("data",),
}
"""Arguments that a command needs before it looks at options."""


@pytest.mark.parametrize(("command", "option"), DELETED_OPTIONS)
def test_a_deleted_option_is_refused_by_name(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, *NEEDED.get(command, ()), option, "1"])
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(("command", "instead"), REMOVED.items())
def test_a_deleted_command_is_refused_with_what_replaces_it(
    command: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "data"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert repr(command) in error and hint == f"hint: {instead}"
