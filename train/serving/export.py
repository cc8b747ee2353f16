"""Writes a finished run as a folder that serves it without hotset.

model.pt2            one exported program of torch from raw values to a probability
model.onnx           the same for ONNX Runtime, on demand; its tensors are in model.onnx.data
features.json        the features, in the order of the inputs
model.json           the layers, the schema and the type of the rows, for `changes`
serving_inputs.py    raw values to inputs, with NumPy and xxhash alone
README.md            how to use them, with the features of this run
manifest.json        written last: bytes and checksums of these files

`score_packed_rows` measures what a number type of rows costs in the scores of a run.

The graph takes numbers alone: dense values as they are in the log (NaN where missing), and of every
categorical feature the 64-bit category and whether it is missing. It finds rows by binary search among the
sorted categories, in as many steps as the longest table needs, for all one-hot features together.

Shapes: B samples, K dense features, F features, G one-hot features, L lookups of the longest bag of a batch,
D embedding_dim, N rows, C categories of all tables.
"""

from __future__ import annotations

import datetime
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.errors import MissingExtraError, install_hint
from ...pipeline.folders.disk import whole_folder, write_json
from ...pipeline.folders.totals import by_feature, for_features, multi_hot, one_hot
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import DENSE_PREFIX, TIME_KINDS, Schema
from ..build_model import ModelSource, explained
from ..config import ExportConfig, RowType
from ..evaluate import answers_of, evaluate, load_dense_layers
from ..metrics import Scores
from ..model.dlrm import DenseModel
from ..model.shapes import tables_by_dim
from ..run_folder.files import ReservedRoom
from ..run_folder.weights import Weights, read_finite, read_weights
from . import serving_inputs
from .predict import MODEL, ExportedModel, RunTables, pack_rows, unpack_rows
from .serving_inputs import FEATURES, IS_MISSING, LENGTH, bag_name


def score_packed_rows(
    run: Path,
    data: Path,
    row_type: RowType,
    *,
    progress: ProgressCallback = silent,
) -> tuple[Scores, Scores]:
    """Evaluate a run on shards, with packed rows and as trained.

    Args:
        progress: called with the samples of both.

    Raises:
        HotsetError: as `evaluate`.
    """
    weights = read_weights(run)

    def packed(name: str) -> Iterator[torch.Tensor]:
        tensor = weights[name]
        yield tensor if name.startswith(DENSE_PREFIX) else unpack_rows(*pack_rows(tensor, row_type))

    dtypes = {name: weights.dtype(name) for name in weights}
    changed = Weights(weights.shapes, packed, dtypes=dtypes)

    def shown(num_before: int, done: int, total: int) -> None:
        progress("evaluate", num_before * total + done, 2 * total)

    return (
        evaluate(run, data, weights=changed, progress=partial(shown, 0)),
        evaluate(run, data, progress=partial(shown, 1)),
    )


class CategoryIndex(nn.Module):
    """Finds the row of each category.

    A table has the rows of its categories in their order, then that of unknown ones and that of missing ones.

    Args:
        categories: those of each table, ascending and distinct.
    """

    def __init__(self, categories: Sequence[NDArray[np.int64]]) -> None:
        super().__init__()
        # The categories of all tables concatenated. One more entry at the end: a search in an empty table
        # reads it, and finds nothing.
        sizes = [of_table.shape[0] for of_table in categories]
        stops = np.cumsum(sizes)
        joined = np.concatenate([*categories, np.zeros(1, np.int64)])
        # So many jumps reach every place of the longest table.
        self.num_steps = max(sizes, default=0).bit_length()
        self.register_buffer("categories_C", torch.from_numpy(joined.astype(np.int64)))
        self.register_buffer("starts_F", torch.from_numpy((stops - sizes).astype(np.int64)))
        self.register_buffer("stops_F", torch.from_numpy(stops.astype(np.int64)))
        self.categories_C: torch.Tensor
        self.starts_F: torch.Tensor
        self.stops_F: torch.Tensor

    def forward(
        self, categories_BX: torch.Tensor, is_missing_BX: torch.Tensor, tables_X: torch.Tensor
    ) -> torch.Tensor:
        """Return (B, X) int64 rows of (B, X) categories.

        Args:
            is_missing_BX: bool.
            tables_X: number of the table of each column, or one number for all columns.
        """
        # The range of each table in the list of categories.
        start_X = self.starts_F[tables_X]
        stop_X = self.stops_F[tables_X]
        # The last category that is not above the wanted one: try a jump of each power of two.
        place_BX = start_X.expand_as(categories_BX)
        for step in reversed(range(self.num_steps)):
            next_BX = place_BX + (1 << step)
            inside_BX = torch.minimum(next_BX, stop_X)
            is_ahead_BX = (next_BX < stop_X) & (self.categories_C[inside_BX] <= categories_BX)
            place_BX = torch.where(is_ahead_BX, next_BX, place_BX)
        # Categories that are not found get the row of unknown ones, missing values that of missing ones.
        is_found_BX = (place_BX < stop_X) & (self.categories_C[place_BX] == categories_BX)
        id_BX = torch.where(is_found_BX, place_BX, stop_X) - start_X
        return torch.where(is_missing_BX, stop_X + 1 - start_X, id_BX)


