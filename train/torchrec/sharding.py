"""Where TorchRec puts the rows of a run: how many are replicated, a plan for the others, and a sharded model.

Both follow from how the ranks use rows in batches of the shards (`count_uses`). TorchRec's planner is told
what an ``EmbeddingCollection`` is given here: one sample a step, with the distinct rows of a rank. It may
place a table on one rank, or divide its rows or columns. It may not copy one to all ranks: a data-parallel
table ignores the optimizer that runs in the backward pass, and so would never train. Each rank plans by
itself, which gives the same plan; `collective_plan` leaves the other ranks waiting where planning fails.

On GPUs, sharded rows that do not fit are in host memory behind FBGEMM's cache (``fused_uvm_caching``). The
cache of each table has as many rows as are among the most used ones of all tables. This was never run.

Shapes: K rows of a table, T tables.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from ...pipeline.errors import ConfigError, first_line
from ...pipeline.folders.totals import ShardsTotals, multi_hot
from ...pipeline.formats.ids import ONE_EACH, PartIds
from ...pipeline.runtime.progress import Progress, no_progress
from ...pipeline.statistics.coverage import table_sizes
from ...stats.replication import Network, RowUses, UseCounter, choose_prefixes
from ...stats.row_bytes import row_bytes
from ..config import TrainConfig
from ..data.shards import ShardSet

if TYPE_CHECKING:
    from ..rows.backends import RowOptimizer
    from .batches import ReplicatedRows

CODECS = ("fp16", "bf16", "int8")
"""Values of ``--exchange`` that TorchRec has a codec for, besides none."""
_ROOM = 0.75
"""Share of a GPU's free memory that sharded rows may take."""


MOST_STEPS = 256
"""Batches that are counted at most: 2 s CPU with 26 tables and batches of 8,192."""


def count_uses(
    shards: ShardSet,
    rank_counts: Sequence[int],
    *,
    most_steps: int = MOST_STEPS,
    progress: Progress = no_progress,
) -> list[RowUses]:
    """Count how the ranks of a run use rows, for several numbers of ranks.

    Each rank takes its part of a batch. Of a long epoch some batches are counted, drawn evenly from hot-only
    and mixed ones; they are verified as those of a training are. Every rank counts by itself: counts of all
    rows would be more to send than these batches are to read. Takes 8 bytes of memory per row and number.

    Raises:
        ShardError: damaged shards.
    """
    # Hot-only batches first, so that even steps take as large a share of each kind.
    order = np.argsort(~shards.is_hot_only, kind="stable")
    places = np.linspace(0, order.size - 1, min(most_steps, order.size)).astype(np.int64)
    numbers = np.sort(order[np.unique(places)]).tolist()
    tables = ShardsTotals.of(shards.manifest).tables
    lists = [feature.name for feature in multi_hot(tables)]
    counters = [UseCounter([table.num_rows for table in tables], num_ranks) for num_ranks in rank_counts]
    for done, number in enumerate(numbers, 1):
        read = shards.training_lookups(number)
        bags = {name: (own.offsets_B1, own.ids_N) for name, own in zip(lists, read.bags, strict=True)}
        of_tables = PartIds(tables, read.ids_BF, bags).by_table
        arrays = [(own.ids, None if own.offsets is ONE_EACH else own.offsets) for own in of_tables]
        for counter in counters:
            counter.add(read.num_samples, arrays)
        progress("batches", done, len(numbers))
    return [counter.found() for counter in counters]


def choose_num_replicated(
    shards: ShardSet, config: TrainConfig, uses: RowUses, network: Network | None = None
) -> tuple[int, ...]:
    """Return how many rows of each table to replicate on all ranks.

    With ``--placement fae`` those that the shards call hot, otherwise those with which a step exchanges the
    fewest bytes, or by the speeds of ``network`` in the least time; with their optimizer state they take
    ``--hot-bytes`` at most, by default what the shards were made for.
    """
    if config.placement == "fae":
        return tuple(table.num_hot for table in shards.tables)
    tables = table_sizes(shards.manifest, config.row_optimizer(shards.embedding_optimizer))
    limit = ShardsTotals.of(shards.manifest).hot_bytes if config.hot_bytes is None else config.hot_bytes
    return choose_prefixes(uses, tables, network or Network(), limit).num_replicated


