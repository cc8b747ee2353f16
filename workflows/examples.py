"""What the help of a command shows besides its options: two examples, and its name in Python."""

from __future__ import annotations

EXAMPLES = {
    "demo": ("hotset demo", "hotset demo --data train.txt.gz --hot-bytes 64MiB"),
    "generate": ("hotset generate --out log.tsv.gz", "hotset generate --out log.tsv --samples 1000000"),
    "schema": ("hotset schema clicks.parquet > clicks.toml", "hotset schema clicks.csv --samples 100000"),
    "preprocess": (
        "hotset preprocess train.txt.gz --out DIR --hot-bytes 64MiB",
        "hotset preprocess day_*.gz --out DIR --schema criteo-1tb",
    ),
    "ingest": (
        "hotset ingest train.txt.gz --out DIR",
        "hotset ingest day_*.gz --out DIR --schema criteo-1tb",
    ),
    "count": ("hotset count DIR", "hotset count DIR --eval-fraction 0.2 --redo"),
    "rank": ("hotset rank DIR", "hotset rank DIR --min-count 4 --redo"),
    "encode": ("hotset encode DIR", "hotset encode DIR --workers 4"),
    "split": ("hotset split DIR --hot-bytes 64MiB", "hotset split DIR --embedding-dim 32 --redo"),
    "pack": ("hotset pack DIR --batch-size 4096", "hotset pack DIR --order original --redo"),
    "export-shards": (
        "hotset export-shards DIR --to parquet --out files",
        "hotset export-shards DIR --to fuxictr --out files",
    ),
    "recipe": ("hotset recipe > recipe.toml", "hotset recipe DIR RUN > recipe.toml"),
    "stats": ("hotset stats DIR", "hotset stats DIR --html report.html"),
    "advise": ("hotset advise DIR", "hotset advise DIR --speeds machine.json"),
    "characterise": (
        "hotset characterise --out machine.json",
        "hotset characterise --out machine.json --html page.html",
    ),
    "verify": ("hotset verify DIR", "hotset verify RUN --shards DIR"),
    "train": (
        "hotset train DIR --out RUN --epochs 2",
        "hotset train DIR --out RUN --placement cache --threads 4",
    ),
    "evaluate": ("hotset evaluate RUN DIR", "hotset evaluate RUN DIR --slow-bytes 8GiB"),
    "predict": (
        "hotset predict RUN LOG --out scores.parquet",
        "hotset predict RUN LOG --out scores.parquet --no-label",
    ),
    "export": (
        "hotset export RUN --out exported --row-type int8",
        "hotset export RUN --out changes --since OLD_RUN",
    ),
    "apply": (
        "hotset apply changes --to exported --out updated",
        "hotset apply changes --to exported --out updated --json",
    ),
    "runs": ("hotset runs RUNS --compare", "hotset runs RUNS --html runs.html"),
    "completion": ("hotset completion bash", "hotset completion fish > hotset.fish"),
}
"""For each command, what its help shows as examples."""
IN_PYTHON = {
    "stats": "statistics",
    "train": "fit",
} | {name: name for name in ("preprocess", "evaluate", "predict", "export", "apply")}
"""For each command that is a function in Python too, the name of the function."""
