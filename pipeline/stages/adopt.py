"""``adopt``: columns/ + another log's vocabulary/ -> vocabulary/, so that a new log gets a model's ids.

Nothing is counted: every sample of the new log is for evaluation, and a category that the model's log
did not have is looked up in its table's oov row, as evaluation does everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ManifestError
from ..folders.file_facts import TextsFacts
from ..folders.manifest import Manifest
from ..folders.output import Output, input_of
from ..folders.stage_totals import ColumnsTotals, VocabularyTotals
from ..runtime.resources import DEFAULT_RESOURCES, Resources

VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptConfig:
    """The adopt stage has nothing to vary."""


def adopt(
    columns: Manifest,
    model_columns: Manifest,
    model: Manifest,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
) -> Manifest:
    """columns, a vocabulary -> vocabulary: the same ids for another log, none of whose samples trains.

    Reads:   ``{feature}.arrow`` of ``model``, the vocabulary of the log a model was trained on
    Writes:  the same files, byte for byte

    Raises:
        ManifestError: the two logs have other features, or features of other kinds.
    """
    log = ColumnsTotals.of(columns)
    model_log = ColumnsTotals.of(model_columns)
    hint = "give --like a folder made with the same schema"
    # Ids mean something only for the same features, read in the same way.
    if log.sparse != model_log.sparse:
        found = ", ".join(log.sparse)
        raise ManifestError(
            f"{model.folder} has the features {', '.join(model_log.sparse)}, the log has {found}", hint=hint
        )
    if log.schema != model_log.schema:
        raise ManifestError(
            f"{model.folder} and the log have the same features under different schemas", hint=hint
        )
    inputs = [input_of(columns), {"name": "model", "fingerprint": model.fingerprint}]
    output = Output.begin("adopt", VERSION, AdoptConfig(), inputs, out)
    if output.sealed is not None:
        return output.sealed
    # Ids stay what they are: copy the files byte for byte.
    for done, entry in enumerate(model.files, 1):
        if not output.has(entry.path):
            facts = TextsFacts.of(model, entry) if entry.is_texts else None
            output.copy(model, entry, facts)
        resources.progress("adopt", done, len(model.files))
    totals = VocabularyTotals.of(model)
    if model.stage != "adopt":
        num_train = totals.num_train_samples
        trained = tuple(model_log.training_logs(num_train))
        totals = replace(totals, num_model_samples=num_train, model_raw=trained)
    # Else the log beside the model's vocabulary trained nothing, and its totals name the one that did.
    return output.seal(
        replace(totals, num_samples=columns.num_samples, num_train_samples=0, num_valid_samples=0)
    )
