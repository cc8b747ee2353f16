"""``hotset recipe``: print the options of a recipe, folder or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.preprocess import PreprocessConfig
from ...pipeline.stages.count import CountConfig
from ...pipeline.stages.ingest import IngestConfig
from ...pipeline.stages.pack import PackConfig
from ...pipeline.stages.rank import RankConfig
from ...pipeline.stages.split import SplitConfig
from ...train.config import TrainConfig
from ...train.run_config import read_settings
from ..command_list import Command
from ..console import print_json
from ..options import Arg, config_of
from ..recipe_file import TABLES, arguments_of, read_recipe, write_recipe
from ..recipes import setting_in
from .preprocess import PreprocessCommand
from .train import TrainCommand

_CONFIG = "config.json"
_STAND_IN = "x"
"""The value of arguments that are no part of a recipe, such as the folder."""


@dataclass(frozen=True, kw_only=True)
class RecipeCommand(Command):
    """Print all options in force as a recipe file."""

    sources: Annotated[tuple[Path, ...], Arg("SOURCE", is_positional=True)] = ()
    """Recipe files, folders of preprocess and runs of train, whose options are printed; an option that none
    of them sets has its default."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset recipe``."""
        # Later sources win, as options that are typed later do.
        found: dict[str, Any] = {}
        for source in self.sources:
            found |= _configs_of(source)
        # An experiment is both tables; with sources, those that they have.
        wanted = [name for name in TABLES if name in found or not found]
        configs = {name: found.get(name) or _config_from(name, []) for name in wanted}
        if self.json:
            print_json({name: asdict(config) for name, config in configs.items()})
        else:
            print(write_recipe(configs), end="")
        return 0


def _configs_of(source: Path) -> dict[str, Any]:
    """Return the configs that a source has, by table."""
    # A run, a preprocessed folder or a file: each is known by what it must hold.
    if (source / _CONFIG).exists():
        return {"train": read_settings(source / _CONFIG)}
    if (source / "shards" / MANIFEST).exists():
        return {"preprocess": _config_of_folder(source)}
    if source.is_dir():
        raise ConfigError(
            f"{source} is neither a folder of preprocess nor a run of train",
            hint="give a recipe file, the DIR of preprocess --out, or the RUN of train --out",
        )
    # A recipe's own text goes through the options of its command, so that it is checked as if typed.
    read = read_recipe(source)
    found = {}
    for name, table in read.items():
        options = arguments_of(source, name, table)
        found[name] = _config_from(name, [word for _, words in options for word in words])
    return found


def _config_from(table: str, arguments: Sequence[str]) -> Any:
    """Return the config of a table of options as they are typed."""
    if table == "preprocess":
        return config_of(
            PreprocessConfig,
            PreprocessCommand.parse("preprocess", [*arguments, _STAND_IN, "--out", _STAND_IN]),
        )
    return config_of(TrainConfig, TrainCommand.parse("train", [*arguments, _STAND_IN, "--out", _STAND_IN]))


def _config_of_folder(folder: Path) -> PreprocessConfig:
    """Return the settings that a folder was preprocessed with; raises ManifestError where it is damaged."""
    # Each stage's manifest has its settings, under the names of its config.
    columns, vocabulary, plan, shards = (
        Manifest.read(folder / name) for name in ("columns", "vocabulary", "plan", "shards")
    )
    if vocabulary.stage != "rank":
        raise ConfigError(
            f"{folder} took its ids from another folder (--like), so it has no settings of its own",
            hint="give that folder",
        )
    return PreprocessConfig(
        ingest=columns.read_config(IngestConfig, schema=setting_in(columns)),
        count=Manifest.read(folder / "counts").read_config(CountConfig),
        rank=vocabulary.read_config(RankConfig),
        split=plan.read_config(SplitConfig),
        pack=shards.read_config(PackConfig),
    )


COMMANDS: dict[str, type[Command]] = {"recipe": RecipeCommand}
