"""The reference computes what hotset's model computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.dlrm_shape import DlrmShape, dlrm_shape
from hotset.workflows.bench.training.dlrm_reference import (
    LEARNING_RATE,
    ReferenceBatch,
    ReferenceDlrm,
    ReferenceTraining,
    has_fbgemm,
)

SPEC = ShardSpec(num_rows=(5, 40, 300), num_hot_only=0, num_mixed=64, batch_size=32)


def shape_of(shards: Shards) -> DlrmShape:
    return dlrm_shape("small", shards.num_dense, len(shards.tables), shards.embedding_dim)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return Shards.open(write_shards(tmp_path / "shards", SPEC))


def reference_of(shards: Shards, *, fbgemm: bool = False) -> ReferenceDlrm:
    torch.manual_seed(0)
    return ReferenceDlrm(shape_of(shards), SPEC.num_rows, fbgemm=fbgemm)


def test_with_equal_weights_the_probabilities_are_equal(shards: Shards) -> None:
    reference = reference_of(shards)
    model = Dlrm(shape_of(shards), 0)
    dense = reference.state_dict()
    model.load_state_dict({name: dense[name] for name in model.state_dict()})
    batch = ReferenceBatch.of(shards.training_batch(0))
    emb_BFD = torch.stack(
        [table(ids, batch.offsets_B) for table, ids in zip(reference.tables, batch.ids, strict=True)], dim=1
    )
    wanted_B = torch.sigmoid(model(batch.dense_BK, emb_BFD))
    torch.testing.assert_close(reference(batch).squeeze(1), wanted_B)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_step_moves_every_layer_and_the_rows_looked_up(shards: Shards, autocast: bool) -> None:
    reference = reference_of(shards)
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    training = ReferenceTraining(reference, autocast=autocast)
    batch = ReferenceBatch.of(shards.training_batch(0))
    assert 0 < float(training.step(batch)) < 2
    for name, tensor in reference.state_dict().items():
        assert not torch.equal(tensor, before[name]), name


@pytest.mark.skipif(not has_fbgemm(), reason="FBGEMM is not installed")
def test_fbgemm_takes_the_same_step(shards: Shards) -> None:
    plain, fused = reference_of(shards), reference_of(shards, fbgemm=True)
    dense = {name: tensor for name, tensor in plain.state_dict().items() if not name.startswith("tables")}
    fused.load_state_dict(dense, strict=False)
    for table, weights_ND in zip(plain.tables, fused.tables.split_embedding_weights(), strict=True):
        weights_ND.copy_(table.weight.detach())
    batch = ReferenceBatch.of(shards.training_batch(0))
    losses = [float(ReferenceTraining(model).step(batch)) for model in (plain, fused)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for table, weights_ND in zip(plain.tables, fused.tables.split_embedding_weights(), strict=True):
        torch.testing.assert_close(weights_ND, table.weight.detach(), atol=LEARNING_RATE * 1e-6, rtol=1e-5)
