"""Rows that a new run starts with: those of another run, or vectors of files by category.

With ``--init-from`` they come by the ids of new shards. A finished run has its weights and states in
`weights.safetensors` and `states.safetensors`; one that is unfinished, or that stopped at a loss that is no
number, in its last checkpoint. Rows whose category is no longer in the vocabulary are dropped, and those of
new categories get the initial values of the new run. Everything that does not fit is refused before anything
is allocated.

A file of ``--init-table`` is read twice: once before the run begins, when its categories are looked up and
everything that is wrong with it is refused, and once while its vectors are copied to the tiers. Memory holds
a block of it, and 4 bytes for each of its rows. Rows without a vector have their usual initial values, or
those of the run that the new one starts from; the optimizer state of the others is zero. A run is known by
the bytes of its files.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError, HotsetError, InputError, ShardError
from ...pipeline.folders.manifest import MANIFEST, Manifest, checksum_of, hash_file
from ...pipeline.folders.totals import IdMapTotals
from ...pipeline.formats.arrow_files import read_batch, values_of
from ...pipeline.formats.user_data import CATEGORY, CategoryIds, VectorFile
from ...pipeline.schema.schema import DENSE_PREFIX, nearest, shown
from ...pipeline.schema.schema_file import schema_of
from ..config import CONFIG, Optimizers, RunConfig, RunTable, read_config
from ..config_parts import ModelConfig
from ..data.shards import ShardOrigin, ShardSet, vocabulary_of
from ..rows.backends import RowOptimizer
from ..rows.embeddings import RowsPart, RowsSource
from ..rows.tiers import InitialValues
from ..run_folder.files import CHECKPOINTS
from ..run_folder.weights import (
    STATES,
    WEIGHTS,
    Weights,
    read_manifest,
    read_states,
    read_weights,
    refuse_changed_files,
    refuse_other_tables,
)
from .files import TableSizes, is_optimizer_state, newest_whole
from .resume import Checkpoint

_log = logging.getLogger(__name__)

ID_MAP = "id_map"
_STAGE = "map-ids"
_PART_ROWS = 1 << 17
_MAP_HINT = (
    "extend the DIR that the run was trained on: `hotset preprocess --extend` writes the map that it needs"
)
_OTHER_MAP_HINT = "extend the DIR that the run was trained on: `hotset preprocess --extend`"
_DAMAGE_HINT = "restore it from a copy, or extend a copy of the old DIR again: `hotset preprocess --extend`"


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run to start from, that fits the shards of the new one."""

    fingerprint: dict[str, str | None]
    """Fingerprints that decide the bits that come from it, for the settings of the new run."""
    rows: RowsSource
    dense: dict[str, torch.Tensor]
    """The dense layers, and their optimizers' state where those are of the same kind."""
    where: str


def open_source(
    run: Path, shards: ShardSet, chosen: Optimizers, model: ModelConfig, labels: tuple[str, ...] = ()
) -> SourceRun:
    """Open a run to start from.

    Args:
        shards: those of the new run; ``id_map/`` next to them maps the ids of an older vocabulary.
        labels: those of the new run, in the order of the logits.

    Raises:
        HotsetError: the run is damaged, has nothing to start from, or is one of another model.
        ShardError: the shards have other tables, or ids of another vocabulary.
    """
    config = read_config(run, must_be_finished=False)
    # Numbers of rows may differ, which the map of ids explains.
    hint = "start from a run on the same schema and --embedding-dim, or leave --init-from out"
    refuse_other_tables(config, shards, hint, may_grow=True)
    _refuse_other_model(run, config, model)
    if config.labels != labels:
        found, wanted = (", ".join(each) or "one without a name" for each in (config.labels, labels))
        raise ConfigError(
            f"{run} was trained on the labels {found}, this run on {wanted}",
            hint="choose the same ones: a loss weight of 0 leaves a label out, --loss-weights LABEL=0",
        )
    maps, map_fingerprint = _open_maps(run, config, shards)
    # A manifest marks a finished run, whose files are checked before they are read.
    if (run / MANIFEST).exists():
        manifest = read_manifest(run, (CONFIG, WEIGHTS))
        states = None
        if STATES in manifest.entries:
            refuse_changed_files(manifest, (STATES,))
            states = read_states(run)
        rows, dense = _of_finished(config, read_weights(run), states, maps, chosen)
        fingerprint = manifest.fingerprint
    else:
        rows, dense, fingerprint = _of_unfinished(run, config, shards, maps, chosen)
    return SourceRun({"run": fingerprint, "id_map": map_fingerprint}, rows, dense, str(run))


