"""Writes and applies the changes between two runs, by category.

changes.safetensors  of every table ``T``:
                         T.categories  (M,) int64, ascending: new ones, and those whose row changed
                         T.rows        (M, D), their rows; for int8 with T.scale, (M, 2) float32
                         T.gone        (G,) int64, ascending: tombstones of categories that went
                         T.oov, T.missing  (D,) float32, the rows of unknown and of missing categories
                     and the tensors of the dense layers, ``dense.…``
features.json        the features, as in a whole export
model.json           the layers, the schema and the type of the rows, as in a whole export
README.md            what a server does with them
manifest.json        written last: bytes and checksums of these files, fingerprints of the two runs

Applied to a whole export of the old run, changes give the files of a whole export of the new one. The rows of
an exported folder are in the order of their categories, so ids, which differ from run to run, are not needed,
and a server may go from change to change without any run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from ...pipeline.errors import ConfigError, HotsetError, first_line
from ...pipeline.folders.disk import whole_folder, write_json
from ...pipeline.folders.manifest import Manifest
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import DENSE_PREFIX
from ..build_model import ModelSource, build_model
from ..config import ExportConfig, RowType
from ..evaluate import load_dense_layers
from ..model.shapes import ModelInputs
from ..run_folder.weights import read_finite
from .export import ONNX, PROGRAM, STAGE, VERSION, ServedTable, features_of, graph_of, write_export
from .predict import MODEL, ExportedModel, RunTables, TableCategories, pack_rows
from .serving_inputs import FEATURES

CHANGES = "changes.safetensors"
_README = """\
# Changes of a click model, exported by hotset

`changes.safetensors` leads from the rows of run {since} to those of run {run}. A server that keeps rows by
table and 64-bit category (`category_of` in the `serving_inputs.py` of a whole export)

1. removes the categories in `T.gone` of every table `T`,
2. stores `T.rows` under `T.categories`, new or in place of the rows it had,
3. stores `T.oov` and `T.missing`, the rows of unknown and of missing categories,
4. takes the dense layers in `dense.…`.

It then has the rows of the new run, bit for bit where both are exported in fp32. Rows of other types are
rounded from the new run: `T.scale` has the least value and the step of each row of int8.

Where hotset is installed, it does all this to a whole export of run {since} with the same type of rows:

    hotset apply changes --to exported --out exported-anew
"""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """How many rows of a table changed."""

    name: str
    num_rows: int
    """Categories that have a row in the new run."""
    num_new: int
    num_changed: int
    """Those that were there before, under other weights."""
    num_gone: int


def export_changes(
    run: Path,
    since: Path,
    out: Path,
    config: ExportConfig | None = None,
    *,
    vocabulary: Path | None = None,
    model_source: ModelSource | None = None,
    progress: ProgressCallback = silent,
) -> list[TableChanges]:
    """Write the changes to ``out``; return how much changed, table by table.

    Args:
        since: folder of the run whose rows the server has.
        vocabulary: folder that `preprocess` wrote, for a ``run`` that keeps no vocabulary.
        progress: called with how many rows are compared.

    Raises:
        HotsetError: a run is unfinished or damaged, they have other tables, or ``out`` exists.
    """
    config = config or ExportConfig()
    if config.onnx:
        raise ConfigError("changes have no graph: --onnx is for a whole export")
    # Both runs must have the same tables: the server keeps one set of them.
    new, old = RunTables.open(run, vocabulary), RunTables.open(since)
    _refuse_other_tables(new, old)
    pairs = (("run", new), ("since", old))
    inputs = [{"name": name, "fingerprint": each.fingerprint} for name, each in pairs]
    with whole_folder(out, stage=STAGE, version=VERSION, inputs=inputs) as folder:
        # The dense layers go whole, as every step changes them.
        model = load_dense_layers(run, new.config, new.weights, model_source)
        tensors = dict(model.state_dict(prefix=DENSE_PREFIX))
        counts = []
        # Of each table only the categories whose row is new or differs, and those that went.
        for found, before in zip(new.categories(progress), old.categories(), strict=True):
            of_table, own = _changes_of(found, before, new, old, config.row_type)
            counts.append(of_table)
            tensors |= own
        (folder / CHANGES).write_bytes(save({name: each.contiguous() for name, each in tensors.items()}))
        write_json(folder / FEATURES, features_of(new.schema, new.config.labels, model.histories))
        write_json(folder / MODEL, ExportedModel.of(new, config.row_type).to_json())
        readme = _README.format(since=old.fingerprint, run=new.fingerprint)
        (folder / "README.md").write_bytes(readme.encode())
    return counts


def _refuse_other_tables(new: RunTables, old: RunTables) -> None:
    """Raise ConfigError unless a server of one run can serve the other."""
    pairs = [[(table.name, table.embedding_dim) for table in found.tables] for found in (new, old)]
    ours, others = ((each.schema, each.config.labels, each.config.predicts) for each in (new, old))
    if pairs[0] != pairs[1] or ours != others:
        raise ConfigError(
            f"{old.run} and {new.run} have other tables, schemas or labels",
            hint="export the run as a whole: leave --since out",
        )


def _changes_of(
    found: TableCategories, before: TableCategories, new: RunTables, old: RunTables, row_type: RowType
) -> tuple[TableChanges, dict[str, torch.Tensor]]:
    """Return how many rows of a table changed, and its tensors by name."""
    name = found.table.name
    # The place of each category among those before, and whether it is the same one there.
    was_there_N, places_N = _places_in(found.categories_N, before.categories_N)
    is_kept_N, _ = _places_in(before.categories_N, found.categories_N)
    # Rows are refused unless they are finite.
    weights_ND = read_finite(new.run, new.weights, name)
    # The rows of categories that both runs have, under the id that each run gives them.
    rows = weights_ND[torch.from_numpy(found.ids_N[was_there_N]).long()]
    rows_before = old.weights[name][torch.from_numpy(before.ids_N[places_N[was_there_N]]).long()]
    # By their bits: a server is to end with those of the new run.
    is_changed = (rows.view(torch.int32) != rows_before.view(torch.int32)).any(1).numpy()
    # New categories are stored in any case, known ones where a bit of their row changed.
    stored_N = ~was_there_N
    stored_N[was_there_N] = is_changed
    gone = before.categories_N[~is_kept_N]
    packed_MD, scale_M2 = pack_rows(weights_ND[torch.from_numpy(found.ids_N[stored_N]).long()], row_type)
    tensors = {
        f"{name}.categories": torch.from_numpy(found.categories_N[stored_N]),
        f"{name}.rows": packed_MD,
        f"{name}.gone": torch.from_numpy(gone),
        f"{name}.oov": weights_ND[found.oov_id].clone(),
        f"{name}.missing": weights_ND[found.missing_id].clone(),
    }
    if scale_M2 is not None:
        tensors[f"{name}.scale"] = scale_M2
    num_new = int((~was_there_N).sum())
    return TableChanges(name, stored_N.size, num_new, int(is_changed.sum()), gone.size), tensors


def _places_in(
    categories_N: NDArray[np.int64], sorted_M: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return whether each category is among the sorted, and where, both (N,)."""
    if not sorted_M.size:
        return np.zeros(categories_N.size, np.bool_), np.zeros(categories_N.size, np.int64)
    places_N = np.minimum(np.searchsorted(sorted_M, categories_N), sorted_M.size - 1)
    return sorted_M[places_N] == categories_N, places_N


