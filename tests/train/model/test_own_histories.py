"""Histories of a user's module: what it sees, what is trained, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotset
from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.folders.totals import by_feature, for_features
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import EACH_WAY, assert_equal_bits, assert_placements_agree, trained
from hotset.train.build import build_trainer
from hotset.train.build_model import build_model, warn_of_probabilities
from hotset.train.config import TrainConfig
from hotset.train.config_parts import ModelConfig
from hotset.train.data.shards import ShardSet
from hotset.train.model.shapes import ModelInputs, TableInput
from hotset.train.serving.changes import export_changes
from hotset.train.serving.serving_inputs import ServingInputs

Rows = dict[str, torch.Tensor]
NAME = f"{__name__}:Attentive"
# C1, C2 and C3 are one table; C2 and C4 become histories, C3 and C5 are pooled.
SPEC = ShardSpec(
    num_rows=(60, 60, 60, 90, 40),
    num_hot=(5, 5, 5, 4, 3),
    num_hot_only=30,
    num_mixed=90,
    num_evaluation=20,
    skew=1.2,
    batch_size=16,
    multi_hot=(1, 2, 3, 4),
    same_table=(1, 2),
    table_dims=(4, 2, 4),
)
FIELDS: dict[str, Any] = {"model": NAME, "embedding_optimizer": "adagrad", "staging_bytes": 1_500}


class Attentive(nn.Module):
    """Softmax over two histories, which is over present elements alone."""

    per_sample = True
    histories: ClassVar[dict[str, int]] = {"C4": 7, "C2": 4}

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        dims = {table.name: table.embedding_dim for table in inputs.tables} | {"C3": 4}
        self.scores = nn.ModuleDict({name: nn.Linear(dims[name], 1, bias=False) for name in self.histories})
        self.last = nn.Linear(inputs.num_dense + inputs.total_dim, 1)
        # Ranks that are threads would share the generator of all layers.
        own = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.3, 0.3, generator=own)

    def pooled(self, name: str, rows_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        places_T = torch.arange(rows_BTD.shape[1])
        is_there_BT = places_T >= rows_BTD.shape[1] - lengths_B.unsqueeze(1)
        score_BT = self.scores[name](rows_BTD).squeeze(2).tanh().exp() * is_there_BT
        share_BT = score_BT / score_BT.sum(1, keepdim=True).clamp(min=1e-6)
        pooled: torch.Tensor = (share_BT.unsqueeze(2) * rows_BTD).sum(1)
        return pooled

    def forward(self, dense: torch.Tensor, embeddings: Rows, lengths: Rows) -> torch.Tensor:
        found = [
            self.pooled(name, rows, lengths[name]) if name in lengths else rows
            for name, rows in embeddings.items()
        ]
        logits: torch.Tensor = self.last(torch.cat([dense, *found], dim=1))
        return logits.squeeze(1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("histories"), SPEC))


def test_placements_threads_and_devices_end_with_equal_bits(shards: ShardSet) -> None:
    others = {"placement": "lookahead", "device": "late:4"}, {"placement": "all-fast", "threads": 3}
    all_fast = assert_placements_agree(shards, (*EACH_WAY, *others), **FIELDS)
    pooled = trained(shards, placement="all-fast", **FIELDS, pooling="mean")
    with pytest.raises(AssertionError):
        assert_equal_bits(pooled, all_fast)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # ranks are threads here, and change the same filters
def test_ranks_end_with_the_bits_of_one_process(
    shards: ShardSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for num_ranks in (1, 2):
        out = tmp_path / str(num_ranks)
        config = TrainConfig(placement="lookahead", micro_batches=2, **FIELDS)
        with monkeypatch.context() as patched:
            train_on_ranks(num_ranks, patched, shards.manifest.folder, config, out)
        found.append((out / "weights.safetensors").read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_gradients_are_those_of_a_graph_in_float64(shards: ShardSet, pooling: Any) -> None:
    """One step of SGD with a rate of 1, sample by sample; what is no history is pooled."""
    fields = FIELDS | {"embedding_optimizer": "sgd", "dense_optimizer": "sgd", "placement": "all-fast"}
    fields |= {"embedding_lr": 1.0, "dense_lr": 1.0, "pooling": pooling}
    begun = build_trainer(shards, TrainConfig(**fields))
    before = {name: begun.weights()[name].double() for name in begun.weights()}
    stepped = trained(shards, [5], **fields)
    batch = shards.training_batch(5)

    model: Any = begun.model.module.double()
    leaves = {table.name: before[table.name].clone().requires_grad_() for table in shards.tables}
    tables = for_features(shards.tables, [table.name for table in shards.tables])
    lists = [each.name for each in by_feature(shards.tables) if each.is_multi_hot]
    rows: dict[str, list[torch.Tensor]] = {each.name: [] for each in by_feature(shards.tables)}
    lengths: dict[str, list[int]] = {name: [] for name in Attentive.histories}
    for sample in range(batch.num_samples):
        for table, name in zip(tables, rows, strict=True):
            if name not in lists:
                rows[name].append(leaves[table][int(batch.ids_BF[sample, 0])])
                continue
            bags = batch.bags[lists.index(name)]
            ids = bags.ids_N[bags.offsets_B1[sample] : bags.offsets_B1[sample + 1]].tolist()
            own = leaves[table][ids]
            if name in lengths:
                lengths[name].append(len(ids))
                lacking = torch.zeros(Attentive.histories[name] - len(ids), own.shape[1]).double()
                rows[name].append(torch.cat([lacking, own]))
            else:
                rows[name].append(own.sum(0) / (max(len(ids), 1) if pooling == "mean" else 1))
    assert all({0, 4} <= set(found) for found in lengths.values()), "empty and long ones"
    logit_B = model(
        batch.dense_BK.double(),
        {name: torch.stack(found) for name, found in rows.items()},
        {name: torch.tensor(found) for name, found in lengths.items()},
    )
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B.double(), reduction="sum")
    (loss / shards.batch_size).backward()  # type: ignore[no-untyped-call]

    after = stepped.weights()
    wanted = {name: leaf.grad for name, leaf in leaves.items()}
    wanted |= {f"dense.module.{name}": each.grad for name, each in model.named_parameters()}
    for name, gradient in wanted.items():
        assert gradient is not None and gradient.any(), name
        torch.testing.assert_close(before[name] - after[name].double(), gradient, rtol=1e-4, atol=2e-6)


INPUTS = ModelInputs(
    1,
    (
        TableInput("user", 9, 3),
        TableInput("C2", 9, 4, is_multi_hot=True),
        TableInput("C4", 9, 3, is_multi_hot=True),
    ),
    4,
)
CONFIG = ModelConfig(kind="module", class_name="nets:Net")


def asking(histories: Any, **others: Any) -> type[nn.Module]:
    return type("Asking", (Attentive,), {"histories": histories, **others})


def softmax(self: Any, name: str, rows_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    is_there_BT = torch.arange(rows_BTD.shape[1]) >= rows_BTD.shape[1] - lengths_B.unsqueeze(1)
    score_BT = self.scores[name](rows_BTD).squeeze(2).masked_fill(~is_there_BT, -torch.inf)
    pooled: torch.Tensor = (score_BT.softmax(1).unsqueeze(2) * rows_BTD).sum(1)
    return pooled


FAULTS: dict[str, tuple[Any, str, str]] = {
    "no dictionary": (asking(["C2"]), r"histories of the model nets:Net is \['C2'\], want", '{"items": 50}'),
    "another feature": (
        asking({"C3": 2}),
        "names 'C3', and the list features of the log are: C2, C4",
        "list = true",
    ),
    "no list": (asking({"user": 2}), "names 'user', and the list", "list = true"),
    "no element": (asking({"C2": 0}), "has 0 elements of C2, want 1 to 4096", ""),
    "too many": (asking({"C2": 5000}), "has 5000 elements of C2, want 1 to 4096", ""),
    "a text": (asking({"C2": "4"}), "has '4' elements of C2", ""),
    "an empty history": (asking({"C2": 4, "C4": 2}, pooled=softmax), r"returned \[nan,", "division by zero"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_histories_that_there_are_not_are_refused(name: str) -> None:
    source, message, hint = FAULTS[name]
    with pytest.raises(HotsetError, match=message) as refused:
        build_model(CONFIG, INPUTS, 0, source)
    assert "\n" not in str(refused.value) and hint in (refused.value.hint or "")


def test_pooling_that_decides_nothing_is_refused(shards: ShardSet) -> None:
    everything = asking(dict.fromkeys(("C2", "C3", "C4", "C5"), 4))
    config = TrainConfig(**FIELDS, pooling="mean")
    with pytest.raises(ConfigError, match="--pooling decides nothing"):
        build_trainer(shards, config, model_source=everything)


def test_a_trial_has_lengths_whatever_its_scale(caplog: pytest.LogCaptureFixture) -> None:
    class Checked(Attentive):
        def forward(self, dense: torch.Tensor, embeddings: Rows, lengths: Rows) -> torch.Tensor:
            assert list(lengths) == ["C2", "C4"] and dense.shape[1] == 1
            for name, lengths_B in lengths.items():
                longest = self.histories[name]
                assert lengths_B.dtype == torch.int64 and set(lengths_B.tolist()) >= {0, longest}
                lacks_BT = torch.arange(longest) < longest - lengths_B.unsqueeze(1)
                assert torch.equal(lacks_BT, (embeddings[name] == 0).all(2))
            return super().forward(dense, embeddings, lengths).sigmoid()

    Checked.histories = {"C2": 4, "C4": 2}
    warn_of_probabilities(build_model(CONFIG, INPUTS, 0, Checked, 7))
    assert "seems to return probabilities" in caplog.text


class Last(nn.Module):
    """The last element of a history decides, by where it stands."""

    per_sample = True

    def __init__(self, inputs: ModelInputs, longest: int = 3) -> None:
        super().__init__()
        self.histories = {"seen": longest}
        self.last = nn.Linear(2 * inputs.embedding_dim + 1, 1)

    def forward(self, dense: torch.Tensor, embeddings: Rows, lengths: Rows) -> torch.Tensor:
        ends = [embeddings["seen"][:, -1], embeddings["tags"], lengths["seen"].unsqueeze(1).float()]
        logits: torch.Tensor = self.last(torch.cat(ends, dim=1))
        return logits.squeeze(1)


SCHEMA = """
format = "parquet"
label = "click"

