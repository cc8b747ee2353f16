"""A finished run in use from Python: predictions of logs and frames, and an export."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import hotset
from hotset.stats.metrics import probabilities
from hotset.tests.support.scored_runs import ScoredRun, prepared_lists, run_on_lists
from hotset.train import serve


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"))


def test_logs_and_frames_get_the_same_predictions(scored: ScoredRun) -> None:
    found = hotset.predict(str(scored.run), str(scored.log))
    wanted = probabilities(scored.evaluated()).astype(np.float32)
    assert found.schema == pl.Schema({"probability": pl.Float32})
    np.testing.assert_array_equal(found["probability"].to_numpy(), wanted)
    assert scored.lines is not None
    names = list(scored.lines.kinds)
    columns = {name: [row[number] for row in scored.lines.rows] for number, name in enumerate(names)}
    frame = pl.DataFrame(columns, strict=False)
    assert hotset.predict(scored.run, frame, batch_size=16, threads=2).equals(found)
    assert hotset.predict(scored.run, frame.drop("y").clear()).height == 0
    with pytest.raises(hotset.HotsetError, match="the table has no column 'site'"):
        hotset.predict(scored.run, frame.drop("site"))


class Net(nn.Module):
    """A linear layer of everything."""

    def __init__(self, inputs: hotset.ModelInputs) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
        return logits.squeeze(1)


def test_the_module_of_a_fitted_run_goes_along(tmp_path: Path) -> None:
    scored = prepared_lists(tmp_path)
    run = hotset.fit(scored.data, scored.run, model=lambda inputs: Net(inputs), threads=1)
    wanted = probabilities(scored.evaluated(Net)).astype(np.float32)
    np.testing.assert_array_equal(hotset.predict(run, scored.log)["probability"].to_numpy(), wanted)
    # From shards alone the vocabulary is given.
    shutil.rmtree(scored.run / "vocabulary")
    found = hotset.predict(scored.run, scored.log, model=Net, vocabulary=scored.data)
    np.testing.assert_array_equal(found["probability"].to_numpy(), wanted)


def test_settings_go_by_name(scored: ScoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hotset.HotsetError, match="there is no setting 'batch'"):
        hotset.predict(scored.run, scored.log, batch=3)
    called = []
    monkeypatch.setattr(serve, "export_run", lambda *given, **named: called.append((given, named)))
    assert hotset.export(scored.run, str(tmp_path / "out"), row_type="int8") == tmp_path / "out"
    ((run, out, config), named) = called[0]
    assert (run, out, config.row_type) == (scored.run, tmp_path / "out", "int8")
    assert named == {"vocabulary": None, "model_source": None}