def _refuse_other_model(run: Path, config: RunConfig, model: ModelConfig) -> None:
    """Raise ConfigError unless the run has the dense layers of the new one."""
    if config.dense_model != model:
        found = config.dense_model.to_json()
        wanted = model.to_json()
        names = [name for name in (*found, *wanted) if found.get(name) != wanted.get(name)]
        name = names[0] if names else "model"
        raise ConfigError(
            f"the model of {run} has {name} {found.get(name)}, here {wanted.get(name)}",
            hint="give the options of --model that the run was trained with",
        )


def _open_maps(
    run: Path, config: RunConfig, shards: ShardSet
) -> tuple[list[NDArray[np.int32] | None], str | None]:
    """Return each table's new ids, None where the same, and the map's fingerprint."""
    own = vocabulary_of(shards)
    folder = shards.manifest.folder
    id_map = folder.parent / ID_MAP
    # Ids that mean the same need no map: those of one vocabulary where both are known, else as many rows.
    is_known = config.vocabulary is not None and own is not None
    sizes_differ = [
        f"{folder} has {other.num_rows} rows of {other.name}, {run} has {table.num_rows}"
        for table, other in zip(config.tables, shards.tables, strict=True)
        if table.num_rows != other.num_rows
    ]
    if not sizes_differ and (not is_known or config.vocabulary == own):
        return [None] * len(config.tables), None
    if not id_map.is_dir():
        of_others = f"the ids of {folder} are of another vocabulary than those of {run}"
        raise ShardError(of_others if is_known else sizes_differ[0], hint=_MAP_HINT)
    manifest = Manifest.read(id_map)
    if manifest.stage != _STAGE:
        raise ShardError(
            f"{manifest.folder} holds the stage {manifest.stage!r}, want {_STAGE!r}", hint=_OTHER_MAP_HINT
        )
    # The map must lead from the vocabulary of the run to that of the shards.
    fingerprints = {source["name"]: source.get("fingerprint") for source in manifest.inputs}
    ends = (("old", config.vocabulary, "from", run), ("vocabulary", own, "to", folder))
    for name, wanted, way, what in ends:
        if wanted is not None and fingerprints.get(name) != wanted:
            raise ShardError(
                f"{manifest.folder} does not map {way} the vocabulary of {what}",
                hint=_OTHER_MAP_HINT,
            )
    # And each table of it must have the rows of both.
    sizes = {
        table.name: (table.num_old_rows, table.num_new_rows) for table in IdMapTotals.of(manifest).tables
    }
    maps: list[NDArray[np.int32] | None] = []
    for table, other in zip(config.tables, shards.tables, strict=True):
        if sizes.get(table.name) != (table.num_rows, other.num_rows):
            raise ShardError(
                f"{manifest.folder} maps {sizes.get(table.name)} rows of {table.name}, "
                f"want {(table.num_rows, other.num_rows)}",
                hint=_OTHER_MAP_HINT,
            )
        maps.append(_read_map(manifest, table, other.num_rows))
    return maps, manifest.fingerprint


def _read_map(manifest: Manifest, table: RunTable, num_new: int) -> NDArray[np.int32]:
    """The new id of each row, checked: it indexes rows."""
    entry = manifest.entry(f"{table.name}.arrow")
    path = manifest.checked_path(entry)
    if hash_file(path)[1] != entry.xxh3_128:
        raise ShardError(f"{path} is damaged", hint=_DAMAGE_HINT)
    new_ids: NDArray[np.int32] = values_of(read_batch(manifest, entry).column("new_id"), np.int32)
    # An id of -1 is a category that is gone; any other indexes a table, and no two may be the same.
    kept = new_ids[new_ids >= 0]
    is_right = new_ids.shape == (table.num_rows,) and int(new_ids.min(initial=-1)) >= -1
    if not is_right or int(kept.max(initial=-1)) >= num_new or np.unique(kept).size != kept.size:
        raise ShardError(
            f"{path} is no map of {table.num_rows} rows to {num_new}",
            hint=_DAMAGE_HINT,
        )
    return new_ids


def _mapped(part: RowsPart, maps: list[NDArray[np.int32] | None]) -> RowsPart:
    """Return a part under its new ids, without the rows that are dropped."""
    ids_N = part.ids_N.copy()
    for table in np.unique(part.tables_N).tolist():
        new_ids = maps[table]
        if new_ids is not None:
            is_own_N = part.tables_N == table
            ids_N[is_own_N] = new_ids[part.ids_N[is_own_N]]
    moved = RowsPart(part.tables_N, ids_N, part.weights_ND, part.state_NW)
    return moved if (ids_N >= 0).all() else moved.chosen(ids_N >= 0)


