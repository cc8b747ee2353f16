"""Options from dataclasses: how they are read, how their help reads, and what wrong usage prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from hotset.pipeline.errors import ByteSize, ConfigError
from hotset.pipeline.schema.schema import NO_SETTINGS, FeatureSettings
from hotset.train.config import TrainConfig
from hotset.train.config_parts import MODEL_NAMES
from hotset.workflows.command_list import command_options, config_of
from hotset.workflows.console import as_sentences
from hotset.workflows.option_texts import help_of
from hotset.workflows.options import (
    NO_OPTION,
    Arg,
    Dir,
    field_docstrings,
    find_options,
    list_options,
    options_of,
    parse_options,
    synopsis,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpinConfig:
    """The options of a made-up command."""

    rounds_per_minute: float = 1 / 3
    """Speed of the wheel."""

    window: int | None = None
    """Rounds known ahead, on a line that the source
    breaks. Default: the whole epoch."""

    dims: FeatureSettings = NO_SETTINGS
    """Width of ``some`` features, as `preprocess` has it."""

    kinds: tuple[Literal["a", "b"], ...] | None = None
    """Kinds of wheels. Default: all."""

    wheel: bool = field(default=True, metadata={"help": "Spin without a wheel."})
    """Whether there is a wheel."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window must be 1 or more, got {self.window}")


@dataclass(frozen=True, kw_only=True)
class SpinOptions:
    """Spin a wheel."""

    memory: ByteSize | None = None
    """Limit on memory. Default: none."""

    json: bool = False
    """Print JSON."""


SpinCommand: Any = command_options(SpinConfig, SpinOptions)


def parse(*arguments: str) -> SpinOptions:
    parsed: SpinOptions = parse_options(SpinCommand, arguments, command="spin")
    return parsed


def test_the_values_that_are_given_build_the_config() -> None:
    options = parse("--window", "3", "--dims", "C3=8", "--no-wheel", "--memory", "1MiB")
    assert config_of(SpinConfig, options) == SpinConfig(
        window=3, dims=FeatureSettings([("C3", 8)]), wheel=False
    )
    assert options.memory == 2**20 and not options.json


def test_help_names_types_and_says_nothing_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = help_of(SpinCommand, "spin", options_of(SpinCommand), is_full=False)
    for line in (
        "--window INT",
        "--memory SIZE",
        "--dims FEATURE=N,...",
        "--kinds {a,b} [{a,b} ...]",
        "--no-wheel",
    ):
        assert line in shown
    assert "Speed of the wheel. (default: 0.3333)" in shown
    assert "Spin without a wheel.\n" in shown and "Whether" not in shown
    assert "Width of some features, as 'preprocess' has it." in shown
    assert "None" not in shown and "default: )" not in shown and "(default: False)" not in shown
    assert shown.index("--rounds-per-minute") < shown.index("--memory")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_sentences_of_the_help_wrap_at_the_width_of_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = help_of(SpinCommand, "spin", options_of(SpinCommand), is_full=False)
    assert max(map(len, shown.splitlines())) <= columns
    words = " ".join(shown.replace("\u2502", " ").split())
    assert "Rounds known ahead, on a line that the source breaks. Default: the whole epoch." in words


def test_a_value_that_the_config_refuses_is_one_line_that_names_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("--window", "0")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "error: --window must be 1 or more, got 0\nhint: hotset spin --help explains the options\n"
    )


def test_options_that_decide_defaults_are_found_in_either_form() -> None:
    arguments = ["a.tsv", "--out", "b.toml", "--schema", "c.toml", "--like=d", "--seed", "1"]
    found, others = find_options(arguments, "--schema", "--like")
    assert found == {"--schema": "c.toml", "--like": "d"}
    assert others == ["a.tsv", "--out", "b.toml", "--seed", "1"]
    assert find_options(["x", "--schema"], "--schema") == ({}, ["x", "--schema"])


