"""All placements with the same fast memory: bytes of an epoch, speed and AUC of its first batches.

``placements chart`` draws the chart of README, `docs/bytes.svg`, from the recorded result.

Bytes are those of the step plans that training makes, simulated over the whole epoch; a share of the rows is
hot, and there are as many staging slots. Belady without prefetch is the least that any placement moves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from ...pipeline.errors import ByteSize, ConfigError
from ...pipeline.folders.totals import ShardsTotals, VocabularyTotals
from ...pipeline.preprocess import preprocess
from ...stats.lookahead.step_plans import WINDOW_BYTES, RowTraffic
from ...stats.ranking.row_bytes import row_bytes
from ...stats.shuffle import epoch_order
from ...train.config import PlacementName, TrainConfig
from ...train.data.batch import IdReader
from ...train.data.shards import Shards
from ...train.model.shapes import tables_by_dim
from ...train.placements.placements import AllFast, Hybrid, HybridDedup, build_placements
from ...train.placements.staging import PlanQueue, StagingPlacement
from ..recipes import criteo_kaggle
from .harness import (
    Facts,
    median_ratio,
    new_log,
    new_parser,
    pack_again,
    run_script,
    scratch_folder,
    take_turns,
    tell,
)
from .train_step import WARM_UP_STEPS, samples_of, train_timed

_BELADY = "belady, P = 0"
_PLAIN: tuple[PlacementName, ...] = ("all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae")
_POLICIES: tuple[Literal["lfu", "lru", "dataset"], ...] = ("lfu", "lru", "dataset")
_BATCHES = 20
_EVALUATED = 32_768
"""Most samples evaluated for the AUC."""


@dataclass(slots=True)
class EpochTraffic:
    """Bytes of one epoch each way."""

    bytes_to_fast: int = 0
    bytes_to_slow: int = 0
    bytes_made: int = 0
    """Bytes of rows that were initialized on the fast tier at their first use instead of fetched."""
    num_shortened: int = 0
    """Transfers that wait for a later batch than the prefetch depth requires."""
    num_split: int = 0
    """Batches of more cold rows than slots."""


def simulate_epoch(shards: Shards, config: TrainConfig, order: Sequence[int]) -> EpochTraffic:
    """Count what a placement moves while it trains on ``order``.

    Writing all rows back at the end counts.

    Raises:
        ValueError: the placement is fae, whose switches depend on the test loss.
    """
    moved = EpochTraffic()
    widths = tables_by_dim([table.embedding_dim for table in shards.tables])
    # Each table group has its own tiers and plans.
    for dim, placement in build_placements(config, shards).items():
        reader = IdReader(shards.tables, widths[dim])
        if isinstance(placement, StagingPlacement):
            num_bytes = row_bytes(dim, config.row_optimizer(shards.embedding_optimizer))
            _add_staged(moved, shards, placement, reader, order, num_bytes)
        elif isinstance(placement, Hybrid):
            num_bytes = 4 * dim * _num_vectors(shards, placement, reader, order)
            moved.bytes_to_fast += num_bytes
            moved.bytes_to_slow += num_bytes
        elif not isinstance(placement, AllFast):
            raise ValueError(f"the placement {config.placement} cannot be simulated")
    return moved


def _add_staged(
    moved: EpochTraffic,
    shards: Shards,
    placement: StagingPlacement,
    reader: IdReader,
    order: Sequence[int],
    num_bytes: int,
) -> None:
    queue = PlanQueue(placement, placement.planner(WINDOW_BYTES))
    for number in order:
        # A placement that stages cold rows alone has nothing to plan for a hot-only batch.
        if placement.stages_hot_only or not shards.is_hot_only[number]:
            queue.add(placement.find_cold_rows(reader.read(shards.training_batch(number))))
    queue.finish()
    # First uses are initialized on the fast tier: they are loaded, but not fetched.
    rows = RowTraffic(rows_to_slow=queue.flush.write_back.num_rows)
    rows.add(queue.chunks)
    moved.bytes_to_fast += rows.rows_to_fast * num_bytes
    moved.bytes_to_slow += rows.rows_to_slow * num_bytes
    moved.bytes_made += rows.rows_made * num_bytes
    moved.num_shortened += rows.shortened
    moved.num_split += rows.split


def _num_vectors(shards: Shards, placement: Hybrid, reader: IdReader, order: Sequence[int]) -> int:
    num_vectors = 0
    for number in order:
        ids = reader.read(shards.training_batch(number))
        # One vector per distinct row of a batch, or one per bag.
        if isinstance(placement, HybridDedup):
            num_vectors += reader.by_row(ids).num_rows
        else:
            num_vectors += ids.num_bags
    return num_vectors


PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=2_000_000, help="samples of the generated log")
PARSER.add_argument("--shares", type=float, nargs="+", default=[0.015], help="shares of rows that are hot")
PARSER.add_argument("--embedding-dim", type=int, default=16)
PARSER.add_argument("--batch-size", type=int, default=2048)
PARSER.add_argument("--order", choices=("grouped", "original"), default="grouped")
PARSER.add_argument("--rounds", type=int, default=3, help="rounds in which each placement trains")
PARSER.add_argument("--bytes", action="store_true", help="count bytes and train nothing")


def candidates(staging: ByteSize) -> dict[str, TrainConfig]:
    """Return every placement with the same fast memory; the baselines first."""
    # SGD without state, as in the papers whose bytes are compared.
    base = TrainConfig(
        placement="lookahead",
        staging_bytes=staging,
        dense_optimizer="sgd",
        dense_dtype="fp32",
        fae_variant="code",
    )
    plain = {name: replace(base, placement=name) for name in _PLAIN}
    caches = {
        f"cache {policy}": replace(base, placement="cache", cache_policy=policy) for policy in _POLICIES
    }
    return plain | caches | {"lookahead": base, _BELADY: replace(base, prefetch=0)}


def measure(options: argparse.Namespace) -> Facts:
    """Generate the log once, pack it for each share of hot rows, count all and train the first batches."""
    if not all(0 < share < 1 for share in options.shares):
        raise ConfigError("shares must be between 0 and 1")
    shares = []
    with scratch_folder(options) as scratch:
        log = new_log(scratch, options.samples)
        for share in options.shares:
            settings = {"batch_size": options.batch_size, "order": options.order}
            shards = pack_hot_share(log, scratch / "data", share, options.embedding_dim, **settings)
            num_rows = sum(table.num_rows for table in shards.tables)
            tell(f"{share:.1%} of {num_rows:,} rows hot, and as many slots for staging")
            staging = ByteSize(int(share * num_rows) * row_bytes(options.embedding_dim, "sgd"))
            found = _measure_share(shards, staging, 0 if options.bytes else options.rounds)
            shares.append({"share": share, "num_rows": num_rows} | found)
    return {"shares": shares}


def pack_hot_share(
    log: Path, data: Path, share: float, embedding_dim: int = 16, **settings: object
) -> Shards:
    """Return shards of a log, for SGD, whose hot rows are a share of all; stages before ``split`` stay."""
    num_rows = VocabularyTotals.of(preprocess([log], criteo_kaggle(), data, until="rank")).num_rows
    hot_bytes = ByteSize(int(share * num_rows) * row_bytes(embedding_dim, "sgd"))
    settings |= {"embedding_dim": embedding_dim, "embedding_optimizer": "sgd"}
    return pack_again(log, data, hot_bytes=hot_bytes, **settings)


def _measure_share(shards: Shards, staging: ByteSize, rounds: int) -> Facts:
    every = candidates(staging)
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist()
    moved = {name: _moved(shards, config, order) for name, config in every.items()}
    first = order[: WARM_UP_STEPS + _BATCHES]
    turns = {name: partial(_train, shards, every[name], first) for name in every if name != _BELADY}
    measured = take_turns(turns, rounds)
    cpu, speeds = (
        {name: [one[key] for one in own] for name, own in measured.items() if own}
        for key in ("cpu_seconds", "samples_per_second")
    )
    return {
        "bytes": moved,
        "ratios": _ratios(moved),
        "cpu": {name: median_ratio(cpu["all-fast"], own) for name, own in cpu.items()},
        "samples_per_second": {name: statistics.median(own) for name, own in speeds.items()},
        "rounds": measured,
    }


def _moved(shards: Shards, config: TrainConfig, order: list[int]) -> dict[str, float]:
    """Return the bytes per training sample that one epoch transfers."""
    if config.placement == "fae":
        # All mixed batches, hot rows copied to the fast tier, all hot-only batches, hot rows copied back: the
        # least that FAE can transfer.
        mixed = ShardsTotals.of(shards.manifest).samples.mixed
        vectors = mixed * sum(4 * table.embedding_dim for table in shards.tables)
        hot = sum(table.num_hot * row_bytes(table.embedding_dim, "sgd") for table in shards.tables)
        found = {"bytes_to_fast": vectors + hot, "bytes_to_slow": vectors + hot}
    else:
        found = asdict(simulate_epoch(shards, config, order))
    return {
        name.removeprefix("bytes_"): count / shards.num_training_samples
        for name, count in found.items()
        if name.startswith("bytes_")
    }


def _ratios(moved: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the bytes of the others over look-ahead's, without and with first uses counted as loads."""

    def both_ways(name: str, *, fetches_all: bool = False) -> float:
        found = moved[name]
        initialized = found.get("made", 0.0) if fetches_all else 0.0
        return max(found["to_fast"] + found["to_slow"] + initialized, 1e-9)

    fetching_all = both_ways("lookahead", fetches_all=True)
    return {
        "lookahead / belady": fetching_all / both_ways(_BELADY, fetches_all=True),
        "hybrid / lookahead, first uses fetched": both_ways("hybrid") / fetching_all,
        "hybrid / lookahead": both_ways("hybrid") / both_ways("lookahead"),
        "hybrid-dedup / lookahead": both_ways("hybrid-dedup") / both_ways("lookahead"),
    }