def shard(
    model: nn.Module,
    shards: ShardSet,
    rows: ReplicatedRows,
    optimizer: RowOptimizer,
    device: torch.device,
    uses: RowUses,
    *,
    eps: float | None = None,
    codecs: Any = None,
    cache_bytes: int | None = None,
    is_prefetched: bool = False,
    has_unused: bool | None = None,
    constraints: Mapping[str, Any] | None = None,
    plan: Any = None,
) -> Any:
    """Shard the tables of a model over the ranks, and make the rest data-parallel.

    Args:
        model: holds one `HotColdEmbeddings` of ``rows``.
        optimizer: that of rows, with its first learning rate.
        uses: of rows by the ranks, from which the plan follows.
        eps: of Adagrad; None: that of ``optimizer``.
        codecs: TorchRec's, of what the sharded tables exchange; None: it crosses as it is.
        cache_bytes: memory of a GPU for sharded rows; None: what there is.
        is_prefetched: whether a pipeline fetches the rows of the next step into the caches.
        has_unused: whether a step may leave out parameters that are not sharded; None: each step leaves out
            the same ones.
        constraints: of tables, see `plan_sharding`.
        plan: TorchRec's; None: one by its planner.

    Returns:
        A ``DistributedModelParallel``.
    """
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
    from torchrec.distributed.types import ShardingPlan

    settings = _settings_of(optimizer, optimizer.eps if eps is None else eps)
    sharders: Any = [EmbeddingCollectionSharder(fused_params=settings, qcomm_codecs_registry=codecs)]
    with quiet():
        if plan is None and any(group.cold_tables for group in rows.groups):
            plan = plan_sharding(
                model,
                sharders,
                shards,
                rows.num_replicated,
                uses,
                device=device,
                optimizer=optimizer.name,
                cache_bytes=cache_bytes,
                is_prefetched=is_prefetched,
                constraints=constraints,
            )
        wrapper = DefaultDataParallelWrapper(
            static_graph=has_unused is None, find_unused_parameters=bool(has_unused)
        )
        return DistributedModelParallel(
            model,
            device=device,
            plan=plan or ShardingPlan({}),
            sharders=sharders,
            data_parallel_wrapper=wrapper,
        )


def _settings_of(optimizer: RowOptimizer, eps: float) -> dict[str, Any]:
    """Return what FBGEMM is told of the optimizer of sharded rows, for TorchRec to rewrite."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise-adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adam": EmbOptimType.ADAM,
    }
    settings = {"optimizer": kinds[optimizer.name], "learning_rate": optimizer.lr, "eps": eps}
    if optimizer.name == "adam":
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import UserEnabledConfigDefinition

        from ..rows.backends import ADAM_BETAS

        # By default it corrects for bias by the steps of the run. FBGEMM warns that it is not tuned.
        by_row = UserEnabledConfigDefinition(use_rowwise_bias_correction=True)
        settings |= {"beta1": ADAM_BETAS[0], "beta2": ADAM_BETAS[1], "extra_optimizer_config": by_row}
        warnings.filterwarnings("ignore", message=r"[\s\S]*optimizer 'adam' is marked as")
    return settings


@contextmanager
def quiet() -> Iterator[None]:
    """Keep TorchRec's hundreds of lines about its own deprecations off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def plan_sharding(
    model: nn.Module,
    sharders: Sequence[Any],
    shards: ShardSet,
    num_replicated: Sequence[int],
    uses: RowUses,
    *,
    device: torch.device,
    optimizer: str,
    cache_bytes: int | None = None,
    is_prefetched: bool = False,
    constraints: Mapping[str, Any] | None = None,
) -> Any:
    """Return TorchRec's plan for the collections of a model.

    Args:
        model: with an ``EmbeddingCollection`` of sharded rows, or several.
        sharders: those that `DistributedModelParallel` gets.
        shards: of the run; a feature of a collection has the name of its table.
        num_replicated: first rows of each table, which no collection has.
        uses: of the rows of shards, by as many ranks as there are.
        device: of this rank.
        optimizer: of rows.
        cache_bytes: memory of each GPU for sharded rows with their state; None: three quarters of what is
            free. Not used on CPUs.
        is_prefetched: whether a pipeline fetches the rows of the next step into the caches, which keep those
            of both.
        constraints: ``ParameterConstraints`` of some tables of collections by name, which replace ours.

    Raises:
        ConfigError: TorchRec finds no place for a table.
    """
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import PlannerError

    total, room = _memory_of(device)
    room = room if cache_bytes is None else cache_bytes
    own = constraints_of(
        model,
        shards,
        num_replicated,
        uses,
        device=device,
        optimizer=optimizer,
        cache_bytes=room,
        is_prefetched=is_prefetched,
    )
    topology = Topology(world_size=uses.num_ranks, compute_device=device.type, hbm_cap=total)
    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=1, constraints={**own, **(constraints or {})}, debug=False
    )
    try:
        return planner.plan(model, list(sharders))
    except (PlannerError, RuntimeError) as error:
        raise ConfigError(
            f"TorchRec finds no place for the sharded rows: {first_line(error)}",
            hint="replicate fewer rows (--hot-bytes), use more ranks, or give constraints of your own",
        ) from error