def test_a_docstring_becomes_one_line_without_markup() -> None:
    assert field_docstrings(SpinConfig)["window"].count("\n") == 1
    assert as_sentences("Of `rank`,\n    ``C3=1``.") == "Of 'rank', C3=1."
    assert "wheel" in field_docstrings(SpinCommand) and "memory" in field_docstrings(SpinCommand)


def test_an_option_in_a_group_is_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Outer:
        """Two groups."""

        spin: SpinConfig = field(default_factory=SpinConfig)
        """Settings of the wheel."""

    with pytest.raises(SystemExit):
        parse_options(Outer, ["--window", "0"], command="spin")
    assert capsys.readouterr().err.startswith("error: --window must be")


SIZES = "write bytes as 268435456, 256MiB or 1.5GB"
HELP = "hotset spin --help explains the options"


@dataclass(frozen=True, kw_only=True)
class Wheel:
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

    names: tuple[str, ...] = ()
    """Names of the wheels."""


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
        ("d --out o --wheel=1", "hotset spin has no option --wheel", "--no-wheel: Have no wheel"),
        ("d --out o --no-wheel=1", "--no-wheel takes no value, got '1'", HELP),
        ("d --out o --names", "--names needs a value", HELP),
        ("d --out o --kind x", "--kind must be one of fast, slow, got 'x'", HELP),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_error_and_one_hint(
    arguments: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_options(Wheel, arguments.split(), command="spin")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {error}\nhint: {hint}\n"


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

    logs: Annotated[tuple[Path, ...], Arg("RAW", is_positional=True)]
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


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Copy logs."""

    dir: Dir
    """Folder of all stages."""

    logs: Annotated[tuple[Path, ...], Arg("RAW", is_positional=True)]
    """Logs."""

    out: Path
    """New folder."""

    kinds: tuple[Literal["a", "b"], ...] = ()
    """Kinds."""

    json: bool = False
    """Print JSON."""

    copies: int = field(default=1, metadata={NO_OPTION: True})
    """Number of copies, which programs choose."""


def test_every_field_is_an_option() -> None:
    options = list_options(Outer)
    shown = [(each.name, each.summary, each.takes_value, each.is_required, each.choices) for each in options]
    assert shown == [
        ("RAW", "Logs", True, True, ()),
        ("DIR", "Folder of all stages", True, True, ()),
        ("--out", "New 'folder'", True, True, ()),
        ("--kinds", "Kinds", True, False, ("a", "b")),
        ("--no-label", "Read a log without labels", False, False, ()),
        ("--hot-bytes", "Bytes", True, False, ()),
        ("--json", "Print JSON", False, False, ()),
    ]
    (out,) = (each for each in list_options(Outer, {"out": Path("x")}) if each.name == "--out")
    assert not out.is_required


@pytest.mark.parametrize(
    "arguments",
    [
        "a b c --out o --kinds a b",
        "--out o a b --kinds=b --kinds a b -- c",
        "--out=o --kinds a b --json a b c",
    ],
)
def test_positional_arguments_stand_anywhere(arguments: str) -> None:
    parsed = parse_options(Copy, arguments.split(), command="copy")
    assert (parsed.dir, parsed.out, parsed.logs) == (Path("a"), Path("o"), (Path("b"), Path("c")))
    assert parsed.kinds == ("a", "b") and parsed.copies == 1
    assert "--copies" not in {each.name for each in list_options(Copy)}


def test_options_are_typed_with_underscores_too() -> None:
    options = parse("--rounds_per_minute", "2", "--dims=C_1=8")
    found = config_of(SpinConfig, options)
    assert (found.rounds_per_minute, found.dims) == (2, FeatureSettings([("C_1", 8)]))


def test_a_synopsis_has_what_is_required() -> None:
    assert synopsis("spin", list_options(Outer)) == "hotset spin RAW... DIR --out OUT"


def test_the_models_of_hotset_are_offered_though_others_are_accepted() -> None:
    (found,) = (option for option in list_options(TrainConfig) if option.name == "--model")
    assert found.choices == MODEL_NAMES
    assert TrainConfig(model="nets:Net").model == "nets:Net"