def _train(shards: Shards, config: TrainConfig, order: list[int]) -> Facts:
    """Train the first batches; return CPU and wall seconds after a warm-up, stalls, and the AUC."""
    # CPU of all threads: what runs ahead in the background costs, too.
    trainer, (wall, cpu) = train_timed(shards, config, order)
    return {
        "cpu_seconds": cpu,
        "samples_per_second": (trainer.num_samples - samples_of(shards, order[:WARM_UP_STEPS])) / wall,
        "stalls": trainer.embeddings.transfers.num_stalls,
        "auc": trainer.predictor.score(_EVALUATED).auc,
    }


ROOT = Path(__file__).resolve().parents[2]
CHARTED = ROOT / "workflows" / "results" / "placements-2m.json"
CHART = ROOT / "docs" / "bytes.svg"
_CHARTED_SHARE = 0.015
"""Share of the rows that is hot; as many staging slots or slots of a cache come on top."""
_CHARTED_NAMES = {
    "hybrid": "hybrid (offloading, one vector per lookup)",
    "fae": "fae",
    "hybrid-dedup": "hybrid-dedup (each row once per batch)",
    "hybrid-uva": "hybrid-uva (read in place)",
    "cache lfu": "cache (FreqCache, LFU)",
    "lookahead": "lookahead (hotset's default)",
}
_WIDTH, _BAR, _STEP, _EDGE = 480, 14, 42, 10
"""Names are above their bars, so that the chart is narrow and its text can be read on a phone."""
# A page without a dark theme shows the picture on its own ground.
_STYLE = (
    "svg{background:#fff}text{font:14px system-ui,sans-serif;fill:#24292f}.bar{fill:#8c959f}"
    ".own{fill:#0969da}"
    "@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}.bar{fill:#6e7681}"
    ".own{fill:#58a6ff}}"
)


