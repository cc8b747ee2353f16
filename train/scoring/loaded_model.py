"""The model of a finished run in memory: its dense layers and its rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...pipeline.errors import HotsetError, format_byte_size
from ...pipeline.runtime.memory import available_bytes
from ...pipeline.schema.schema import DENSE_PREFIX
from ..data.batch import EmbeddingTable, with_histories
from ..data.batch_shares import BatchShares
from ..execution.build_widths import TierTools, build_widths
from ..execution.embeddings import Embeddings
from ..meter import Meter
from ..model.dense_step import DenseStep
from ..model.dlrm_shape import tables_by_width
from ..model_building.build_model import build_model, build_step
from ..model_building.choose_model import recorded_model
from ..model_building.model_inputs import ModelInputs
from ..model_building.user_code import ModelSource
from ..placements.placements import AllFast, Hybrid
from ..rows.row_optimizers import RowOptimizer
from ..run_config import RunConfig
from ..run_folder.run_reader import read_finite, refuse_not_finite, refuse_other_weights
from ..run_folder.saved_rows import SavedTier
from ..run_folder.weights_file import Weights
from ..work_threads import WorkThreads

_log = logging.getLogger(__name__)

_HOST = torch.device("cpu")
_NO_TRAINING = RowOptimizer("sgd", 0.1)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The model of a run, ready to predict."""

    dense: DenseStep
    embeddings: Embeddings
    meter: Meter

    @classmethod
    def load(
        cls,
        run: Path,
        config: RunConfig,
        weights: Weights,
        tables: Sequence[EmbeddingTable],
        batch_size: int,
        *,
        device: torch.device = _HOST,
        threads: int | None = None,
        slow_bytes: int | None = None,
        model_source: ModelSource | None = None,
    ) -> LoadedModel:
        """Load the weights of a run.

        Args:
            tables: those of the run, as the data to predict has them.
            batch_size: samples that are predicted together.
            device: of the dense layers, and of the rows where they fit in memory.
            threads: those of the dense layers; None: as many as trained.
            slow_bytes: memory for embedding rows; if not all fit, those of some batches at a time are read
                from the file of weights. None: as much as there is.
            model_source: makes the module of a user; None imports the class that the run records.

        Raises:
            HotsetError: the weights are damaged, or not those that the config describes.
        """
        meter = Meter(device)
        # Seeds and optimizer do not matter: every weight is overwritten, and none is trained.
        chosen = recorded_model(config)
        model = build_model(chosen, ModelInputs.of(config), 0, model_source).to(device)
        refuse_other_weights(run, weights, config, model)
        if chosen.kind == "tbsm":
            _refuse_other_lists(run, config, tables)
            tables = with_histories(tables, chosen.history_length + 1)
        workers = WorkThreads(threads or config.threads)
        dense = build_step(model, chosen, tables, BatchShares(batch_size), workers, config.dense_dtype)
        model.load_state_dict(
            {name: read_finite(run, weights, f"{DENSE_PREFIX}{name}") for name in model.state_dict()}
        )
        tools = TierTools(device=device, meter=meter, threads=workers)
        # All rows in memory where they fit, because reading them for each batch is far slower.
        num_bytes = sum(4 * table.num_rows * table.embedding_dim for table in tables)
        room = _room_for_rows(num_bytes) if slow_bytes is None else slow_bytes
        if room is None or num_bytes <= room:
            embeddings = _rows_in_memory(run, weights, tables, tools)
        else:
            _log.info("the rows take %s: they are read as batches need them", format_byte_size(num_bytes))
            embeddings = _rows_in_file(run, weights, tables, tools, room)
        return cls(dense, embeddings, meter)


def _refuse_other_lists(run: Path, config: RunConfig, tables: Sequence[EmbeddingTable]) -> None:
    """Raise HotsetError unless the features that were histories in training are lists here, and no others."""
    for own, table in zip(config.tables, tables, strict=True):
        if own.is_multi_hot != table.is_multi_hot:
            found, wanted = ("a list" if each.is_multi_hot else "one value" for each in (table, own))
            raise HotsetError(f"{table.name} is {found} in each sample, and the run {run} has {wanted}")


def _room_for_rows(num_bytes: int) -> int | None:
    """Return the memory for rows where they do not fit in what is available; None where they do."""
    # A quarter is left for the dense layers, batches and the page cache.
    available = available_bytes()
    return available // 2 if available is not None and num_bytes > 3 * available // 4 else None


def _rows_in_memory(
    run: Path,
    weights: Weights,
    tables: Sequence[EmbeddingTable],
    tools: TierTools,
) -> Embeddings:
    chosen = tables_by_width([table.embedding_dim for table in tables])
    placements = {dim: AllFast([tables[number] for number in numbers]) for dim, numbers in chosen.items()}
    embeddings = Embeddings(len(tables), build_widths(tables, placements, _NO_TRAINING, 0, tools))
    # One table at a time: only the one at hand is in memory twice.
    for number, table in enumerate(tables):
        embeddings.set_table(number, read_finite(run, weights, table.name))
    return embeddings


def _rows_in_file(
    run: Path,
    weights: Weights,
    tables: Sequence[EmbeddingTable],
    tools: TierTools,
    room_bytes: int,
) -> Embeddings:
    # Rows are checked while they are read in parts: they will not all be in memory at once.
    for table in tables:
        refuse_not_finite(run, weights, table.name)
    widths = tables_by_width([table.embedding_dim for table in tables])
    chosen = {dim: [tables[number] for number in numbers] for dim, numbers in widths.items()}
    # The memory is divided among widths by the bytes of their rows.
    sizes = {dim: dim * sum(table.num_rows for table in of_width) for dim, of_width in chosen.items()}
    tiers = {
        dim: SavedTier(of_width, dim, weights, room_bytes * sizes[dim] // sum(sizes.values()))
        for dim, of_width in chosen.items()
    }
    placements = {dim: Hybrid(of_width) for dim, of_width in chosen.items()}
    rows = build_widths(tables, placements, _NO_TRAINING, 0, tools, slow_tiers=tiers)
    return Embeddings(len(tables), rows)