[sparse]
tags = { kind = "text", list = true }
item = "integer"
seen = { kind = "integer", list = true, table = "item" }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its shards and its log, of histories of up to three elements."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(2)
    columns = {
        "click": rng.integers(0, 2, 300),
        "tags": [rng.choice(list("abcdef"), rng.integers(0, 6)).tolist() for _ in range(300)],
        "item": rng.integers(0, 40, 300),
        "seen": [rng.integers(0, 40, rng.integers(0, 4)).tolist() for _ in range(300)],
    }
    pl.DataFrame(columns).write_parquet(folder / "log.parquet")
    (folder / "log.toml").write_text(SCHEMA)
    sizes: dict[str, Any] = {"batch_size": 32, "embedding_dim": 4, "eval_fraction": 0.2, "workers": 1}
    log = folder / "log.parquet"
    hotset.preprocess(log, folder / "data", schema=folder / "log.toml", progress=False, **sizes)
    hotset.fit(folder / "data", folder / "run", model=Last, pooling="mean", progress=False)
    return folder


@pytest.mark.slow
def test_a_run_is_scored_as_at_its_end(run: Path) -> None:
    found = hotset.evaluate(run / "run", run / "data", model=Last, progress=False)
    assert found.log_loss == json.loads((run / "run/summary.json").read_text())["log_loss"]


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    """The run as a folder for servers."""
    return hotset.export(run / "run", run / "exported", model=Last)