def constraints_of(
    model: nn.Module,
    shards: ShardSet,
    num_replicated: Sequence[int],
    uses: RowUses,
    *,
    device: torch.device,
    optimizer: str,
    cache_bytes: int,
    is_prefetched: bool = False,
) -> dict[str, Any]:
    """Return ``ParameterConstraints`` of the tables of a model's collections, by name.

    Arguments are those of `plan_sharding`.
    """
    from torchrec import EmbeddingCollection
    from torchrec.distributed.planner import ParameterConstraints
    from torchrec.distributed.types import CacheParams

    collections = [module for module in model.modules() if isinstance(module, EmbeddingCollection)]
    configs = [config for each in collections for config in each.embedding_configs()]
    place_of = {table.name: place for place, table in enumerate(shards.tables)}
    places = [place_of[config.feature_names[0]] for config in configs]
    cold = [uses.uses[place][num_replicated[place] :] for place in places]
    sizes = [row_bytes(config.embedding_dim, optimizer) for config in configs]
    # The caches of all ranks together are for the rows of all of them.
    room = cache_bytes * uses.num_ranks
    every = sum(own.size * num_bytes for own, num_bytes in zip(cold, sizes, strict=True))
    has_caches = device.type == "cuda" and every > room
    cached = cached_rows(cold, sizes, room) if has_caches else [own.size for own in cold]
    found = {}
    for config, own, num_bytes, num_cached in zip(configs, cold, sizes, cached, strict=True):
        types = ["table_wise"]
        # The state of row-wise Adagrad is a mean over all columns of a row.
        if optimizer != "rowwise-adagrad":
            types.append("column_wise")
        # TorchRec divides rows into ranges of ids, of which the first one has most of the lookups here: only
        # where a table is more than a rank's part of all.
        if own.size >= uses.num_ranks and own.size * num_bytes * uses.num_ranks > every:
            types.append("row_wise")
        # A rank gives a collection one sample, with its distinct rows in a table.
        distinct = float(own.sum(dtype=np.int64)) / max(1, uses.num_ranks * uses.num_steps)
        is_cached = num_cached < own.size
        statistics = use_statistics(own, uses.num_ranks, uses.num_steps)
        load_factor = num_cached / own.size
        params = CacheParams(load_factor=load_factor, stats=statistics, prefetch_pipeline=is_prefetched)
        found[config.name] = ParameterConstraints(
            sharding_types=types,
            compute_kernels=["fused_uvm_caching" if is_cached else "fused"],
            pooling_factors=[distinct],
            num_poolings=[1.0],
            batch_sizes=[1],
            cache_params=params if is_cached else None,
        )
    return found