_STORED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.uint8}


def apply_changes(
    exported: Path,
    changes: Path,
    out: Path,
    *,
    model_source: ModelSource | None = None,
    progress: ProgressCallback = silent,
) -> list[TableChanges]:
    """Write the new run's export to ``out``; return changes by table.

    Args:
        exported: whole export of the run that the changes begin with, or what this function wrote for it.
        changes: folder that `changes` wrote, rows of the same type.
        out: new folder; it has an ONNX model where ``exported`` has one.
        progress: called with how many rows are ready, and that files are written.

    Raises:
        HotsetError: a folder is damaged, the changes are from another run or have other tables, or
            ``out`` exists.
    """
    base, base_run, _ = _opened(exported, PROGRAM)
    found, run, since = _opened(changes, CHANGES)
    if since is None or since != base_run:
        raise HotsetError(
            f"{changes} begins with the run {since}, and {exported} holds the run {base_run}",
            hint="write them since the run of that folder: `hotset export RUN --since RUN0 --out CHANGES`",
        )
    _refuse_unlike_rows(base, found, exported, changes)
    try:
        tensors = load((changes / CHANGES).read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise HotsetError(f"{changes / CHANGES} cannot be read: {first_line(error)}") from error
    dense = {
        name.removeprefix(DENSE_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(DENSE_PREFIX)
    }
    model = build_model(found.config.dense_model, ModelInputs.of(found.config), 0, model_source)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in dense.items()}:
        raise HotsetError(f"{changes} is damaged: its dense layers are not those that its model has")
    model.load_state_dict(dense)
    tables: list[ServedTable] = []
    counts: list[TableChanges] = []
    done = 0
    total = sum(table.num_rows for table in found.config.tables)
    progress("rows", done, total)
    # Only a program whose checksum is that of the manifest is opened.
    state = torch.export.load(exported / PROGRAM).state_dict
    for number, table in enumerate(found.config.tables):
        served = _served_table(state, number)
        changed, counts_of_table = _changed(served, tensors, table.name, found.row_type, changes)
        tables.append(changed)
        counts.append(counts_of_table)
        done += table.num_rows
        progress("rows", done, total)
    inputs = [{"name": "run", "fingerprint": run}]
    with whole_folder(out, stage=STAGE, version=VERSION, inputs=inputs) as folder:
        graph = graph_of(found, model, tables)
        progress("write", 0, 0)
        write_export(folder, graph, found, (exported / ONNX).exists(), run)
    return counts


def _refuse_unlike_rows(base: ExportedModel, found: ExportedModel, exported: Path, changes: Path) -> None:
    """Raise HotsetError unless changes fit the tables and types of an export."""
    if base.row_type != found.row_type:
        raise HotsetError(
            f"the rows of {changes} are {found.row_type}, those of {exported} {base.row_type}",
            hint=f"write the changes with --row-type {base.row_type}",
        )
    sizes = [
        [(table.name, table.embedding_dim, table.features) for table in each.config.tables]
        for each in (base, found)
    ]
    if sizes[0] != sizes[1] or base.schema != found.schema:
        raise HotsetError(f"{changes} has other tables than {exported}")


def _opened(folder: Path, name: str) -> tuple[ExportedModel, str, str | None]:
    """Check a folder's files; return model, run's fingerprint, and the earlier run's."""
    # A folder that is not there is answered alike: it is none of preprocess, as `Manifest` would say.
    manifest = Manifest.read(folder) if folder.is_dir() else None
    if manifest is None or manifest.stage != STAGE or name not in {entry.path for entry in manifest.files}:
        raise HotsetError(
            f"{folder} does not exist" if manifest is None else f"{folder} has no {name}",
            hint="`hotset export RUN --out FOLDER` writes what changes are applied to, and "
            "`hotset export RUN --since RUN0 --out CHANGES` the changes",
        )
    for entry in manifest.files:
        manifest.hashed_path(entry)
    fingerprints = {each.get("name"): each.get("fingerprint") for each in manifest.inputs}
    return ExportedModel.read(folder), fingerprints.get("run") or "", fingerprints.get("since")


def _served_table(state: Mapping[str, torch.Tensor], number: int) -> ServedTable:
    """The rows of a table in the program of an exported folder."""
    first, stop = (int(state[f"index.{name}_F"][number]) for name in ("starts", "stops"))
    categories_N = state["index.categories_C"][first:stop].numpy()
    scale_N2 = state.get(f"tables.{number}.scale_N2")
    return ServedTable(categories_N, state[f"tables.{number}.rows_ND"], scale_N2)


def _changed(
    served: ServedTable,
    tensors: Mapping[str, torch.Tensor],
    name: str,
    row_type: RowType,
    changes: Path,
) -> tuple[ServedTable, TableChanges]:
    """Return a table with the changes applied, and how many rows these are.

    Categories that went are dropped; rows that are new or changed are set.
    """
    parts = ("categories", "rows", "gone", "oov", "missing", *(("scale",) if row_type == "int8" else ()))
    found = {part: tensors.get(f"{name}.{part}") for part in parts}
    dim = served.packed_ND.shape[1]
    num_stored = -1 if found["categories"] is None else found["categories"].numel()
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "categories": (torch.int64, (num_stored,)),
        "rows": (_STORED[row_type], (num_stored, dim)),
        "gone": (torch.int64, () if found["gone"] is None else (found["gone"].numel(),)),
        "oov": (torch.float32, (dim,)),
        "missing": (torch.float32, (dim,)),
        "scale": (torch.float32, (num_stored, 2)),
    }
    for part, tensor in found.items():
        if tensor is None or (tensor.dtype, tuple(tensor.shape)) != wanted[part]:
            raise HotsetError(f"{changes} is damaged: {name}.{part} is missing, or of another shape or type")
    given = {part: tensor for part, tensor in found.items() if tensor is not None}
    stored_N = given["categories"].numpy()
    gone_N = given["gone"].numpy()
    is_kept = ~np.isin(served.categories_N, gone_N)
    # Tombstones are of categories that were there, and of none that is stored; both lists ascend.
    if (
        not (_ascends(stored_N) and _ascends(gone_N))
        or np.count_nonzero(~is_kept) != gone_N.size
        or np.isin(stored_N, gone_N).any()
    ):
        raise HotsetError(f"{changes} is damaged: the categories of {name} do not fit those that were there")
    # What is stored replaces what was there, then all are put in order.
    is_replaced = np.isin(served.categories_N, stored_N)
    num_changed = int(np.count_nonzero(is_replaced))
    is_kept &= ~is_replaced
    categories_N = np.concatenate([served.categories_N[is_kept], stored_N])
    order = np.argsort(categories_N)
    special_ND, special_N2 = pack_rows(torch.stack([given["oov"], given["missing"]]), row_type)
    kept = torch.from_numpy(np.flatnonzero(is_kept))
    places = torch.from_numpy(np.append(order, order.size + np.arange(2)))
    packed_ND = torch.cat([served.packed_ND[kept], given["rows"], special_ND])[places]
    scale_N2 = None
    if served.scale_N2 is not None and special_N2 is not None:
        scale_N2 = torch.cat([served.scale_N2[kept], given["scale"], special_N2])[places]
    counts = TableChanges(
        name, categories_N.size, stored_N.size - num_changed, num_changed, num_gone=int(gone_N.size)
    )
    return ServedTable(categories_N[order], packed_ND, scale_N2), counts


def _ascends(categories_N: NDArray[np.int64]) -> bool:
    return bool((categories_N[1:] > categories_N[:-1]).all())
