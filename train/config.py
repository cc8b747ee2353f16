"""The config of a training run, and ``config.json`` of a run as typed data.

Imports nothing heavy: the command line builds its options from these classes. A run folder may come from
anywhere, so each value is checked for its type and range before it sizes a model or a pool of threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..pipeline.errors import (
    ByteSize,
    ConfigError,
    HotsetError,
    check_fields,
    first_line,
    require_at_least,
    require_at_most,
)
from ..pipeline.folders.manifest import JsonRecord, RecordError, require_range
from ..pipeline.folders.totals import TableFeature, by_feature
from ..pipeline.settings import LastBatch
from ..stats.row_bytes import OPTIMIZERS
from .config_parts import (
    MODEL_NAMES,
    MOST_LAYERS,
    MOST_WIDTH,
    ModelConfig,
    Pooling,
    RecipeOptions,
    is_class_name,
    parse_arguments,
    parse_loss_weights,
    refuse_unknown_model,
    require_share,
    require_time,
)

PlacementName = Literal["all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache", "lookahead"]
EmbeddingOptimizer = Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"]
DenseOptimizer = Literal["same", "sgd", "adagrad", "adam"]
Engine = Literal["hotset", "torchrec"]

EMBEDDING_LR: dict[str, float] = {
    "sgd": 10.0,
    "momentum": 1.0,
    "adagrad": 0.04,
    "rowwise-adagrad": 0.04,
    "adam": 0.005,
}
"""Usual learning rates of the rows. The gradient is a mean over the batch, and a row seen once in 2,048
samples gets 1/2048 of one sample's: SGD at DLRM's 0.1 hardly moves rare rows (AUC 0.706 after 0.4 M
generated samples, against 0.762 at 10 and 0.793 with Adagrad). The first lookup of a row moves it by the rate
of Adam here. With torch's Adam its average goes on to move it, by up to 32 times the rate in all: the usual
0.001 is for that one, and too small here."""
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
_MOST_BATCHES_AHEAD = 2**20
"""More batches than any run can hold ahead."""
_BOUNDS = {
    "epochs": (1, 2**31),
    "log_every": (1, 2**63),
    "threads": (1, MOST_THREADS),
    "prefetch": (0, _MOST_BATCHES_AHEAD),
    "cache_batches": (1, _MOST_BATCHES_AHEAD),
    "micro_batches": (1, MOST_MICRO_BATCHES),
    "cross_layers": (1, MOST_LAYERS),
    "cross_rank": (1, MOST_WIDTH),
}
"""The least and the largest value of each setting that is a number of something."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(JsonRecord):
    """Settings of a training run; together with the shards they decide its weights."""

    placement: PlacementName = "lookahead"
    """Where embedding rows live; lookahead keeps hot rows on the fast tier and loads the others just before
    they are needed. all-fast keeps all rows on the fast tier. hybrid and hybrid-dedup keep all on the slow
    tier, without and with deduplication inside a batch. hybrid-uva also does, and copies the rows of one
    batch at a time to the fast tier. cache has a run-time cache there. With fae, hot rows alternate between
    the tiers."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows with their optimizer state; by default the budget that the shards were packed
    with. Another budget needs shards of order original."""

    staging_bytes: ByteSize | None = None
    """Fast memory for loaded rows and their optimizer state, in addition to that of hot rows. By default as
    much as the hot rows take, and enough for the cold rows of four batches. lookahead and cache use it; cache
    also fills the memory of hot rows."""

    slow_bytes: ByteSize | None = None
    """Host memory for embedding rows; the rest go to a spill file while the run trains. lookahead writes each
    row where its next use will find it and reads it in time; the other placements map the file. By default
    all rows are in memory."""

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
    """Dense model: dlrm, dcnv2, tbsm, a preset of DLRM (kaggle, terabyte, mlperf, small), or a class of your
    own as package.module:Class. dlrm and auto take the preset that fits the embedding dimension of the
    shards: kaggle for 16, terabyte for 64, mlperf for 128, else small. tbsm takes list-valued features as
    histories. A class is a torch.nn.Module over dense features and embeddings."""

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
    default it gets none. tbsm takes history_length, attention_widths and last_widths, dcnv2 structure."""

    freeze: tuple[str, ...] = field(default=(), metadata={"repeated": "NAME"})
    """Table whose rows are read and never changed; give the option once for each."""

    loss: str | None = None
    """Loss of your own, a function of logits, labels and weights as package.module:function; by default the
    log loss."""

    loss_weights: str | None = None
    """Weight of each label in the loss, such as click=1,buy=0.2, of a log with several; by default 1. A label
    of weight 0 is left out: the model has no logit of it."""

    epochs: int = 1
    """Number of passes over the training part."""

    last_batch: LastBatch = "keep"
    """What becomes of a training batch with fewer samples than the others, the last one of its kind: keep
    trains on it, drop leaves its samples out of every epoch, merge joins it to the batch before. Evaluations
    are of all samples."""

    seed: int = 0
    """Seed of the initial values and of the order of batches."""

    device: str = "cpu"
    """Device of the fast tier and the dense layers: cpu or cuda. For developers: late simulates a
    device that runs queued work late, to find missing waits; late:7 repeats the order of seed 7."""

    engine: Engine = "hotset"
    """Engine that runs the steps: hotset, on one device or on the CPUs of several ranks, or torchrec, on
    several devices."""

    kernels: str | None = field(default=None, metadata={"no_option": True})
    """Kernels of steps on a GPU, for tests and measurements: torch for those that torch has, torch:NAME for
    one of them, more with commas between; by default Triton's, where it is installed. On the simulated device
    they run the dense layers too, which the host runs by default."""

    embedding_optimizer: EmbeddingOptimizer | None = None
    """Optimizer of the embedding rows; by default the one that the shards were packed for, which
    `preprocess --embedding-optimizer` sets. All are lazy: a row that no sample of a batch looks up stays as
    it is, optimizer state included; momentum keeps 0.9 of a row's last step, adam counts the steps of each
    row."""

    embedding_lr: float | None = None
    """Learning rate of the embedding rows; by default 10 for sgd, 1 for momentum, 0.005 for adam, 0.04 for
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

    evaluate_every: int | str | None = None
    """Steps (500) or time (10min) between evaluations, of the validation part where the log has one; by
    default the run is evaluated at its end only."""

    negative_rate: float | None = None
    """Share of the samples without a click that the log kept, such as 0.1. Predictions are then recalibrated,
    and a sample without a click counts ten times in the scores. By default the log kept all."""

    log_every: int = 100
    """Number of batches between two lines of training loss in metrics.jsonl."""

    threads: int | None = None
    """Number of threads of a training step; by default the cores this process may use, and of several ranks
    the share of each, at most OMP_NUM_THREADS. On the CPU the weights do not depend on it."""

    micro_batches: int | None = None
    """Number of equal parts of a batch whose gradients are summed separately. It fixes the bits of the
    weights for any number of ranks. By default one for each rank."""

    recipe: RecipeOptions = field(default_factory=RecipeOptions)
    """Learning rates over the steps, clipping, decay, and when training stops."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, (least, most) in _BOUNDS.items():
            require_at_least(name, getattr(self, name), least)
            require_at_most(name, getattr(self, name), most)
        # A number is of steps, a text a time.
        if isinstance(self.evaluate_every, str):
            require_time("evaluate_every", self.evaluate_every)
        else:
            require_at_least("evaluate_every", self.evaluate_every, 1)
        # A rate of None is chosen by the optimizer later.
        for name in ("embedding_lr", "dense_lr"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {rate}")
        # A log that kept all needs no option.
        require_share("negative_rate", self.negative_rate)
        if self.negative_rate == 1:
            raise ConfigError("negative_rate is 1, and so changes nothing")
        # What depends on the model is checked together.
        self._check_model()
        if self.loss is not None and not is_class_name(self.loss):
            raise ConfigError(
                f"loss must be a function as package.module:function, got {self.loss!r}",
                hint="for a function squared in the file losses.py write losses:squared",
            )
        parse_loss_weights(self.loss_weights)
        if not 0 <= self.cache_warmup <= 1:
            raise ConfigError(f"cache_warmup must be from 0 to 1, got {self.cache_warmup}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")

    def _check_model(self) -> None:
        refuse_unknown_model(self.model)
        parse_arguments(self.model_args)
        for name in ("bottom_mlp", "top_mlp"):
            widths = getattr(self, name) or ()
            require_at_most(f"the number of layers of {name}", len(widths), MOST_LAYERS)
            for width in widths:
                require_at_least(name, width, 1)
                require_at_most(name, width, MOST_WIDTH)
        # Absent options are those of the model that is chosen, and are checked with it.
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def tagging_hot_bytes(self) -> int | None:
        """Budget of the rows by which batches are tagged; None: that of the shards.

        With TorchRec ``hot_bytes`` limits the rows that each rank holds, and the batches stay what they are.
        """
        return self.hot_bytes if self.engine == "hotset" else None

    def row_optimizer(self, packed_for: str) -> str:
        """Return the optimizer of rows: the one set, else the shards' (``packed_for``)."""
        return self.embedding_optimizer or packed_for

    def optimizers(self, packed_for: str) -> Optimizers:
        """Return optimizers and rates of a run on shards packed for ``packed_for``."""
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


