"""Settings that belong together, by name. A recipe returns configs; a variant replaces fields of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..pipeline.folders.manifest import Manifest
from ..pipeline.schema.feature_settings import FeatureSettings
from ..pipeline.schema.schema_file import is_fingerprint, schema_of, setting_of
from ..pipeline.sizes import KIB, ByteSize
from ..pipeline.stages.count import CountConfig
from ..pipeline.stages.ingest import IngestConfig
from ..pipeline.stages.pack import PackConfig
from ..pipeline.stages.preprocess import PreprocessConfig
from ..pipeline.stages.rank import RankConfig
from ..pipeline.stages.split import SplitConfig
from ..train.config import TrainConfig


def criteo_kaggle() -> PreprocessConfig:
    """Criteo's Kaggle log: dim 16, the last seventh (a day) for evaluation."""
    return PreprocessConfig()


def criteo_1tb() -> PreprocessConfig:
    """Criteo's 1 TB log, a file a day: dim 64, categories seen fewer than 15 times share a row.

    Source: the published preprocessing for one 32 GB GPU merges below 15; the dimension is DLRM's.
    """
    return PreprocessConfig(
        ingest=IngestConfig(schema="criteo-1tb"),
        rank=RankConfig(min_count=15),
        split=SplitConfig(embedding_dim=64),
    )


def avazu() -> PreprocessConfig:
    """Kaggle's Avazu log of ten days: dim 16, the last tenth (a day) for evaluation.

    Source: FAE (PVLDB 15(1), table 1) for the dimension.
    """
    return PreprocessConfig(ingest=IngestConfig(schema="avazu"), count=CountConfig(eval_fraction=0.1))


def small_real_sample() -> PreprocessConfig:
    """A uniform sample of some 100,000 Criteo lines: most categories are seen once, so merge rare ones.

    512 KiB hold 4,096 rows with Adagrad's state, a seventh of what is left.
    """
    recipe = criteo_kaggle()
    return replace(
        recipe,
        count=CountConfig(eval_fraction=0.2),
        rank=RankConfig(min_count=4),
        split=SplitConfig(hot_bytes=ByteSize(512 * KIB), embedding_optimizer="adagrad"),
        pack=replace(recipe.pack, batch_size=512),
    )


def small_real_sample_training() -> TrainConfig:
    """Adagrad for rows and Adam for the dense layers, at their usual rates, one epoch."""
    return TrainConfig(embedding_optimizer="adagrad", dense_optimizer="adam")


DEFAULT_SCHEMA = "criteo-kaggle"
RECIPES = {"criteo-kaggle": criteo_kaggle, "criteo-1tb": criteo_1tb, "avazu": avazu}


def recipe_for(schema: str) -> PreprocessConfig:
    """The defaults that suit a schema.

    Args:
        schema: a built-in name, the text of a schema file, or the fingerprint a manifest has of one.

    Raises:
        ConfigError: it is none of these.
    """
    if schema in RECIPES:
        return RECIPES[schema]()
    recipe = PreprocessConfig(ingest=IngestConfig(schema=schema))
    if is_fingerprint(schema):
        return recipe
    found = schema_of(schema)
    return replace(
        recipe,
        rank=RankConfig(feature_min_counts=FeatureSettings(found.min_counts)),
        split=SplitConfig(feature_dims=FeatureSettings(found.embedding_dims)),
    )


def recipe_like(folder: Path, schema: str | None = None) -> PreprocessConfig:
    """The settings ``folder`` was made with, for another log of its kind.

    Raises:
        ManifestError: ``folder`` was not preprocessed to its shards.
    """
    columns, plan, shards = (Manifest.read(folder / name) for name in ("columns", "plan", "shards"))
    recipe = recipe_for(schema or setting_in(columns))
    return replace(
        recipe,
        split=SplitConfig(**(plan.config | {"hot_bytes": ByteSize(plan.config["hot_bytes"])})),
        pack=PackConfig(**shards.config),
    )


def setting_in(columns: Manifest) -> str:
    """The schema of a columns folder: its name where it is built in, what it says otherwise."""
    name: str = columns.config["schema"]
    return str(columns.totals["schema"]) if is_fingerprint(name) else name


def with_schema_text(words: Sequence[str]) -> list[str]:
    """Command line words with the file that ``--schema`` names replaced by what it says.

    Raises:
        ConfigError: the file cannot be read or is no schema, or there is no schema of that name.
    """
    words = list(words)
    for position, word in enumerate(words):
        if word == "--schema" and position + 1 < len(words):
            words[position + 1] = setting_of(words[position + 1])
        elif word.startswith("--schema="):
            words[position] = f"--schema={setting_of(word.partition('=')[2])}"
    return words
