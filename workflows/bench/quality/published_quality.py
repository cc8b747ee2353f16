"""``hotset bench quality --protocol NAME``: five seeds on a published split, beside its leaderboard.

The leaderboards of BARS print the best of a model's seeds. Beside them stand the mean and the deviation over
seeds here, and the best, which is what compares with their figures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError
from ....pipeline.folders.stage_totals import ShardsTotals
from ....pipeline.formats.md5_list import md5_faults
from ....pipeline.stages.preprocess import preprocess
from ....train.config import PlacementName, TrainConfig
from ....train.data.shards import Shards
from ....train.run import train
from ...machine_facts import commit, describe_machine
from ...recipes import recipe_for
from .both_labels import refuse_one_label

ProtocolName = Literal["criteo-x1", "criteo-x4", "avazu-x1", "avazu-x4"]
FILES = ("train.csv", "valid.csv", "test.csv")


@dataclass(frozen=True, slots=True)
class Protocol:
    """A published split and its leaderboard."""

    samples: tuple[int, int, int]
    """Samples for training, validation and test."""
    leaderboard: dict[str, float]
    """Best AUC over seeds of each model."""


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "criteo-x1": Protocol(
        (33_003_326, 8_250_124, 4_587_167),
        {"LR": 0.7886, "DeepFM": 0.8137, "DLRM": 0.8138, "DCNv2": 0.8142, "FinalMLP": 0.8149},
    ),
    "criteo-x4": Protocol(
        (36_672_493, 4_584_062, 4_584_062),
        {"LR": 0.7934, "DeepFM": 0.8143, "DCNv2": 0.8145, "FinalMLP": 0.8146},
    ),
    "avazu-x1": Protocol(
        (28_300_276, 4_042_897, 8_085_794),
        {"LR": 0.7516, "DLRM": 0.7639, "DeepFM": 0.7648, "DCNv2": 0.7656, "FinalMLP": 0.7666},
    ),
    "avazu-x4": Protocol(
        (32_343_172, 4_042_897, 4_042_898),
        {"LR": 0.7775, "DeepFM": 0.7930, "DCNv2": 0.7931, "FinalMLP": 0.7935},
    ),
}
"""Source: BARS (Zhu et al., CIKM 2021), docs/CTR/leaderboard of reczoo/BARS at 5b5e61f; splits of
reczoo/Datasets at 71dc577. The settings of criteo-x4 are those of Criteo_x4_001, of avazu-x4 Avazu_x4_001."""


def published_training(model: str = "dlrm") -> TrainConfig:
    """Return a training run by the recipe of the leaderboards.

    Adam at 0.001, a tenth of that where an epoch brings nothing, and an end after two such epochs; hidden
    layers of 400, normalized, a fifth of their outputs dropped, rows with a weight decay of 1e-5.

    Source: DLRM on Criteo_x1, reczoo/BARS at 5b5e61f.
    """
    config = TrainConfig(
        model=model,
        bottom_mlp=(400, 400) if model == "dlrm" else None,
        top_mlp=(400, 400, 400),
        dropout=0.2,
        batch_norm=True,
        epochs=20,
        embedding_optimizer="adam",
    )
    recipe = replace(config.recipe, lr_schedule="plateau", patience=2, embedding_decay=1e-5)
    return replace(config, recipe=recipe)


def published_quality(
    protocol: ProtocolName,
    data: Path,
    seeds: Sequence[int],
    placements: Sequence[PlacementName],
    models: Sequence[str],
    md5sums: Path | None,
) -> dict[str, Any]:
    """Train each model with every seed under every placement on the files of a published split.

    Args:
        protocol: name of the split.
        data: folder with `FILES`.
        seeds: of the models and of the order of batches.
        placements: to train under.
        models: as ``--model`` takes them; ``auto`` is a DLRM.
        md5sums: list of the files' checksums, which are then compared first.

    Raises:
        ConfigError: files are not those of the list, or the test part has labels of one kind.
    """
    raw = [data / name for name in FILES]
    if md5sums is not None and (faults := md5_faults(raw, md5sums)):
        raise ConfigError(faults[0])
    recipe = recipe_for(protocol)
    # Hot rows are counted with the state that this training keeps for them.
    recipe = replace(recipe, split=replace(recipe.split, embedding_optimizer="adam"))
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shards = preprocess(raw, recipe, Path(folder) / "data")
        refuse_one_label(Shards.open(shards.folder))
        totals = ShardsTotals.of(shards)
        samples = totals.samples
        # An evaluation at the end of each epoch.
        num_batches = totals.batches.hot_only + totals.batches.mixed
        for model in models:
            for placement in placements:
                config = published_training("dlrm" if model == "auto" else model)
                config = replace(config, placement=placement, evaluate_every=num_batches)
                found = runs.setdefault(f"{config.model}, {placement}", [])
                for seed in seeds:
                    out = Path(folder) / f"{len(runs)}-{seed}"
                    found.append(train(shards.folder, replace(config, seed=seed), out).to_dict())
    # The validation part is counted among the evaluation samples; what is left of them is the test part.
    num_valid = totals.num_valid_samples
    counts = (samples.hot_only + samples.mixed, num_valid, samples.evaluation - num_valid)
    result: dict[str, Any] = {
        "protocol": protocol,
        "is_published_split": counts == PROTOCOLS[protocol].samples,
        "samples": dict(zip(("training", "validation", "test"), counts, strict=True)),
        "seeds": list(seeds),
        "leaderboard": PROTOCOLS[protocol].leaderboard,
    }
    for score in ("auc", "log_loss"):
        result[score] = {name: [run[score] for run in found] for name, found in runs.items()}
        result[f"mean_{score}"] = {name: fmean(values) for name, values in result[score].items()}
    result["deviation_auc"] = {
        name: stdev(values) if len(values) > 1 else 0.0 for name, values in result["auc"].items()
    }
    settings = {
        "preprocess": asdict(recipe),
        "train": {
            model: asdict(published_training(model)) for model in {name.split(",")[0] for name in runs}
        },
    }
    return result | settings | {"machine": describe_machine(), "commit": commit()}


def show_published(result: dict[str, Any], console: Console) -> None:
    """Print the AUC of each model here, and below them the leaderboard's."""
    table = Table(box=None, pad_edge=False)
    for name in (f"AUC on {result['protocol']}", "mean", "deviation", "best"):
        table.add_column(name, justify="left" if name.startswith("AUC") else "right")
    for name, values in result["auc"].items():
        mean, deviation = result["mean_auc"][name], result["deviation_auc"][name]
        table.add_row(name, f"{mean:.5f}", f"{deviation:.5f}", f"{max(values):.5f}", style="bold")
    for name, best in result["leaderboard"].items():
        table.add_row(f"{name}, BARS", "", "", f"{best:.4f}")
    console.print(table)
    if not result["is_published_split"]:
        found = ", ".join(f"{count:,} {part}" for part, count in result["samples"].items())
        console.print(f"These are not the published files ({found} samples), so BARS is no comparison.")
