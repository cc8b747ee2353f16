"""What a training run may vary. Imports nothing heavy: the command line builds its options from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..pipeline.errors import ConfigError
from ..pipeline.sizes import ByteSize

Placement = Literal["all-fast", "hybrid", "hybrid-dedup", "fae", "cache", "lookahead"]
ModelName = Literal["auto", "kaggle", "terabyte", "small"]
EmbeddingOptimizer = Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"]
DenseOptimizer = Literal["same", "sgd", "adagrad", "adam"]

EMBEDDING_LR = {"sgd": 10.0, "momentum": 1.0, "adagrad": 0.04, "rowwise-adagrad": 0.04, "adam": 0.001}
"""Usual learning rates of the rows. The gradient is a mean over the batch, and a row seen once in 2,048
samples gets 1/2048 of one sample's: SGD at DLRM's 0.1 hardly moves rare rows (AUC 0.706 after 0.4 M
generated samples, against 0.762 at 10 and 0.793 with Adagrad)."""
DENSE_LR = {"sgd": 0.1, "adagrad": 0.01, "adam": 0.0005}
"""Usual learning rates of the dense layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of a training run; together with the shards they decide its weights."""

    placement: Placement = "lookahead"
    """Where rows live and move: all on the fast tier, all on the slow one (with or without
    deduplication inside a batch), as FAE does, in a cache as FreqCache has it, or hot rows on the fast
    tier and the others brought there just before they are needed (lookahead)."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows with their state; default what the shards were packed with. Another budget
    needs shards of order original."""

    staging_bytes: ByteSize | None = None
    """Fast memory for cold rows with their state, beside the hot ones; default as many bytes as those take.
    Cache uses the bytes of both; the other placements need none."""

    slow_bytes: ByteSize | None = None
    """Host memory for rows; what is larger lies in a scratch file of the run's folder while it trains.
    Default: all in memory."""

    prefetch: int = 2
    """Batches that rows may come and go ahead of the one computed. More hide slower transfers and leave
    fewer rows to choose from for the slots."""

    plan: Literal["auto", "epoch", "online"] = "auto"
    """How lookahead plans: a whole epoch from its exact next uses, in the background (epoch), or batch by
    batch (online). auto takes what `hotset schedule` made where it fits the run, else epoch, or online where
    an epoch has more than 268 million look-ups in mixed batches."""

    window: int = 64
    """Batches that lookahead knows ahead where it plans online."""

    cache_policy: Literal["lru", "lfu", "dataset"] = "lfu"
    """Which row leaves the cache: the one used longest ago, the one with the fewest look-ups, or the
    rarest of the log."""

    cache_warmup: float = 0.7
    """Share of the cache filled with the most frequent rows before the first batch."""

    cache_batches: int = 1
    """Batches whose rows come to the cache together."""

    model: ModelName = "auto"
    """DLRM preset; auto takes the one that fits the shards' dim: 16 kaggle, 64 terabyte, else small."""

    epochs: int = 1
    """Passes over the training part."""

    seed: int = 0
    """Of the initial values and the order of batches."""

    device: str = "cpu"
    """Device of the fast tier and the dense layers: cpu or cuda."""

    embedding_optimizer: EmbeddingOptimizer = "sgd"
    """Optimizer of the embedding rows. All are lazy: a row no sample of a batch looks up stays as it is,
    state included; momentum keeps 0.9 of a row's last step, adam counts the steps of each row."""

    embedding_lr: float | None = None
    """Learning rate of the rows; default 10 for sgd, 1 for momentum, 0.001 for adam, 0.04 for the others."""

    dense_optimizer: DenseOptimizer = "same"
    """Optimizer of the dense layers; same means the rows' one (adagrad for rowwise-adagrad, sgd for
    momentum)."""

    dense_lr: float | None = None
    """Learning rate of the dense layers; default 0.1 for sgd, 0.01 for adagrad, 0.0005 for adam."""

    fae_variant: Literal["paper", "code"] = "paper"
    """Schedule of the fae placement: the paper's, from test loss, or that of its released code, which
    runs all mixed batches and then all hot-only ones."""

    evaluate_every: int | None = None
    """Evaluate after every so many batches too, not at the end alone."""

    log_every: int = 100
    """Write the training loss after every so many batches."""

    threads: int | None = None
    """Threads of the dense layers; default the cores this process may use. Equal bits need equal threads."""

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every", "evaluate_every", "threads", "window", "cache_batches"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name} must be 1 or more, got {count}")
        for name in ("embedding_lr", "dense_lr"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {rate}")
        if self.prefetch < 0:
            raise ConfigError(f"prefetch must be 0 or more, got {self.prefetch}")
        if not 0 <= self.cache_warmup <= 1:
            raise ConfigError(f"cache_warmup must be from 0 to 1, got {self.cache_warmup}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")

    @property
    def resolved_dense_optimizer(self) -> str:
        """The dense optimizer with ``same`` replaced."""
        if self.dense_optimizer != "same":
            return self.dense_optimizer
        return {"momentum": "sgd", "rowwise-adagrad": "adagrad"}.get(
            self.embedding_optimizer, self.embedding_optimizer
        )

    @property
    def resolved_embedding_lr(self) -> float:
        """Learning rate of the rows, given or usual."""
        return EMBEDDING_LR[self.embedding_optimizer] if self.embedding_lr is None else self.embedding_lr

    @property
    def resolved_dense_lr(self) -> float:
        """Learning rate of the dense layers, given or usual."""
        return DENSE_LR[self.resolved_dense_optimizer] if self.dense_lr is None else self.dense_lr
