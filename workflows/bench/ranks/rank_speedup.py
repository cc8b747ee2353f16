"""Two ranks of this machine beside one process, a thread each, on the loopback device, by the clock.

All train on the same shards with the same batches and shares, so two ranks without a codec must end with the
bits of one process. They take turns of a few steps. Reading and planning run in threads of their own, as in
training, and are on the clock as far as steps wait for them.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ....train.options.exchange_options import AUTO, ExchangeOptions
from ....train.ranks.ranks import OneRank, Ranks
from ....train.trainer import Trainer
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.choose_exchange import choose_exchange
from ....train.trainer_building.devices import set_threads
from .rank_group import RankGroup

LOOPBACK = "loopback"
NUM_RANKS = 2
ONE = "one process"
TWO = "two ranks"
CHOSEN = "two ranks, codecs by auto"
_TIMEOUT_SECONDS = 600.0
"""One rank may compile while the others wait."""


class _Contestant:
    """A run whose steps are taken a few at a time.

    Args:
        shards: to train on.
        ranks: that share the run.
        config: of the run, with more epochs than the turns take.
        stack: closes the run.
    """

    def __init__(self, shards: Shards, ranks: Ranks, config: TrainConfig, stack: ExitStack) -> None:
        self.trainer = build_trainer(shards, config, ranks=ranks)
        stack.enter_context(closing(self.trainer.embeddings))
        self._steps = stack.enter_context(closing(self.trainer.steps()))

    def take(self, num_steps: int, *, is_last: bool) -> None:
        """Take the steps of a turn."""
        trainer = self.trainer
        for number in range(num_steps):
            step = next(self._steps)
            # Nothing may be under way when the run is left.
            if is_last and number == num_steps - 1:
                step = replace(step, following=None)
            trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1


def compare_ranks(data: Path, seed: int, rounds: int, steps: int) -> dict[str, Any]:
    """Train in turns; return plain data, ready for JSON.

    Args:
        data: shards whose batches the ranks share.
        seed: of the training.
        rounds: turns of each contestant, after one that compiles.
        steps: of a turn.

    Returns:
        By contestant the median seconds of a step, those in which rank 0 waits for messages, the CPU seconds
        of all its processes, and how many times quicker it is than one process; what ``auto`` took; and
        whether the bits are equal.
    """
    with RankGroup(NUM_RANKS, _TIMEOUT_SECONDS) as group:
        settings = {"data": str(data), "seed": seed, "rounds": rounds, "steps": steps}
        # Rank 0 clocks all of them, and gets the weights of both ranks.
        first, second = group.call(take_turns, **settings)
    seconds = {name: statistics.median(found["seconds"]) for name, found in first["turns"].items()}
    waits = {name: statistics.median(found["waits"]) for name, found in first["turns"].items()}
    return {
        "link": LOOPBACK,
        "batch_size": first["batch_size"],
        "contestants": [
            {
                "name": name,
                "step_seconds": each,
                "samples_per_second": first["batch_size"] / each,
                "wait_seconds": waits[name],
                "cpu_seconds": sum(
                    statistics.median(rank["turns"][name]["cpu"])
                    for rank in (first, second)[: 1 + (name != ONE)]
                ),
                "over_one": seconds[ONE] / each,
            }
            for name, each in seconds.items()
        ],
        "auto": {"codecs": first["codecs"], "seconds_over_none": seconds[CHOSEN] / seconds[TWO]},
        "has_equal_bits": first["weights"][ONE] == first["weights"][TWO],
    }


def take_turns(ranks: Ranks, data: str, seed: int, rounds: int, steps: int) -> dict[str, Any]:
    """Take part as one of the ranks; rank 0 is the one process, too."""
    set_threads(1)
    shards = Shards.open(Path(data))
    num_steps = (1 + rounds) * steps
    config = TrainConfig(
        placement="all-fast",
        threads=1,
        shares=NUM_RANKS,
        seed=seed,
        epochs=1 + num_steps // shards.num_training_batches,
    )
    turns: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        runs = {name: _Contestant(shards, ranks, config, stack) for name in (TWO, CHOSEN)}
        if ranks.rank == 0:
            runs[ONE] = _Contestant(shards, OneRank(), config, stack)
        chosen = choose_exchange(runs[CHOSEN].trainer, ExchangeOptions(exchange=AUTO))
        runs[CHOSEN].trainer.coded.use(chosen)
        for number in range(rounds + 1):
            for name in (ONE, TWO, CHOSEN):
                found = _turn(ranks, runs.get(name), steps, is_last=number == rounds)
                # The first turn compiles.
                if number > 0:
                    own = turns.setdefault(name, {"seconds": [], "waits": [], "cpu": []})
                    for each, kept in zip(found, own.values(), strict=True):
                        kept.append(each / steps)
        weights = {name: _checksum(runs[name].trainer) for name in (TWO, CHOSEN)}
        if ranks.rank == 0:
            weights[ONE] = _checksum(runs[ONE].trainer)
        for run in runs.values():
            run.trainer.embeddings.stop()
    return {
        "batch_size": shards.batch_size,
        "turns": turns,
        "weights": weights,
        "codecs": [chosen.vectors, chosen.gradients, chosen.dense],
    }


def _turn(ranks: Ranks, run: _Contestant | None, steps: int, *, is_last: bool) -> tuple[float, float, float]:
    """Return the seconds of a turn, at a rank without a run too, those of waiting for messages, and CPU
    seconds of this process."""
    before = run.trainer.coded.counts.seconds if run is not None else 0.0
    ranks.gather(torch.zeros(1))  # all begin together
    begin = time.perf_counter()
    cpu_begin = time.process_time()
    if run is not None:
        run.take(steps, is_last=is_last)
    ranks.gather(torch.zeros(1))
    seconds = time.perf_counter() - begin
    waited = run.trainer.coded.counts.seconds - before if run is not None else 0.0
    return seconds, waited, time.process_time() - cpu_begin


def _checksum(trainer: Trainer) -> str:
    """Return the checksum of all weights at rank 0; every rank of the run calls it."""
    digest = hashlib.sha256()
    weights = trainer.weights()
    for name in sorted(weights.shapes):
        digest.update(name.encode())
        for part in weights.parts(name):
            digest.update(part.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def show_speedup(result: dict[str, Any], console: Console) -> None:
    """Print a table of the contestants, and whether the bits are equal."""
    title = f"loopback: a step of {result['batch_size']:,} samples, a thread each, by the clock"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("", "seconds", "samples/s", "waits", "CPU seconds", "times one process"):
        table.add_column(name, justify="right" if name else "left")
    for each in result["contestants"]:
        table.add_row(
            each["name"],
            f"{each['step_seconds']:.4f}",
            f"{each['samples_per_second']:,.0f}",
            f"{each['wait_seconds']:.4f}",
            f"{each['cpu_seconds']:.4f}",
            f"{each['over_one']:.2f}x",
        )
    console.print(table)
    vectors, gradients, dense = result["auto"]["codecs"]
    console.print(f"auto took {vectors} for vectors, {gradients} for gradients and {dense} for dense layers")
    same = "the same bits" if result["has_equal_bits"] else "OTHER BITS"
    console.print(f"two ranks without a codec end with {same} as one process")
