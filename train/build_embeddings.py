"""Builds the tiers of a run in one process, with initial or restored rows.

Also opens the device, sets the threads, and resolves what a config leaves to the shards and the machine; what
they cannot provide is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..pipeline.errors import MIB, ConfigError, ShardError, format_byte_size
from ..pipeline.folders.totals import multi_hot
from ..pipeline.runtime.limits import check_addresses
from ..pipeline.runtime.tasks import num_workers
from ..pipeline.schema.schema import nearest, shown
from ..stats.row_bytes import row_bytes
from .config import TrainConfig
from .config_parts import is_launched
from .data.batch import EmbeddingTable, IdReader, MicroBatches
from .data.shards import ShardSet
from .metrics import Meter
from .model.gradients import choose_dense_dtype, cpu_features
from .model.shapes import choose_model, tables_by_dim
from .placements.placements import build_placements, spills, with_staging
from .rows.backends import RowOptimizer
from .rows.embeddings import Embeddings, RowsSource
from .rows.step_plan import ChangedRows, Placement
from .rows.table_group import TableGroup
from .rows.tiers import (
    FileTier,
    HostMemory,
    InitialValues,
    Tier,
    TrafficCounter,
    check_memory_for_rows,
)
from .threads import WorkThreads

if TYPE_CHECKING:
    from .device import Device

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTools:
    """What the rows of a run are laid out and moved with."""

    device: torch.device
    meter: Meter
    threads: WorkThreads
    micro_batches: MicroBatches
    """Micro-batches, whose gradients are summed separately."""
    host: HostMemory | None = None
    marks_rows: bool = False
    """Whether rows that steps change are marked, for checkpoints."""
    device_api: Device | None = None
    """Device that transfers are queued on; None: a thread of the host runs them."""
    folder: Path = Path()
    """Folder of plans that are too large for memory."""


def build_embeddings(shards: ShardSet, config: TrainConfig, tools: RowTools) -> Embeddings:
    """Build the tiers of the placement, with the initial value of every row."""
    placements = build_placements(config, shards)
    optimizer = optimizer_of(shards, config)
    groups = build_groups(shards.tables, placements, optimizer, config.seed, tools)
    embeddings = Embeddings(len(shards.tables), groups)
    attach_movers(embeddings, config, tools)
    embeddings.initialize()
    return embeddings


def attach_movers(embeddings: Embeddings, config: TrainConfig, tools: RowTools) -> None:
    """Set what runs transfers and, for ``fae``, what copies hot rows; nothing moves yet."""
    if tools.device_api is not None:
        from .gpu.queued_steps import QueuedTransfers

        embeddings.transfers = QueuedTransfers(embeddings.run_transfers, tools.device_api)
    if config.placement == "fae":
        from .placements.fae import HotCopies

        embeddings.hot_copies = HotCopies(embeddings)


def optimizer_of(shards: ShardSet, config: TrainConfig) -> RowOptimizer:
    """Return the optimizer of the rows; warn if its state is too large."""
    chosen = config.optimizers(shards.embedding_optimizer)
    optimizer = RowOptimizer(chosen.embedding_optimizer, chosen.embedding_lr, config.recipe.embedding_decay)
    # The bytes that the hot rows take now, and those that they were chosen with.
    names = (optimizer.name, shards.embedding_optimizer)
    needed, counted = (
        sum(table.num_hot * row_bytes(table.embedding_dim, name) for table in shards.tables) for name in names
    )
    # The two placements that keep hot rows on the fast tier permanently.
    if config.placement in ("fae", "lookahead") and needed > counted:
        _log.warning(
            "the hot rows take %s with %s; the shards were packed for %s with %s",
            format_byte_size(needed),
            optimizer.name,
            format_byte_size(counted),
            shards.embedding_optimizer,
        )
    return optimizer


def build_groups(
    tables: Sequence[EmbeddingTable],
    placements: Mapping[int, Placement],
    optimizer: RowOptimizer,
    seed: int,
    tools: RowTools,
    *,
    slow_tiers: Mapping[int, FileTier] | None = None,
    initial_values: Mapping[int, InitialValues] | None = None,
) -> list[TableGroup]:
    """Lay out the tiers of each table group by its placement, rows unset.

    Args:
        placements: by embedding_dim.
        slow_tiers: slow tiers in a file, by embedding_dim, which take no memory for their rows.
        initial_values: by embedding_dim, where the rows of a table are some of a larger one.

    Raises:
        HotsetError: the rows do not fit in host memory.
    """
    if slow_tiers is None:
        _check_memory(placements, optimizer, tools.device, tools.host)
    groups = []
    # Rows of one dim share two tiers and a plan; a row of another dim would not fit in their slots.
    for dim, chosen in tables_by_dim([table.embedding_dim for table in tables]).items():
        placement = placements[dim]
        frozen = tuple(number for number, table in enumerate(chosen) if tables[table].is_frozen)
        fast, slow = _build_tiers(placement, dim, optimizer, tools, (slow_tiers or {}).get(dim))
        initial = (initial_values or {}).get(dim) or InitialValues.of(seed, chosen, placement.num_rows)
        group = TableGroup(
            embedding_dim=dim,
            tables=chosen,
            reader=IdReader(tables, chosen),
            placement=placement,
            fast=fast,
            slow=slow,
            optimizer=optimizer,
            initial=initial,
            traffic=TrafficCounter(tools.meter, slow.layout),
            threads=tools.threads,
            micro_batches=tools.micro_batches,
            changed=_changed_rows(placement, tools.host, frozen) if tools.marks_rows else None,
            frozen=frozen,
        )
        groups.append(group)
    return groups


def _build_tiers(
    placement: Placement,
    embedding_dim: int,
    optimizer: RowOptimizer,
    tools: RowTools,
    slow: Tier | None,
) -> tuple[Tier, Tier]:
    """Build the fast and the slow tier of a placement, which may be given; rows are not set."""
    state_width = optimizer.state_width(embedding_dim)
    num_staging = placement.num_staging_slots
    device = str(tools.device)
    fast = Tier(placement.fast, embedding_dim, state_width, num_staging=num_staging, device=device)
    if slow is None and tools.host is not None and tools.host.is_planned:
        from .placements.spilled_run import SpilledTier

        return fast, SpilledTier(placement.slow, embedding_dim, state_width)
    return fast, slow or Tier(placement.slow, embedding_dim, state_width, host=tools.host)


def _changed_rows(placement: Placement, host: HostMemory | None, frozen: Sequence[int]) -> ChangedRows:
    """Build the marks of changed rows, mapped where memory has a limit."""
    marks_R = None
    if host is not None and host.left_bytes is not None:
        from .placements.spill_plan import mapped_zeros

        marks_R = mapped_zeros(host.folder, sum(placement.num_rows), np.uint8)
    return ChangedRows(placement.num_rows, marks_R, frozen)


def _check_memory(
    placements: Mapping[int, Placement],
    optimizer: RowOptimizer,
    device: torch.device,
    host: HostMemory | None,
) -> None:
    """Raise HotsetError if the tiers of all groups exceed host memory."""
    num_rows = 0
    fast_bytes = 0
    slow_bytes = 0
    # Count all tiers in host memory; on a GPU the fast tier is not.
    for dim, placement in placements.items():
        fast = placement.fast.num_own_slots + placement.num_staging_slots
        num_rows += sum(placement.num_rows)
        fast_bytes += fast * optimizer.row_bytes(dim) if device.type == "cpu" else 0
        slow_bytes += placement.slow.num_own_slots * optimizer.row_bytes(dim)
    memory = host or HostMemory(None, Path(), may_spill=False)
    check_memory_for_rows(num_rows, fast_bytes, slow_bytes, memory)


SIMULATED = "late"
"""Name of the simulated device, which computes on the host; ``late:7`` has the order of seed 7."""

_TORCH_BYTES = 192 * MIB
"""Addresses that torch takes when layers are computed first; with 100 MiB less training aborted."""


def open_device_api(name: str) -> Device | None:
    """Open the device ``name`` for queued steps; None for the host."""
    if _is_simulated(name):
        from .device import LateDevice

        return LateDevice(int(name.partition(":")[2] or 0))
    device = open_device(name)
    if device.type != "cuda":
        return None
    from .device import CudaDevice

    return CudaDevice(device)


def open_device(name: str) -> torch.device:
    """The torch device ``name``; raises ConfigError where this machine has no such device."""
    # The simulated device computes on the host.
    if _is_simulated(name):
        return torch.device("cpu")
    # The device must be one that torch knows, that training runs on, and that this machine has.
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}", hint="--device is cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"training runs on cpu or cuda, not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device", hint="use --device cpu")
    if device.type == "cuda":
        # Without a number it is the current one: torch selects devices by number alone.
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ConfigError(
                f"this machine has {torch.cuda.device_count()} CUDA devices, and {name!r} is none of them",
                hint="count devices from cuda:0",
            )
        # Events and buffers that name no device are those of the calling thread's.
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _is_simulated(name: str) -> bool:
    kind, colon, seed = name.partition(":")
    return kind == SIMULATED and (not colon or seed.isdecimal())


_process_of_threads: int | None = None
"""The process that has threads of torch."""


def set_threads(threads: int | None) -> int:
    """Set and return the number of threads of the dense layers.

    Raises:
        ConfigError: this process was forked from one that has them.
        SystemFaultError: `ulimit -v` leaves no addresses for them.
    """
    global _process_of_threads
    check_addresses("training", _TORCH_BYTES)
    threads = num_threads(threads)
    if threads > 1:
        # Torch would wait for ever for threads that only the parent has.
        if _process_of_threads not in (None, os.getpid()):
            raise ConfigError(
                "this process was forked from one that has trained or predicted, and lacks its threads",
                hint='start it by multiprocessing.get_context("spawn")',
            )
        _process_of_threads = os.getpid()
    torch.set_num_threads(threads)
    return threads


def num_threads(wanted: int | None) -> int:
    """Return the threads of this process: those wanted, or the cores that it may use.

    Ranks of one machine share its cores, unless each was given cores of its own. Of OMP_NUM_THREADS they take
    no more; 1 is what torchrun sets where nobody has set anything.
    """
    cores = num_workers(0)
    if wanted or not is_launched():
        return wanted or cores
    is_here = os.environ.get("MASTER_ADDR", "").startswith(("localhost", "127."))
    numbers = [os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE") if is_here else None]
    num_local = next((int(number) for number in numbers if number and number.isdecimal()), 1)
    with contextlib.suppress(OSError):  # the launcher may be gone
        if len(os.sched_getaffinity(0)) < len(os.sched_getaffinity(os.getppid())):
            num_local = 1
    share = max(cores // max(num_local, 1), 1)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    is_chosen = limit.isdecimal() and int(limit) > ("TORCHELASTIC_RUN_ID" in os.environ)
    return min(share, int(limit)) if is_chosen else share


def with_options(shards: ShardSet, config: TrainConfig) -> ShardSet:
    """Return the batches and tables that a run is to train on.

    Raises:
        ConfigError: a table to freeze that there is not, or batches that leave nothing to train on.
    """
    names = [table.name for table in shards.tables]
    for name in config.freeze:
        if name not in names:
            raise ConfigError(
                f"--freeze: {shards.manifest.folder} has no table {name!r}",
                hint=nearest(name, names) or f"its tables are {shown(', '.join(names))}",
            )
    if config.freeze:
        shards = shards.with_frozen(config.freeze)
    chosen = shards.with_last_batch(config.last_batch)
    if shards.num_training_batches and not chosen.num_training_batches:
        raise ConfigError(
            f"--last-batch drop leaves nothing: {shards.manifest.folder} has {shards.num_training_samples} "
            f"training samples, and no batch of {shards.batch_size}",
            hint="use --last-batch keep",
        )
    return chosen


def resolve(shards: ShardSet, config: TrainConfig, num_ranks: int = 1) -> TrainConfig:
    """Fill in what shards and machine decide, except the optimizers.

    Args:
        num_ranks: of the run, each of which takes a share of the batch unless ``config`` says otherwise.

    Raises:
        ConfigError: no such device.
        ShardError: shards that cannot be trained on.
    """
    if shards.num_training_batches == 0:
        raise ShardError(f"{shards.manifest.folder} has no training batch")
    # Refusals first, in the order in which a user can mend them.
    _refuse_no_validation(shards, config)
    if config.engine == "torchrec":
        config = _resolve_torchrec(shards, config, num_ranks)
        dtype = choose_dense_dtype(config.dense_dtype, open_device(config.device).type, cpu_features())
        return replace(config, dense_dtype=dtype)
    if num_ranks > 1 and config.slow_bytes is not None:
        raise ConfigError("--slow-bytes is for a run in one process", hint="leave --slow-bytes out")
    micro_batches = config.micro_batches or num_ranks
    if num_ranks > 1 and config.device != "cpu":
        raise ConfigError(
            f"several ranks compute on the CPU, not on {config.device}",
            hint="--engine torchrec trains on several devices; or use --device cpu, or start one process",
        )
    # The type of the products follows from the device and the CPU, the staging area from the shards.
    dtype = choose_dense_dtype(config.dense_dtype, open_device(config.device).type, cpu_features())
    return replace(with_staging(config, shards), dense_dtype=dtype, micro_batches=micro_batches)


TORCHREC_OPTIMIZERS = ("sgd", "adagrad", "rowwise-adagrad")
"""Optimizers that replicated rows and TorchRec's sharded ones follow alike; on GPUs there is Adam, too."""
_OWN_SETTINGS = (
    "placement",
    "staging_bytes",
    "slow_bytes",
    "prefetch",
    "cache_policy",
    "cache_warmup",
    "cache_batches",
    "fae_variant",
    "kernels",
    "micro_batches",
)
"""Settings that decide nothing with TorchRec."""


