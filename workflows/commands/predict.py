"""``hotset predict``: click probabilities for the lines of a raw log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from ...train.serving.predict_config import PredictConfig
from ..command_list import Command
from ..console import print_json, progress_bars, say
from ..options import Arg, config_of
from .train import Run


@dataclass(frozen=True, kw_only=True)
class PredictCommand(Command, PredictConfig):
    """Predict the probability of a click for each line of LOG."""

    needs_torch = True

    run: Run
    """Folder that `train --out` created."""

    log: Annotated[Path, Arg("LOG", is_positional=True)]
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

    def execute(self) -> int:
        """Run ``hotset predict``."""
        # torch takes a second and more to import: not before the options are known to be right.
        from ...pipeline.folders.whole_file import refuse_target
        from ...train.serving.predict import RunPredictor, predict_file

        # A file that must not be overwritten is refused before the model is read.
        refuse_target(self.out, overwrite=self.overwrite)
        with progress_bars() as progress:
            predictor = RunPredictor(self.run, config_of(PredictConfig, self), vocabulary=self.vocabulary)
            num_samples = predict_file(
                predictor,
                self.log,
                self.out,
                has_label=not self.no_label,
                overwrite=self.overwrite,
                progress=partial(progress, "predict"),
            )
        if self.json:
            print_json({"out": str(self.out), "num_samples": num_samples})
        else:
            say(f"wrote {num_samples:,} predictions to {self.out}")
        return 0


COMMANDS: dict[str, type[Command]] = {"predict": PredictCommand}
