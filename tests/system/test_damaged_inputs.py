"""A flipped bit in any file that a command reads is refused by name; nothing is made of it in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.preprocess import FOLDERS, preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.rank import adopt
from hotset.pipeline.statistics.folder import open_table
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.tests.support.preprocess_runs import CONFIG

ONE = Resources(workers=1)
KINDS = {"y": "label", "site": "hex8", "title": "text", "price": "float"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    log = draw_log(60, KINDS, np.random.default_rng(0))
    write_parquet(folder / "log.parquet", log, group_rows=60)
    schema = schema_text(log, format="parquet")
    config = replace(CONFIG, ingest=replace(CONFIG.ingest, schema=schema))
    preprocess([folder / "log.parquet"], config, folder / "dir", ONE)
    return folder / "dir"


def stage_again(stage: str) -> Callable[[Path], object]:
    """Run a stage on the folders before it."""

    def read(folder: Path) -> object:
        for later in list(FOLDERS)[list(FOLDERS).index(stage) :]:
            shutil.rmtree(folder / FOLDERS[later])
        return run_stage(stage, getattr(CONFIG, stage), folder, ONE)

    return read


def adopt_again(folder: Path) -> object:
    columns = Manifest.read(folder / "columns")
    return adopt(columns, columns, Manifest.read(folder / "vocabulary"), folder / "adopted", ONE)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "columns, by count": ("columns/file*.arrow", stage_again("count")),
    "columns, by encode": ("columns/file*.arrow", stage_again("encode")),
    "columns, by pack": ("columns/file*.arrow", stage_again("pack")),
    "texts of columns, by count": ("columns/*.texts.arrow", stage_again("count")),
    "counts, by rank": ("counts/site.arrow", stage_again("rank")),
    "counts, by stats": ("counts/site.arrow", lambda folder: frequency_statistics(folder, ONE)),
    "counts' manifest, by stats": ("counts/manifest.json", lambda folder: frequency_statistics(folder, ONE)),
    "texts of counts, by rank": ("counts/*.texts.arrow", stage_again("rank")),
    "vocabulary, by encode": ("vocabulary/site.arrow", stage_again("encode")),
    "vocabulary, by adopt": ("vocabulary/site.arrow", adopt_again),
    "texts of the vocabulary, by adopt": ("vocabulary/*.texts.arrow", adopt_again),
    "texts of the vocabulary, by stats": (
        "vocabulary/*.texts.arrow",
        lambda folder: open_table(folder, "title"),
    ),
    "plan's manifest, by stats": ("plan/manifest.json", lambda folder: open_table(folder, "title")),
    "samples, by split": ("samples/*.arrow", stage_again("split")),
    "samples, by pack": ("samples/*.arrow", stage_again("pack")),
    "samples, by stats": ("samples/*.arrow", lambda folder: frequency_statistics(folder, ONE)),
    "plan, by pack": ("plan/*.arrow", stage_again("pack")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_flipped_bit_is_refused_by_name(name: str, made: Path, tmp_path: Path) -> None:
    pattern, read = READERS[name]
    folder = Path(shutil.copytree(made, tmp_path / "dir"))
    path = min(path for path in folder.glob(pattern) if ("texts" in path.name) == ("texts" in pattern))
    whole = bytearray(path.read_bytes())
    # In the middle of an Arrow file stand values: one of them is another afterwards.
    place = whole.index(b'"num_') + 1 if path.name == MANIFEST else len(whole) // 2
    whole[place] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ManifestError, match="is damaged: its checksum is") as refused:
        read(folder)
    assert str(path) in str(refused.value)