def _resolve_torchrec(shards: ShardSet, config: TrainConfig, num_ranks: int) -> TrainConfig:
    """Return the config of a run on TorchRec, where settings of hotset's own engine are closed.

    Raises:
        ConfigError: a setting, a model or an optimizer that only hotset's own engine has.
    """
    default = TrainConfig()
    closed = replace(default, placement="all-fast", prefetch=2, micro_batches=1)
    # FAE's rule replicates all hot rows. A GPU keeps sharded rows in a cache of staging bytes.
    if config.placement == "fae":
        closed = replace(closed, placement="fae")
    if config.device != "cpu":
        closed = replace(closed, staging_bytes=config.staging_bytes)
    for name in _OWN_SETTINGS:
        if getattr(config, name) not in (getattr(default, name), getattr(closed, name)):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is of hotset's own engine, and --engine torchrec has no use for it",
                hint=f"leave {option} out, or leave --engine out",
            )
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    is_for_gpus = optimizer == "adam" and config.device.startswith("cuda")
    if optimizer not in TORCHREC_OPTIMIZERS and not is_for_gpus:
        why = "FBGEMM's is for GPUs alone" if optimizer == "adam" else "TorchRec has none"
        raise ConfigError(
            f"--engine torchrec does not train rows with {optimizer} on {config.device}: {why}",
            hint="give --embedding-optimizer sgd, adagrad or rowwise-adagrad",
        )
    refused = {
        "--embedding-decay": config.recipe.embedding_decay,
        "--freeze": config.freeze,
        "--model tbsm": choose_model(config, shards.embedding_dim).kind == "tbsm",
        "--batch-norm on several ranks": config.batch_norm and num_ranks > 1,
        f"--device {config.device}": config.device.split(":")[0] not in ("cpu", "cuda"),
        f"--device {config.device} for all ranks": config.device.startswith("cuda:") and num_ranks > 1,
    }
    for name, is_given in refused.items():
        if is_given:
            raise ConfigError(f"--engine torchrec has no {name}", hint="leave --engine out")
    return replace(config, **{name: getattr(closed, name) for name in _OWN_SETTINGS})


