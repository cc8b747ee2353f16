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
from ....train.options.exchange_options import ExchangeOptions
from ....train.ranked.ranked_width import RankedWidth
from ....train.ranks.ranks import Ranks
from ....train.ranks.throttled_ranks import ThrottledRanks
from ....train.ranks.torch_ranks import join_ranks
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.choose_exchange import choose_exchange
from ....train.trainer_building.devices import set_threads
from .bench_links import AUTO, LINKS, WAYS, Way
from .link_namespaces import ShapedRanks
from .lookup_messages import as_others_send


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
        num_turns = 2 + settings["rounds"] * len(settings["links"]) * len(WAYS)
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
        """Take the steps of a turn; return the seconds of a step and the bytes that this rank sent in it."""
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
        self._link.gather(torch.zeros(1))  # both begin together
        begin = time.perf_counter()
        for step in steps:
            trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1
        self._link.gather(torch.zeros(1))
        seconds = time.perf_counter() - begin
        return {
            "step_seconds": seconds / self._num_steps,
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
        chosen = {name: _chosen_by_auto(runs["by-use", True], link, name) for name in settings["links"]}
        # Both ranks take the same turns in the same order, so they agree on link and codec without a message.
        for _ in range(settings["rounds"]):
            for name in settings["links"]:
                for codec, way in WAYS.items():
                    link.set_speed(LINKS[name])
                    exchange = ChosenExchange(way.rows, way.rows, way.dense)
                    if codec == AUTO:
                        exchange = chosen[name]
                    found = runs[way.homes, way.sends_early].turn(way, exchange)
                    codecs = [exchange.vectors, exchange.gradients, exchange.dense]
                    turns.append({"link": name, "codec": codec, "codecs": codecs} | found)
        for run in runs.values():
            run.stop()
    return turns


def _chosen_by_auto(run: _Run, link: ThrottledRanks | ShapedRanks, name: str) -> ChosenExchange:
    """Return what ``--exchange auto`` takes at a link."""
    link.set_speed(LINKS[name])
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
