"""Builds the rows of a run where its settings put them, with the values that it starts with."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ...pipeline.runtime.tasks import num_workers
from ..config import TrainConfig
from ..data.batch_shares import BatchShares
from ..data.shards import Shards
from ..device.verbs import Device
from ..exchange.coded_exchange import CodedExchange
from ..execution.embeddings import Embeddings
from ..execution.row_parts import restore_rows
from ..meter import Meter
from ..placements.choose_placement import spills
from ..ranks.ranks import Ranks
from ..rows.mapped_rows import HostMemory
from ..work_threads import WorkThreads
from .build_embeddings import RowTools, build_embeddings
from .devices import open_device, open_verbs
from .run_start import RunStart


def build_tools(
    shards: Shards,
    config: TrainConfig,
    ranks: Ranks,
    spill_folder: Path | None,
    verbs: Device | None,
    *,
    marks_rows: bool,
) -> RowTools:
    """Open the device, and say what the rows of a run may take of the machine.

    Args:
        config: with nothing left open.
        spill_folder: folder for rows beyond ``slow_bytes``; None: that of temporary files.
        verbs: device to queue steps on; None: the one that the settings name, if any.
        marks_rows: whether rows that steps change are marked, for checkpoints.

    Raises:
        ConfigError: no such device.
    """
    device = open_device(config.device)
    verbs = verbs or open_verbs(config.device)
    assert config.micro_batches is not None, "resolve chooses it"
    # The folder of a run is at its first rank; the others may be on machines without it.
    folder = spill_folder or Path(tempfile.gettempdir())
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    return RowTools(
        # The samples of this rank, and the shape of all sums, which shares decide.
        shares=BatchShares(shards.batch_size, config.micro_batches, ranks.rank, ranks.num_ranks),
        device=device,
        verbs=verbs,
        meter=Meter(device),
        threads=WorkThreads(config.threads or num_workers(0)),
        # Host memory has a limit where rows are to lie in a file beyond it.
        host=HostMemory(
            config.slow_bytes, folder, is_planned=spills(config, shards), is_pinned=verbs is not None
        ),
        marks_rows=marks_rows,
        folder=folder,
    )


def build_rows(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    coded: CodedExchange,
    start: RunStart | None,
) -> Embeddings:
    """Build the tiers of all rows, or of those that live at this rank, with the values that the run starts
    with.
    """
    if ranks.num_ranks == 1:
        embeddings = build_embeddings(shards, config, tools)
        if start is not None:
            restore_rows(embeddings, start.rows, are_saved=start.done is not None)
        return embeddings
    # What a run in one process does not use it does not load.
    from .build_ranked_embeddings import build_ranked_embeddings

    ranked = build_ranked_embeddings(shards, config, tools, ranks, coded)
    if start is not None:
        restore_rows(ranked, start.rows, are_saved=start.done is not None)
    return ranked