class RowTable(nn.Module):
    """The rows of one table.

    Args:
        packed_ND: rows as `pack_rows` returns them.
        scale_N2: least value and step of each row of int8; None for other types.
    """

    def __init__(self, packed_ND: torch.Tensor, scale_N2: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("rows_ND", packed_ND)
        self.register_buffer("scale_N2", scale_N2)
        self.rows_ND: torch.Tensor
        self.scale_N2: torch.Tensor | None

    def forward(self, id_BL: torch.Tensor) -> torch.Tensor:
        """Return (B, L, D) float32 rows of (B, L) ids."""
        # Rows of int8 are the least value of the row plus so many of its steps.
        rows_BLD = self.rows_ND[id_BL].float()
        if self.scale_N2 is None:
            return rows_BLD
        scale_BL2 = self.scale_N2[id_BL]
        return scale_BL2[..., :1] + rows_BLD * scale_BL2[..., 1:]


class DenseTransform(nn.Module):
    """Maps dense values of a log to those of shards: log1p(max(x, 0)) in float64, or x; 0 where missing."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        is_log = [name not in schema.untransformed for name in schema.dense]
        self.register_buffer("is_log_K", torch.tensor(is_log, dtype=torch.bool, device="cpu"))
        self.is_log_K: torch.Tensor

    def forward(self, values_BK: torch.Tensor) -> torch.Tensor:
        """Map (B, K) float64, NaN where missing, to (B, K) float32."""
        # A missing value is 0 before the transform and after it, as in shards.
        there_BK = torch.where(values_BK.isnan(), torch.zeros_like(values_BK), values_BK)
        positive_BK = torch.maximum(there_BK, torch.zeros_like(there_BK))
        return torch.where(self.is_log_K, torch.log1p(positive_BK), there_BK).float()


class ServingGraph(nn.Module):
    """The whole model of a run.

    Args:
        features: table of each, and whether it is multi-hot.
        histories: multi-hot features that are histories, by number, and the elements of the longest.
        takes_mean: whether the rows of a bag become their mean instead of their sum.
        shift: what recalibrates logits where it is added to them.
        predicts: probability, or value where that is the logit itself.
    """

    def __init__(
        self,
        model: DenseModel,
        index: CategoryIndex,
        tables: Sequence[RowTable],
        features: Sequence[tuple[int, bool]],
        histories: Mapping[int, int],
        schema: Schema,
        *,
        takes_mean: bool,
        shift: float = 0.0,
        predicts: str = "probability",
    ) -> None:
        super().__init__()
        self._predicts = predicts
        self.model = model
        self._shift = shift
        self.index = index
        self.tables = nn.ModuleList(tables)
        self.transform = DenseTransform(schema)
        self._table_of = [table for table, _ in features]
        self._one_hot = [number for number, (_, is_multi) in enumerate(features) if not is_multi]
        self._multi_hot = [number for number, (_, is_multi) in enumerate(features) if is_multi]
        self._takes_mean = takes_mean
        self._histories = dict(histories)
        of_histories = [bag for bag, number in enumerate(self._multi_hot) if number in histories]
        self._counted = of_histories[:1] if model.has_equal_histories else of_histories
        dims = [int(tables[table].rows_ND.shape[1]) for table in self._table_of]
        self._widths = tables_by_dim(dims)
        of_one_hot = [self._table_of[number] for number in self._one_hot]
        self.register_buffer("one_hot_G", torch.tensor(of_one_hot, dtype=torch.int64, device="cpu"))
        self.one_hot_G: torch.Tensor

    def forward(
        self,
        dense: torch.Tensor,
        categories: torch.Tensor,
        is_missing: torch.Tensor,
        bags: list[torch.Tensor],
        bag_is_missing: list[torch.Tensor],
        bag_lengths: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B,) probabilities, or values, and (B,) logits; both (B, L) for several labels.

        Args:
            dense: (B, K) float64, NaN where missing.
            categories: (B, G) int64 of the one-hot features in the order of the schema.
            is_missing: (B, G) bool.
            bags: (B, L) int64 of each multi-hot feature; what follows the length of a bag does not count.
            bag_is_missing: (B, L) bool of each.
            bag_lengths: (B,) int64 of each.
        """
        # All one-hot features in one search, then each bag separately, as bags differ in length.
        found: dict[int, torch.Tensor] = {}
        if self._one_hot:
            id_BG = self.index(categories, is_missing, self.one_hot_G)
            for column, number in enumerate(self._one_hot):
                found[number] = self.tables[self._table_of[number]](id_BG[:, column : column + 1])
        for bag, number in enumerate(self._multi_hot):
            table = torch.tensor([self._table_of[number]], dtype=torch.int64, device=bags[bag].device)
            id_BL = self.index(bags[bag], bag_is_missing[bag], table)
            rows_BLD = self.tables[self._table_of[number]](id_BL)
            if number in self._histories:
                found[number] = self._as_history(rows_BLD, bag_lengths[bag], self._histories[number])
            else:
                found[number] = self._pooled(rows_BLD, bag_lengths[bag]).unsqueeze(1)
        # Features by the width of their rows, as the model takes them.
        embeddings = [
            torch.cat([found[number] for number in numbers], dim=1) for numbers in self._widths.values()
        ]
        values_BK = self.transform(dense)
        # A model of histories takes their lengths in addition to the dense features.
        for bag in self._counted:
            length_B1 = bag_lengths[bag].clamp(max=self._histories[self._multi_hot[bag]]).unsqueeze(1)
            values_BK = torch.cat([values_BK, length_B1.to(values_BK.dtype)], dim=1)
        logit_B = self.model.logits(values_BK, embeddings)
        if self._shift:
            logit_B = logit_B + self._shift
        if self._predicts == "value":
            return logit_B.clone(), logit_B
        return torch.sigmoid(logit_B), logit_B

    def _as_history(self, rows_BLD: torch.Tensor, length_B: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Return each bag's last elements after zeros, (B, num_elements, D)."""
        place_BE = (
            torch.arange(num_elements, dtype=torch.int64, device=length_B.device)
            - num_elements
            + length_B.unsqueeze(1)
        )
        is_there_BE1 = (place_BE >= 0).unsqueeze(2)
        place_BE1 = place_BE.clamp(min=0).unsqueeze(2)
        found_BED = torch.gather(rows_BLD, 1, place_BE1.expand(-1, -1, rows_BLD.shape[2]))
        return torch.where(is_there_BE1, found_BED, torch.zeros_like(found_BED))

    def _pooled(self, rows_BLD: torch.Tensor, length_B: torch.Tensor) -> torch.Tensor:
        # What follows the length of a bag is left out, whatever it holds.
        places_L = torch.arange(rows_BLD.shape[1], dtype=torch.int64, device=length_B.device)
        is_there_BL1 = (places_L < length_B.unsqueeze(1)).unsqueeze(2)
        sum_BD = torch.where(is_there_BL1, rows_BLD, torch.zeros_like(rows_BLD)).sum(1)
        # The mean of an empty bag is zero, as its sum is.
        return sum_BD / length_B.clamp(min=1).unsqueeze(1) if self._takes_mean else sum_BD


_EXAMPLES: dict[str, Any] = {"integer": 7, "unsigned": 7, "hex8": "0000beef", "text": "a"}
_TIME = datetime.datetime(2026, 1, 31, 23, 59, 59, tzinfo=datetime.UTC)
_INTEGER_TIME = 1_700_000_000
"""Seconds since 1970 of a time in 2023; in other units it is one in 1970."""
_ROWS = {
    "fp32": "float32, as they were trained",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "8-bit codes with a least value and a step for each row",
}


def outputs_of(predicts: str) -> tuple[str, str]:
    """Return the names of what the graph returns."""
    return "probability" if predicts == "probability" else "prediction", "logit"


def readme_of(
    features: Mapping[str, Any], config: ExportConfig, fingerprint: str, predicts: str = "probability"
) -> str:
    """Return the text of the README; its programs run unchanged in the folder."""
    outputs = outputs_of(predicts)
    whose = "a click" if "labels" not in features else "each label"
    columns: dict[str, list[Any]] = {each["column"]: [0.0, None] for each in features["dense"]}
    # Times last: a column that others are made from, too, is shown as one.
    for each in sorted(features["sparse"], key=lambda each: each["kind"] not in _EXAMPLES):
        time = _INTEGER_TIME if "unit" in each else _TIME.strftime(each.get("format", "%Y-%m-%d %H:%M:%S"))
        value = _EXAMPLES.get(each["kind"], time)
        columns[each["column"]] = [[value, value], None] if each["is_list"] else [value, None]
    shown = "\n".join(f"    {name!r}: {values!r}," for name, values in columns.items())
    text = f"""\
# A click model, exported by hotset

`model.pt2` goes from the values of a log to the {outputs[0]} of {whose}. It holds the vocabulary,
the tables ({_ROWS[config.row_type]}) and the dense layers.

Training run: {fingerprint}.

`serving_inputs.py` turns rows into the numbers that the model takes; it needs NumPy and xxhash. Two rows, the
second with every value missing:

```python
from serving_inputs import ServingInputs

columns = {{
{shown}
}}
inputs = ServingInputs()
```

With PyTorch:

```python
import torch

model = torch.export.load("model.pt2").module()
with torch.no_grad():
    {", ".join(outputs)} = model(*inputs.for_torch(columns))
```
"""
    if config.onnx:
        text += f"""
With ONNX Runtime (`model.onnx.data` stays next to `model.onnx`):

```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
{", ".join(outputs)} = session.run(["{outputs[0]}", "{outputs[1]}"], inputs.for_onnx(columns))
```
"""
    if labels := features.get("labels"):
        text += f"\nBoth have a column for each label, in this order: {', '.join(labels)}.\n"
    return (
        text
        + """
A category that the model does not know gets the row of out-of-vocabulary categories, None and "" that of
missing ones. A list-valued feature takes a list in each row, or its text as in the log.
Columns that are not named above are not needed.
"""
    )


# ruff: noqa: N815  (tensors carry shape suffixes)


PROGRAM = "model.pt2"
ONNX = "model.onnx"
STAGE = "export"
VERSION = 1
_GRAPH_BYTES = 1 << 20
"""Bytes of an exported graph without its tensors, at most."""
_TRACED_SAMPLES = 3
"""Samples of the batch that the graph is recorded with; torch would treat a size of 0 or 1 as a constant."""


def export_run(
    run: Path,
    out: Path,
    config: ExportConfig | None = None,
    *,
    vocabulary: Path | None = None,
    model_source: ModelSource | None = None,
    progress: ProgressCallback = silent,
) -> None:
    """Write the exported model of a run to ``out``.

    Args:
        config: number type of the rows, and whether ONNX is wanted.
        vocabulary: folder that `preprocess` wrote, for a run that keeps no vocabulary.
        progress: called with how many rows are ready, and that files are written.

    Raises:
        HotsetError: the run is unfinished or damaged, its module cannot be exported, ``out`` exists, or a
            package is missing.
    """
    config = config or ExportConfig()
    if config.onnx:
        _refuse_missing_onnx()
    found = RunTables.open(run, vocabulary)
    inputs = [{"name": "run", "fingerprint": found.fingerprint}]
    with whole_folder(out, stage=STAGE, version=VERSION, inputs=inputs) as folder:
        graph = build_graph(found, config, model_source, progress)
        progress("write", 0, 0)
        write_export(folder, graph, ExportedModel.of(found, config.row_type), config.onnx, found.fingerprint)


def write_export(
    folder: Path, graph: ServingGraph, described: ExportedModel, onnx: bool, fingerprint: str
) -> None:
    """Write the files of a graph.

    Args:
        folder: empty.
        described: its model.
        onnx: whether ONNX is wanted.
        fingerprint: that of the run.

    Raises:
        HotsetError: its module cannot be recorded, or the disk is full.
    """
    # torch and ONNX end the process where the disk is full, so the room is taken first, and given back.
    num_bytes = sum(tensor.nbytes for tensor in graph.state_dict().values()) + _GRAPH_BYTES
    num_bytes *= 2 if onnx else 1
    room = ReservedRoom(folder, num_bytes, "the model", "export smaller rows: --row-type int8")
    program = _program_of(graph, described)
    room.give(num_bytes)
    torch.export.save(program, folder / PROGRAM)
    if onnx:
        _write_onnx(program, described, folder / ONNX)
    # What a server needs besides the graph: the features, the code that makes inputs, and how to use both.
    features = features_of(described.schema, described.config.labels, graph.model.histories)
    write_json(folder / FEATURES, features)
    write_json(folder / MODEL, described.to_json())
    source = inspect.getsource(serving_inputs)
    (folder / f"{serving_inputs.__name__.split('.')[-1]}.py").write_bytes(source.encode())
    config = ExportConfig(row_type=described.row_type, onnx=onnx)
    readme = readme_of(features, config, fingerprint, described.config.predicts)
    (folder / "README.md").write_bytes(readme.encode())


def build_graph(
    found: RunTables,
    config: ExportConfig,
    model_source: ModelSource | None = None,
    progress: ProgressCallback = silent,
) -> ServingGraph:
    """Build the graph of a run, in evaluation mode."""
    described = ExportedModel.of(found, config.row_type)
    model = load_dense_layers(found.run, described.config, found.weights, model_source)
    tables = []
    # Rows in the order of their categories, so that what is served does not depend on the ids of a run.
    for table in found.categories(progress):
        ids_N = np.append(table.ids_N, [table.oov_id, table.missing_id]).astype(np.int64)
        rows_ND = read_finite(found.run, found.weights, table.table.name)[torch.from_numpy(ids_N)]
        tables.append(ServedTable(table.categories_N, *pack_rows(rows_ND, config.row_type)))
    return graph_of(described, model, tables)


@dataclass(frozen=True, slots=True)
class ServedTable:
    """The rows of a table by category, then of unknown and missing ones."""

    categories_N: NDArray[np.int64]
    """Ascending."""
    packed_ND: torch.Tensor
    """(N + 2, D), as `pack_rows` returns them."""
    scale_N2: torch.Tensor | None


def graph_of(
    described: ExportedModel,
    model: DenseModel,
    tables: Sequence[ServedTable],
) -> ServingGraph:
    """Return the graph of a model with these rows, in evaluation mode."""
    chosen = described.config.dense_model
    numbers = for_features(described.config.tables, range(len(tables)))
    features = by_feature(described.config.tables)
    lengths = {number: model.histories.get(each.name, 0) for number, each in enumerate(features)}
    graph = ServingGraph(
        model,
        CategoryIndex([table.categories_N for table in tables]),
        [RowTable(table.packed_ND, table.scale_N2) for table in tables],
        [(table, feature.is_multi_hot) for table, feature in zip(numbers, features, strict=True)],
        {number: length for number, length in lengths.items() if length},
        described.schema,
        takes_mean=chosen.pooling == "mean",
        shift=answers_of(described.config).shift,
        predicts=described.config.predicts,
    )
    return graph.eval().requires_grad_(False)


def features_of(
    schema: Schema, labels: Sequence[str] = (), histories: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Describe the features for `FEATURES`: names, columns, kinds of categories; and several labels.

    Args:
        histories: list features of which a model takes so many elements at most.
    """
    # A feature may have another name than its column in the log.
    columns = schema.column_of
    lists, units, formats = dict(schema.lists), dict(schema.time_units), dict(schema.time_formats)
    dense_kinds = dict.fromkeys(schema.dense, "integer")
    dense_kinds |= {name: "float32" if name in schema.untransformed else "float" for name in schema.floats}

    def keys_of_time(name: str, kind: str) -> dict[str, str]:
        zone = schema.zone if kind in TIME_KINDS else ""
        keys = {"unit": units.get(name), "format": formats.get(name), "zone": zone}
        return {key: value for key, value in keys.items() if value}

    def keys_of_list(name: str) -> dict[str, Any]:
        weights = dict(schema.weight_separators).get(name)
        brackets, trim = name in schema.brackets, schema.trim and name in lists
        keys: dict[str, Any] = {"separator": lists.get(name), "weight_separator": weights}
        keys |= {"brackets": brackets, "trim": trim, "most_elements": (histories or {}).get(name)}
        return {key: value for key, value in keys.items() if value}

    of_labels = {"labels": list(labels)} if len(labels) > 1 else {}
    return of_labels | {
        "missing": list(schema.missing),
        "dense": [
            {"name": name, "column": columns[name], "kind": dense_kinds[name]} for name in schema.dense
        ],
        "sparse": [
            {"name": name, "column": columns[name], "kind": kind, "is_list": name in lists}
            | keys_of_time(name, kind)
            | keys_of_list(name)
            for name, kind in schema.kind_of.items()
        ],
    }


def _program_of(graph: ServingGraph, described: ExportedModel) -> torch.export.ExportedProgram:
    """Record the graph for batches and bags of any length."""
    num_dense = len(described.schema.dense)
    num_lists = len(multi_hot(described.config.tables))
    num_one_hot = len(one_hot(described.config.tables))
    size = _TRACED_SAMPLES
    # Bags of different lengths: torch would treat equal ones as a single length.
    bags = [torch.zeros(size, size + number, dtype=torch.int64, device="cpu") for number in range(num_lists)]
    # One batch of zeros: values do not matter, shapes and types do.
    arguments = (
        torch.zeros(size, num_dense, dtype=torch.float64, device="cpu"),
        torch.zeros(size, num_one_hot, dtype=torch.int64, device="cpu"),
        torch.zeros(size, num_one_hot, dtype=torch.bool, device="cpu"),
        bags,
        [torch.zeros_like(bag, dtype=torch.bool) for bag in bags],
        [torch.ones(size, dtype=torch.int64, device="cpu") for _ in bags],
    )
    # The batch has one size in all inputs; the length of every bag is a separate dimension.
    batch = torch.export.Dim("batch")
    of_batch = {0: batch}
    of_bags = [{0: batch, 1: torch.export.Dim(f"length{number}")} for number in range(num_lists)]
    shapes = (of_batch, of_batch, of_batch, of_bags, of_bags, [of_batch] * num_lists)
    with torch.no_grad(), explained(f"torch.export of the model {described.config.dense_model.name}"):
        return torch.export.export(graph, arguments, dynamic_shapes=shapes, strict=False)


def _refuse_missing_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"an ONNX model needs {error.name}", hint=install_hint("onnx")) from error


def _write_onnx(program: torch.export.ExportedProgram, described: ExportedModel, path: Path) -> None:
    """Write an ONNX program, tensors apart: a file has at most 2 GiB."""
    # Names of the inputs, in the order in which the graph takes them.
    lists = [bag_name(feature.name) for feature in multi_hot(described.config.tables)]
    names = ["dense", "categories", IS_MISSING, *lists]
    names += [f"{name}.{IS_MISSING}" for name in lists] + [f"{name}.{LENGTH}" for name in lists]
    # The exporter warns about the way it uses torch, and about packages that this model does not need.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = torch.onnx.export(
            program,
            dynamo=True,
            external_data=True,
            verbose=False,
            input_names=names,
            output_names=list(outputs_of(described.config.predicts)),
        )
        assert converted is not None
        converted.save(path, external_data=True)
