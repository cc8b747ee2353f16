"""Settings by name have the names and types of the configs' fields, and a type checker knows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import hotset
from hotset.tests.support.settings import settings_of
from hotset.train.config import ExchangeOptions, ExportConfig, PredictConfig, TrainConfig
from hotset.train.fit import ExportSettings, FitSettings, PredictSettings
from hotset.train.own_loop.embedding_module import RowSettings
from hotset.train.recipe_options import RecipeOptions

PROGRAM = """
import hotset
hotset.fit("data", "run", placement="lookahead", staging_bytes="64MiB", epochs=2, top_mlp=[64, 32])
hotset.fit("data", "run", placment="lookahead")  # wrong
hotset.fit("data", "run", placement="lookahed")  # wrong
hotset.fit("data", "run", epochs="2")  # wrong
hotset.preprocess("log.tsv", "data", hot_bytes="64MiB", feature_dims={"C1": 8})
hotset.preprocess("log.tsv", "data", hot_byte=3)  # wrong
hotset.predict("run", "log.tsv", batch=3)  # wrong
hotset.export("run", "out", row_type="int4")  # wrong
hotset.nn.Embeddings("data", epochs=3)  # wrong
"""
CHECKED = ("fit", "own_loop.*", "config", "recipe_options", "threads")


def test_settings_are_those_of_the_configs() -> None:
    wanted = settings_of(TrainConfig, RecipeOptions, ExchangeOptions)
    # A model may also be a module, so it is an argument of its own.
    del wanted["model"]
    for name in ("model_args", "loss", "loss_weights"):
        wanted[name] = get_type_hints(FitSettings)[name]
    assert get_type_hints(FitSettings) == wanted
    rows = get_type_hints(RowSettings)
    assert rows == {name: wanted[name] for name in rows}
    assert get_type_hints(PredictSettings) == settings_of(PredictConfig)
    assert get_type_hints(ExportSettings) == settings_of(ExportConfig)


def test_a_type_checker_finds_wrong_settings(tmp_path: Path) -> None:
    root = Path(hotset.__file__).resolve().parent
    (tmp_path / "hotset").symlink_to(root)
    (tmp_path / "program.py").write_text(PROGRAM)
    # Only the modules that declare settings are read, so this takes seconds.
    modules = ["hotset", "hotset.nn", "hotset.pipeline.settings", "hotset.workflows.library", "numpy.*"]
    modules += [f"hotset.train.{name}" for name in CHECKED]
    config = "[mypy]\nfollow_imports = skip\nignore_missing_imports = true\n"
    config += "".join(f"[mypy-{name}]\nfollow_imports = silent\n" for name in modules)
    (tmp_path / "mypy.ini").write_text(config)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line})
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    assert lines == wrong, done.stdout + done.stderr
    assert 'Unexpected keyword argument "placment" for "fit"; did you mean "placement"?' in done.stdout
