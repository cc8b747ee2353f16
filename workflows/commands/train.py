"""``hotset train``, ``evaluate``, ``predict``, ``export`` and ``apply``: train a model and use it."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from ...pipeline.errors import ByteSize, ConfigError, format_byte_size, local_path
from ...pipeline.folders.disk import check_target
from ...pipeline.folders.manifest import shards_in
from ...train.config import ExportConfig, PredictConfig, TrainConfig, read_config
from ...train.config_parts import CheckpointSettings, ExchangeOptions, is_first, is_launched, require_share
from ..command_list import JsonCommand, config_of
from ..console import (
    TextTable,
    load_torch,
    print_json,
    print_table,
    progress_bars,
    say,
    say_error,
    say_next,
    set_verbosity,
    stdout_console,
)
from ..option_texts import with_recipe
from ..options import NO_OPTION, REPEATED, Arg, Dir, RecipeFile

if TYPE_CHECKING:
    from ...train.serving.changes import TableChanges

_START_INTERRUPTED = "the steps up to the last checkpoint of --out are kept, where it has one"
_FELL_MUCH = 0.9
"""A training loss below this share of the first epoch's is one of samples that the model knows."""
_MOVES_COLD_ROWS = ("fae", "cache", "lookahead")
"""Placements that move cold rows alone; the others move every one that is looked up."""
_MOVES_NOTHING = ("all-fast", "torchrec")
"""The placement and the engine without tiers."""
Run = Annotated[Path, Arg("RUN", is_positional=True)]
"""The folder of a trained run."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand(JsonCommand, ExchangeOptions, CheckpointSettings, TrainConfig):
    """Train a model on shards, and evaluate it at the end."""

    json_object = "the summary of the run"
    needs_torch = True
    main_options = {  # noqa: RUF012
        "data and time": ("epochs", "max_steps", "max_time", "seed", "recipe_file"),
        "embedding rows": ("placement", "hot_bytes", "staging_bytes", "slow_bytes"),
        "model": ("model", "dense_dtype"),
        "optimizers": ("embedding_optimizer", "embedding_lr", "dense_optimizer", "dense_lr"),
        "evaluation and checkpoints": ("evaluate_every", "checkpoint_every", "keep_best", "init_from"),
        "machine and output": ("device", "threads", "tensorboard", "json"),
    }

    dir: Dir
    """Folder that `preprocess --out` created, or only its shards folder."""

    out: Path
    """New folder for the run: weights, summary, metrics. One that holds an unfinished run with the same
    settings is resumed."""

    recipe_file: RecipeFile = None
    """Recipe with options in its table [train]; options on the command line take precedence. `hotset
    recipe` prints one."""

    init_from: Path | None = None
    """Run whose weights and optimizer states this one starts with: a finished one, or the last checkpoint of
    another. Its ids must be those of DIR, or be mapped by DIR/id_map."""

    init_table: tuple[str, ...] = field(default=(), metadata={REPEATED: "NAME=FILE"})
    """Table and file of vectors that its rows start with: Parquet with a column category and a column of
    lists of floats or one for each dimension, or .npz of NumPy with categories and vectors. Rows of other
    categories start as without it. Give the option once for each table."""

    slow_dir: Path | None = None
    """Folder on the disk that takes rows beyond --slow-bytes while the run trains; by default --out."""

    speeds: Path | None = None
    """With --engine torchrec: file of the speeds of a network, as for `advise`, by which the rows to
    replicate are chosen; by default those that exchange the fewest bytes."""

    verify: bool = False
    """Hash all shards before the first step; by default those of 4 GiB or more are verified when read."""

    tensorboard: Path | None = None
    """Folder for a file of losses and scores that TensorBoard reads (`tensorboard --logdir` shows it)."""

    typed: tuple[str, ...] = field(default=(), metadata={NO_OPTION: True})
    """The arguments as they were typed, which the run records."""

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        CheckpointSettings.__post_init__(self)
        ExchangeOptions.__post_init__(self)
        self._given_tables()  # refuses what is not NAME=FILE

    def _given_tables(self) -> dict[str, Path]:
        """Return the file of each table that has one."""
        found: dict[str, Path] = {}
        for each in self.init_table:
            name, equals, path = each.partition("=")
            if not (name and equals and path):
                raise ConfigError(f"init_table must be NAME=FILE, got {each!r}")
            if name in found:
                raise ConfigError(f"init_table names {name!r} twice")
            found[name] = local_path(path)
        return found

    @classmethod
    def resolve(cls, arguments: Sequence[str]) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Insert those of a recipe before the others."""
        return with_recipe("train", arguments), {"typed": tuple(arguments)}

    @classmethod
    def after_interrupt(
        cls, arguments: Sequence[str], error: KeyboardInterrupt
    ) -> tuple[str, str | None] | None:
        """Return which steps are kept and how to resume; None on ranks but the first."""
        # Imported here: most commands import nothing of checkpoints.
        from ...train.checkpoints.resume import Interrupted

        if not is_first():
            return None
        # Steps are saved where they were under way; a run that was starting has none.
        left = error.left if isinstance(error, Interrupted) else _START_INTERRUPTED
        if is_launched():
            return left, "the same command of the launcher resumes the run, with any number of ranks"
        return left, f"`hotset train {shlex.join(arguments)}` resumes the run"

    def execute(self) -> int:
        """Run ``hotset train``."""
        # torch takes a second and more to import: not before options and folders are known to be right. Of
        # several ranks one has to refuse for all, which it does later.
        if not is_launched():
            shards_in(self.dir)
            if self.init_from is not None:
                read_config(self.init_from, must_be_finished=False)
        from ..compile_ahead import compiling_ahead
        from ..machine import describe_machine

        # Rank 0 speaks for all; what the others have to say is why they stop.
        if not is_first():
            set_verbosity(quiet=True)
            logging.getLogger("hotset").setLevel(logging.ERROR)
        # The machine is described before training, so that the description takes none of its time.
        machine = describe_machine()
        config = config_of(TrainConfig, self)
        with progress_bars() as progress:
            with compiling_ahead(self._kinds_of_kernels()) as ahead:
                load_torch(progress)
                ahead.wait(progress)
            # torch takes a second and more to import: not before the options are known to be right.
            from ...train.run import RunOptions, train

            options = RunOptions(
                slow_dir=self.slow_dir,
                checkpoints=config_of(CheckpointSettings, self),
                init_from=self.init_from,
                init_tables=self._given_tables(),
                tensorboard=self.tensorboard,
                verify=self.verify,
                exchange=config_of(ExchangeOptions, self),
                speeds=self.speeds,
                provenance={
                    "command": shlex.join(["hotset", "train", *self.typed]),
                    "commit": machine["commit"],
                    "machine": machine,
                },
                progress=progress,
            )
            summary = train(self.dir, config, self.out, options).to_dict()
        if not is_first():
            return 0
        try:
            self._show(config, summary)
        except KeyboardInterrupt:
            say_error(f"the run is finished: {self.out}", kind="interrupted")
            return 130
        return 0

    def _kinds_of_kernels(self) -> list[str]:
        """Return the kinds of kernels that this run calls; none for ranks, which would all compile them."""
        from ..compile_ahead import kinds_of_training

        return [] if is_launched() else kinds_of_training(self.placement, self.device)

    def _show(self, config: TrainConfig, summary: dict[str, Any]) -> None:
        """Print the summary of a run: an object for a program, or tables and notes."""
        if self.json:
            print_json(summary)
            return
        show_quality(summary, stdout_console())
        show_runs([summary], stdout_console())
        if summary["stopped"] is not None:
            say(f"stopped at step {summary['num_steps']:,}: {summary['stopped']}")
        if config.recipe.keeps_best and summary["best_step"] is not None:
            say(f"kept the weights of step {summary['best_step']:,}, the best of the validation part")
        doubt = self._explain_epochs(summary) or explain_entropy(summary)
        if doubt:
            say(doubt)
        say(f"wrote {self.out}")
        say_next(f"predict {shlex.quote(str(self.out))} LOG --out scores.parquet")

    def _explain_epochs(self, summary: Mapping[str, Any]) -> str | None:
        """Return a sentence where further epochs made predictions worse; None elsewhere."""
        from ...train.config import METRICS

        if self.epochs == 1 or self.recipe.keeps_best:
            return None
        entries = [json.loads(line) for line in (self.out / METRICS).read_text().splitlines()]
        scores = [(each["validation"]["log_loss"], each["step"]) for each in entries if "validation" in each]
        if len(scores) < 2:
            return _explain_training_loss(entries, summary, self.epochs)
        (least, step), (last, _) = min(scores), scores[-1]
        # A rise that the scores do not show is none.
        if f"{last:.4f}" == f"{least:.4f}":
            return None
        return (
            f"the log loss of the validation part rose from {least:.4f} at step {step:,} to {last:.4f}: "
            "train for fewer epochs, or give --keep-best"
        )


