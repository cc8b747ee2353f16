"""Options from dataclasses, and how their help reads (`options`, `option_help`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema.feature_settings import NO_SETTINGS, FeatureSettings
from hotset.pipeline.sizes import ByteSize
from hotset.workflows.option_help import as_sentences, field_docstrings
from hotset.workflows.options import command_options, config_of, find_options, parse_options


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


Command = command_options(SpinConfig, SpinOptions)


def parse(*arguments: str) -> SpinOptions:
    parsed: SpinOptions = parse_options(Command, arguments, command="spin", description="Spin a wheel.")
    return parsed


def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stopped:
        parse("--help")
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_the_values_that_are_given_build_the_config() -> None:
    options = parse("--window", "3", "--dims", "C3=8", "--no-wheel", "--memory", "1MiB")
    assert config_of(SpinConfig, options) == SpinConfig(
        window=3, dims=FeatureSettings([("C3", 8)]), wheel=False
    )
    assert options.memory == 2**20 and not options.json


def test_help_names_types_and_says_nothing_of_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = help_of(capsys, monkeypatch, 120)
    for line in ("--window INT", "--memory SIZE", "--dims FEATURE=N,...", "--kinds {a,b} ...", "--no-wheel"):
        assert line in shown
    assert "Speed of the wheel. (default: 0.3333)" in shown
    assert "Spin without a wheel. " in shown and "Whether" not in shown
    assert "Width of some features, as 'preprocess' has it." in shown
    assert "None" not in shown and "default: )" not in shown and "(default: False)" not in shown
    assert shown.index("--rounds-per-minute") < shown.index("--memory")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_sentences_of_the_help_wrap_at_the_width_of_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = help_of(capsys, monkeypatch, columns)
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


@pytest.mark.parametrize("arguments", [["--wheels"], ["--window", "x"], ["--memory", "4Mip"], ["--window"]])
def test_wrong_usage_ends_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_options_that_decide_defaults_are_found_in_either_form() -> None:
    arguments = ["a.tsv", "--out", "b.toml", "--schema", "c.toml", "--like=d", "--seed", "1"]
    found, others = find_options(arguments, "--schema", "--like")
    assert found == {"--schema": "c.toml", "--like": "d"}
    assert others == ["a.tsv", "--out", "b.toml", "--seed", "1"]
    assert find_options(["x", "--schema"], "--schema") == ({}, ["x", "--schema"])


def test_a_docstring_becomes_one_line_without_markup() -> None:
    assert field_docstrings(SpinConfig)["window"].count("\n") == 1
    assert as_sentences("Of `rank`,\n    ``C3=1``.") == "Of 'rank', C3=1."
    assert "wheel" in field_docstrings(Command) and "memory" in field_docstrings(Command)


def test_an_option_in_a_group_is_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Outer:
        """Two groups."""

        spin: SpinConfig = field(default_factory=SpinConfig)
        """Settings of the wheel."""

    with pytest.raises(SystemExit):
        parse_options(Outer, ["--window", "0"], command="spin", description="Spin.")
    assert capsys.readouterr().err.startswith("error: --window must be")