def _memory_of(device: torch.device) -> tuple[int | None, int]:
    """Return the bytes of a GPU, and those for sharded rows: the least of all ranks, whose plans are equal.

    Those of a CPU are not limited. Where there is no GPU, a plan for GPUs is for those that TorchRec assumes.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None, 1 << 62
    free, total = torch.cuda.mem_get_info(device)
    found = torch.tensor([total, int(_ROOM * free)], dtype=torch.int64, device=device)
    if dist.is_initialized():
        dist.all_reduce(found, dist.ReduceOp.MIN)
    total, room = found.tolist()
    return total, room


def cached_rows(uses: Sequence[NDArray[np.int32]], row_bytes: Sequence[int], cache_bytes: int) -> list[int]:
    """Return the rows of each table that a cache holds if it has the most used rows by bytes.

    Args:
        uses: (K,) of each table.
        row_bytes: of each table.
        cache_bytes: of all tables together.

    Returns:
        At least 1 each.
    """
    # Rows that are used equally often count together.
    classes = []
    for table, (own, num_bytes) in enumerate(zip(uses, row_bytes, strict=True)):
        counts = np.bincount(own)
        times = np.flatnonzero(counts)
        classes += [
            (each / num_bytes, table, rows)
            for each, rows in zip(times.tolist(), counts[times].tolist(), strict=True)
        ]
    cached = [0] * len(uses)
    left = cache_bytes
    for _, table, rows in sorted(classes, key=lambda each: (-each[0], each[1])):
        taken = min(rows, left // row_bytes[table])
        cached[table] += taken
        left -= taken * row_bytes[table]
    return [max(1, rows) for rows in cached]


def use_statistics(uses: NDArray[np.int32], num_ranks: int, num_steps: int) -> Any:
    """Return a ``CacheStatistics`` of TorchRec from the uses of rows.

    Args:
        uses: (K,), pairs of a rank and a step that use each row.
        num_ranks: ranks, which use rows independently of each other.
        num_steps: steps that were counted.
    """
    from torchrec.distributed.types import CacheStatistics

    # Rows by uses, the most first; the probability that some rank uses a row in a step.
    counts_K = np.bincount(uses, minlength=1)[::-1]
    share_K = np.minimum(np.arange(counts_K.size)[::-1] / max(1, num_ranks * num_steps), 1.0)
    used_K = counts_K * (1 - (1 - share_K) ** num_ranks)
    rows = np.concatenate([[0.0], np.cumsum(counts_K) / max(1, uses.size)])
    total = float(used_K.sum())
    missed = 1 - np.concatenate([[0.0], np.cumsum(used_K)]) / (total or 1.0)
    missed[-1] = 0.0
    digest = hashlib.sha256(np.concatenate([rows, missed, [total]]).tobytes()).hexdigest()

    class UseStatistics(CacheStatistics):  # type: ignore[misc]
        """Statistics of a cache that keeps the most used rows."""

        def stable_fingerprint(self) -> tuple[object, ...]:
            return ("hotset.torchrec.use_statistics", 1, digest)

        @property
        def expected_lookups(self) -> float:
            """Distinct rows of a step of all ranks."""
            return total

        def expected_miss_rate(self, clf: float) -> float:
            """Return the share of them that is not among the most used rows, a share ``clf`` of all."""
            return float(np.interp(clf, rows, missed))

        @property
        def cacheability(self) -> float:
            """Mean miss rate over all sizes of the cache, twice: 1 if all rows are used alike."""
            return min(1.0, 2 * float(np.trapezoid(missed, rows)))

    return UseStatistics()


def codecs_of(exchange: str, device: torch.device) -> Any:
    """Return TorchRec's codecs of vectors and gradients for a value of ``--exchange``; None for none.

    Gradients of dense layers and of replicated rows are averaged in float32. In fp16 gradients below 6e-5
    lose digits: TorchRec's scale for them does not help, since it is divided out again in fp16.

    Raises:
        ConfigError: a value that TorchRec has no codec for, or that it would replace on this device.
    """
    if exchange == "none":
        return None
    if exchange not in CODECS:
        raise ConfigError(
            f"exchange must be none or one of {', '.join(CODECS)} with TorchRec, got {exchange!r}",
            hint="use --exchange fp16",
        )
    if exchange == "bf16" and device.type == "cpu":
        raise ConfigError("TorchRec has no bf16 on CPUs and would send fp16", hint="use --exchange fp16")
    from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry

    kind = CommType(exchange)
    config = QCommsConfig(forward_precision=kind, backward_precision=kind)
    return get_qcomm_codecs_registry(config, device=device)
