"""Recipes: named settings of all stages.

A recipe returns configs; a variant replaces fields of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..pipeline.errors import KIB, ByteSize
from ..pipeline.folders.manifest import Manifest, config_of_record
from ..pipeline.folders.resume import FolderState, read_before
from ..pipeline.folders.totals import ColumnsSettings, ColumnsTotals
from ..pipeline.preprocess import FOLDERS, OLD_VOCABULARY, PreprocessConfig
from ..pipeline.schema.schema import NO_SETTINGS, FeatureSettings
from ..pipeline.schema.schema_file import is_fingerprint, schema_of
from ..pipeline.stages.count import CountConfig
from ..pipeline.stages.ingest import IngestConfig
from ..pipeline.stages.pack import PackConfig
from ..pipeline.stages.rank import RankConfig
from ..pipeline.stages.split import SplitConfig


def criteo_kaggle() -> PreprocessConfig:
    """Return the settings for Criteo's Kaggle log: dim 16, the last seventh (one day) for evaluation."""
    return PreprocessConfig()


def criteo_1tb() -> PreprocessConfig:
    """Return the settings for Criteo's 1 TB log, one file per day: dim 64, rare categories share a row.

    Source: the published preprocessing for one 32 GB GPU merges categories seen fewer than 15 times; the
    dimension is DLRM's.
    """
    return PreprocessConfig(
        ingest=IngestConfig(schema="criteo-1tb"),
        rank=RankConfig(min_count=15),
        split=SplitConfig(embedding_dim=64),
    )


def avazu() -> PreprocessConfig:
    """Return the settings for Kaggle's Avazu log of ten days: dim 16, the last day for evaluation.

    Source: FAE (PVLDB 15(1), table 1) for the dimension.
    """
    return PreprocessConfig(ingest=IngestConfig(schema="avazu"), count=CountConfig(eval_fraction=0.1))


def published_split(schema: str, embedding_dim: int, min_count: int) -> PreprocessConfig:
    """Return the settings for a published split: files for training, validation and test, in this order.

    Source: the settings of its leaderboard in BARS (Zhu et al., CIKM 2021).
    """
    recipe = PreprocessConfig()
    return replace(
        recipe,
        ingest=IngestConfig(schema=schema),
        count=CountConfig(eval_files=1, valid_files=1),
        rank=RankConfig(min_count=min_count),
        split=SplitConfig(embedding_dim=embedding_dim),
        pack=replace(recipe.pack, batch_size=4096),
    )


def taobao() -> PreprocessConfig:
    """Return the settings for histories of Taobao's users: dim 16, batches of 256, Adagrad.

    Source: TBSM's own benchmark on this log, which FAE (PVLDB 15(1), table 1) takes over.
    """
    recipe = PreprocessConfig(ingest=IngestConfig(schema="taobao"), count=CountConfig(eval_fraction=0.1))
    split = replace(recipe.split, embedding_dim=16, embedding_optimizer="adagrad")
    return replace(recipe, split=split, pack=replace(recipe.pack, batch_size=256))


def small_real_sample() -> PreprocessConfig:
    """Return the settings for a uniform sample of some 100,000 Criteo lines.

    Most categories occur once there, so rare ones share a row. 512 KiB hold 4,096 rows with Adagrad's state,
    a seventh of the rows that are left.
    """
    recipe = criteo_kaggle()
    return replace(
        recipe,
        count=CountConfig(eval_fraction=0.2),
        rank=RankConfig(min_count=4),
        split=SplitConfig(hot_bytes=ByteSize(512 * KIB)),
        pack=replace(recipe.pack, batch_size=512),
    )