def _of_finished(
    config: RunConfig,
    weights: Weights,
    states: Weights | None,
    maps: list[NDArray[np.int32] | None],
    chosen: Optimizers,
) -> tuple[RowsSource, dict[str, torch.Tensor]]:
    has_states = states if config.config.embedding_optimizer == chosen.embedding_optimizer else None

    # Parts of a bounded size, read while they are copied to their tiers.
    def rows() -> Iterator[RowsPart]:
        for number, table in enumerate(config.tables):
            for first in range(0, table.num_rows, _PART_ROWS):
                ids_N = np.arange(first, min(first + _PART_ROWS, table.num_rows), dtype=np.int32)
                part = _new_part(number, ids_N, weights.rows(table.name, first, first + ids_N.size), chosen)
                # States go over only where both runs use the same optimizer; others begin with zeros.
                if has_states is not None and table.name in has_states:
                    part.state_NW[:] = has_states.rows(table.name, first, first + ids_N.size).numpy()
                _refuse_not_finite(part, table.name)
                yield _mapped(part, maps)

    # The names that a checkpoint gives to the parameters, so that one function restores both.
    dense = {
        f"model.{name.removeprefix(DENSE_PREFIX)}": weights[name]
        for name in weights
        if name.startswith(DENSE_PREFIX)
    }
    if states is not None and config.config.dense_optimizer == chosen.dense_optimizer:
        dense |= {name: states[name] for name in states if is_optimizer_state(name)}
    return rows, dense


def _of_unfinished(
    run: Path,
    config: RunConfig,
    shards: ShardSet,
    maps: list[NDArray[np.int32] | None],
    chosen: Optimizers,
) -> tuple[RowsSource, dict[str, torch.Tensor], str]:
    record = newest_whole(run / CHECKPOINTS)
    if record is None:
        raise HotsetError(
            f"{run} has no weights to start from: it is unfinished and has no checkpoint",
            hint="run its command again, which finishes it",
        )
    _log.warning("%s is unfinished: starting from its checkpoint of step %s", run, record.state.step)
    # The checkpoint's rows have the states of its optimizer, whichever the new run uses.
    old = RowOptimizer(config.config.embedding_optimizer, 1.0)
    sizes = TableSizes(
        [table.num_rows for table in config.tables],
        [(table.embedding_dim, old.state_width(table.embedding_dim)) for table in config.tables],
    )
    checkpoint = Checkpoint.open(run / CHECKPOINTS, record, sizes)
    has_states = config.config.embedding_optimizer == chosen.embedding_optimizer

    # Changed rows first: the first value of a row is the one that counts.
    def rows() -> Iterable[RowsPart]:
        for part in checkpoint.rows():
            state_NW = part.state_NW if has_states else _no_states(part.weights_ND, chosen)
            yield _mapped(replace(part, state_NW=state_NW), maps)
        # Then all rows with their initial values, which count where no checkpoint has changed them.
        for number, table in enumerate(config.tables):
            initial = InitialValues.of(config.config.seed, [number], [table.num_rows])
            for first in range(0, table.num_rows, _PART_ROWS):
                ids_N = np.arange(first, min(first + _PART_ROWS, table.num_rows))
                weights = torch.empty(ids_N.size, table.embedding_dim, dtype=torch.float32, device="cpu")
                initial.write(np.zeros(ids_N.size, np.int64), ids_N, weights, np.arange(ids_N.size))
                yield _mapped(_new_part(number, ids_N.astype(np.int32), weights, chosen), maps)

    has_dense_states = config.config.dense_optimizer == chosen.dense_optimizer
    dense = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith("model.") or (has_dense_states and is_optimizer_state(name))
    }
    return rows, dense, checksum_of(record.to_json())


def _new_part(table: int, ids_N: NDArray[np.int32], weights: torch.Tensor, chosen: Optimizers) -> RowsPart:
    """Return rows of a table whose states are zeros."""
    weights_ND = weights.numpy()
    tables_N = np.full(ids_N.size, table, np.int32)
    return RowsPart(tables_N, ids_N, weights_ND, _no_states(weights_ND, chosen))


def _no_states(weights_ND: NDArray[np.float32], chosen: Optimizers) -> NDArray[np.float32]:
    num_rows, dim = weights_ND.shape
    return np.zeros((num_rows, RowOptimizer(chosen.embedding_optimizer, 1.0).state_width(dim)), np.float32)


