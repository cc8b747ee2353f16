"""`hotset.torchrec.RankData`: rows and batches of shards in a training loop of one's own on TorchRec.

The net, its dense layers and the loop are the caller's; the net holds `HotColdEmbeddings`. TorchRec shards
its cold rows and averages the gradients of all else. The cold rows take their steps in the backward pass, the
others by a plain optimizer of torch, over `RankData.plain_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from ...pipeline.errors import ConfigError, local_path, require_at_least
from ..build_embeddings import TORCHREC_OPTIMIZERS
from ..config import TrainConfig
from ..config_parts import Pooling
from ..data.batch import SeededOrder
from ..data.dataset import Split
from ..data.shards import ShardSet
from ..ranks.ranks import TorchRanks
from ..rows.backends import RowOptimizer
from .batches import RankBatches, ReplicatedRows
from .embeddings import ReplicatedOptimizer
from .rank_rows import RankRows, tables_in
from .sharding import choose_num_replicated, count_uses, shard

_TIMEOUT_SECONDS = 1800.0
"""Torch's default: a rank may open its shards while the others wait."""


class RankData:
    """The shards of a folder as one rank of TorchRec trains on them.

    Make it on every rank, once `torch.distributed.init_process_group` was called.

    Args:
        data: folder that `hotset.preprocess` wrote, or its ``shards/`` alone.
        num_replicated: the first rows of each table, which every rank holds; the others are sharded. By
            default the numbers for which the ranks exchange the fewest bytes.
        pooling: of features with lists.
        device: of this rank, "cpu" or "cuda".

    Raises:
        HotsetError: there are no shards, or they are damaged.
        ConfigError: there is no process group, or no such numbers of rows.

    Example:
        ``data = hotset.torchrec.RankData("data"); model = data.shard(Net(data.rows), lr=0.02)``
    """

    def __init__(
        self,
        data: str | Path,
        *,
        num_replicated: Sequence[int] | None = None,
        pooling: Pooling = "sum",
        device: str | torch.device = "cpu",
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError("TorchRec needs a process group: call torch.distributed.init_process_group")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._ranks = TorchRanks(_TIMEOUT_SECONDS, dist.new_group(backend="gloo"))
        self._shards = ShardSet.open(local_path(data))
        self._shards.verify()
        self._device = torch.device(device)
        (self._uses,) = count_uses(self._shards, [self.world_size])
        if num_replicated is None:
            num_replicated = choose_num_replicated(self._shards, TrainConfig(), self._uses)
        self.rows = ReplicatedRows(self._shards.tables, tuple(num_replicated), pooling)
        """How many rows of each table every rank holds."""

    @property
    def num_dense(self) -> int:
        """Number of dense features."""
        return self._shards.num_dense

    @property
    def scale(self) -> float:
        """By what a rank multiplies the loss that it sums over its samples.

        TorchRec and torch average gradients over the ranks. So they are those of the sum over all samples,
        divided by the nominal batch size.
        """
        return self.world_size / self._shards.batch_size

    def batches(
        self, split: Split = "train", *, epochs: int = 1, seed: int = 0, first_step: int = 0
    ) -> RankBatches:
        """Return this rank's batches, which a thread reads ahead.

        Args:
            split: training batches, or those of the validation or the test part, in the order of the log.
            epochs: of training batches.
            seed: of the order of training batches.
            first_step: batches to skip, because they were trained on already.
        """
        require_at_least("epochs", epochs, 1)
        shards = self._shards
        order = SeededOrder(shards.is_hot_only, seed, epochs, is_grouped=shards.is_grouped)
        return RankBatches(
            shards,
            self.rows,
            chain.from_iterable(order.epochs()) if split == "train" else None,
            split=split,
            rank=self.rank,
            world_size=self.world_size,
            first_step=first_step,
            is_pinned=self._device.type == "cuda",
        )

    def shard(
        self,
        net: torch.nn.Module,
        *,
        lr: float,
        optimizer: Literal["sgd", "adagrad", "rowwise-adagrad"] = "adagrad",
        eps: float = 1e-8,
        seed: int = 0,
        constraints: Mapping[str, Any] | None = None,
        plan: Any = None,
    ) -> Any:
        """Shard the cold rows of a net, and make the rest data-parallel; all rows get initial values.

        Args:
            net: module that holds one `HotColdEmbeddings` of ``rows``.
            lr: learning rate of the cold rows; ``fused_optimizer`` of the result changes it.
            optimizer: of the cold rows.
            eps: of their Adagrad, which divides by the root of a sum of squares plus this.
            seed: of initial values, which depend on it, the table and the id alone.
            constraints: ``ParameterConstraints`` of TorchRec's planner instead of ours, by table:
                ``table_0`` is the first one.
            plan: TorchRec's ``ShardingPlan``, instead of one by its planner.

        Returns:
            A ``DistributedModelParallel``, which is called with a batch.

        Raises:
            ConfigError: no such optimizer, or TorchRec finds no place for a table.
        """
        if optimizer not in TORCHREC_OPTIMIZERS:
            known = ", ".join(TORCHREC_OPTIMIZERS)
            raise ConfigError(f"optimizer must be one of {known}, got {optimizer!r}")
        model = shard(
            net,
            self._shards,
            self.rows,
            RowOptimizer(optimizer, lr),
            self._device,
            self._uses,
            eps=eps,
            constraints=constraints,
            plan=plan,
        )
        self._rows_of(model, optimizer).initialize_rows(seed)
        return model

    def plain_parameters(self, model: Any) -> list[torch.nn.Parameter]:
        """Return the parameters that a plain optimizer steps: all but the cold rows.

        Give it the rate and ``eps`` of the cold rows: then the rows of a table follow one rule. SGD and
        Adagrad leave rows that no rank looked up as they are; Adam would move them.
        """
        # Of tables at other ranks a model has parameters, too, which are empty.
        cold = f"{tables_in(model)[0]}cold."
        sharded = set(map(id, model.fused_optimizer.params.values()))
        return [
            each
            for name, each in model.named_parameters()
            if not name.startswith(cold) and id(each) not in sharded
        ]

    def tables(self, model: Any) -> dict[str, torch.Tensor]:
        """Return whole tables by name, (num_rows, embedding_dim) float32, at rank 0; all ranks call it."""
        rows = self._rows_of(model, "sgd")
        found = rows.parts_by_name(self.rows.tables)
        whole = {name: torch.cat(list(parts())) for name, (_, parts) in found.items()}
        return whole if self.rank == 0 else {}

    def _rows_of(self, model: Any, optimizer: str) -> RankRows:
        """Return the rows of a model by table and id."""
        own = RowOptimizer(optimizer, 0.0)
        hot = ReplicatedOptimizer(dict(tables_in(model)[1].hot.items()), own)
        return RankRows(model, self.rows, hot, own, self._ranks, self._device)
