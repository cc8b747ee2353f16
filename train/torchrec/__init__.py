"""Training on several devices by TorchRec: hot rows replicated, cold rows sharded."""

from .batches import GroupLookups, RankBatch, RankBatches, ReplicatedRows

__all__ = ["GroupLookups", "RankBatch", "RankBatches", "ReplicatedRows"]
