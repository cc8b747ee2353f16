"""Rows between ranks on the real sample; `test_stats_command` has those of a generated log."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.pipeline.inspect.exchange_series import exchange_of_ranks
from hotset.pipeline.inspect.inspected_folder import Inspected
from hotset.pipeline.stages.preprocess import preprocess
from hotset.workflows.recipes import recipe_for


@pytest.mark.slow
def test_the_theory_is_within_a_tenth_on_the_real_sample(real_data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(gzip.decompress((real_data / "criteo_kaggle_uniform_110k.tsv.gz").read_bytes()))
    recipe = recipe_for("criteo-kaggle")
    preprocess([log], replace(recipe, pack=replace(recipe.pack, batch_size=2048)), tmp_path / "data")
    for row in exchange_of_ranks(Inspected.open(tmp_path / "data"), (2, 4, 8))["ranks"]:
        for each in row["schemes"]:
            if each["expected"] is not None:
                assert each["expected"] == pytest.approx(each["counted"], rel=0.1), each["scheme"]
