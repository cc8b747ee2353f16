"""All placements with the same fast memory: bytes of an epoch, speed and AUC of its first batches.

Bytes are those of the step plans that training makes, simulated over the whole epoch; a share of the rows is
hot, and there are as many staging slots. Belady without prefetch is the least that any placement moves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from ...pipeline.errors import ByteSize, ConfigError
from ...pipeline.folders.totals import ShardsTotals, VocabularyTotals
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.preprocess import preprocess, remove_from
from ...stats.ranking.row_bytes import row_bytes
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.loop import Trainer, run_steps
from ..recipes import criteo_kaggle
from .harness import Facts, median_ratio, new_parser, run_script, scratch_folder, take_turns, tell
from .simulate import simulate_epoch

_BELADY = "belady, P = 0"
_WARM_UP_BATCHES, _BATCHES = 3, 20
_EVALUATED = 32_768
"""Most samples evaluated for the AUC."""


def parser() -> argparse.ArgumentParser:
    """Return the options of the script."""
    found = new_parser(__spec__.name if __spec__ else "placements", __doc__ or "")
    found.add_argument("--samples", type=int, default=2_000_000, help="samples of the generated log")
    found.add_argument("--shares", type=float, nargs="+", default=[0.015], help="shares of rows that are hot")
    found.add_argument("--embedding-dim", type=int, default=16)
    found.add_argument("--batch-size", type=int, default=2048)
    found.add_argument("--order", choices=("grouped", "original"), default="grouped")
    found.add_argument("--rounds", type=int, default=3, help="rounds in which each placement trains")
    found.add_argument("--bytes", action="store_true", help="count bytes and train nothing")
    return found


def candidates(staging_bytes: int) -> dict[str, TrainConfig]:
    """Return every placement with the same fast memory; the baselines first."""
    # SGD without state, as in the papers whose bytes are compared.
    base = TrainConfig(
        placement="all-fast",
        staging_bytes=ByteSize(staging_bytes),
        dense_optimizer="sgd",
        dense_dtype="fp32",
    )
    cache = replace(base, placement="cache")
    lookahead = replace(base, placement="lookahead")
    return {
        "all-fast": base,
        "hybrid": replace(base, placement="hybrid"),
        "hybrid-dedup": replace(base, placement="hybrid-dedup"),
        "hybrid-uva": replace(base, placement="hybrid-uva"),
        "fae": replace(base, placement="fae", fae_variant="code"),
        "cache lfu": cache,
        "cache lru": replace(cache, cache_policy="lru"),
        "cache dataset": replace(cache, cache_policy="dataset"),
        "lookahead": lookahead,
        _BELADY: replace(lookahead, prefetch=0),
    }


def measure(options: argparse.Namespace) -> Facts:
    """Generate the log once, pack it for each share of hot rows, count all and train the first batches."""
    if not all(0 < share < 1 for share in options.shares):
        raise ConfigError("shares must be between 0 and 1")
    recipe = criteo_kaggle()
    pack = replace(recipe.pack, batch_size=options.batch_size, order=options.order)
    recipe = replace(recipe, pack=pack)
    shares = []
    with scratch_folder(options) as scratch:
        log, data = scratch / "log.tsv", scratch / "data"
        generate(GenerateConfig(samples=options.samples), log)
        num_rows = VocabularyTotals.of(preprocess([log], recipe, data, until="rank")).num_rows
        for share in options.shares:
            tell(f"{share:.1%} of {num_rows:,} rows hot, and as many slots for staging")
            hot_bytes = ByteSize(int(share * num_rows) * row_bytes(options.embedding_dim, "sgd"))
            split = replace(
                recipe.split,
                hot_bytes=hot_bytes,
                embedding_dim=options.embedding_dim,
                embedding_optimizer="sgd",
            )
            # Stages before split do not depend on the share and stay.
            if (data / "plan").exists():
                remove_from("split", data)
            preprocess([log], replace(recipe, split=split), data)
            rounds = 0 if options.bytes else options.rounds
            found = _measure_share(Shards.open(data), hot_bytes, rounds)
            shares.append({"share": share, "num_rows": num_rows} | found)
    return {"shares": shares}


def _measure_share(shards: Shards, hot_bytes: int, rounds: int) -> Facts:
    every = candidates(hot_bytes)
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist()
    moved = {name: _moved(shards, config, order) for name, config in every.items()}
    first = order[: _WARM_UP_BATCHES + _BATCHES]
    turns = {name: partial(_train, shards, every[name], first) for name in every if name != _BELADY}
    measured = take_turns(turns, rounds)
    return {
        "bytes": moved,
        "ratios": _ratios(moved),
        "cpu": {
            name: median_ratio(
                [one["cpu_seconds"] for one in measured["all-fast"]], [one["cpu_seconds"] for one in own]
            )
            for name, own in measured.items()
            if own
        },
        "samples_per_second": {
            name: statistics.median(one["samples_per_second"] for one in own)
            for name, own in measured.items()
            if own
        },
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
    set_threads(config.threads)
    trainer = build_trainer(shards, config, RecordedOrder(np.array(order, np.int32)))
    # CPU of all threads: what runs ahead in the background costs, too.
    begin = (time.process_time(), time.perf_counter(), 0)

    def after_step(running: Trainer, *_: object) -> None:
        nonlocal begin
        if running.step == _WARM_UP_BATCHES:
            begin = (time.process_time(), time.perf_counter(), running.num_samples)

    run_steps(trainer, after_step)
    cpu, wall = time.process_time() - begin[0], time.perf_counter() - begin[1]
    return {
        "cpu_seconds": cpu,
        "samples_per_second": (trainer.num_samples - begin[2]) / wall,
        "stalls": trainer.embeddings.transfers.num_stalls,
        "auc": trainer.predictor.score(_EVALUATED).auc,
    }


if __name__ == "__main__":
    sys.exit(run_script(parser(), measure))
