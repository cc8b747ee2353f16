"""A shell with a log, its preprocessed folder and a trained run for each case."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.hints import Shell, hints_recorded, reached
from hotset.workflows.cli import main


@pytest.fixture(autouse=True)
def hints_of_the_case(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a case that names a place whose hint did not come."""
    with hints_recorded():
        yield
        named = set(getattr(request.function, "follows", ()))
        assert named <= reached, f"not reached: {sorted(named - reached)}"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``log.tsv``, ``data`` (some rows hot) and ``run``; for copying only."""
    folder = tmp_path_factory.mktemp("hints")
    generate(GenerateConfig(samples=600, seed=1, scale=100), folder / "log.tsv", workers=1)
    data = str(folder / "data")
    quiet = ["-q", "--workers", "1"]
    preprocess = ["preprocess", str(folder / "log.tsv"), "--out", data, "--hot-bytes", "64KiB"]
    assert main([*preprocess, "--batch-size", "128", *quiet]) == 0
    assert main(["train", data, "--out", str(folder / "run"), "--threads", "1", "-q"]) == 0
    return folder


@pytest.fixture
def shell(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A shell in a copy of `prepared`."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the cases to the slow run; that each hint has one is asked in every run."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.name != "test_hints.py":
            item.add_marker(pytest.mark.slow)
