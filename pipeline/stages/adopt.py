"""``adopt``: columns/ + another log's vocabulary/ -> vocabulary/, so that a new log gets a model's ids.

Nothing is counted: every sample of the new log is for evaluation, and a category that the model's log
did not have is looked up in its table's oov row, as evaluation does everywhere.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import ManifestError
from ..folders.leaks import training_logs
from ..folders.manifest import Manifest
from ..folders.output import Output, input_of
from ..runtime.tasks import ProgressCallback, silent

VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptConfig:
    """The adopt stage has nothing to vary."""


def adopt(
    columns: Manifest,
    model_columns: Manifest,
    model: Manifest,
    out: Path,
    *,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns, a vocabulary -> vocabulary: the same ids for another log, none of whose samples trains.

    Reads:   ``{feature}.arrow`` of ``model``, the vocabulary of the log a model was trained on
    Writes:  the same files, byte for byte

    Raises:
        ManifestError: the two logs have other features, or features of other kinds.
    """
    features, wanted = columns.totals["sparse"], model_columns.totals["sparse"]
    hint = "give --like a folder made with the same schema"
    if features != wanted:
        found = ", ".join(features)
        raise ManifestError(
            f"{model.folder} has the features {', '.join(wanted)}, the log has {found}", hint=hint
        )
    if columns.totals.get("schema") != model_columns.totals.get("schema"):
        raise ManifestError(f"{model.folder} and the log name the same features by other schemas", hint=hint)
    inputs = [input_of(columns), {"name": "model", "fingerprint": model.fingerprint}]
    output = Output.begin("adopt", VERSION, AdoptConfig(), inputs, out)
    if isinstance(output, Manifest):
        return output
    for done, entry in enumerate(model.files, 1):
        if not output.has(entry.path):
            with output.writing(entry.path, entry.num_samples, **entry.facts) as path:
                shutil.copyfile(model.checked_path(entry), path)
        progress("adopt", done, len(model.files))
    own = {"num_samples": columns.num_samples, "num_train_samples": 0}
    num_train = model.totals["num_train_samples"]
    trained = {
        "num_model_samples": num_train,
        "model_raw": training_logs(model_columns.totals["raw"], num_train),
    }
    if model.stage == "adopt":  # the model's own log trained nothing: go on to the one that did
        trained = {key: model.totals[key] for key in trained if key in model.totals}
    return output.seal(model.totals | own | trained)