def bytes_per_sample(result: Facts) -> dict[str, float]:
    """Return the bytes that each placement moves per sample, both ways together."""
    (moved,) = (each["bytes"] for each in result["shares"] if each["share"] == _CHARTED_SHARE)
    return {name: moved[name]["to_fast"] + moved[name]["to_slow"] for name in _CHARTED_NAMES}


def draw_chart(moved: dict[str, float]) -> str:
    """Return the chart: a bar and a number for each placement."""
    height = _STEP * len(moved) + 40
    title = "Bytes moved per sample between host and fast memory"
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f'<text x="{_EDGE}" y="22" style="font-weight:600">{title}</text>',
    ]
    scale = (_WIDTH - 2 * _EDGE - 50) / max(moved.values())
    for number, (name, value) in enumerate(moved.items()):
        top = 36 + _STEP * number
        kind = "own" if name == "lookahead" else "bar"
        length = max(scale * value, 1)
        lines.append(f'<text x="{_EDGE}" y="{top + 12}">{_CHARTED_NAMES[name]}</text>')
        bar = f'x="{_EDGE}" y="{top + 19}" width="{length:.1f}" height="{_BAR}" rx="2"'
        lines.append(f'<rect class="{kind}" {bar}/>')
        lines.append(f'<text x="{_EDGE + length + 6:.1f}" y="{top + 31}">{value:,.0f}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["chart"]:
        CHART.write_text(draw_chart(bytes_per_sample(json.loads(CHARTED.read_text()))))
    else:
        sys.exit(run_script(PARSER, measure))
