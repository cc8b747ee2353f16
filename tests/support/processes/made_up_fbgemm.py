"""FBGEMM's tables for GPUs, made up on the CPU: Adam, and a cache over host memory with prefetched rows.

`MadeUpTables` is FBGEMM's own class for CPUs but for the lookups, whose rules are those of its kernels for
GPUs. Rows are in the cache or in host memory. A prefetch copies rows into the cache and locks them, a forward
pass takes the places that the oldest prefetch found, and the backward pass unlocks the rows and looks their
places up again, since the next prefetch may have moved them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

CACHED_SHARE = 0.3
"""Of the rows of a rank's tables, which is less than two steps need."""
ADAM = {"beta1": 0.9, "beta2": 0.999}


def adam_of_rows(
    rows: Sequence[torch.Tensor],
    grad: torch.Tensor,
    *,
    lr: float,
    eps: float,
    beta1: float,
    beta2: float,
) -> list[torch.Tensor]:
    """Return rows after a step of FBGEMM's Adam that counts the steps of a row, in float64.

    Args:
        rows: weights, averages of gradients and of their squares, (N, D) each, and (N,) steps before.
        grad: (N, D).
    """
    weights, mean, square, count = (each.double() for each in rows)
    count = count + 1
    mean = beta1 * mean + (1 - beta1) * grad.double()
    square = beta2 * square + (1 - beta2) * grad.double() ** 2
    first, second = (1 - beta ** count.unsqueeze(1) for beta in (beta1, beta2))
    change = mean / first / ((square / second).sqrt() + eps)
    return [weights - lr * change, mean, square, count]


class _Lookup(torch.autograd.Function):
    """Rows of tables, which take their step in the backward pass."""

    @staticmethod
    def forward(ctx: Any, wanted: torch.Tensor, tables: MadeUpTables, rows: torch.Tensor) -> torch.Tensor:
        ctx.tables, ctx.rows, ctx.is_cached = tables, rows, tables.is_cached_of_step
        where = ctx.is_cached.unsqueeze(1)
        return torch.where(where, tables.cache_RD[rows], tables.host_RD[rows])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.tables.step_rows(ctx.rows, ctx.is_cached, grad)
        return torch.zeros(0), None, None


