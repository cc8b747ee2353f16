"""One rank of ``hotset bench links``, a process of its own: ``python -m …link_rank DATA SETTINGS``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ....stats.exchange.homes_name import HomesName
from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ....train.exchange.chosen_exchange import ChosenExchange
from ....train.exchange.coded_exchange import ExchangeCounts
from ....train.options.exchange_options import ExchangeOptions
from ....train.ranked.ranked_width import RankedWidth
from ....train.ranks.ranks import Ranks
from ....train.ranks.throttled_ranks import ThrottledRanks
from ....train.ranks.torch_ranks import join_ranks
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.choose_exchange import choose_exchange
from ....train.trainer_building.devices import set_threads
from .bench_links import AUTO, EVERY_LOOKUP, LINKS, WAYS, Way, share_of
from .link_namespaces import ShapedRanks
from .lookup_messages import as_others_send

_SEARCHES = 4
"""Turns in which the speed of a link is looked for."""


class _Run:
    """A run of this rank whose steps are taken a few at a time, each time in another way.

    Args:
        shards: to train on.
        settings: of the benchmark.
        homes: where rows live.
        sends_early: whether vectors may cross a step early.
        link: the ranks behind the slow link.
        stack: closes the run.
    """

    def __init__(
        self,
        shards: Shards,
        settings: Mapping[str, Any],
        homes: HomesName,
        sends_early: bool,
        link: ThrottledRanks | ShapedRanks,
        stack: ExitStack,
    ) -> None:
        # More epochs than turns need: the steps end with the turns.
        num_turns = 2 + (_SEARCHES + settings["rounds"] * len(WAYS)) * len(settings["links"])
        epochs = 1 + num_turns * settings["steps"] // shards.num_training_batches
        config = TrainConfig(placement="all-fast", threads=1, seed=settings["seed"], epochs=epochs)
        self.trainer = build_trainer(shards, config, ranks=link, homes=homes)
        stack.enter_context(closing(self.trainer.embeddings))
        for width in self.trainer.embeddings.widths:
            assert isinstance(width, RankedWidth)
            width.exchange.sends_early = sends_early
        self._steps = stack.enter_context(closing(self.trainer.steps()))
        self._num_steps = settings["steps"]
        self._link = link

    def turn(self, way: Way, chosen: ChosenExchange) -> dict[str, float]:
        """Take the steps of a turn; return the seconds of a step, those for rows, and the bytes that this
        rank sent in it."""
        trainer = self.trainer
        trainer.coded.use(chosen)
        steps = [next(self._steps) for _ in range(self._num_steps)]
        # Lists are made ahead of the clock, as they are for hotset's own messages.
        if way.sends != "hotset":
            per_lookup = way.sends == "lookups"
            steps = [as_others_send(trainer, step, per_lookup=per_lookup) for step in steps]
        # Another way may follow, and would send vectors otherwise.
        steps[-1] = replace(steps[-1], following=None)
        counts = trainer.coded.counts
        before, early_before = sum(counts.sent_bytes.values()), counts.early_bytes
        rows_before = _row_seconds(counts)
        self._link.gather(torch.zeros(1))  # both begin together
        begin = time.perf_counter()
        for step in steps:
            trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1
        self._link.gather(torch.zeros(1))
        seconds = time.perf_counter() - begin
        return {
            "step_seconds": seconds / self._num_steps,
            "row_seconds": (_row_seconds(counts) - rows_before) / self._num_steps,
            "step_bytes": (sum(counts.sent_bytes.values()) - before) / self._num_steps,
            "early_bytes": (counts.early_bytes - early_before) / self._num_steps,
        }

    def stop(self) -> None:
        """Drop the transfers of steps that no turn takes."""
        self.trainer.embeddings.stop()


def measure_turns(
    data: Path, settings: Mapping[str, Any], ranks: Ranks, *, is_shaped: bool = False
) -> list[dict[str, Any]]:
    """Train in turns, and return the seconds of a step and the bytes this rank sent in it, turn by turn.

    Args:
        is_shaped: whether the ranks lie in network namespaces; otherwise the link is kept slow by waiting.
    """
    set_threads(1)
    link = ShapedRanks(ranks) if is_shaped else ThrottledRanks(ranks, max(LINKS.values()))
    shards = Shards.open(data)
    turns: list[dict[str, Any]] = []
    with ExitStack() as stack:
        # In the same order at both ranks, which a set of names would not be.
        kinds = list(dict.fromkeys((way.homes, way.sends_early) for way in WAYS.values()))
        runs = {kind: _Run(shards, settings, *kind, link, stack) for kind in kinds}
        for run in runs.values():
            run.turn(WAYS[AUTO], ChosenExchange())  # compiles
        of_others = WAYS[EVERY_LOOKUP]
        speeds = {
            name: speed_of_link(runs[of_others.homes, of_others.sends_early], link, name)
            for name in settings["links"]
        }
        chosen = {name: _chosen_by_auto(runs["by-use", True], link, speed) for name, speed in speeds.items()}
        # Both ranks take the same turns in the same order, so they agree on link and codec without a message.
        for _ in range(settings["rounds"]):
            for name in settings["links"]:
                for codec, way in WAYS.items():
                    link.set_speed(speeds[name])
                    exchange = ChosenExchange(way.rows, way.rows, way.dense)
                    if codec == AUTO:
                        exchange = chosen[name]
                    found = runs[way.homes, way.sends_early].turn(way, exchange)
                    codecs = [exchange.vectors, exchange.gradients, exchange.dense]
                    of_link = {"link": name, "bytes_per_second": speeds[name]}
                    turns.append(of_link | {"codec": codec, "codecs": codecs} | found)
        for run in runs.values():
            run.stop()
    return turns


def _row_seconds(counts: ExchangeCounts) -> float:
    """Return the seconds so far in which this rank coded rows and waited for them."""
    return counts.seconds_of["vectors"] + counts.seconds_of["gradients"]


def speed_of_link(run: _Run, link: ThrottledRanks | ShapedRanks, name: str) -> float:
    """Return the bytes per second of a link; where it is named by a share, of the one at which rows take that
    share of a step with a vector for each lookup."""
    wanted = share_of(name)
    if wanted is None:
        return LINKS[name]
    speed = LINKS["1gbit"]
    for _ in range(_SEARCHES):
        link.set_speed(speed)
        found = run.turn(WAYS[EVERY_LOOKUP], ChosenExchange())
        # Both ranks need the same speed. What is not for rows takes as long at any, and the rows their bytes.
        own = torch.tensor([found["row_seconds"], found["step_seconds"]], dtype=torch.float64)
        rows, whole = (float(each) for each in sum(link.gather(own), torch.zeros(2)))
        speed *= rows / (whole - rows) * (1 - wanted) / wanted
    return speed


def _chosen_by_auto(run: _Run, link: ThrottledRanks | ShapedRanks, speed: float) -> ChosenExchange:
    """Return what ``--exchange auto`` takes at a link."""
    link.set_speed(speed)
    run.trainer.coded.use(ChosenExchange())
    return choose_exchange(run.trainer, ExchangeOptions(exchange=AUTO))


def main() -> None:
    """Print the turns as JSON."""
    ranks = join_ranks(timeout_seconds=300)
    settings = json.loads(sys.argv[2])
    turns = measure_turns(Path(sys.argv[1]), settings, ranks, is_shaped=settings["network"] == "namespaces")
    print(json.dumps(turns))
    ranks.close()


if __name__ == "__main__":
    main()
