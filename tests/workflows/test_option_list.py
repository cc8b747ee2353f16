"""The options of a command, read from its dataclass without parsing anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from hotset.train.config import TrainConfig
from hotset.train.options.model_config import MODEL_NAMES
from hotset.workflows.option_list import Option, list_options, synopsis
from hotset.workflows.options import Dir


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group of options."""

    hot_bytes: int | None = None
    """Bytes. Of hot rows."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Options of a command."""

    out: Path
    """New `folder`."""

    logs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RAW")]
    """Logs."""

    dir: Dir
    """Folder of all stages."""

    kinds: tuple[Literal["a", "b"], ...] | None = None
    """Kinds."""

    json: bool = False
    """Print JSON."""

    label: bool = field(default=True, metadata={"help": "Read a log without labels."})
    """Whether there are labels."""

    inner: Inner = field(default_factory=Inner)
    """The group."""


def test_every_field_is_an_option() -> None:
    assert list_options(Outer) == [
        Option("RAW", "Logs", takes_value=True, is_required=True, is_path=True, choices=()),
        Option("DIR", "Folder of all stages", takes_value=True, is_required=True, is_path=True, choices=()),
        Option("--out", "New 'folder'", takes_value=True, is_required=True, is_path=True, choices=()),
        Option("--kinds", "Kinds", takes_value=True, is_required=False, is_path=False, choices=("a", "b")),
        Option("--json", "Print JSON", takes_value=False, is_required=False, is_path=False, choices=()),
        Option("--no-label", "Read a log without labels", False, False, False, ()),
        Option("--hot-bytes", "Bytes", takes_value=True, is_required=False, is_path=False, choices=()),
    ]


@pytest.mark.parametrize("out", [tyro.MISSING, Path("x")])
def test_what_has_no_default_is_required(out: Path) -> None:
    default = Outer(out=out, logs=tyro.MISSING, dir=tyro.MISSING)
    (option,) = (option for option in list_options(Outer, default) if option.name == "--out")
    assert option.is_required is (out is tyro.MISSING)


def test_a_synopsis_has_what_is_required() -> None:
    assert synopsis("spin", list_options(Outer)) == "hotset spin RAW DIR --out OUT"


def test_the_models_of_hotset_are_offered_though_others_are_accepted() -> None:
    (found,) = (option for option in list_options(TrainConfig) if option.name == "--model")
    assert found.choices == MODEL_NAMES
    assert TrainConfig(model="nets:Net").model == "nets:Net"