def _refuse_no_validation(shards: ShardSet, config: TrainConfig) -> None:
    """Raise ConfigError if shards or placement lack what the recipe needs."""
    option = config.recipe.needs_validation
    if option is not None and not shards.num_validation_samples:
        raise ConfigError(
            f"{option} is decided by a validation part, and {shards.manifest.folder} has none",
            hint="give preprocess --valid-fraction 0.1 or --valid-files 1, with --redo count for this folder",
        )
    option = config.recipe.may_stop
    if option is not None and spills(config, shards):
        raise ConfigError(
            f"{option} needs all rows before the last step, and with --slow-bytes they are in a file planned "
            "to the end",
            hint="leave --slow-bytes out",
        )


def warn_of_idle(names: Iterator[tuple[str, str]]) -> None:
    """Name the settings that change nothing in a run, each with the reason."""
    for name, reason in names:
        _log.warning("--%s changes nothing in this run: %s", name.replace("_", "-"), reason)


def idle_settings(shards: ShardSet, config: TrainConfig, given: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that decide nothing, and why.

    Args:
        shards: of the run.
        config: resolved.
        given: as the user gave it.
    """
    default = TrainConfig()
    changed = {
        each.name for each in fields(TrainConfig) if getattr(given, each.name) != getattr(default, each.name)
    }
    # TorchRec's engine refuses the others of these.
    if config.engine == "hotset":
        yield from _idle_of_placement(config, changed)
    if "pooling" in changed and not multi_hot(shards.tables):
        yield "pooling", "no feature has lists"
    if "evaluate_every" in changed and not shards.num_evaluation_samples:
        yield "evaluate_every", "the shards have no evaluation part"
    yield from _idle_layers(shards, config, changed)
    yield from config.recipe.idle_settings()


def _idle_of_placement(config: TrainConfig, changed: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that the placement has no use for."""
    placement = f"the placement is {config.placement}"
    if config.placement not in ("lookahead", "cache"):
        # A device reads as far ahead as transfers would, whatever the placement.
        staged = {"staging_bytes"} | ({"prefetch"} if config.device == "cpu" else set())
        yield from ((name, placement) for name in sorted(changed & staged))
    of_cache = {"cache_policy", "cache_warmup", "cache_batches"} if config.placement != "cache" else set()
    of_fae = {"fae_variant"} if config.placement != "fae" else set()
    on_slow_tier = {"slow_bytes"} if config.placement == "all-fast" else set()
    yield from ((name, placement) for name in sorted(changed & (of_cache | of_fae | on_slow_tier)))


def _idle_layers(shards: ShardSet, config: TrainConfig, changed: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of layers that the model does not have here."""
    model = choose_model(config, shards.embedding_dim)
    has_bottom = shards.num_dense > 0 or model.kind == "tbsm"
    if "bottom_mlp" in changed and not has_bottom:
        yield "bottom_mlp", "there are no dense features"
    if config.dropout and not model.top_widths:
        yield "dropout", "there are no hidden layers after the interaction"
    if config.batch_norm and not model.batch_norm:
        yield "batch_norm", "the model has no hidden layers"


@dataclass(frozen=True, slots=True)
class RunStart:
    """Rows that a run starts with, and how far an interrupted run has come."""

    rows: RowsSource
    done: NDArray[np.int32] | None = None
    """(num_steps,); training batch of each step so far; None: a new run."""
    test_losses: tuple[float, ...] = ()
    """Test losses that the scheduler of fae has seen."""
    is_fresh: bool = True
    """Whether rows that no step has used have their initial values; not where the run began with others."""

    @property
    def num_done(self) -> int:
        """Steps that are done."""
        return 0 if self.done is None else self.done.size
