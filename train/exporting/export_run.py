"""Write a finished run as a folder that serves it without hotset: one graph from raw values to a probability.

model.pt2            vocabulary, tables and dense layers as one exported program of torch
model.onnx           the same for ONNX Runtime, on demand; its tensors are in model.onnx.data
features.json        the features, in the order of the inputs
serving_inputs.py    raw values to inputs, with NumPy and xxhash alone
README.md            how to use them, with the features of this run
manifest.json        written last: bytes and checksums of these files
"""

from __future__ import annotations

import inspect
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from ...pipeline.errors import MissingExtraError, install_hint
from ...pipeline.formats.whole_folder import whole_folder, write_json, write_text
from ...pipeline.schema.schema import Schema
from ...pipeline.schema.schema_names import DENSE_PREFIX
from ..checkpoints.reserved_room import ReservedRoom
from ..model_building.build_model import build_model
from ..model_building.choose_model import recorded_model
from ..model_building.model_inputs import ModelInputs
from ..model_building.user_code import ModelSource, explained
from ..options.export_config import ExportConfig
from ..run_folder.run_reader import read_finite, refuse_other_weights
from . import serving_inputs
from .export_readme import readme_of
from .run_tables import RunTables
from .serving_graph import CategoryIndex, RowTable, ServingGraph
from .serving_inputs import FEATURES, IS_MISSING, LENGTH, bag_name

PROGRAM = "model.pt2"
ONNX = "model.onnx"
STAGE = "export"
VERSION = 1
_GRAPH_BYTES = 1 << 20
"""Bytes of an exported graph without its tensors, at most."""
_TRACED_SAMPLES = 3
"""Samples of the batch that the graph is recorded with; a size of 0 or 1 would be taken for a constant."""


def export_run(
    run: Path,
    out: Path,
    config: ExportConfig | None = None,
    *,
    vocabulary: Path | None = None,
    model_source: ModelSource | None = None,
) -> None:
    """Write the folder ``out``.

    Args:
        run: folder of a finished run.
        out: new folder.
        config: number type of the rows, and whether ONNX is wanted.
        vocabulary: folder that `preprocess` wrote, for a run that keeps no vocabulary.
        model_source: makes the user's module of the run; None imports the class that the run records.

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
        graph = build_graph(found, config, model_source)
        program = _program_of(graph, found)
        # torch and ONNX end the process where the disk is full, so the room is taken first, and given back.
        num_bytes = sum(tensor.nbytes for tensor in graph.state_dict().values()) + _GRAPH_BYTES
        num_bytes *= 2 if config.onnx else 1
        room = ReservedRoom(folder, num_bytes, "the model", "export smaller rows: --row-type int8")
        room.give(num_bytes)
        torch.export.save(program, folder / PROGRAM)
        if config.onnx:
            _write_onnx(program, found, folder / ONNX)
        # What a server needs beside the graph: the features, the code that makes inputs, and how to use both.
        write_json(folder / FEATURES, features_of(found.schema))
        write_text(folder / f"{serving_inputs.__name__.split('.')[-1]}.py", inspect.getsource(serving_inputs))
        write_text(folder / "README.md", readme_of(features_of(found.schema), config, found.fingerprint))


def build_graph(
    found: RunTables, config: ExportConfig, model_source: ModelSource | None = None
) -> ServingGraph:
    """Build the graph of a run, in evaluation mode."""
    # The dense layers, with the weights of the run in place of initial ones.
    chosen = recorded_model(found.config)
    model = build_model(chosen, ModelInputs.of(found.config), 0, model_source)
    refuse_other_weights(found.run, found.weights, found.config, model)
    names = model.state_dict()
    model.load_state_dict({name: _finite(found, f"{DENSE_PREFIX}{name}") for name in names})
    # The vocabulary and the rows, of the type that was asked for.
    index = CategoryIndex(list(found.categories()))
    tables = [RowTable(_finite(found, table.name), config.row_type) for table in found.tables]
    graph = ServingGraph(
        model,
        index,
        tables,
        [table.is_multi_hot for table in found.tables],
        found.schema,
        takes_mean=chosen.pooling == "mean",
        num_elements=chosen.history_length + 1 if chosen.kind == "tbsm" else None,
    )
    return graph.eval().requires_grad_(False)


def features_of(schema: Schema) -> dict[str, Any]:
    """Describe the features as `FEATURES` has them: names, columns of the log, kinds of categories."""
    # A feature may have another name than its column in the log.
    columns = dict(schema.renamed)
    lists = dict(schema.lists)
    units = dict(schema.time_units)
    return {
        "dense": [{"name": name, "column": columns.get(name, name)} for name in schema.dense],
        "sparse": [
            {"name": name, "column": columns.get(name, name), "kind": kind, "is_list": name in lists}
            | ({"unit": units[name]} if name in units else {})
            for name, kind in schema.kind_of.items()
        ],
    }


def _finite(found: RunTables, name: str) -> torch.Tensor:
    return read_finite(found.run, found.weights, name)


def _program_of(graph: ServingGraph, found: RunTables) -> torch.export.ExportedProgram:
    """Record the graph for batches and bags of any length."""
    num_dense = len(found.schema.dense)
    num_lists = sum(table.is_multi_hot for table in found.tables)
    num_one_hot = len(found.tables) - num_lists
    size = _TRACED_SAMPLES
    # Bags of different lengths: equal ones would be taken for one length.
    bags = [torch.zeros(size, size + number, dtype=torch.int64) for number in range(num_lists)]
    # One batch of zeros: values do not matter, shapes and types do.
    arguments = (
        torch.zeros(size, num_dense, dtype=torch.float64),
        torch.zeros(size, num_one_hot, dtype=torch.int64),
        torch.zeros(size, num_one_hot, dtype=torch.bool),
        bags,
        [torch.zeros_like(bag, dtype=torch.bool) for bag in bags],
        [torch.ones(size, dtype=torch.int64) for _ in bags],
    )
    # The batch is of one size in all inputs; every bag has a length of its own.
    batch = torch.export.Dim("batch")
    of_batch = {0: batch}
    of_bags = [{0: batch, 1: torch.export.Dim(f"length{number}")} for number in range(num_lists)]
    shapes = (of_batch, of_batch, of_batch, of_bags, of_bags, [of_batch] * num_lists)
    with torch.no_grad(), explained(f"torch.export of the model {recorded_model(found.config).name}"):
        return torch.export.export(graph, arguments, dynamic_shapes=shapes, strict=False)


def _refuse_missing_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"an ONNX model needs {error.name}", hint=install_hint("onnx")) from error


def _write_onnx(program: torch.export.ExportedProgram, found: RunTables, path: Path) -> None:
    """Write the program for ONNX Runtime, tensors in a file beside it: a model file has at most 2 GiB."""
    # Names of the inputs, in the order in which the graph takes them.
    lists = [bag_name(table.name) for table in found.tables if table.is_multi_hot]
    names = ["dense", "categories", IS_MISSING, *lists]
    names += [f"{name}.{IS_MISSING}" for name in lists] + [f"{name}.{LENGTH}" for name in lists]
    # The exporter warns of its own use of torch, and of packages that this model does not need.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = torch.onnx.export(
            program,
            dynamo=True,
            external_data=True,
            verbose=False,
            input_names=names,
            output_names=["probability", "logit"],
        )
        assert converted is not None
        converted.save(path, external_data=True)
