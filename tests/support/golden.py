"""Hashes of what must not change: prepared folders, rows and weights of training runs, keys of ``--json``.

    python -m hotset.tests.support.golden data|rows|weights|keys

writes one of them anew. ``data`` and ``rows`` are the same on every machine and were made by commit 22a087e.
Weights follow the matrix products of the CPU, so they are stored for one class of CPU; a change of these
products is the one reason to write them anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import hotset
from hotset.pipeline.formats.batch_checksums import CHECKSUMS
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_csv
from hotset.workflows.cli import main

DATA = Path(__file__).resolve().with_name("data")
LISTS = DATA / "lists.parquet"
"""A log with list-valued columns, 300 rows; its bytes are part of the manifests, so it is kept as a file."""
LISTS_SCHEMA = """format = "parquet"
label = "y"
dense = ["age"]
[sparse]
tags = { kind = "text", list = true }
shops = { kind = "integer", list = true, min_count = 3 }
user = { kind = "integer", embedding_dim = 8 }
"""
KINDS = {
    "y": "label",
    "whole": "whole",
    "raw": "raw",
    "float": "float",
    "site": "text",
    "id": "integer",
    "hash": "hex8",
    "large": "unsigned",
}

CASES: dict[str, tuple[str, ...]] = {
    "criteo": (),
    "criteo original": ("--order", "original", "--seed", "3", "--valid-fraction", "0.1"),
    "criteo peel": ("--rank-by", "peel", "--min-count", "2"),
    "criteo fae-paper": (
        "--rank-by",
        "sampled",
        "--sampling-rate",
        "0.2",
        "--mode",
        "fae-paper",
        "--hot-bytes",
        "1MiB",
    ),
    "criteo fae-code": ("--rank-by", "sampled", "--sampling-seed", "5", "--mode", "fae-code"),
    "criteo dims": ("--feature-dims", "C3=8,C5=32", "--embedding-optimizer", "adam", "--hot-bytes", "100KiB"),
    "criteo auto": ("--hot-bytes", "auto", "--min-count", "3"),
    "table": ("--eval-fraction", "0.2"),
    "lists": ("--eval-fraction", "0.2", "--feature-min-counts", "tags=2"),
}
"""Options of ``preprocess`` for each folder; the first word of a name is its log."""

DELETED_SETTINGS = frozenset({"max_bad_fraction", "peel_floor", "train_last"})
"""Settings that manifests need not record any more."""

_FEATURES = {"tags", "shops", "user", *(f"C{number}" for number in range(1, 27))}

PLACEMENTS = ("all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache", "lookahead")
OPTIMIZERS = ("sgd", "momentum", "adagrad", "rowwise-adagrad", "adam")


def run(*arguments: str) -> str:
    """Run a command in this process, and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main([*arguments, "-q"])
    assert status == 0, arguments
    return out.getvalue()


def write_logs(folder: Path) -> None:
    """Write the generated logs that folders are made from."""
    for number in range(3):
        seed = str(number + 1)
        log = str(folder / f"day{number}.tsv")
        run("generate", "--samples", "1500", "--seed", seed, "--scale", "1000", "--out", log)
    table = draw_log(400, KINDS, np.random.default_rng(28))
    write_csv(folder / "table.csv", table)
    (folder / "table.toml").write_text(schema_text(table))
    (folder / "lists.toml").write_text(LISTS_SCHEMA)


def prepare(logs: Path, case: str, out: Path, workers: int) -> None:
    """Write the folder of a case."""
    log = case.split()[0]
    inputs = {
        "criteo": [str(logs / f"day{number}.tsv") for number in range(3)],
        "table": [str(logs / "table.csv"), "--schema", str(logs / "table.toml")],
        "lists": [str(LISTS), "--schema", str(logs / "lists.toml")],
    }[log]
    options = {"--hot-bytes": "32KiB", "--batch-size": "64", "--workers": str(workers)}
    given = CASES[case]
    words = [word for option, value in options.items() if option not in given for word in (option, value)]
    run("preprocess", *inputs, "--out", str(out), *words, *given)


def describe(out: Path) -> dict[str, Any]:
    """Return, for each folder, a hash of its data files, its settings, and a hash of the other records."""
    found: dict[str, Any] = {}
    for manifest in sorted(out.glob("*/manifest.json")):
        parts = json.loads(manifest.read_text())
        data = hashlib.sha256()
        for path in sorted(path for path in manifest.parent.rglob("*") if path.is_file()):
            if path not in (manifest, manifest.parent / CHECKSUMS) and not path.name.startswith("."):
                data.update(path.relative_to(out).as_posix().encode() + path.read_bytes())
        settings = {k: v for k, v in parts.pop("config").items() if k not in DELETED_SETTINGS}
        parts.pop("checksum")
        for made_from in parts["inputs"]:
            made_from.pop("fingerprint", None)
        # Checksums of batches came later: without them, the hashes are those of the commit named above.
        parts["files"] = [entry for entry in parts["files"] if entry["path"] != CHECKSUMS]
        others = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
        found[manifest.parent.name] = {
            "data": data.hexdigest()[:32],
            "config": settings,
            "manifest": others.hexdigest()[:32],
        }
        if (manifest.parent / CHECKSUMS).exists():
            own = hashlib.sha256((manifest.parent / CHECKSUMS).read_bytes())
            found[manifest.parent.name]["checksums"] = own.hexdigest()[:32]
    return found


RATES = {"sgd": 0.1, "momentum": 0.01, "adam": 0.001}
"""Rates of optimizers whose usual ones make these rows infinite, or were others when the hashes were made."""


