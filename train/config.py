"""The settings of a training run. Imports nothing heavy: the command line builds its options from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..pipeline.errors import ByteSize, ConfigError, require_at_least, require_at_most, require_choices
from .options.model_config import (
    MODEL_NAMES,
    MOST_HISTORY,
    MOST_LAYERS,
    MOST_WIDTH,
    Pooling,
    Structure,
    parse_arguments,
    refuse_unknown_model,
)
from .options.recipe_options import RecipeOptions

PlacementName = Literal["all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache", "lookahead"]
EmbeddingOptimizer = Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"]
MoverName = Literal["auto", "kernel", "threads"]
DenseOptimizer = Literal["same", "sgd", "adagrad", "adam"]

EMBEDDING_LR: dict[str, float] = {
    "sgd": 10.0,
    "momentum": 1.0,
    "adagrad": 0.04,
    "rowwise-adagrad": 0.04,
    "adam": 0.001,
}
"""Usual learning rates of the rows. The gradient is a mean over the batch, and a row seen once in 2,048
samples gets 1/2048 of one sample's: SGD at DLRM's 0.1 hardly moves rare rows (AUC 0.706 after 0.4 M
generated samples, against 0.762 at 10 and 0.793 with Adagrad)."""
DENSE_LR: dict[str, float] = {"sgd": 0.1, "adagrad": 0.01, "adam": 0.001}
"""Usual learning rates of the dense layers."""
_DENSE_TWIN = {"momentum": "sgd", "rowwise-adagrad": "adagrad"}
"""The dense optimizer nearest to one of rows that torch has not."""


@dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizers and learning rates of a run, none of them left open."""

    embedding_optimizer: str
    embedding_lr: float
    dense_optimizer: str
    dense_lr: float


