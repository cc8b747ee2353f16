"""``hotset predict``: the probability of a click for every line of a raw log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from ....train.options.predict_config import PredictConfig
from ...console import print_json, progress_bars, say
from ...options import command_options, config_of, parse_options
from ..train_commands import Run


@dataclass(frozen=True, kw_only=True)
class _Files:
    """Options of ``hotset predict``."""

    run: Run
    """Folder that `train --out` created."""

    log: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="LOG")]
    """Raw log in the format that the run was trained on; may be compressed."""

    out: Path
    """Parquet file to write: a column `probability`, one row for each line, in the order of the log."""

    no_label: bool = False
    """Read lines without a label, in a format without column names (Criteo, CSV without a header)."""

    vocabulary: Path | None = None
    """Folder that `preprocess --out` created, for a run that was trained on shards alone."""

    overwrite: bool = False
    """Replace the file if it exists."""

    json: bool = False
    """Print one JSON object on stdout."""


PredictCommand = command_options(PredictConfig, _Files)


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset predict``."""
    options = parse_options(
        PredictCommand,
        arguments,
        command=command,
        description="Predict the probability of a click for each line of LOG.",
    )
    # torch takes a second and more to import: not before the options are known to be right.
    from ....pipeline.formats.whole_file import refuse_target
    from ....train.scoring.predict_log import RunPredictor, predict_file

    # A file that must not be overwritten is refused before the model is read.
    refuse_target(options.out, overwrite=options.overwrite)
    with progress_bars() as progress:
        predictor = RunPredictor(
            options.run, config_of(PredictConfig, options), vocabulary=options.vocabulary
        )
        num_samples = predict_file(
            predictor,
            options.log,
            options.out,
            has_label=not options.no_label,
            overwrite=options.overwrite,
            progress=partial(progress, "predict"),
        )
    if options.json:
        print_json({"out": str(options.out), "num_samples": num_samples})
    else:
        say(f"wrote {num_samples:,} predictions to {options.out}")
    return 0