def rows_after(data: Path, placement: str, optimizer: str) -> str:
    """Train rows on gradients that take no matrix product, and return the hash of tables and states."""
    torch.set_num_threads(1)
    embeddings = hotset.nn.Embeddings(
        data,
        placement=placement,  # type: ignore[arg-type]
        embedding_optimizer=optimizer,  # type: ignore[arg-type]
        embedding_lr=RATES.get(optimizer),
        staging_bytes="24KiB",
        threads=1,
    )
    for batch in embeddings.read_ahead(hotset.ShardDataset(data, seed=2)):
        vectors = list(embeddings(batch).values())
        # Element by element: each CPU rounds this alike.
        torch.autograd.backward(vectors, [0.25 * vector.detach() + 0.01 for vector in vectors])
        embeddings.step()
    return hash_of(embeddings.state_dict())


def weights_after(data: Path, out: Path, placement: str, optimizer: str, *more: str) -> str:
    """Train with a small model, and return the hash of the weights."""
    options = ["--placement", placement, "--embedding-optimizer", optimizer, "--threads", "1"]
    options += ["--staging-bytes", "24KiB", "--bottom-mlp", "16", "--top-mlp", "16", *more]
    options += ["--embedding-lr", str(RATES["adam"])] if optimizer == "adam" else []
    run("train", str(data), "--out", str(out), *options)
    return hash_of(load_file(out / "weights.safetensors"))


def hash_of(tensors: dict[str, torch.Tensor]) -> str:
    """Return one hash of named tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


def cpu_class() -> str:
    """Return what decides the bits of matrix products: the CPU, its instructions, and torch."""
    facts = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    named = {name.strip(): value.strip() for name, value in facts.items()}
    family = f"{named.get('vendor_id')} {named.get('cpu family')}"
    return f"{family}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def keys_in(value: Any, at: str = "") -> Iterator[str]:
    """Yield the path of each key inside a JSON value, elements of lists alike."""
    if isinstance(value, dict):
        for key, inner in value.items():
            key = "*" if key in _FEATURES else key
            path = f"{at}.{key}" if at else str(key)
            yield path
            # Which options there are stands in a list of its own.
            if key not in ("config", "settings", "machine"):
                yield from keys_in(inner, path)
    if isinstance(value, list):
        for inner in value:
            yield from keys_in(inner, f"{at}[]")


def json_keys(logs: Path, folder: Path) -> list[str]:
    """Return lines ``command key`` of all that commands print with ``--json``; logs hold ``lists.toml``."""
    schema = ("--schema", str(logs / "lists.toml"))
    data, steps, trained = folder / "data", folder / "steps", str(folder / "run")
    small = ("--bottom-mlp", "8", "--top-mlp", "8")
    calls: list[tuple[str, ...]] = [
        ("demo", "--samples", "2000", "--out", str(folder / "demo")),
        ("generate", "--samples", "50", "--scale", "1000", "--out", str(folder / "log.tsv")),
        ("schema", str(LISTS)),
        ("preprocess", str(LISTS), *schema, "--out", str(data), "--batch-size", "32", "--hot-bytes", "4KiB"),
        ("preprocess", str(LISTS), *schema, "--out", str(folder / "none"), "--dry-run"),
        ("ingest", str(LISTS), *schema, "--out", str(steps)),
        *((stage, str(steps)) for stage in ("count", "rank", "encode", "split")),
        ("pack", str(steps), "--batch-size", "32"),
        ("export-shards", str(data), "--out", str(folder / "shards")),
        ("stats", str(data)),
        ("advise", str(data)),
        ("verify", str(data)),
        ("train", str(data), "--out", trained, *small, "--epochs", "2", "--evaluate-every", "4"),
        ("evaluate", trained, str(data)),
        ("predict", trained, str(LISTS), "--out", str(folder / "scores.csv")),
        ("export", trained, "--out", str(folder / "served")),
        ("verify", trained),
        ("runs", str(folder)),
        ("recipe", trained),
    ]
    found: set[str] = set()
    for call in calls:
        text = run(*call, "--json")
        parts = [json.loads(line) for line in text.splitlines()] if "}\n{" in text else json.loads(text)
        # A demo and a list of runs repeat what train and stats print, and a recipe the options.
        deepest = {"demo": 1, "runs": 1, "recipe": 0}.get(call[0], 99)
        found |= {f"{call[0]} {path}" for path in keys_in(parts) if path.count(".") <= deepest}
    return sorted(found)


def golden(kind: str) -> Path:
    """Return the file of one kind of hashes."""
    return DATA / (f"golden_{kind}.txt" if kind == "keys" else f"golden_{kind}.json")


def made(kind: str, folder: Path) -> Any:
    """Return what the file of ``kind`` has to hold."""
    write_logs(folder)
    if kind == "data":
        for case in CASES:
            prepare(folder, case, folder / case, 1)
        return {case: describe(folder / case) for case in CASES}
    if kind == "keys":
        return json_keys(folder, folder)
    prepare(folder, "criteo", folder / "data", 1)
    if kind == "rows":
        return {name: rows_after(folder / "data", "all-fast", name) for name in OPTIMIZERS}
    orders = {"all-fast": "own order", "fae": "order of fae"}
    return {
        "cpu": cpu_class(),
        "weights": {
            f"{name}, {order}": weights_after(
                folder / "data", folder / f"{name} {placement}", placement, name
            )
            for name in OPTIMIZERS
            for placement, order in orders.items()
        },
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        result = made(sys.argv[1], Path(scratch))
    text = "\n".join(result) if isinstance(result, list) else json.dumps(result, indent=1, sort_keys=True)
    golden(sys.argv[1]).write_text(text + "\n")