class MadeUpTables(SplitTableBatchedEmbeddingBagsCodegen):  # type: ignore[misc]
    """Tables of one embedding dimension with SGD or Adam."""

    made: ClassVar[list[MadeUpTables]] = []
    """All of this process."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.is_adam = settings["optimizer"] == EmbOptimType.ADAM
        own = settings.pop("extra_optimizer_config", None)
        assert not self.is_adam or own.use_rowwise_bias_correction
        self.of = {name: settings.pop(name) for name in ADAM if name in settings} | {"eps": settings["eps"]}
        super().__init__(*args, **settings | {"optimizer": EmbOptimType.EXACT_SGD})
        dims = {dim for _, dim, *_ in self.embedding_specs}
        assert len(dims) == 1
        self.num_rows_T = [rows for rows, *_ in self.embedding_specs]
        self.host_RD = self.weights_host.detach().view(-1, dims.pop())
        self.mean_RD, self.square_RD = torch.zeros_like(self.host_RD), torch.zeros_like(self.host_RD)
        self.count_R = torch.zeros(self.host_RD.shape[0])
        # What is outside the cache is no number, so that nobody may read it.
        self.cache_RD = torch.full_like(self.host_RD, torch.nan)
        self.is_cached_R = torch.zeros(self.host_RD.shape[0], dtype=torch.bool)
        self.last_use_R = torch.zeros(self.host_RD.shape[0], dtype=torch.int64)
        self.register_buffer(
            "lxu_cache_locking_counter", torch.zeros(self.host_RD.shape[0], dtype=torch.int32)
        )
        self.num_prefetched = 0
        self.num_open = 0
        """Forward passes whose backward pass is to come."""
        self.made.append(self)

    def _rows(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return rows of all tables one after the other."""
        num_features = len(self.feature_table_map)
        lengths = offsets[:: (offsets.numel() - 1) // num_features].diff()
        firsts = torch.tensor([sum(self.num_rows_T[:table]) for table in self.feature_table_map])
        return indices.long() + torch.repeat_interleave(firsts, lengths)

    def prefetch(self, indices: torch.Tensor, offsets: torch.Tensor, **more: Any) -> None:
        """Fetch rows into the cache for a step that comes."""
        self.num_prefetched += 1
        # Between runs of steps nobody needs a row.
        if not self.timesteps_prefetched and not self.num_open:
            assert not self.lxu_cache_locking_counter.any(), "rows that nobody unlocks"
        self._fetch(self._rows(indices, offsets))

    def _fetch(self, rows: torch.Tensor) -> None:
        self.timestep += 1
        self.timesteps_prefetched.append(self.timestep)
        if self.prefetch_pipeline:
            for row in torch.unique(rows).tolist():
                self._make_room(row)
                self.lxu_cache_locking_counter[row] += int(self.is_cached_R[row])
        self.lxu_cache_locations_list.append(self.is_cached_R[rows])

    def _make_room(self, row: int) -> None:
        """Put a row into the cache if one is there that may leave it."""
        self.last_use_R[row] = self.timestep
        if self.is_cached_R[row]:
            return
        if int(self.is_cached_R.sum()) >= int(CACHED_SHARE * self.is_cached_R.numel()):
            free = (self.is_cached_R & (self.lxu_cache_locking_counter == 0)).nonzero().flatten()
            if not free.numel():
                return
            evicted = free[self.last_use_R[free].argmin()]
            self.host_RD[evicted] = self.cache_RD[evicted]
            self.cache_RD[evicted] = torch.nan
            self.is_cached_R[evicted] = False
        self.cache_RD[row] = self.host_RD[row]
        self.is_cached_R[row] = True

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, *_: Any, **more: Any) -> torch.Tensor:
        """Return the rows, each as often as it is looked up."""
        rows = self._rows(indices, offsets)
        if not self.timesteps_prefetched:
            self._fetch(rows)
        self.timesteps_prefetched.pop(0)
        self.is_cached_of_step = self.lxu_cache_locations_list.pop(0)
        assert self.is_cached_of_step.shape == rows.shape, "places of another step"
        self.num_open += torch.is_grad_enabled()
        found: torch.Tensor = _Lookup.apply(self.placeholder_autograd_tensor, self, rows)  # type: ignore[no-untyped-call]
        return found

    def step_rows(self, rows: torch.Tensor, is_cached: torch.Tensor, grad: torch.Tensor) -> None:
        """Unlock the rows of a step, and update each once."""
        self.num_open -= 1
        self.lxu_cache_locking_counter[torch.unique(rows[is_cached])] -= 1
        rows, places = torch.unique(rows, return_inverse=True)
        grad = torch.zeros(rows.numel(), grad.shape[1]).index_add_(0, places, grad)
        where = self.is_cached_R[rows].unsqueeze(1)
        weights = torch.where(where, self.cache_RD[rows], self.host_RD[rows])
        of = self.of | {"lr": self.get_learning_rate()}
        if self.is_adam:
            states = (self.mean_RD, self.square_RD, self.count_R)
            weights, *kept = adam_of_rows([weights, *(each[rows] for each in states)], grad, **of)
            for state, own in zip(states, kept, strict=True):
                state[rows] = own.float()
        else:
            weights = weights - of["lr"] * grad
        weights = weights.float()
        self.cache_RD[rows] = torch.where(where, weights, self.cache_RD[rows])
        self.host_RD[rows] = torch.where(where, self.host_RD[rows], weights)

    def flush(self) -> None:
        """Write the rows of the cache back."""
        self.host_RD[self.is_cached_R] = self.cache_RD[self.is_cached_R]

    def reset_cache_states(self) -> None:
        """Empty the cache."""
        self.is_cached_R.zero_()
        self.cache_RD.fill_(torch.nan)

    def get_optimizer_state(self) -> list[dict[str, torch.Tensor]]:
        """Return the states of each table as FBGEMM names them."""
        if not self.is_adam:
            found: list[dict[str, torch.Tensor]] = super().get_optimizer_state()
            return found
        states = {"exp_avg": self.mean_RD, "exp_avg_sq": self.square_RD, "row_counter": self.count_R}
        parts = {name: torch.split(each, self.num_rows_T) for name, each in states.items()}
        return [{name: each[table] for name, each in parts.items()} for table in range(len(self.num_rows_T))]


def _prefetch_without_streams(context: Any, modules: Any, *streams: Any) -> None:
    """Do what TorchRec's function does where a device has streams."""
    for module in modules:
        name = module.forward.name
        ids = context.input_dist_tensors_requests.pop(name).wait()
        module.prefetch(ctx=context.module_contexts[name], dist_input=ids)
        context.module_input_post_prefetch[name] = ids
        context.module_contexts_post_prefetch[name] = context.module_contexts.pop(name)


@contextmanager
def made_up_tables(*, is_cached: bool) -> Iterator[None]:
    """Let TorchRec build `MadeUpTables`, and plan them all as tables behind a cache."""
    from torchrec.distributed.types import CacheParams

    from hotset.train import build_embeddings
    from hotset.train.torchrec import sharding

    own: Any = sharding
    original = own.plan_sharding

    def plan(*args: Any, **settings: Any) -> Any:
        # The planner has no Adam on CPUs, and no caches.
        made = original(*args, **settings)
        for tables in made.plan.values() if is_cached else ():
            for each in tables.values():
                each.compute_kernel = "fused_uvm_caching"
                each.cache_params = CacheParams(
                    load_factor=CACHED_SHARE, prefetch_pipeline=settings["is_prefetched"]
                )
        return made

    kernels = importlib.import_module("torchrec.distributed.batched_embedding_kernel")
    pipelines = importlib.import_module("torchrec.distributed.train_pipeline.train_pipelines")
    optimizers = (*build_embeddings.TORCHREC_OPTIMIZERS, "adam")
    MadeUpTables.made.clear()
    with ExitStack() as block:
        for place, name, value in (
            (kernels, "SplitTableBatchedEmbeddingBagsCodegen", MadeUpTables),
            (pipelines, "prefetch_embeddings", _prefetch_without_streams),
            (own, "plan_sharding", plan),
            (build_embeddings, "TORCHREC_OPTIMIZERS", optimizers),
        ):
            block.enter_context(patch.object(place, name, value))
        yield
