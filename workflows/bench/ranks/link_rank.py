"""One rank of ``hotset bench links``, a process of its own: ``python -m …link_rank DATA SETTINGS``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ....train.exchange.chosen_exchange import ChosenExchange
from ....train.ranks.ranks import Ranks
from ....train.ranks.throttled_ranks import ThrottledRanks
from ....train.ranks.torch_ranks import join_ranks
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.devices import set_threads
from .bench_links import EXCHANGES, LINKS


def measure_turns(data: Path, settings: Mapping[str, Any], ranks: Ranks) -> list[dict[str, Any]]:
    """Train in turns, and return the seconds of a step and the bytes this rank sent in it, turn by turn."""
    set_threads(1)
    link = ThrottledRanks(ranks, max(LINKS.values()))
    # More epochs than turns need: the steps end with the turns.
    num_turns = settings["rounds"] * len(settings["links"]) * len(EXCHANGES)
    shards = Shards.open(data)
    epochs = 1 + (num_turns + 1) * settings["steps"] // shards.num_training_batches
    config = TrainConfig(placement="all-fast", threads=1, seed=settings["seed"], epochs=epochs)
    trainer = build_trainer(shards, config, ranks=link)
    turns: list[dict[str, Any]] = []
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:

        def take_steps() -> None:
            for _ in range(settings["steps"]):
                trainer.runner.train(next(steps), trainer.step, trainer.rates.of_step(trainer.step))
                trainer.step += 1

        take_steps()  # compiles
        # Both ranks take the same turns in the same order, so they agree on link and codec without a message.
        for _ in range(settings["rounds"]):
            for name in settings["links"]:
                for codec, (rows, dense) in EXCHANGES.items():
                    link.set_speed(LINKS[name])
                    trainer.coded.use(ChosenExchange(rows, rows, dense))
                    before = sum(trainer.coded.counts.sent_bytes.values())
                    ranks.gather(torch.zeros(1))  # both begin together
                    begin = time.perf_counter()
                    take_steps()
                    ranks.gather(torch.zeros(1))
                    seconds = (time.perf_counter() - begin) / settings["steps"]
                    sent = sum(trainer.coded.counts.sent_bytes.values()) - before
                    turns.append(
                        {
                            "link": name,
                            "codec": codec,
                            "step_seconds": seconds,
                            "step_bytes": sent / settings["steps"],
                        }
                    )
        # Steps remain that no turn takes, so transfers that wait for them are dropped.
        trainer.embeddings.stop()
    return turns


def main() -> None:
    """Print the turns as JSON."""
    ranks = join_ranks(timeout_seconds=300)
    print(json.dumps(measure_turns(Path(sys.argv[1]), json.loads(sys.argv[2]), ranks)))
    ranks.close()


if __name__ == "__main__":
    main()