MOST_THREADS = 1024
"""More threads of the dense layers than a machine has cores; torch dies of a signal at some ten thousand."""
MOST_MICRO_BATCHES = 1024
"""More parts of a batch than most are worth to be cut into."""
MOST_BATCHES_AHEAD = 2**20
"""More batches than any run can hold ahead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of a training run; together with the shards they decide its weights."""

    placement: PlacementName = "lookahead"
    """Where embedding rows live: all on the fast tier (all-fast), all on the slow one, without or with
    deduplication inside a batch (hybrid, hybrid-dedup), there but for those of one batch at a time
    (hybrid-uva), hot rows on both in turns (fae), in a cache on the fast tier (cache), or hot rows on the
    fast tier and the others loaded there just before they are needed (lookahead)."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows with their optimizer state; by default the budget that the shards were packed
    with. Another budget needs shards of order original."""

    staging_bytes: ByteSize | None = None
    """Fast memory for cold rows with their optimizer state, beside the hot ones; by default as many bytes as
    those take, and at least four times those of a batch, so that transfers can run ahead. The placement cache
    uses the bytes of both; the others but lookahead use none."""

    slow_bytes: ByteSize | None = None
    """Host memory for embedding rows; rows beyond it lie in a spill file while the run trains. lookahead
    writes each row where its next use will find it and reads it in time; the other placements map the file.
    By default all rows are in memory."""

    prefetch: int | None = None
    """Number of batches that transfers may run ahead of the batch being computed; by default 2, or what the
    staging slots allow: each one takes slots for the cold rows of two batches more. Higher values hide slower
    transfers and leave fewer rows to choose from for eviction."""

    cache_policy: Literal["lru", "lfu", "dataset"] = "lfu"
    """Which row the cache evicts: the one used longest ago (lru), the one with the fewest lookups so far
    (lfu), or the one with the fewest lookups in the log (dataset)."""

    cache_warmup: float = 0.7
    """Share of the cache filled with the most frequent rows before the first batch."""

    cache_batches: int = 1
    """Number of batches whose rows are loaded into the cache together."""

    model: str = field(default="auto", metadata={"offered": MODEL_NAMES})
    """Dense model: kaggle, terabyte, mlperf or small, presets of DLRM; dlrm or auto, the preset that fits the
    embedding dimension of the shards (kaggle for 16, terabyte for 64, mlperf for 128, else small); dcnv2;
    tbsm, which takes list-valued features as histories; or a class of your own as package.module:Class, a
    torch.nn.Module over dense features and embeddings."""

    bottom_mlp: tuple[int, ...] | None = None
    """Widths of the hidden layers between the dense features and the interaction, such as 512,256,64; none
    for no layer. By default those of the preset; dcnv2 and tbsm have none by default."""

    top_mlp: tuple[int, ...] | None = None
    """Widths of the hidden layers between the interaction and the logit, the deep network of dcnv2; none for
    no layer. By default those of the preset that fits the embedding dimension; of tbsm 15,15, of which the
    last is the width of the vector of an element."""

    cross_layers: int | None = None
    """Number of layers of the cross network of dcnv2; by default 3."""

    cross_rank: int | None = None
    """Rank of the matrices of the cross network of dcnv2; by default they are full."""

    cross_structure: Structure | None = None
    """Whether the deep network of dcnv2 is behind the cross network (stacked) or beside it (parallel); by
    default stacked."""

    history_length: int | None = None
    """Number of elements of a history before the candidate, which is the last element of each list, for tbsm;
    by default 20. Shorter histories are padded."""

    attention_mlp: tuple[int, ...] | None = None
    """Widths of the hidden layers of tbsm between the similarities of a history to the candidate and the
    weights of its elements; none for no layer. By default 15,15."""

    last_mlp: tuple[int, ...] | None = None
    """Widths of the hidden layers of tbsm between the context of a history with the candidate and the logit;
    none for no layer. By default 60."""

    dropout: float | None = None
    """Share of the outputs of each hidden layer of the top MLP, or of the deep network of dcnv2, that is
    dropped in training, such as 0.2; by default none."""

    batch_norm: bool = False
    """Normalize the outputs of the hidden layers of all MLPs over the batch, before their ReLU. Each
    batch is then computed as a whole, in one thread."""

    pooling: Pooling = "sum"
    """How the rows of a multi-hot feature become one embedding: their sum or their mean."""

    model_args: str | None = None
    """Keyword arguments of the constructor of your own class, a JSON object such as '{"hidden": 64}'; by
    default it gets none."""

    epochs: int = 1
    """Number of passes over the training part."""

    seed: int = 0
    """Seed of the initial values and of the order of batches."""

    device: str = "cpu"
    """Device of the fast tier and the dense layers: cpu or cuda. late is a simulated device, whose work the
    host does late, to find missing waits; late:7 repeats the order of seed 7."""

    kernels: str | None = field(default=None, metadata={"no_option": True})
    """Kernels of steps on a GPU, for tests and measurements: torch for those that torch has, torch:NAME for
    one of them, more with commas between; by default Triton's, where it is installed. On the simulated device
    they run the dense layers too, which the host runs by default."""

    mover: MoverName = field(default="auto", metadata={"no_option": True})
    """Mover of rows between the tiers on a GPU, for tests and measurements: a kernel that reads and writes
    host memory itself (kernel), or threads of the host that gather them for a copy (threads). auto times both
    before the first step of a run and takes the quicker one; on the simulated device it takes the kernel. No
    bit of a run depends on it."""

    embedding_optimizer: EmbeddingOptimizer | None = None
    """Optimizer of the embedding rows; by default the one that the shards were packed for, which
    `preprocess --embedding-optimizer` sets. All are lazy: a row that no sample of a batch looks up stays as
    it is, optimizer state included; momentum keeps 0.9 of a row's last step, adam counts the steps of each
    row."""

    embedding_lr: float | None = None
    """Learning rate of the embedding rows; by default 10 for sgd, 1 for momentum, 0.001 for adam, 0.04 for
    the others."""

    dense_optimizer: DenseOptimizer = "adam"
    """Optimizer of the dense layers; same means that of the embedding rows (adagrad for rowwise-adagrad, sgd
    for momentum)."""

    dense_lr: float | None = None
    """Learning rate of the dense layers; by default 0.1 for sgd, 0.01 for adagrad, 0.001 for adam."""

    dense_dtype: Literal["fp32", "bf16", "auto"] = "fp32"
    """Number type of the products of the dense layers. bf16 sums in fp32 and keeps weights and optimizers in
    fp32; it is quick on a GPU, on a CPU with AMX and on AMD's with AVX512-BF16, and slower than fp32 on
    others. auto takes bf16 where it is quick. Evaluation uses the type of the run."""

    fae_variant: Literal["paper", "code"] = "paper"
    """Schedule of the fae placement: that of the paper, which switches by test loss, or that of its released
    code, which runs all mixed batches and then all hot-only ones."""

    evaluate_every: int | None = None
    """Number of batches between evaluations, of the validation part where the log has one; by default the run
    is evaluated at its end only."""

    log_every: int = 100
    """Number of batches between two lines of training loss in metrics.jsonl."""

    threads: int | None = None
    """Number of threads of a training step; by default the cores this process may use. On the CPU the weights
    do not depend on it."""

    micro_batches: int | None = None
    """Number of equal parts of a batch whose gradients are summed separately, then added by a binary tree:
    the weights depend on it, and not on how many ranks compute the parts. By default one for each rank."""

    recipe: RecipeOptions = field(default_factory=RecipeOptions)
    """Learning rates over the steps, clipping, decay, and when training stops."""

    def __post_init__(self) -> None:
        require_choices(self)
        for name in ("epochs", "log_every", "evaluate_every", "threads", "cache_batches"):
            require_at_least(name, getattr(self, name), 1)
        # A rate of None is chosen by the optimizer later.
        for name in ("embedding_lr", "dense_lr"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {rate}")
        require_at_least("prefetch", self.prefetch, 0)
        require_at_most("prefetch", self.prefetch, MOST_BATCHES_AHEAD)
        require_at_most("cache_batches", self.cache_batches, MOST_BATCHES_AHEAD)
        require_at_most("threads", self.threads, MOST_THREADS)
        require_at_least("micro_batches", self.micro_batches, 1)
        require_at_most("micro_batches", self.micro_batches, MOST_MICRO_BATCHES)
        # What depends on the model is checked together.
        self._check_model()
        if not 0 <= self.cache_warmup <= 1:
            raise ConfigError(f"cache_warmup must be from 0 to 1, got {self.cache_warmup}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")

    def _check_model(self) -> None:
        refuse_unknown_model(self.model)
        parse_arguments(self.model_args)
        for name in ("bottom_mlp", "top_mlp", "attention_mlp", "last_mlp"):
            widths = getattr(self, name) or ()
            require_at_most(f"the number of layers of {name}", len(widths), MOST_LAYERS)
            for width in widths:
                require_at_least(name, width, 1)
                require_at_most(name, width, MOST_WIDTH)
        # Absent options are those of the model that is chosen, and are checked with it.
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")
        require_at_least("history_length", self.history_length, 1)
        require_at_most("history_length", self.history_length, MOST_HISTORY)
        require_at_least("cross_layers", self.cross_layers, 1)
        require_at_most("cross_layers", self.cross_layers, MOST_LAYERS)
        require_at_least("cross_rank", self.cross_rank, 1)
        require_at_most("cross_rank", self.cross_rank, MOST_WIDTH)

    def row_optimizer(self, packed_for: str) -> str:
        """Return the optimizer of the rows: the one set, else ``packed_for``, that of the shards."""
        return self.embedding_optimizer or packed_for

    def optimizers(self, packed_for: str) -> Optimizers:
        """Return the optimizers and rates of a run on shards packed for the optimizer ``packed_for``."""
        rows = self.row_optimizer(packed_for)
        dense: str = self.dense_optimizer
        if dense == "same":
            dense = _DENSE_TWIN.get(rows, rows)
        return Optimizers(
            embedding_optimizer=rows,
            embedding_lr=EMBEDDING_LR[rows] if self.embedding_lr is None else self.embedding_lr,
            dense_optimizer=dense,
            dense_lr=DENSE_LR[dense] if self.dense_lr is None else self.dense_lr,
        )
