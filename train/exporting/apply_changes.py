"""Lead an exported folder to the run that changes were written for: the files of a whole export of that run.

The rows of an exported folder stand in the order of their categories, so nothing of the ids of a run is
needed, and a server may go from change to change without any run at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.whole_file import whole_folder
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import DENSE_PREFIX
from ..model_building.build_model import build_model
from ..model_building.choose_model import recorded_model
from ..model_building.model_inputs import ModelInputs
from ..model_building.user_code import ModelSource
from ..options.export_config import RowType
from .export_changes import CHANGES, TableChanges
from .export_run import ONNX, PROGRAM, STAGE, VERSION, ServedTable, graph_of, write_export
from .exported_model import ExportedModel
from .row_types import pack_rows

_STORED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.uint8}


def apply_changes(
    exported: Path,
    changes: Path,
    out: Path,
    *,
    model_source: ModelSource | None = None,
    progress: ProgressCallback = silent,
) -> list[TableChanges]:
    """Write the folder ``out``; return how much changed, table by table.

    Args:
        exported: whole export of the run that the changes begin with, or what this function wrote for it.
        changes: folder that `export_changes` wrote, rows of the same type.
        out: new folder; it has an ONNX model where ``exported`` has one.
        model_source: makes the user's module of the run; None imports the class that the run records.
        progress: told how many rows are ready, and that files are written.

    Raises:
        HotsetError: a folder is damaged, the changes begin with another run or lead to other tables, or
            ``out`` exists.
    """
    base, base_run, _ = _opened(exported, PROGRAM)
    found, run, since = _opened(changes, CHANGES)
    if since is None or since != base_run:
        raise HotsetError(
            f"{changes} begins with the run {since}, and {exported} holds the run {base_run}",
            hint="write them since the run of that folder: `hotset export RUN --since RUN0 --out CHANGES`",
        )
    _refuse_other_tables(base, found, exported, changes)
    tensors = _tensors_of(changes)
    dense = {
        name.removeprefix(DENSE_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(DENSE_PREFIX)
    }
    model = build_model(recorded_model(found.config), ModelInputs.of(found.config), 0, model_source)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in dense.items()}:
        raise HotsetError(f"{changes} is damaged: its dense layers are not those that its model has")
    tables = []
    counts = []
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
        graph = graph_of(found, model, dense, tables)
        progress("write", 0, 0)
        write_export(folder, graph, found, (exported / ONNX).exists(), run)
    return counts


def _refuse_other_tables(base: ExportedModel, found: ExportedModel, exported: Path, changes: Path) -> None:
    """Raise HotsetError unless the changes are of the tables of an exported folder, and rows of its type."""
    if base.row_type != found.row_type:
        raise HotsetError(
            f"the rows of {changes} are {found.row_type}, those of {exported} {base.row_type}",
            hint=f"write the changes with --row-type {base.row_type}",
        )
    sizes = [[(table.name, table.embedding_dim) for table in each.config.tables] for each in (base, found)]
    if sizes[0] != sizes[1] or base.schema != found.schema:
        raise HotsetError(f"{changes} has other tables than {exported}")


def _opened(folder: Path, name: str) -> tuple[ExportedModel, str | None, str | None]:
    """Check the files of a folder; return its model, and the fingerprints of its run and of the earlier."""
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
    return ExportedModel.read(folder), fingerprints.get("run"), fingerprints.get("since")


def _tensors_of(changes: Path) -> dict[str, torch.Tensor]:
    try:
        return load((changes / CHANGES).read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise HotsetError(f"{changes / CHANGES} cannot be read: {first_line(error)}") from error


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
    """Return a table without the categories that went, with the rows that are new or changed, and how many
    these are."""
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