DEFAULT_SCHEMA = "criteo-kaggle"
RECIPES: dict[str, Callable[[], PreprocessConfig]] = {
    "criteo-kaggle": criteo_kaggle,
    "criteo-1tb": criteo_1tb,
    "avazu": avazu,
    "criteo-x1": partial(published_split, "criteo-x1", embedding_dim=10, min_count=1),
    "criteo-x4": partial(published_split, "criteo-x4", embedding_dim=16, min_count=10),
    "avazu-x1": partial(published_split, "avazu-x1", embedding_dim=10, min_count=1),
    "avazu-x4": partial(published_split, "avazu-x4", embedding_dim=16, min_count=2),
    "taobao": taobao,
}


def recipe_for(schema: str) -> PreprocessConfig:
    """Return the defaults that suit a schema.

    Args:
        schema: a built-in name, the text of a schema file, or the fingerprint of one as a manifest holds it.

    Raises:
        ConfigError: it is none of these.
    """
    if schema in RECIPES:
        return RECIPES[schema]()
    recipe = PreprocessConfig(ingest=IngestConfig(schema=schema))
    # A fingerprint does not contain the file's settings, so use the defaults.
    if is_fingerprint(schema):
        return recipe
    # A schema file may set min_count and embedding_dim of single features.
    found = schema_of(schema)
    return replace(
        recipe,
        rank=RankConfig(feature_min_counts=FeatureSettings(found.min_counts)),
        split=SplitConfig(feature_dims=FeatureSettings(found.embedding_dims)),
    )


def recipe_like(folder: Path, schema: str | None = None) -> PreprocessConfig:
    """Return the settings that ``folder`` was written with, for another log of its kind.

    Raises:
        ManifestError: ``folder`` was not preprocessed to its shards.
    """
    # Counting and ranking are skipped for such a log; hot rows and batches must be those of the model.
    columns, plan, shards = (Manifest.read(folder / name) for name in ("columns", "plan", "shards"))
    recipe = recipe_for(schema or setting_in(columns))
    return replace(recipe, split=plan.read_config(SplitConfig), pack=shards.read_config(PackConfig))


def recipe_of(folder: Path, schema: str | None = None) -> PreprocessConfig:
    """Return the settings that ``folder`` goes on with: those of its stages, finished or not.

    Args:
        folder: need not exist; a stage without a folder has the defaults of the schema.
        schema: by default the one of the columns.

    Raises:
        ManifestError: a folder is damaged, or was written with a setting that no longer exists.
    """
    columns = folder / "columns"
    known = Manifest.read_sealed(columns) or read_before(columns)
    recipe = recipe_for(schema or (setting_in(known) if known is not None else DEFAULT_SCHEMA))
    changed: dict[str, Any] = {}
    for stage, name in FOLDERS.items():
        # An extension sets the vocabulary aside; an adopted one has no settings of `rank`.
        last = FolderState.read(folder / name).last
        if last is None and stage == "rank":
            last = FolderState.read(folder / OLD_VOCABULARY).last
        if last is not None and last["stage"] == stage:
            settings = {key: value for key, value in last["config"].items() if key != "schema"}
            changed[stage] = config_of_record(
                folder / name, stage, settings, partial(replace, getattr(recipe, stage))
            )
    recipe = replace(recipe, **changed)
    # What peeling weighs rows by follows from their widths, which may be given anew.
    if recipe.split.feature_dims:
        recipe = replace(recipe, rank=replace(recipe.rank, peel_row_bytes=NO_SETTINGS))
    return recipe


def default_settings(schema: str | None, like: Path | None, extended: Path | None) -> PreprocessConfig:
    """Return what `preprocess` takes where nothing is said: of another folder, of this one, or of the schema.

    Args:
        schema: as it was given.
        like: folder whose ids are taken.
        extended: folder that logs are added to.
    """
    if like is not None:
        return recipe_like(like, schema)
    return recipe_for(schema or DEFAULT_SCHEMA) if extended is None else recipe_of(extended, schema)


def setting_in(columns: Manifest) -> str:
    """Return the schema of a columns folder: its name where it is built in, its text otherwise."""
    name = ColumnsSettings.of(columns).schema
    return ColumnsTotals.of(columns).schema or name if is_fingerprint(name) else name
