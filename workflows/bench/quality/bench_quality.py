"""``hotset bench quality``: the AUC that training reaches on a small real sample, over seeds, placements and
models.

A placement is judged by its difference from the all-fast run with the same seed, the recipe by the mean over
seeds, a codec between ranks, or copies of rows that are synchronised every few steps, by the difference from
an exact exchange.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError
from ....pipeline.folders.stage_totals import ShardsTotals
from ....pipeline.stages.preprocess import preprocess
from ....train.config import PlacementName
from ....train.data.shards import Shards
from ....train.options.exchange_options import AUTO, ExchangeOptions
from ....train.options.model_config import refuse_unknown_model
from ....train.run import train
from ...machine_facts import commit, describe_machine
from ...recipes import small_real_sample, small_real_sample_training
from .both_labels import refuse_one_label
from .coded_quality import coded_quality, is_coded, show_coded
from .published_quality import ProtocolName, published_quality, show_published


@dataclass(frozen=True, kw_only=True)
class BenchQualityConfig:
    """Settings of the quality benchmark: the log, the seeds and the placements."""

    data: Path
    """A small raw Criteo log; with --protocol the folder of train.csv, valid.csv and test.csv."""

    protocol: ProtocolName | None = None
    """A published split, trained as its leaderboard does: criteo-x1, criteo-x4, avazu-x1 or avazu-x4."""

    md5sums: Path | None = None
    """With --protocol: list of the checksums of the three files, as md5sum prints it."""

    seeds: tuple[int, ...] | None = None
    """Seeds of the models and the batch order; each trains every placement once. By default three, with
    --protocol, --exchange or --sync-rows five."""

    placements: tuple[PlacementName, ...] | None = None
    """Placements to train with each seed. By default all-fast and fae, with --protocol lookahead."""

    models: tuple[str, ...] = ("auto",)
    """Models to train with each seed and placement, each with its recipe for small samples."""

    exchange: tuple[str, ...] = ()
    """Codecs of rows that two ranks exchange, as `train --exchange` takes them; each seed trains with none
    and with every one of them, on all-fast alone."""

    sync_rows: tuple[int, ...] = ()
    """Numbers of rows of which each of two ranks holds a copy, as `train --sync-rows` takes them; each seed
    trains with none and with every one of them, on all-fast alone."""

    sync_every: tuple[int, ...] = ()
    """Numbers of steps from one synchronisation of these copies to the next, each with every number of
    rows."""

    order: Literal["grouped", "original"] = "grouped"
    """Order of the shards: hot-only and mixed batches, or all samples shuffled together."""

    dense_dtype: Literal["fp32", "bf16", "auto"] = "fp32"
    """Number type of the products of the dense layers."""

    def __post_init__(self) -> None:
        if self.seeds == () or self.placements == () or not self.models:
            raise ConfigError("name at least one seed, one placement and one model")
        for model in self.models:
            refuse_unknown_model(model)
        if self.md5sums is not None and self.protocol is None:
            raise ConfigError("md5sums are of the files of a published split: give --protocol too")
        self._check_exchange()

    def _check_exchange(self) -> None:
        if bool(self.sync_rows) != bool(self.sync_every):
            raise ConfigError("sync_rows and sync_every belong together: give both")
        for name, options in self.exchanges.items():
            if options.exchange == AUTO:
                raise ConfigError(f"exchange {name} depends on the link: name the codecs")
        if self.exchanges and (self.protocol is not None or self.placements or len(self.models) > 1):
            option = "exchange" if self.exchange else "sync_rows"
            raise ConfigError(f"{option} is measured with one model, without --placements and --protocol")

    @property
    def exchanges(self) -> dict[str, ExchangeOptions]:
        """The exchanges between two ranks that are compared, by the names that a result has for them."""
        named = {name: ExchangeOptions(exchange=name) for name in self.exchange}
        return named | {
            f"{rows} rows every {every} steps": ExchangeOptions(sync_rows=rows, sync_every=every)
            for rows in self.sync_rows
            for every in self.sync_every
        }


def bench_quality(config: BenchQualityConfig) -> dict[str, Any]:
    """Preprocess the log once with the recipe for small samples, and train every placement with every seed;
    with a protocol, by `published_quality`; with codecs or copies of rows, by `coded_quality`.

    Returns:
        ``auc`` and ``log_loss`` by placement, or by model and placement where there are several models, one
        per seed; their means; the recipe and the machine.

    Raises:
        ConfigError: the test part has labels of one kind.
    """
    seeds = config.seeds or ((0, 1, 2) if config.protocol is None else (0, 1, 2, 3, 4))
    if config.protocol is not None:
        placements = config.placements or ("lookahead",)
        return published_quality(
            config.protocol, config.data, seeds, placements, config.models, config.md5sums
        )
    recipe = small_real_sample()
    recipe = replace(recipe, pack=replace(recipe.pack, order=config.order))
    if config.exchanges:
        chosen = config.seeds or (0, 1, 2, 3, 4)
        return coded_quality(config.data, recipe, chosen, config.exchanges, config.models[0])
    placements = config.placements or ("all-fast", "fae")
    trainings = {
        model: replace(small_real_sample_training(model), dense_dtype=config.dense_dtype)
        for model in config.models
    }
    # With one model, results have the keys they always had; with several, each key names the model too.
    has_models = len(trainings) > 1
    jobs = {
        f"{model}, {placement}" if has_models else placement: replace(training, placement=placement)
        for model, training in trainings.items()
        for placement in placements
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        # The shards do not depend on the seed, the placement or the model.
        shards = preprocess([config.data], recipe, data)
        refuse_one_label(Shards.open(data))
        for seed in seeds:
            for number, (name, job) in enumerate(jobs.items()):
                out = Path(folder) / f"{number}-{seed}"
                runs[name].append(train(data, replace(job, seed=seed), out).to_dict())
    result: dict[str, Any] = {
        "data": config.data.name,
        "samples": ShardsTotals.of(shards).samples.to_json(),
        "seeds": list(seeds),
    }
    # Every seed's score is kept, so that a reader can see their spread.
    for score in ("auc", "log_loss"):
        result[score] = {name: [run[score] for run in runs[name]] for name in jobs}
        result[f"mean_{score}"] = {name: fmean(result[score][name]) for name in jobs}
    written = {model: asdict(training) for model, training in trainings.items()}
    train_settings = written if has_models else written[config.models[0]]
    settings = {"preprocess": asdict(recipe), "train": train_settings}
    return result | settings | {"machine": describe_machine(), "commit": commit()}


def show_quality(result: dict[str, Any], console: Console) -> None:
    """Print a table of AUC, one row per seed; of a published split, its leaderboard too."""
    if "protocol" in result:
        show_published(result, console)
        return
    if is_coded(result):
        show_coded(result, console)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("AUC, seed")
    for name in result["auc"]:
        table.add_column(name, justify="right")
    for row, seed in enumerate(result["seeds"]):
        table.add_row(str(seed), *(f"{scores[row]:.4f}" for scores in result["auc"].values()))
    table.add_row("mean", *(f"{mean:.4f}" for mean in result["mean_auc"].values()), style="bold")
    console.print(table)


CONFIG = BenchQualityConfig
measure = bench_quality
show = show_quality