RowType = Literal["fp32", "fp16", "bf16", "int8"]
ROW_TYPES: tuple[RowType, ...] = ("fp32", "fp16", "bf16", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Settings of an export."""

    row_type: RowType = "fp32"
    """Number type of the rows: fp32 as trained, fp16, bf16, or int8 with a scale for each row."""

    onnx: bool = False
    """Write an ONNX model too, with its tables in a second file; needs the extra onnx."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictConfig:
    """Settings of a prediction; none but the batch size may change a bit of it."""

    batch_size: int | None = field(default=None, metadata={"no_option": True})
    """Number of samples predicted together; by default that of the training."""

    threads: int | None = None
    """Number of threads that parse, and of those that predict; by default as many as the training used."""

    slow_bytes: ByteSize | None = None
    """Memory for embedding rows; if not all fit, those of some batches at a time are read from the run's
    weights. By default as much as there is."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_at_least("batch_size", self.batch_size, 1)
        require_at_least("threads", self.threads, 1)
        require_at_most("threads", self.threads, MOST_THREADS)
        require_at_least("slow_bytes", self.slow_bytes, 0)


RUN_HINT = "give the folder that a finished training run wrote (its --out)"
CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
_MOST_BYTES = 64 * 2**20
_PRESETS = ("kaggle", "terabyte", "mlperf", "small")
_MOST_ROWS = 2**31
_MOST_LABELS = 1024
"""Far more than a log has."""
_MOST_FLOATS = 2**20
"""Floats of a row, or dense features of a sample: far more than any model has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTable(JsonRecord):
    """An embedding table of a run."""

    name: str
    num_rows: int
    embedding_dim: int
    num_hot: int
    """Rows that were hot."""
    is_multi_hot: bool = False
    """Whether samples may look it up other than once: its feature is list-valued, or there are several."""
    features: tuple[TableFeature, ...] = ()
    """Features that look up in it; empty where that is the one of its name alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(JsonRecord):
    """Settings of a run that one which starts from it needs."""

    seed: int
    embedding_optimizer: str
    dense_optimizer: str
    negative_rate: float | None = None
    """Share of the samples without a click that the log kept; None: all."""

    def check_values(self, where: str) -> None:
        if self.negative_rate is not None and not 0 < self.negative_rate < 1:
            raise RecordError(f"{where}negative_rate is {self.negative_rate}, want a share in (0, 1)")
        if self.embedding_optimizer not in OPTIMIZERS:
            raise RecordError(f"{where}embedding_optimizer is {self.embedding_optimizer!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(JsonRecord):
    """The parts of ``config.json`` that decide a model's shapes and execution."""

    threads: int
    """Threads of the dense layers."""
    model: str
    """Preset of a DLRM, dcnv2, tbsm, or the class of the user."""
    embedding_dim: int
    """Width of the embeddings that interact."""
    num_dense: int
    """Number of dense features."""
    tables: tuple[RunTable, ...]
    dense_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of the products of the dense layers."""
    config: RunSettings
    """Other settings."""
    vocabulary: str | None = None
    """Fingerprint of the vocabulary of the ids; None where the shards' folder had none."""
    schema: str | None = None
    """Schema of the log, as a setting; None where the shards' folder had no vocabulary."""
    batch_size: int
    """Nominal samples of a training batch."""
    dense_model: ModelConfig
    """The layers of the model."""
    labels: tuple[str, ...] = ()
    """Labels by their names in the log, in the order of the logits; empty where the log has one without a
    name, which all samples have."""
    predicts: Literal["probability", "value"] = "probability"
    """Whether a prediction is the sigmoid of a logit, or with a loss of the user's own the logit itself."""

    @property
    def num_logits(self) -> int:
        """Logits of a sample."""
        return max(1, len(self.labels))

    @classmethod
    def read(cls, value: object, where: str) -> RunConfig:
        """Read and check the parsed JSON of the file ``where``.

        Raises:
            HotsetError: a key is missing, or its value no run writes.
        """
        try:
            config = cls.from_json(value)
            config._refuse_nonsense()
        except RecordError as error:
            raise HotsetError(f"{where} is damaged: {error}", hint=RUN_HINT) from error
        return config

    def _refuse_nonsense(self) -> None:
        """Raise RecordError for a number out of bounds or a duplicate table."""
        require_range("threads", self.threads, 1, MOST_THREADS)
        require_range("embedding_dim", self.embedding_dim, 1, _MOST_FLOATS)
        require_range("num_dense", self.num_dense, 0, _MOST_FLOATS)
        require_range("batch_size", self.batch_size, 1, _MOST_ROWS)
        # A DLRM is called by its preset, any other model by its own name.
        names = _PRESETS if self.dense_model.kind == "dlrm" else (self.dense_model.name,)
        if self.model not in names:
            raise RecordError(f"model is {self.model!r}, want {' or '.join(names)}")
        for number, table in enumerate(self.tables):
            require_range(f"tables[{number}].num_rows", table.num_rows, 1, _MOST_ROWS)
            require_range(f"tables[{number}].embedding_dim", table.embedding_dim, 1, _MOST_FLOATS)
            require_range(f"tables[{number}].num_hot", table.num_hot, 0, table.num_rows)
        # Names are columns and tensors, so each must be of one table, and of one feature.
        for what, tables in (("table", self.tables), ("feature", by_feature(self.tables))):
            if len({table.name for table in tables}) != len(tables):
                raise RecordError(f"tables lists a {what} twice")
        if len(set(self.labels)) != len(self.labels) or len(self.labels) > _MOST_LABELS:
            raise RecordError(f"labels has a name twice, or more than {_MOST_LABELS}")


def read_object(path: Path, hint: str | None = RUN_HINT) -> dict[str, Any]:
    """Return the JSON object in a file, which may be anything of any size.

    Raises:
        HotsetError: it cannot be read, is no plain file, or holds no object.
    """
    try:
        # Opening a pipe would wait forever.
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        state = "cannot be read" if isinstance(error, OSError) else "is damaged"
        reason = getattr(error, "strerror", None) or first_line(error)
        raise HotsetError(f"{path} {state}: {reason}", hint=hint) from error
    return found


def read_settings(path: Path) -> TrainConfig:
    """Return the settings in ``path``, with defaults for those that older versions lack.

    Raises:
        HotsetError: it is missing or damaged, or holds a setting that no run has.
    """
    found = read_object(path)
    try:
        return TrainConfig.from_json(found["config"])
    except (KeyError, ValueError, HotsetError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}", hint=RUN_HINT) from error


def read_config(run: Path, *, must_be_finished: bool = True) -> RunConfig:
    """Return a finished run's config; raise HotsetError without one, or if damaged."""
    # The summary marks the end of a run: one without it has not ended.
    if not (run / (SUMMARY if must_be_finished else CONFIG)).exists():
        raise unfinished_run(run, SUMMARY)
    return RunConfig.read(read_object(run / CONFIG), str(run / CONFIG))


def unfinished_run(run: Path, lacking: str) -> HotsetError:
    """Return what to raise for a run without its file ``lacking``, or a path that is none."""
    if not run.is_dir():
        state = "is not a folder" if run.exists() else "does not exist"
    else:
        state = "is unfinished" if (run / CONFIG).exists() else "holds no training run"
        state += f": it has no {lacking}"
    return HotsetError(f"{run} {state}", hint=RUN_HINT)