def _refuse_not_finite(part: RowsPart, table: str) -> None:
    if not (np.isfinite(part.weights_ND).all() and np.isfinite(part.state_NW).all()):
        raise HotsetError(f"{table} holds values that are not finite", hint="start from another run")


@dataclass(frozen=True, slots=True)
class GivenTable:
    """A file whose vectors are those of rows of one table."""

    name: str
    number: int
    """Of the table in the shards."""
    file: VectorFile
    ids_N: NDArray[np.int32]
    """(rows of the file,); the row that each vector is for, -1 where its category has none."""
    state_width: int
    checksum: str
    """That of the file."""

    @property
    def num_given(self) -> int:
        """Rows that get a vector."""
        return int(np.count_nonzero(self.ids_N >= 0))

    def rows(self) -> Iterator[RowsPart]:
        """Yield the rows that get a vector, block by block.

        Raises:
            InputError: the file has changed since it was opened.
        """
        first = 0
        for _, vectors_ND in self.file.blocks():
            ids_N = self.ids_N[first : first + vectors_ND.shape[0]]
            first += vectors_ND.shape[0]
            if ids_N.size == vectors_ND.shape[0]:
                is_given_N = ids_N >= 0
                tables_N = np.full(ids_N.size, self.number, np.int32)
                state_NW = np.zeros((ids_N.size, self.state_width), np.float32)
                yield RowsPart(tables_N, ids_N, vectors_ND, state_NW).chosen(is_given_N)
        if first != self.ids_N.size:
            raise InputError(f"{self.file.path} was changed while it was read")


def open_given_tables(files: Mapping[str, Path], shards: ShardSet, chosen: Optimizers) -> list[GivenTable]:
    """Open the files of some tables, by name, and look up their categories.

    Raises:
        ConfigError: there is no such table, or the shards' folder has no vocabulary.
        InputError: a file is no such file, or two of its rows are for one row of the table.
    """
    origin = ShardOrigin.of(shards)
    if origin is None:
        raise ConfigError(
            f"--init-table needs the vocabulary, and there is none next to {shards.manifest.folder}",
            hint="give the folder that preprocess wrote (its --out)",
        )
    schema = schema_of(origin.schema)
    optimizer = RowOptimizer(chosen.embedding_optimizer, 1.0)
    numbers = {table.name: number for number, table in enumerate(shards.tables)}
    found = []
    for name, path in files.items():
        if name not in numbers:
            names = shown(", ".join(numbers))
            raise ConfigError(
                f"--init-table: {shards.manifest.folder} has no table {name!r}",
                hint=nearest(name, numbers) or f"its tables are {names}",
            )
        table = shards.tables[numbers[name]]
        file = VectorFile(path, table.embedding_dim, (CATEGORY, name))
        ids_N = _look_up(file, CategoryIds(origin.vocabulary, schema, name))
        width = optimizer.state_width(table.embedding_dim)
        given = GivenTable(name, numbers[name], file, ids_N, width, hash_file(path)[1])
        _report(given, table.num_rows)
        found.append(given)
    return found


def _look_up(file: VectorFile, categories: CategoryIds) -> NDArray[np.int32]:
    """Return the id of each row of a file, -1 where it has none."""
    is_seen = np.zeros(categories.table.num_rows, np.bool_)
    blocks = [np.empty(0, np.int32)]
    first = 0
    for values, _ in file.blocks():
        ids_N = categories.find(values, source=str(file.path), column=file.column, first_row=first)
        # Rows of the file that are for one row of the table, in this block or with one before.
        order = np.argsort(ids_N, kind="stable")
        is_twice_N = np.zeros(ids_N.size, np.bool_)
        is_twice_N[order[1:]] = ids_N[order[1:]] == ids_N[order[:-1]]
        is_twice_N |= is_seen[ids_N]
        is_twice_N &= ids_N >= 0
        if is_twice_N.any():
            row = first + int(np.argmax(is_twice_N)) + 1
            raise InputError(
                f"{file.path}, row {row}: an earlier row has its category",
                hint=f"keep one vector for each category of {categories.table.name}",
            )
        is_seen[ids_N[ids_N >= 0]] = True
        blocks.append(ids_N)
        first += ids_N.size
    return np.concatenate(blocks)


def _report(given: GivenTable, num_rows: int) -> None:
    """Log how many rows get a vector, and how many vectors are for none."""
    num_unknown = given.ids_N.size - given.num_given
    _log.log(
        logging.WARNING if num_unknown or not given.num_given else logging.INFO,
        "%s of %s rows of %s start with a given vector; %s given categories have no row",
        f"{given.num_given:,}",
        f"{num_rows:,}",
        given.name,
        f"{num_unknown:,}",
    )
