"""``hotset characterise``: measure this machine for predictions of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....pipeline.errors import ConfigError
from ....pipeline.formats.whole_file import refuse_target, whole_file
from ...characterise.characterise_config import CharacteriseConfig
from ...console import print_json, say, stdout_console
from ...options import command_options, config_of, parse_options


@dataclass(frozen=True, kw_only=True)
class CharacteriseOptions:
    """Options of ``hotset characterise`` beside what it measures."""

    out: Path
    """File for the machine, such as machine.json. Its cells go beside it, to a file of lines."""

    fit: Path | None = None
    """Machine file whose cells are fitted again; measures nothing."""

    html: Path | None = None
    """File for a page with the findings: elasticities, longest parts, published observations."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset characterise``."""
    options = parse_options(
        command_options(CharacteriseConfig, CharacteriseOptions),
        arguments,
        command=command,
        description="Measure this machine for predictions of training.",
    )
    # torch takes a second and more to import: not before the options are known to be right.
    from ...characterise.characterise import characterise
    from ...characterise.findings.findings_page import findings_page
    from ...characterise.findings.findings_record import findings_record
    from ...characterise.fit_machine import fit_again
    from ...characterise.show_machine import show_machine

    # Faults that a user can mend are told before minutes of work.
    if options.html is not None:
        refuse_target(options.html, overwrite=False, option="--html")
    config = config_of(CharacteriseConfig, options)
    if options.fit is None:
        result = characterise(config, options.out, say)
    else:
        _refuse_to_measure(config)
        result = fit_again(options.fit, options.out)
    say(f"wrote {options.out}")
    if options.html is not None:
        with whole_file(options.html, option="--html") as file:
            file.write(findings_page(result).encode())
        say(f"wrote {options.html}")
    if options.json:
        print_json(findings_record(result))
    else:
        show_machine(result, stdout_console())
    return 0


def _refuse_to_measure(config: CharacteriseConfig) -> None:
    """Raise ConfigError where something is asked for of a measurement that will not be made."""
    if config != CharacteriseConfig():
        raise ConfigError(
            "--fit measures nothing, so there is no time, device, rank or thread to choose",
            hint="give --fit with --out, --html and --json alone",
        )
