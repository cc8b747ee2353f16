"""The reference DCN V2 computes what hotset's model computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.model.dcn import Dcn
from hotset.train.model.dcn_shape import DcnShape
from hotset.train.options.model_config import ModelConfig
from hotset.workflows.bench.training.dcn_reference import ReferenceDcn
from hotset.workflows.bench.training.dlrm_reference import ReferenceBatch

SPEC = ShardSpec(num_rows=(5, 40, 300), num_hot_only=0, num_mixed=64, batch_size=32)


@pytest.mark.parametrize("rank", [None, 3])
def test_with_equal_weights_the_probabilities_are_equal(rank: int | None, tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    config = ModelConfig(kind="dcnv2", top_widths=(8, 6), cross_layers=2, cross_rank=rank)
    shape = DcnShape(shards.num_dense, (SPEC.embedding_dim,) * 3, config)
    torch.manual_seed(0)
    reference = ReferenceDcn(shape, SPEC.num_rows)
    found = {name: tensor for name, tensor in reference.state_dict().items() if not name.startswith("tables")}
    model = Dcn(shape, 0)
    # Parameters in the order of the layers, each of the same shape.
    own = model.state_dict()
    assert [tensor.shape for tensor in own.values()] == [tensor.shape for tensor in found.values()]
    model.load_state_dict(dict(zip(own, found.values(), strict=True)))
    batch = ReferenceBatch.of(shards.training_batch(0))
    emb_BFD = torch.stack(
        [table(ids, batch.offsets_B) for table, ids in zip(reference.tables, batch.ids, strict=True)], dim=1
    )
    wanted_B = torch.sigmoid(model.logits(batch.dense_BK, [emb_BFD]))
    torch.testing.assert_close(reference(batch).squeeze(1), wanted_B)
