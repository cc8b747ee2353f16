"""Ranks of a training loop of one's own: each has all rows, and all take the same steps.

As `DistributedDataParallel` does with layers, every rank keeps a replica of the rows and trains on batches of
its own. Before a step the ranks exchange their lookups and gradients, and each updates all rows by the
mean. Two groups of processes serve two threads: one reads batches ahead, one takes the steps.

Shapes: B samples, F features, d embedding_dim of a table group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ..config import TrainConfig, is_launched
from ..data.batch import Batch, FeatureBags, join
from ..data.shards import Shards
from ..ranks.ranks import OneRank, Ranks, TorchRanks, check_equal_settings, gather_arrays
from .lookups import Dictionary, Held

_TIMEOUT_SECONDS = 1800.0
"""Torch's default: one rank may evaluate while the others wait."""


@dataclass(frozen=True, slots=True)
class LoopRanks:
    """The ranks of a loop."""

    steps: Ranks
    """For what the loop itself exchanges."""
    ahead: Ranks
    """For the batches that another thread reads."""

    @property
    def num_ranks(self) -> int:
        return self.steps.num_ranks


def loop_ranks() -> LoopRanks:
    """Return the ranks of the caller's process group; one without such a group.

    Raises:
        ConfigError: this process was launched as a rank and has joined no group.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        own = [TorchRanks(_TIMEOUT_SECONDS, dist.new_group(backend="gloo")) for _ in range(2)]
        return LoopRanks(*own)
    if is_launched():
        raise ConfigError(
            "this process is one of several ranks, and has joined no process group",
            hint='call torch.distributed.init_process_group("gloo") before hotset.nn.Embeddings',
        )
    return LoopRanks(OneRank(), OneRank())


def check_equal_rows(ranks: Ranks, shards: Shards, config: TrainConfig, choices: object) -> None:
    """Raise RankError where another rank has other tables, or updates them in another way."""
    if ranks.num_ranks > 1:
        rows = {"data": shards.manifest.fingerprint, "tables": choices, "seed": config.seed}
        check_equal_settings(ranks, rows)


class SharedBatches:
    """Gives each rank the lookups of all, step by step; the end of one rank's batches is the end."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._is_over = False

    def held(self, dictionaries: Sequence[Dictionary], batches: Sequence[Batch]) -> Held[Dictionary]:
        """Return the batches of a step, with those of the other ranks.

        Raises:
            ConfigError: another rank has no more batches.
        """
        if self._ranks.num_ranks == 1:
            return Held(dictionaries, batches)
        found = self._gathered(join(batches))
        if None in found:
            raise ConfigError(
                f"rank {found.index(None)} has fewer batches than rank {self._ranks.rank}",
                hint="hotset.ShardDataset(data, rank=…, world_size=…) gives all ranks the same number",
            )
        of_ranks = [each for each in found if each is not None]
        first = sum(each.num_samples for each in of_ranks[: self._ranks.rank])
        return Held(dictionaries, batches, join(of_ranks), first)

    def end(self) -> None:
        """Tell the other ranks that this one has no more batches."""
        if self._ranks.num_ranks > 1 and not self._is_over:
            self._gathered(None)

    def _gathered(self, own: Batch | None) -> list[Batch | None]:
        # A rank that reads ahead may wait for one that has ended its loop: whoever hears of an end, ends.
        found = gather_batches(self._ranks, own)
        self._is_over = None in found
        return found


def gather_batches(ranks: Ranks, own: Batch | None) -> list[Batch | None]:
    """Return the lookups of each rank's batch, in the order of ranks; None where it has none."""
    if own is None:
        return [_batch_of(each) for each in gather_arrays(ranks, [])]
    head = np.array([*own.ids_BF.shape, own.is_hot_only], np.int64)
    bags = [array for each in own.bags for array in (each.offsets_B1, each.ids_N)]
    return [_batch_of(each) for each in gather_arrays(ranks, [head, own.ids_BF, *bags])]


def _batch_of(found: Sequence[NDArray[np.uint8]]) -> Batch | None:
    if not found:
        return None
    num_samples, num_one_hot, is_hot_only = found[0].view(np.int64).tolist()
    ids_N, *bags = (each.view(np.int32) for each in found[1:])
    lists = zip(bags[::2], bags[1::2], strict=True)
    no_values = torch.empty(0, dtype=torch.float32, device="cpu")
    return Batch(
        no_values,
        no_values,
        ids_N.reshape(num_samples, num_one_hot),
        None,
        bool(is_hot_only),
        tuple(FeatureBags(offsets_B1, bag_ids_N) for offsets_B1, bag_ids_N in lists),
    )


def gather_gradients(
    ranks: Ranks, grads: Sequence[NDArray[np.float32]], is_given_BF: NDArray[np.bool_]
) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
    """Return gradients of the samples of all ranks, in the order of ranks.

    Args:
        ranks: all call this.
        grads: (B, F, d) of each table group.
        is_given_BF: which samples have a gradient, by feature.
    """
    found = gather_arrays(ranks, [*grads, is_given_BF])
    whole = [
        np.concatenate([each[group].view(np.float32).reshape(-1, *own.shape[1:]) for each in found])
        for group, own in enumerate(grads)
    ]
    flags = [each[-1].view(np.bool_).reshape(-1, is_given_BF.shape[1]) for each in found]
    return whole, np.concatenate(flags)
