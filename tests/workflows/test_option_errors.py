"""Wrong usage is one error and one hint, in the style of every other error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import tyro

from hotset.pipeline.sizes import ByteSize
from hotset.workflows.option_errors import usage_errors
from hotset.workflows.options import Dir, parse_options

SIZES = "write bytes as 268435456, 256MiB or 1.5GB"
HELP = "hotset spin --help explains the options"


@dataclass(frozen=True, kw_only=True)
class Spin:
    """Spin a wheel."""

    dir: Dir
    """Folder of wheels."""

    out: Path
    """New folder. Nothing may be in it."""

    rounds: int = 3
    """Number of rounds. At least one."""

    speed: float = 1.0
    """Speed of the wheel."""

    memory: ByteSize | None = None
    """Limit on memory."""

    kind: Literal["fast", "slow"] = "fast"
    """Kind of wheel."""

    wheel: bool = True
    """Have no wheel."""


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        ("", "DIR and --out are missing", f"hotset spin DIR --out OUT ({HELP})"),
        ("d", "--out is missing", f"hotset spin DIR --out OUT ({HELP})"),
        ("d --out", "--out needs a value", HELP),
        ("d --out o --round 4", "hotset spin has no option --round", "--rounds: Number of rounds"),
        ("d --out o --round=4", "hotset spin has no option --round", "--rounds: Number of rounds"),
        # The typo is what has to be fixed, not the option that is missing because of it.
        ("d --uot o", "hotset spin has no option --uot", "--out: New folder"),
        ("d --out o --no-wheels", "hotset spin has no option --no-wheels", "--no-wheel: Have no wheel"),
        ("d --out o --frobnicate", "hotset spin has no option --frobnicate", HELP),
        ("d --out o e", "hotset spin takes no argument 'e'", "hotset spin DIR --out OUT"),
        ("d --out o --rounds x", "--rounds: 'x' is not a whole number", HELP),
        ("d --out o --speed x", "--speed: 'x' is not a number", HELP),
        ("d --out o --memory 4Mip", "--memory: not a size: '4Mip'", SIZES),
        ("d --out o --kind fats", "--kind must be one of fast, slow, got 'fats'", "--kind fast"),
        ("d --out o --kind x", "--kind must be one of fast, slow, got 'x'", HELP),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_error_and_one_hint(
    arguments: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_options(Spin, arguments.split(), command="spin", description="Spin a wheel.")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {error}\nhint: {hint}\n"


def test_an_event_that_tyro_has_changed_is_left_to_tyro(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hotset.workflows.option_errors._name_of", lambda argument: argument.other_name)
    with pytest.raises(SystemExit) as stopped, usage_errors("spin", list):
        tyro.cli(Spin, prog="hotset spin", args=[])
    assert stopped.value.code == 2
    assert "--out" in capsys.readouterr().err
