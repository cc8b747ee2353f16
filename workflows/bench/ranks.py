"""Measure several ranks: exchanged rows, bytes of codecs, and speed.

``bytes`` counts vectors and gradients per training sample along the order of training; ``codecs`` trains a
model and packs the rows that its samples look up in every codec, next to coders whose bytes depend on the
rows; ``speed`` lets one process and two ranks of this machine train in turns, a thread each. AUC by codec:
`quality --ranks 2 --vary "--exchange int8"`.

The other coders are vector-LZ and Huffman's, of which only the sizes are computed. Both code numbers that
were rounded to multiples of twice a bound of the range, ``rint(x / (2 e r))``. In vector-LZ a token is a row,
in a byte per number, or a repetition of up to 255 rows that begins up to 32 rows before, in 2 bytes. A bit
says which; a block of 2,048 rows is independent and takes 8 bytes more. Huffman's is the best prefix code of
single numbers, without the bytes of its codebook.

Source:
    Feng et al., SC'24, arXiv 2407.04272, and the code published with it; Huffman, Proc. IRE 40 (1952).

Shapes: N rows, D numbers of a row.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import hash_file
from ...pipeline.statistics.traffic import Trace, ranked_epoch
from ...stats.codecs import CODEC_NAMES, MessageShape, codec_of
from ...stats.exchange import MOST_RANKS, RankedEpoch, count_exchange
from ...stats.kernel import kernel
from ...stats.shuffle import epoch_order
from ...train.config import TrainConfig
from ...train.data.shards import Shards
from ...train.run import train
from ...train.run_folder.reader import read_weights
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
    train_in_process,
)

BOUNDS = (0.01, 0.03, 0.05)
_FLOAT_BYTES = 4
_LZ, _HUFFMAN = "vector-LZ", "Huffman"
_SLICES, _BATCHES = (512, 2048), 8
_STEPS, RANK_BATCH = 20, 2048
_WINDOW = 32
_BLOCK = 2048
_BLOCK_BYTES = 8
_MATCH_BYTES = 2
_LONGEST = 255

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("what", choices=("bytes", "codecs", "speed"))
PARSER.add_argument("--samples", type=int, default=2_000_000, help="samples of the generated log")
PARSER.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks to count for")
PARSER.add_argument("--embedding-dim", type=int, default=16)
PARSER.add_argument("--rounds", type=int, default=5, help="turns of each contestant of speed")


def measure(options: argparse.Namespace) -> Facts:
    """Measure what the options select."""
    if not all(2 <= ranks <= MOST_RANKS for ranks in options.ranks):
        raise ConfigError(f"ranks must be from 2 to {MOST_RANKS}")
    with scratch_folder(options) as folder:
        log = new_log(folder, options.samples)
        job = {"bytes": count_bytes, "codecs": compare_codecs, "speed": compare_speed}[options.what]
        return job(options, log, folder)


def _packed(options: argparse.Namespace, log: Path, folder: Path, batch_size: int) -> Shards:
    return pack_again(log, folder / "data", batch_size=batch_size, embedding_dim=options.embedding_dim)


def count_bytes(options: argparse.Namespace, log: Path, folder: Path) -> Facts:
    """Count vectors and gradients per sample between all ranks, from the plainest scheme to the least."""
    found = []
    for ranks in options.ranks:
        shards = _packed(options, log, folder, ranks * RANK_BATCH)
        epoch = _read_epoch(shards, ranks)
        counts = count_exchange(epoch)
        rows = {
            "every lookup": 2 * epoch.remote_lookups,
            "deduplicated": counts.deduplicated,
            "first uses computed": counts.striped.rows,
            "owners by use": counts.by_use.rows,
            "least possible": counts.least,
        }
        per_sample = {name: count / epoch.num_samples for name, count in rows.items()}
        found.append({"ranks": ranks, "num_samples": epoch.num_samples, "rows_per_sample": per_sample})
        tell(f"{ranks} ranks: " + ", ".join(f"{name} {each:.2f}" for name, each in per_sample.items()))
    return {"ranks": found, "rank_batch_size": RANK_BATCH}


def _read_epoch(shards: Shards, num_ranks: int) -> RankedEpoch:
    """Read the batches of an epoch in the order of training; rows are numbered over all tables."""
    first_row_F1 = np.cumsum([0, *(table.num_rows for table in shards.tables)])
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist()
    batches = [shards.training_batch(number).ids_BF + first_row_F1[:-1] for number in order]
    rows_NF = np.concatenate(batches)
    trace = Trace(rows_NF.reshape(-1), np.arange(rows_NF.shape[0] + 1) * rows_NF.shape[1])
    starts = np.cumsum([0, *(batch.shape[0] for batch in batches)])
    return ranked_epoch(trace, starts, int(first_row_F1[-1]), shards.batch_size, num_ranks)


def compare_codecs(options: argparse.Namespace, log: Path, folder: Path) -> Facts:
    """Train one epoch and return, for each size of messages, how many times smaller each codec makes it."""
    shards = _packed(options, log, folder, RANK_BATCH)
    train(folder / "data", TrainConfig(placement="all-fast", embedding_optimizer="adagrad"), folder / "run")
    weights = read_weights(folder / "run")
    tables = [weights[table.name].numpy() for table in shards.tables]
    # Hot-only batches have the first numbers, so batches are drawn evenly from all of them.
    numbers = np.linspace(0, shards.num_training_batches - 1, _BATCHES).astype(int)
    ids = [shards.training_batch(number).ids_BF for number in np.unique(numbers).tolist()]
    return {"slices": [{"samples": size, "ratios": ratios_of(tables, ids, size)} for size in _SLICES]}


def compare_speed(options: argparse.Namespace, log: Path, folder: Path) -> Facts:
    """Train in turns on the same batches and micro-batches; speeds are those that the runs report."""
    shards = _packed(options, log, folder, 2 * RANK_BATCH)
    steps = str(min(_STEPS, shards.num_training_batches))
    contestants: dict[str, tuple[int, list[str]]] = {
        "one process": (1, []),
        "two ranks": (2, []),
        "two ranks, auto": (2, ["--exchange", "auto"]),
    }

    def turn(name: str) -> float:
        ranks, more = contestants[name]
        words = ["--placement", "all-fast", "--threads", "1", "--micro-batches", "2"]
        words += ["--max-steps", steps, "--checkpoint-every", "off"]
        out, summary = train_in_process(folder / "data", [*words, *more], ranks)
        digests.setdefault(name, str(hash_file(out / "weights.safetensors")[1]))
        return float(summary["samples_per_second"])

    digests: dict[str, str] = {}
    speeds = take_turns({name: partial(turn, name) for name in contestants}, options.rounds)
    return {
        "batch_size": shards.batch_size,
        "contestants": [
            {
                "name": name,
                "step_seconds": shards.batch_size / median(found),
                "over_one": median_ratio(found, speeds["one process"]),
            }
            for name, found in speeds.items()
        ],
        "has_equal_bits": digests["one process"] == digests["two ranks"],
    }


def ratios_of(
    tables: list[NDArray[np.float32]], batches: list[NDArray[np.int32]], slice_samples: int
) -> dict[str, float]:
    """Return by codec how many times smaller the lookups of batches become.

    Args:
        tables: (num_rows, D) each.
        batches: (B, F) ids of one lookup in each table.
        slice_samples: samples of a message; what is left of a batch is left out, unless it is all of it.
    """
    num_bytes: dict[str, float] = defaultdict(float)
    plain_bytes = 0
    # Which of two codes a table takes is decided for the table, over all messages.
    of_tables: dict[tuple[int, float], NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))
    codecs = {name: codec_of(name) for name in (*CODEC_NAMES, *(f"bounded:{bound:g}" for bound in BOUNDS))}
    for ids_BF in _slices(batches, slice_samples):
        distinct = [table[np.unique(ids)] for table, ids in zip(tables, ids_BF.T, strict=True)]
        starts = np.cumsum([0, *(rows.shape[0] for rows in distinct)])
        shape = MessageShape(starts, tables[0].shape[1])
        plain_bytes += ids_BF.size * shape.embedding_dim * _FLOAT_BYTES
        # Sizes of hotset's messages follow from their shape alone; other coders need the values.
        for name, codec in codecs.items():
            num_bytes[f"distinct rows, {name}"] += codec.num_bytes(shape)
        for bound, (number, table) in product(BOUNDS, enumerate(tables)):
            codes = levels_of(table[ids_BF[:, number]], bound)
            of_tables[number, bound] += (vector_lz_bytes(codes), huffman_bytes(codes))
            rows = levels_of(distinct[number], bound)
            num_bytes[f"distinct rows, {_HUFFMAN} {bound:g}"] += huffman_bytes(rows)
    for (_, bound), of_table in of_tables.items():
        num_bytes[f"{_LZ} {bound:g}"] += int(of_table[0])
        num_bytes[f"{_HUFFMAN} {bound:g}"] += int(of_table[1])
        num_bytes[f"better of both {bound:g}"] += int(of_table.min())
    return {name: plain_bytes / found for name, found in sorted(num_bytes.items())}


def _slices(batches: list[NDArray[np.int32]], slice_samples: int) -> Iterator[NDArray[np.int32]]:
    for ids_BF in batches:
        size = min(slice_samples, ids_BF.shape[0])
        for first in range(0, ids_BF.shape[0] - size + 1, size):
            yield ids_BF[first : first + size]


def levels_of(rows: NDArray[np.float32], bound: float) -> NDArray[np.uint8]:
    """Return the codes of rows, (N, D): numbers rounded to within ``bound`` of their range, from 0.

    Args:
        rows: (N, D), finite.
        bound: at least 1/508, so that codes fit in a byte wherever the range begins.
    """
    spread = float(np.ptp(rows)) if rows.size else 0.0
    if spread == 0:
        return np.zeros(rows.shape, np.uint8)
    codes = np.rint(rows / (2 * bound * spread))
    levels: NDArray[np.uint8] = (codes - codes.min()).astype(np.uint8)
    return levels


@kernel
def _vector_lz_bytes(codes_ND: NDArray[np.uint8]) -> int:
    num_rows = codes_ND.shape[0]
    num_bytes = 0
    for start in range(0, num_rows, _BLOCK):
        stop = min(start + _BLOCK, num_rows)
        row = start
        num_tokens = 0
        while row < stop:
            # The longest repetition of rows that begins within the window.
            longest = 0
            for distance in range(1, min(_WINDOW, row - start) + 1):
                # Rows are compared one by one, so a repetition may run into itself.
                length = 0
                while row + length < stop and length < _LONGEST:
                    is_same = True
                    for column in range(codes_ND.shape[1]):
                        if codes_ND[row + length, column] != codes_ND[row + length - distance, column]:
                            is_same = False
                            break
                    if not is_same:
                        break
                    length += 1
                longest = max(longest, length)
            # A row that repeats nothing is a token by itself.
            num_bytes += _MATCH_BYTES if longest else codes_ND.shape[1]
            row += max(longest, 1)
            num_tokens += 1
        num_bytes += (num_tokens + 7) // 8 + _BLOCK_BYTES
    return num_bytes


def vector_lz_bytes(codes: NDArray[np.uint8]) -> int:
    """Return the bytes of vector-LZ for the codes of rows, (N, D). Exact."""
    return int(_vector_lz_bytes(np.ascontiguousarray(codes)))


def huffman_bytes(codes: NDArray[np.uint8]) -> int:
    """Return the bytes of the best prefix code of some codes, one bit each where all are alike. Exact."""
    counts = np.bincount(codes.reshape(-1), minlength=1)
    weights: list[int] = counts[counts > 0].tolist()
    if len(weights) < 2:
        return -(-sum(weights) // 8)
    # A code is a bit longer for each node above it: the bits of all are the weights of the inner nodes.
    heapq.heapify(weights)
    num_bits = 0
    while len(weights) > 1:
        both = heapq.heappop(weights) + heapq.heappop(weights)
        num_bits += both
        heapq.heappush(weights, both)
    return -(-num_bits // 8)


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