@pytest.mark.slow
def test_exports_read_histories_as_predict_does(run: Path, tmp_path: Path) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    hotset.export(run / "run", tmp_path / "out", model=Last, onnx=True)
    log = pl.read_parquet(run / "log.parquet")[:50]
    inputs = ServingInputs(tmp_path / "out")
    program: Any = torch.export.load(tmp_path / "out/model.pt2").module()
    with torch.no_grad():
        of_torch, _ = program(*inputs.for_torch(log.to_dict(as_series=False)))
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
    of_onnx = session.run(["probability"], inputs.for_onnx(log.to_dict(as_series=False)))[0]
    wanted = hotset.predict(run / "run", log, model=Last, progress=False)["probability"].to_numpy()
    np.testing.assert_allclose(of_torch.numpy(), wanted, atol=1e-6)
    np.testing.assert_allclose(of_onnx, wanted, atol=1e-6)
    assert np.unique(wanted).size > 10


@pytest.mark.slow
def test_a_list_that_is_too_long_is_refused_everywhere(run: Path, exported: Path) -> None:
    log = pl.read_parquet(run / "log.parquet")[:5].with_columns(seen=pl.lit([1, 2, 3, 4]))
    with pytest.raises(HotsetError, match="a sample has 4 elements in seen, and the model takes 3 at most"):
        hotset.predict(run / "run", log, model=Last, progress=False)
    with pytest.raises(ValueError, match="a list of 'seen' has more than 3 elements"):
        ServingInputs(exported).for_onnx(log.to_dict(as_series=False))


@pytest.mark.slow
def test_a_run_refuses_shards_without_the_list(run: Path) -> None:
    with pytest.raises(HotsetError, match="the list features of the log are: tags, seen"):
        hotset.fit(run / "data", run / "other", model=asking({"item": 3}), progress=False)


def test_shards_do_not_change(shards: ShardSet) -> None:
    trained(shards, [0], placement="all-fast", **FIELDS)
    assert all(table == replace(table, histories=()) for table in shards.tables)


@pytest.mark.slow
def test_changes_of_a_later_run_are_applied(
    run: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"init_from": run / "run", "pooling": "mean", "epochs": 2}
    hotset.fit(run / "data", tmp_path / "later", model=Last, progress=False, **settings)
    export_changes(tmp_path / "later", run / "run", tmp_path / "changes", model_source=Last)
    hotset.apply(exported, tmp_path / "changes", tmp_path / "new", model=Last, progress=False)
    # Of a whole export only the texts are compared, and its program takes seconds to record.
    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "export", lambda *_, **__: None)
        patched.setattr(torch.export, "save", lambda _, path: path.write_bytes(b""))
        hotset.export(tmp_path / "later", tmp_path / "whole", model=Last)
    for name in ("features.json", "model.json", "README.md"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    features = (tmp_path / "changes/features.json").read_text()
    assert features == (tmp_path / "whole/features.json").read_text() and '"most_elements": 3' in features
    log = pl.read_parquet(run / "log.parquet")[:50]
    program: Any = torch.export.load(tmp_path / "new/model.pt2").module()
    with torch.no_grad():
        found, _ = program(*ServingInputs(tmp_path / "new").for_torch(log.to_dict(as_series=False)))
    wanted = hotset.predict(tmp_path / "later", log, model=Last, progress=False)["probability"].to_numpy()
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
