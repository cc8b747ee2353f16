"""Write what changed in the rows of a run since another one, by category: ids of two days are not the same.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from ...pipeline.errors import ConfigError
from ...pipeline.folders.whole_file import whole_folder, write_bytes, write_json, write_text
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import DENSE_PREFIX
from ..options.export_config import ExportConfig
from ..run_folder.run_reader import read_finite
from .export_run import STAGE, VERSION, features_of
from .exported_model import MODEL, ExportedModel
from .row_types import pack_rows
from .run_tables import RunTables, TableCategories
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
    """Categories with a row of their own in the new run."""
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
    progress: ProgressCallback = silent,
) -> list[TableChanges]:
    """Write the folder ``out``; return how much changed, table by table.

    Args:
        run: folder of the finished run that is served next.
        since: that of the run whose rows the server has.
        out: new folder.
        config: number type of the rows.
        vocabulary: folder that `preprocess` wrote, for a ``run`` that keeps no vocabulary.
        progress: told how many rows are compared.

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
        tensors = {
            name: read_finite(run, new.weights, name) for name in new.weights if name.startswith(DENSE_PREFIX)
        }
        counts = []
        # Of each table only the categories whose row is new or differs, and those that went.
        for found, before in zip(new.categories(progress), old.categories(), strict=True):
            changed = _changes_of(found, before, new, old)
            counts.append(changed.counts)
            tensors |= dict(changed.tensors(new, config))
        write_bytes(folder / CHANGES, save({name: each.contiguous() for name, each in tensors.items()}))
        write_json(folder / FEATURES, features_of(new.schema))
        write_json(folder / MODEL, ExportedModel.of(new, config.row_type).to_json())
        write_text(folder / "README.md", _README.format(since=old.fingerprint, run=new.fingerprint))
    return counts


def _refuse_other_tables(new: RunTables, old: RunTables) -> None:
    """Raise ConfigError unless a server of one run can serve the other."""
    pairs = [[(table.name, table.embedding_dim) for table in found.tables] for found in (new, old)]
    if pairs[0] != pairs[1] or new.schema != old.schema:
        raise ConfigError(
            f"{old.run} and {new.run} have other tables or schemas",
            hint="export the run as a whole: leave --since out",
        )


@dataclass(frozen=True, slots=True)
class _Changes:
    """The categories of one table that are to be stored, and those to be removed."""

    found: TableCategories
    stored: NDArray[np.bool_]
    """(N,); which of its categories are new or changed."""
    gone: NDArray[np.int64]
    counts: TableChanges

    def tensors(self, new: RunTables, config: ExportConfig) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the table by name."""
        # Rows are refused unless they are finite, and stored in the order of their categories.
        name = self.found.table.name
        weights_ND = read_finite(new.run, new.weights, name)
        rows_MD = weights_ND[torch.from_numpy(self.found.ids_N[self.stored]).long()]
        packed_MD, scale_M2 = pack_rows(rows_MD, config.row_type)
        yield f"{name}.categories", torch.from_numpy(self.found.categories_N[self.stored])
        yield f"{name}.rows", packed_MD
        if scale_M2 is not None:
            yield f"{name}.scale", scale_M2
        yield f"{name}.gone", torch.from_numpy(self.gone)
        yield f"{name}.oov", weights_ND[self.found.oov_id].clone()
        yield f"{name}.missing", weights_ND[self.found.missing_id].clone()


def _changes_of(found: TableCategories, before: TableCategories, new: RunTables, old: RunTables) -> _Changes:
    name = found.table.name
    # The place of each category among those before, and whether it is the same one there.
    was_there_N, places_N = _places_in(found.categories_N, before.categories_N)
    is_gone_N, _ = _places_in(before.categories_N, found.categories_N)
    # The rows of categories that both runs have, under the id that each run gives them.
    rows = new.weights[name][torch.from_numpy(found.ids_N[was_there_N]).long()]
    rows_before = old.weights[name][torch.from_numpy(before.ids_N[places_N[was_there_N]]).long()]
    # By their bits: a server is to end with those of the new run.
    is_changed = (rows.view(torch.int32) != rows_before.view(torch.int32)).any(1).numpy()
    # New categories are stored in any case, known ones where a bit of their row changed.
    stored_N = ~was_there_N
    stored_N[was_there_N] = is_changed
    counts = TableChanges(
        name,
        found.categories_N.size,
        int((~was_there_N).sum()),
        int(is_changed.sum()),
        int((~is_gone_N).sum()),
    )
    return _Changes(found, stored_N, before.categories_N[~is_gone_N], counts)


def _places_in(
    categories_N: NDArray[np.int64], sorted_M: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return whether each category is among the sorted ones, and its place there, (N,) both."""
    if not sorted_M.size:
        return np.zeros(categories_N.size, np.bool_), np.zeros(categories_N.size, np.int64)
    places_N = np.minimum(np.searchsorted(sorted_M, categories_N), sorted_M.size - 1)
    return sorted_M[places_N] == categories_N, places_N
