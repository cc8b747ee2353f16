"""AUC over seeds of variations of training.

Each ``--vary`` names options of `hotset train`; all variations are trained with every seed on the same
shards, and differences are those from the first variation with the same seed. `against_torch` compares with
plain torch.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from ...pipeline.errors import ConfigError
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import preprocess
from ..recipes import small_real_sample
from . import harness
from .harness import Facts, Options, tell

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--data", type=Path, required=True, help="raw Criteo log")
PARSER.add_argument("--seeds", type=int, default=5, help="number of seeds")
PARSER.add_argument("--vary", action="append", default=[], help="options of train, in quotes; several times")
PARSER.add_argument("--ranks", type=int, default=1, help="processes of each run")


def measure(options: Options, folder: Path) -> Facts:
    """Train every variation with every seed; return scores, means, deviations and differences."""
    seeds, recipe = list(range(options.seeds)), small_real_sample()
    totals = ShardsTotals.of(preprocess([options.data], recipe, folder / "data"))
    variations = {words or "defaults": shlex.split(words) for words in options.vary or [""]}
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in variations}
    for seed in seeds:
        for name, given in variations.items():
            base = [] if "--dense-lr" in given else ["--dense-lr", "0.0005"]
            words = ["--seed", str(seed), *base, *given]
            _, found = harness.train_in_process(folder / "data", words, options.ranks)
            if found["auc"] is None:
                raise ConfigError("the samples of the test part have one label or none: no AUC")
            scores[name].append({score: found[score] for score in ("auc", "log_loss")})
            tell(f"seed {seed}, {name}: AUC {found['auc']}")
    facts: Facts = {"samples": totals.samples.to_json(), "seeds": seeds, "preprocess": asdict(recipe)}
    return facts | harness.scores_over_seeds(scores)


if __name__ == "__main__":
    harness.main(PARSER, measure)