def _explain_training_loss(
    entries: Iterable[Mapping[str, Any]], summary: Mapping[str, Any], num_epochs: int
) -> str | None:
    """Return a sentence where a run without evaluations learned its samples by heart; None elsewhere.

    The losses of the first epoch are of samples that the model had not seen, as those of the test part are.
    """
    losses = [(each["samples"], each["loss"]) for each in entries if "loss" in each]
    # The second half of the first epoch: before, the model had learned little.
    epoch = summary["num_training_samples"] / num_epochs
    unseen = [loss for samples, loss in losses if epoch / 2 < samples <= epoch]
    if not unseen or summary["log_loss"] is None or summary["stopped"] is not None:
        return None
    first, last = sum(unseen) / len(unseen), losses[-1][1]
    if last > _FELL_MUCH * first or summary["log_loss"] <= first:
        return None
    return (
        f"the training loss fell from {first:.4f} in the first epoch to {last:.4f}, and the log loss of the "
        f"test part is {summary['log_loss']:.4f}: train for one epoch, or give a validation part and "
        "--keep-best"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(JsonCommand):
    """Evaluate a run on the evaluation part of DIR."""

    json_object = "the scores"
    needs_torch = True

    run: Run
    """Folder that `train --out` created."""

    dir: Dir
    """Folder that `preprocess --out` created, or only its shards folder."""

    device: str = "cpu"
    """Device of the model and its rows: cpu or cuda. Scores may differ in their last digits."""

    slow_bytes: ByteSize | None = None
    """Memory for embedding rows; if not all fit, those of some batches at a time are read from the run's
    weights. By default as much as there is."""

    negative_rate: float | None = None
    """Share of the samples without a click that the log of DIR kept, such as 0.1, where each of them counts
    ten times; 1 for a log that kept all. By default that of the log of the training."""

    def __post_init__(self) -> None:
        require_share("negative_rate", self.negative_rate)

    def execute(self) -> int:
        """Run ``hotset evaluate``."""
        # torch takes a second and more to import: not before the folders are known to be there.
        read_config(self.run)
        shards_in(self.dir)
        with progress_bars() as progress:
            load_torch(progress)
            from ...train.evaluate import evaluate

            result = evaluate(
                self.run,
                self.dir,
                device=self.device,
                slow_bytes=self.slow_bytes,
                negative_rate=self.negative_rate,
                progress=lambda done, total: progress("evaluate", done, total),
            ).to_dict()
        if self.json:
            print_json(result)
        else:
            show_quality(result, stdout_console())
            doubt = explain_entropy(result)
            if doubt:
                say(doubt)
        return 0


def explain_entropy(scores: Mapping[str, Any]) -> str | None:
    """Return a sentence where a model predicts worse than the click rate would; None elsewhere."""
    found = scores["normalized_entropy"]
    if found is None or found <= 1:
        return None
    return (
        f"the normalized entropy is {found:.4g}, above 1: the click rate alone would predict better; lower "
        "learning rates or fewer epochs may help"
    )


def show_quality(scores: dict[str, Any], console: Console) -> None:
    """Print the scores of a run, a column for all samples and one for each group of them."""
    # The groups are of the first label.
    groups = scores.get("labels") or {"all samples": scores}
    groups |= {name: scores[key] for name, key in _GROUPS.items()}
    # Without a validation part its column would be empty.
    if scores["validation"] is None:
        del groups["validation"]
    names = ["calibration"] if "mean_squared_error" in scores else [*_METRICS]
    names += [name for name in _OF_SOME if any(_key_of(name) in group for group in groups.values())]
    _print_columns(console, groups, [_scores(group, names) for group in groups.values()])


def show_runs(summaries: list[dict[str, Any]], console: Console) -> None:
    """Print runs as a table, one column each."""
    is_ranked = any(summary.get("exchange") for summary in summaries)
    # Rows of spilling are shown where at least one run has spilled.
    has_spilled = any(summary["transfers"]["file_bytes_written"] for summary in summaries)
    # Where no run could move a row, there is nothing to read from rows of zeros.
    can_move = any(map(_can_move, summaries))
    columns = [
        _costs(each, can_move=can_move, has_spilled=has_spilled, is_ranked=is_ranked) for each in summaries
    ]
    _print_columns(console, [summary["placement"] for summary in summaries], columns)


def _print_columns(console: Console, titles: Iterable[str], columns: Sequence[Mapping[str, str]]) -> None:
    """Print a table of columns that each have the text of every row by its name."""
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    print_table(console, TextTable(["", *titles], rows))


_GROUPS = {"hot": "hot", "mixed": "mixed", "with oov": "oov", "validation": "validation"}
"""Columns of the scores, and the samples in them: groups of the test part, and the validation part."""
_METRICS = ("AUC", "PR-AUC", "log loss", "normalized entropy", "calibration", "accuracy")
_OF_SOME = ("mean squared error", "GAUC", "num groups", "total weight")
"""Metrics of few runs; the table has those that one of its columns has."""
_DIGITS = {"num groups": 0, "total weight": 1}
"""Decimals of figures, where they are not 4."""


def _scores(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Return the text of each metric of a group of samples, and their number."""
    values = {name: found.get(_key_of(name)) for name in names}
    shown = {
        name: "-" if value is None else f"{value:,.{_DIGITS.get(name, 4)}f}" for name, value in values.items()
    }
    return shown | {"samples": f"{found['num_samples']:,}"}


def _key_of(metric: str) -> str:
    return metric.lower().replace("-", "_").replace(" ", "_")


def _can_move(summary: Mapping[str, Any]) -> bool:
    """Return whether a row could move between the tiers in a run."""
    has_cold_rows = summary["num_hot_rows"] < summary["num_rows"]
    return summary["placement"] not in _MOVES_NOTHING and (
        has_cold_rows or summary["placement"] not in _MOVES_COLD_ROWS
    )


def _costs(
    summary: Mapping[str, Any], *, can_move: bool, has_spilled: bool, is_ranked: bool
) -> dict[str, str]:
    """Return the text of each figure of the speed and the transfers of a run."""
    transfers = summary["transfers"]
    is_staged = summary["placement"] in ("lookahead", "cache")
    num_made = sum(table["made"] for table in summary["rows_by_table"].values())
    own = (
        {}
        if not can_move
        else {
            "bytes to the fast tier": format_byte_size(summary["bytes_to_fast"]),
            "bytes to the slow tier": format_byte_size(summary["bytes_to_slow"]),
            "rows initialized on first use": f"{num_made:,}",
            "batches that transfers run ahead": f"{transfers['prefetch']:,}" if is_staged else "-",
            "transfers that ran less far ahead": f"{transfers['shortened']:,}" if is_staged else "-",
            "batches that waited for rows": f"{transfers['stalls']:,}",
        }
    )
    if has_spilled:
        own["bytes written to the spill file"] = format_byte_size(transfers["file_bytes_written"])
        own["bytes read from it"] = format_byte_size(transfers["file_bytes_read"])
    shown = {"samples/s": f"{summary['samples_per_second']:,.0f}"}
    if not is_ranked:
        return shown | own
    # Rank 0 prints; what it moves and waits for is its own, scores and samples are those of all ranks.
    shown |= {f"{name} (rank 0)": text for name, text in own.items()}
    return shown | {"bytes sent by all ranks": _sent_bytes(summary)}


def _sent_bytes(summary: Mapping[str, Any]) -> str:
    """Return the bytes that crossed between ranks in training steps; - for a run of one process."""
    exchange = summary.get("exchange")
    if not exchange:
        return "-"
    return format_byte_size(sum(sum(sent.values()) for sent in exchange["bytes_by_rank"]))


@dataclass(frozen=True, kw_only=True)
class PredictCommand(JsonCommand, PredictConfig):
    """Predict the probability of a click for each line of LOG."""

    json_object = "the number of predictions"
    needs_torch = True

    run: Run
    """Folder that `train --out` created."""

    log: Annotated[Path, Arg("LOG", is_positional=True)]
    """Raw log with the columns that the run was trained on, in any format that is read, or its folder."""

    out: Path
    """Parquet file to write: a column `probability`, or `probability_LABEL` for each of several labels, and
    one row for each line, in the order of the log."""

    no_label: bool = False
    """Read lines without a label, in a format without column names (Criteo, CSV without a header)."""

    vocabulary: Path | None = None
    """Folder that `preprocess --out` created, for a run that was trained on shards alone."""

    keep: Annotated[str, Arg("COLUMNS")] = ""
    """Columns of the log to copy to the file, such as request_id,label: commas between the names."""

    overwrite: bool = False
    """Replace the file if it exists."""

    def execute(self) -> int:
        """Run ``hotset predict``."""
        # torch takes a second and more to import, and kernels too: not before paths are known to be right.
        check_target(self.out, overwrite=self.overwrite)
        read_config(self.run)
        from ...pipeline.raw.log_files import inspect_logs

        inspect_logs([self.log])

        with progress_bars() as progress:
            load_torch(progress)
            from ...train.serving.predict import RunPredictor, predict_file

            predictor = RunPredictor(self.run, config_of(PredictConfig, self), vocabulary=self.vocabulary)
            num_samples = predict_file(
                predictor,
                self.log,
                self.out,
                has_label=not self.no_label,
                keep=self.keep.split(",") if self.keep else (),
                overwrite=self.overwrite,
                progress=partial(progress, "predict"),
            )
        if self.json:
            print_json({"out": str(self.out), "num_samples": num_samples})
        else:
            say(f"wrote {num_samples:,} predictions to {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class ExportCommand(JsonCommand, ExportConfig):
    """Write a run as files that serve it without hotset."""

    json_object = "the scores of --evaluate, or what changed,"
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

    def execute(self) -> int:
        """Run ``hotset export``."""
        if self.since is not None and self.onnx:
            raise ConfigError("changes have no graph: --onnx is for a whole export")
        # torch takes a second and more to import: not before options and paths are known to be right.
        check_target(self.out, overwrite=False)
        for run in (self.run, self.since):
            if run is not None:
                read_config(run)
        if self.evaluate is not None:
            shards_in(self.evaluate)
        from ...train.serving.changes import export_changes
        from ...train.serving.export import export_run, score_packed_rows

        config = config_of(ExportConfig, self)
        report: dict[str, Any] = {"out": str(self.out)}
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
            _show_costs(report, self.row_type)
            say(f"wrote {self.out}")
        return 0


def _show_costs(report: dict[str, Any], row_type: str) -> None:
    if "changes" in report:
        show_changes(report["changes"])
    if "auc" in report:
        rows = []
        for name, key in (("AUC", "auc"), ("log loss", "log_loss")):
            pair = (report[key], report[f"{key}_fp32"])
            shown = ["-" if value is None else f"{value:.6f}" for value in pair]
            difference = "-" if None in pair else f"{pair[0] - pair[1]:+.6f}"
            rows.append([name, *shown, difference])
        print_table(stdout_console(), TextTable(["", row_type, "fp32", "difference"], rows))


@dataclass(frozen=True, kw_only=True)
class ApplyCommand(JsonCommand):
    """Update an exported folder with the changes of a later run."""

    json_object = "what changed"
    needs_torch = True

    changes: Annotated[Path, Arg("CHANGES", is_positional=True)]
    """Folder that `export --since` created."""

    to: Path
    """Folder that `export` created of the run that the changes begin with."""

    out: Path
    """New folder, with the files of a whole export of the later run."""

    def execute(self) -> int:
        """Run ``hotset apply``."""
        # torch takes a second and more to import: not before a folder that exists is refused.
        check_target(self.out, overwrite=False)
        from ...train.serving.changes import apply_changes

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
    rows = [[name, *(f"{count:,}" for count in of_table.values())] for name, of_table in counts.items()]
    print_table(stdout_console(), TextTable(["table", "rows", "new", "changed", "gone"], rows))
