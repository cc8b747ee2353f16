"""``hotset predict``, ``export`` and ``apply``: use a trained run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ...pipeline.errors import ConfigError
from ...train.config import ExportConfig, PredictConfig
from ..command_list import Command
from ..console import plain_table, print_json, progress_bars, say, stdout_console
from ..options import Arg, config_of
from .train import Run

if TYPE_CHECKING:
    from ...train.serving.changes import TableChanges


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
        from ...pipeline.folders.whole_file import check_target
        from ...train.serving.predict import RunPredictor, predict_file

        # A file that must not be overwritten is refused before the model is read.
        check_target(self.out, overwrite=self.overwrite)
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


@dataclass(frozen=True, kw_only=True)
class ExportCommand(Command, ExportConfig):
    """Write a run as files that serve it without hotset."""

    needs_torch = True

    run: Run
    """Folder that `train --out` created."""

    out: Path
    """New folder for the exported files."""

    since: Path | None = None
    """Run whose rows a server has: only what changed since is written, by category."""

    evaluate: Path | None = None
    """Folder that `preprocess --out` created: its evaluation part shows what --row-type costs."""

    vocabulary: Path | None = None
    """Folder that `preprocess --out` created, for a run that was trained on shards alone."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset export``."""
        if self.since is not None and self.onnx:
            raise ConfigError("changes have no graph: --onnx is for a whole export")
        # torch takes a second and more to import: not before the options are known to be right.
        from ...pipeline.folders.whole_file import check_target
        from ...train.serving.changes import export_changes
        from ...train.serving.export import export_run, score_packed_rows

        config = config_of(ExportConfig, self)
        report: dict[str, Any] = {"out": str(self.out)}
        check_target(self.out, overwrite=False)
        with progress_bars() as progress:
            # Pack, unpack and score the rows as exported, and compare the scores with those of the run. This
            # comes before anything is written, so that unsuitable shards leave no folder.
            if self.evaluate is not None:
                packed, trained = score_packed_rows(self.run, self.evaluate, self.row_type, progress=progress)
                report |= {"auc": packed.auc, "auc_fp32": trained.auc}
                report |= {"log_loss": packed.log_loss, "log_loss_fp32": trained.log_loss}
            if self.since is None:
                export_run(self.run, self.out, config, vocabulary=self.vocabulary, progress=progress)
            else:
                changes = export_changes(
                    self.run,
                    self.since,
                    self.out,
                    config,
                    vocabulary=self.vocabulary,
                    progress=progress,
                )
                report["changes"] = counts_of(changes)
        if self.json:
            print_json(report)
        else:
            _show(report, self.row_type)
            say(f"wrote {self.out}")
        return 0


def _show(report: dict[str, Any], row_type: str) -> None:
    if "changes" in report:
        show_changes(report["changes"])
    if "auc" in report:
        table = plain_table("", ("", row_type, "fp32", "difference"), texts=("",))
        for name, key in (("AUC", "auc"), ("log loss", "log_loss")):
            pair = (report[key], report[f"{key}_fp32"])
            shown = ["-" if value is None else f"{value:.6f}" for value in pair]
            difference = "-" if None in pair else f"{pair[0] - pair[1]:+.6f}"
            table.add_row(name, *shown, difference)
        stdout_console().print(table)


@dataclass(frozen=True, kw_only=True)
class ApplyCommand(Command):
    """Lead an exported folder to a later run."""

    needs_torch = True

    changes: Annotated[Path, Arg("CHANGES", is_positional=True)]
    """Folder that `export --since` created."""

    to: Path
    """Folder that `export` created of the run that the changes begin with."""

    out: Path
    """New folder, with the files of a whole export of the later run."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset apply``."""
        # torch takes a second and more to import: not before the options are known to be right.
        from ...pipeline.folders.whole_file import check_target
        from ...train.serving.changes import apply_changes

        # A folder that exists is refused before any other is hashed.
        check_target(self.out, overwrite=False)
        with progress_bars() as progress:
            changes = apply_changes(self.to, self.changes, self.out, progress=progress)
        if self.json:
            print_json({"out": str(self.out), "changes": counts_of(changes)})
        else:
            show_changes(counts_of(changes))
            say(f"wrote {self.out}")
        return 0


def counts_of(changes: Iterable[TableChanges]) -> dict[str, dict[str, int]]:
    """Return the counts of each table by its name."""
    counts = [asdict(each) for each in changes]
    return {each.pop("name"): each for each in counts}


def show_changes(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print what `counts_of` returned as a table."""
    table = plain_table("", ("table", "rows", "new", "changed", "gone"), texts=("table",))
    for name, of_table in counts.items():
        table.add_row(name, *(f"{count:,}" for count in of_table.values()))
    stdout_console().print(table)


COMMANDS: dict[str, type[Command]] = {
    "predict": PredictCommand,
    "export": ExportCommand,
    "apply": ApplyCommand,
}
