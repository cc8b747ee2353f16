"""Means of bags against torch's graph over single lookups."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import Batch
from hotset.train.data.batch_shares import BatchShares
from hotset.train.data.shards import Shards
from hotset.train.model.dcn import Dcn
from hotset.train.model.dcn_shape import DcnShape
from hotset.train.model.dense_step import build_dense_step
from hotset.train.model.dlrm_shape import tables_by_width
from hotset.train.model_building.mean_pooling import MeanPooling
from hotset.train.options.model_config import ModelConfig
from hotset.train.work_threads import WorkThreads

DIMS = (4, 2, 4, 2)
SPEC = ShardSpec(num_rows=(5, 40, 30, 20), num_hot=(5, 10, 20, 3), multi_hot=(1, 2), table_dims=DIMS)


def pooled(tables_ND: list[torch.Tensor], batch: Batch, *, mean: bool) -> list[torch.Tensor]:
    """(B, F, d) embeddings of each width, sample by sample, lookup by lookup."""
    num_samples = batch.num_samples
    found = []
    for feature, table_ND in enumerate(tables_ND):
        rows = []
        for sample in range(num_samples):
            if feature in SPEC.multi_hot:
                bags = batch.bags[SPEC.multi_hot.index(feature)]
                ids = bags.ids_N[bags.offsets_B1[sample] : bags.offsets_B1[sample + 1]].tolist()
            else:
                ids = [int(batch.ids_BF[sample, (0, 3).index(feature)])]
            total = torch.stack([table_ND[row] for row in ids]).sum(0) if ids else torch.zeros(DIMS[feature])
            rows.append(total / max(len(ids), 1) if mean else total)
        found.append(torch.stack(rows))
    widths = tables_by_width(DIMS)
    return [torch.stack([found[table] for table in tables], dim=1) for tables in widths.values()]


def test_logits_and_gradients_are_those_of_means(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", SPEC)
    shards = Shards.open(tmp_path)
    batch = shards.training_batch(3)
    assert any((bags.offsets_B1[1:] - bags.offsets_B1[:-1] == 0).any() for bags in batch.bags), "an empty bag"
    model = Dcn(DcnShape(2, DIMS, ModelConfig(kind="dcnv2", top_widths=(8,), cross_layers=1)), 0)
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(rows, dim, generator=generator) for rows, dim in zip(SPEC.num_rows, DIMS, strict=True)
    ]

    # By the graph: the mean of the looked-up rows, sample by sample.
    leaves = [table.clone().requires_grad_() for table in tables]
    logit_B = model.logits(batch.dense_BK, pooled(leaves, batch, mean=True))
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]

    # By the step, which is given sums; their gradients go back to the rows through the graph of the sums.
    summed = [table.clone().requires_grad_() for table in tables]
    sums = pooled(summed, batch, mean=False)
    step = MeanPooling(build_dense_step(model, BatchShares(1), WorkThreads(1)), shards.tables)
    given = [emb_BFd.detach().clone() for emb_BFd in sums]
    predicted_B = step.predict(batch, given)
    assert all(torch.equal(a, b) for a, b in zip(given, sums, strict=True)), "sums stay as they are"
    found = step.train(batch, given)
    torch.testing.assert_close(found.float(), loss.detach())
    torch.testing.assert_close(predicted_B, logit_B.detach())
    torch.autograd.backward(sums, [emb_BFd.grad for emb_BFd in given])
    for own, wanted in zip(summed, leaves, strict=True):
        assert own.grad is not None and wanted.grad is not None
        torch.testing.assert_close(own.grad, wanted.grad)
