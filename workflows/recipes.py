"""Settings that belong together, by name. A recipe returns configs; a variant replaces fields of one."""

from __future__ import annotations

from dataclasses import replace

from ..pipeline.count import CountConfig
from ..pipeline.errors import ConfigError
from ..pipeline.ingest import IngestConfig
from ..pipeline.rank import RankConfig
from ..pipeline.split import SplitConfig
from .preprocess import PreprocessConfig


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


def small_real_sample() -> PreprocessConfig:
    """A uniform sample of some 100,000 Criteo lines: most categories are seen once, so merge rare ones."""
    recipe = criteo_kaggle()
    return replace(
        recipe,
        count=CountConfig(eval_fraction=0.2),
        rank=RankConfig(min_count=4),
        pack=replace(recipe.pack, batch_size=512),
    )


DEFAULT_SCHEMA = "criteo-kaggle"
RECIPES = {"criteo-kaggle": criteo_kaggle, "criteo-1tb": criteo_1tb}


def recipe_for(schema: str) -> PreprocessConfig:
    """The defaults that suit a schema; raises ConfigError naming the schemas there are."""
    if schema not in RECIPES:
        raise ConfigError(f"no schema {schema!r}", hint=f"one of {', '.join(RECIPES)}")
    return RECIPES[schema]()
