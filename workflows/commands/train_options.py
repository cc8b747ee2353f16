"""The options of ``hotset train``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...train.checkpoints.checkpoint_settings import CheckpointSettings
from ...train.config import TrainConfig
from ...train.options.rank_options import RankOptions
from ..options import Dir, RecipeFile, parse_options
from ..recipe_file import with_recipe


@dataclass(frozen=True, kw_only=True)
class TrainCommand(RankOptions, CheckpointSettings, TrainConfig):
    """Options of ``hotset train``: those of its config, of its checkpoints and ranks, and the folders."""

    dir: Dir
    """Folder that `preprocess --out` created, or only its shards folder."""

    out: Path
    """New folder for the run: weights, summary and metrics. One that holds an unfinished run with the same
    settings is resumed."""

    recipe_file: RecipeFile = None
    """Recipe with options in its table [train]; options on the command line take precedence. `hotset
    recipe` prints one."""

    init_from: Path | None = None
    """Run whose weights and optimizer states this one starts with: a finished one, or the last checkpoint of
    another. Its ids must be those of DIR, or be mapped by --id-map."""

    id_map: Path | None = None
    """Folder id_map that `map-ids` or `--extend --map-ids` wrote, or the DIR that has it; needed where DIR
    has a newer vocabulary than the run of --init-from."""

    slow_dir: Path | None = None
    """Folder on the disk that takes rows beyond --slow-bytes while the run trains; by default --out."""

    tensorboard: Path | None = None
    """Folder for a file of losses and scores that TensorBoard reads (`tensorboard --logdir` shows it)."""

    json: bool = False
    """Print one JSON object on stdout."""

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        CheckpointSettings.__post_init__(self)
        RankOptions.__post_init__(self)


def parse_train(arguments: Sequence[str]) -> TrainCommand:
    """Parse the arguments of ``hotset train``, those of a recipe before them."""
    return parse_options(
        TrainCommand,
        with_recipe("train", arguments),
        command="train",
        description="Train a model on shards, and evaluate it at the end.",
    )
