"""Builds a dense model and its step, from presets or user code.

A user's module is any ``torch.nn.Module`` with ``forward(dense, embeddings)``: dense features (B, K) float32
and a dictionary from the name of each feature to its embeddings (B, D) float32, in their order; it
returns (B,) logits, or for several labels (B, L), in the order of ``inputs.labels``. An attribute
``per_sample = True``, of the class or set by its constructor, says that each logit depends on its sample
alone, so that batches may be computed in tiles on several threads.

With an attribute ``histories``, a dictionary from list features to the elements of their longest list, it has
``forward(dense, embeddings, lengths)``. The embeddings of such a feature with up to T elements are (B, T, D):
a list ends with the last of them, and those before it are zero. ``lengths`` is a dictionary from these
features to the elements of each sample, (B,) int64.

A user's loss is a ``function(logits, labels, weights)`` of float32 tensors, (B,) for one label and (B, L) for
several. It returns the loss of each sample, (B,), or of each sample and label, (B, L), with the weights
applied. A label that is missing is 0, as is its weight. A prediction is the probability sigmoid(logit), or
with ``function.predicts = "value"`` the logit.

Both are imported by name, and tried on a small batch before a run begins. An error in user code becomes a
HotsetError that names the place in the user's file; the original exception is its cause, which ``--verbose``
shows in full.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from ..pipeline.errors import ConfigError, HotsetError, first_line, system_fault
from ..pipeline.folders.totals import multi_hot
from ..pipeline.schema.schema import nearest
from .config_parts import MOST_HISTORY, ModelConfig, Pooling, parse_arguments
from .data.batch import EmbeddingTable
from .model.dense_step import DenseStep, HistoryStep, MeanPooling, set_mode
from .model.dlrm import DenseModel, Dlrm
from .model.shapes import DcnShape, ModelInputs, dlrm_shape, tables_by_dim

_log = logging.getLogger(__name__)

ModelSource = Callable[..., nn.Module] | nn.Module
"""The maker of a user's module: a class, a function, or a module as it is. Where it may be None, the class
that the config or the run names is imported."""
_OURS = Path(__file__).resolve().parent


def name_of(source: ModelSource) -> str:
    """Return ``package.module:Class`` of a model from Python, as runs record it."""
    named: Any = source if hasattr(source, "__qualname__") else type(source)
    return f"{named.__module__}:{named.__qualname__}"


def import_named(name: str, what: str, wanted: str) -> Any:
    """Import what ``package.module:NAME`` names; the current folder is searched, too.

    Args:
        what: the model, or the loss, for messages.
        wanted: a class, or a function.

    Raises:
        ConfigError: there is no such module, or nothing of that name in it.
    """
    module_name, _, attribute = name.partition(":")
    if "<" in attribute or module_name == "__main__":
        way = "give it from Python as model=, or put the class" if what == "model" else f"put the {wanted}"
        raise ConfigError(
            f"the {what} {name} cannot be imported: it was made inside a program",
            hint=f"{way} in a separate file",
        )
    # As `python -m` does, but last: a file here is not to stand for a module that others import.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        with explained(f"the module {module_name}"):
            found: Any = importlib.import_module(module_name)
    # A module that is missing inside of the user's module is a fault of that module, not of the name.
    except HotsetError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or not f"{module_name}.".startswith(f"{cause.name}."):
            raise
        raise ConfigError(
            f"there is no module {module_name}, which the {what} {name} names",
            hint=f"run hotset in the folder that holds {module_name.replace('.', '/')}.py, or install it",
        ) from cause
    # A class may be nested in others.
    where = getattr(found, "__file__", None) or module_name
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [other for other in vars(found) if not other.startswith("_")])
            raise ConfigError(f"{where} has no {wanted} {attribute}", hint=hint)
        found = getattr(found, part)
    return found


def import_class(name: str) -> type[nn.Module]:
    """Import ``package.module:Class``; raises ConfigError where it is no torch.nn.Module."""
    found = import_named(name, "model", "class")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        where = getattr(sys.modules[name.partition(":")[0]], "__file__", None) or name.partition(":")[0]
        raise ConfigError(f"{name} ({where}) is no torch.nn.Module", hint="derive the class from it")
    return found


def build_module(source: ModelSource, name: str, seed: int, *arguments: Any, **named: Any) -> nn.Module:
    """Build the module with initial values from the seed.

    A module that is built already is copied.

    Raises:
        HotsetError: the constructor fails, or makes something else.
    """
    if isinstance(source, nn.Module):
        with explained(f"the model {name}, which is copied,"):
            return copy.deepcopy(source)
    with torch.random.fork_rng([]), explained(f"the constructor of {name}"):
        torch.manual_seed(seed)
        module = source(*arguments, **named)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name} makes a {type(module).__name__}, want a torch.nn.Module")
    return module


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an exception of user code into a HotsetError that names its line."""
    # Errors of hotset say what to do already; those of the disk or the memory are not the user's code.
    try:
        yield
    except HotsetError:
        raise
    except Exception as error:
        fault = system_fault(what, error)
        if fault is not None:
            raise fault from error
        place = _place_of(error)
        raise HotsetError(
            f"{what} failed{place}: {type(error).__name__}: {first_line(error)}",
            hint="--verbose shows where the error was raised",
        ) from error


def _place_of(error: Exception) -> str:
    """Return the last line of user code that raised, empty if there is none."""
    libraries = (_OURS, *(Path(each).parent for each in (torch.__file__, importlib.__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith("<")
        and not any(Path(frame.filename).is_relative_to(library) for library in libraries)
    ]
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


PER_SAMPLE = "per_sample"
"""Attribute by which a module says that its samples do not depend on each other."""
HISTORIES = "histories"
"""Attribute by which it names the lists whose elements it takes one by one."""
_LARGE = 1e3
"""Factor of the inputs by which logits leave the range of probabilities."""
_TRIED_SAMPLES = 7
"""Samples of the batch that is made up to try user code; no table or layer is likely to be as wide."""


class UserModel(DenseModel):
    """Calls a user's module with embeddings by table; weights are called ``module.NAME``.

    Raises:
        ConfigError: the module asks for histories that there are not.
    """

    def __init__(self, module: nn.Module, name: str, inputs: ModelInputs) -> None:
        super().__init__()
        self.module = module
        self.name = name
        self.inputs = inputs
        self.num_logits = inputs.num_logits
        self.is_per_sample = bool(getattr(module, PER_SAMPLE, False))
        self._widths = tables_by_dim(inputs.table_dims)
        self.histories = _histories_of(module, name, inputs)
        self.counts = [self.histories.get(table.name, 1) for table in inputs.tables]
        """Embeddings that a sample has of each feature."""

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        num_samples = dense_BK.shape[0]
        batch = f"a batch of {num_samples} sample{'' if num_samples == 1 else 's'}"
        # User code runs inside, so its exceptions are reported as such.
        with explained(f"the model {self.name}, on {batch},"):
            if self.histories:
                logits = self._with_histories(dense_BK, embeddings)
            else:
                logits = self.module(dense_BK, self._by_table(embeddings))
        # Anything but one logit per sample and label is refused; a column is the usual mistake and gets a
        # hint that names the fix.
        wanted = (num_samples,) if self.num_logits == 1 else (num_samples, self.num_logits)
        if isinstance(logits, torch.Tensor) and logits.shape == wanted:
            return logits
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        hint = "return one logit of each sample"
        if self.num_logits > 1:
            hint += f" and label, in this order: {', '.join(self.inputs.labels)}"
        elif isinstance(logits, torch.Tensor) and logits.shape == (num_samples, 1):
            hint = "return logits.squeeze(1)"
        raise ConfigError(
            f"the model {self.name} returned {found} for {num_samples} samples, want {wanted}", hint=hint
        )

    def _by_table(self, embeddings: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the (B, D) embeddings by the name of the feature, in their order."""
        found: dict[int, torch.Tensor] = {}
        for tables, emb_BFd in zip(self._widths.values(), embeddings, strict=True):
            found |= dict(zip(tables, emb_BFd.unbind(1), strict=True))
        return {table.name: found[number] for number, table in enumerate(self.inputs.tables)}

    def _with_histories(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> Any:
        """Call a module of histories, whose lengths follow the dense features."""
        found: dict[int, torch.Tensor] = {}
        for tables, emb_BSd in zip(self._widths.values(), embeddings, strict=True):
            parts = torch.split(emb_BSd, [self.counts[table] for table in tables], dim=1)
            found |= dict(zip(tables, parts, strict=True))
        by_name = {
            table.name: found[number] if table.name in self.histories else found[number].squeeze(1)
            for number, table in enumerate(self.inputs.tables)
        }
        num_dense = self.inputs.num_dense
        lengths = dict(zip(self.histories, dense_BK[:, num_dense:].long().unbind(1), strict=True))
        return self.module(dense_BK[:, :num_dense], by_name, lengths)


def _histories_of(module: nn.Module, name: str, inputs: ModelInputs) -> dict[str, int]:
    """Return the histories that a module asks for, in the order of features."""
    given = getattr(module, HISTORIES, None)
    if given is None:
        return {}
    what = f"{HISTORIES} of the model {name}"
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{what} is {given!r}, want the longest list of each feature",
            hint='write it like histories = {"items": 50}',
        )
    lists = [table.name for table in inputs.tables if table.is_multi_hot]
    for feature, length in given.items():
        if feature not in lists:
            known = ", ".join(lists) or "none"
            raise ConfigError(
                f"{what} names {feature!r}, and the list features of the log are: {known}",
                hint=nearest(str(feature), lists) or "describe it as a list in the schema: list = true",
            )
        if not isinstance(length, int) or not 1 <= length <= MOST_HISTORY:
            raise ConfigError(f"{what} has {length!r} elements of {feature}, want 1 to {MOST_HISTORY}")
    return {feature: int(given[feature]) for feature in lists if feature in given}


def try_model(model: UserModel, seed: int, least_samples: int | None = None) -> None:
    """Pass a made-up batch through a module, which also gives lazy layers their sizes.

    Args:
        seed: of the initial values of lazy layers.
        least_samples: samples of the smallest batch of the training to come, where there is one.

    Raises:
        HotsetError: the module fails, returns something else than logits, or is not what its ``per_sample``
            says.
    """
    dense_BK, embeddings = _made_up_batch(model)
    for each in (dense_BK, *embeddings):
        each.requires_grad_()
    with torch.random.fork_rng([]):
        # Lazy layers draw their initial values at the first batch.
        torch.manual_seed(seed)
        set_mode(model, is_training=False)
        with torch.no_grad():
            model.logits(dense_BK, embeddings)
        if next(model.parameters(), None) is None:
            raise ConfigError(
                f"the model {model.name} has no parameters",
                hint="layers must be attributes of the module, or be in a torch.nn.ModuleList",
            )
        _refuse_other_numbers(model)

        # In training buffers change, those of batch normalization for example; a trial is to leave no trace.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        set_mode(model, is_training=True)
        # Whether it draws random numbers is seen from the state of torch's generator.
        state = torch.get_rng_state()
        logit_B = model.logits(dense_BK, embeddings)
        draws = not torch.equal(state, torch.get_rng_state())
        _try_smallest(model, dense_BK, embeddings, least_samples or _TRIED_SAMPLES)
        changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, buffers[name])]
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    # Now the results: they must be numbers that a gradient can flow through.
    if not torch.isfinite(logit_B).all():
        raise ConfigError(
            f"the model {model.name} returned {logit_B.detach().tolist()} before any training, "
            "want finite numbers",
            hint="look for a division by zero or a logarithm in forward()",
        )
    if not logit_B.requires_grad:
        raise ConfigError(
            f"the logits of the model {model.name} depend neither on its parameters nor on its inputs",
            hint="forward() may detach them, or run under torch.no_grad()",
        )
    if model.is_per_sample:
        _refuse_dependent_samples(model, logit_B, [dense_BK, *embeddings], draws=draws, changed=changed)


def _made_up_batch(model: UserModel, scale: float = 1.0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return dense values and embeddings, times a scale; no random number of the run is drawn.

    Histories are of all lengths, the first one empty and the next whole.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = model.inputs
    dense_BK = torch.rand(
        _TRIED_SAMPLES, inputs.num_dense, generator=generator, dtype=torch.float32, device="cpu"
    )
    samples_B = torch.arange(_TRIED_SAMPLES, dtype=torch.int64, device="cpu")
    lengths = {name: -samples_B % (longest + 1) for name, longest in model.histories.items()}
    embeddings = []
    for dim, tables in tables_by_dim(inputs.table_dims).items():
        counts = [model.counts[table] for table in tables]
        emb_BSd = torch.rand(
            _TRIED_SAMPLES, sum(counts), dim, generator=generator, dtype=torch.float32, device="cpu"
        ).sub_(0.5)
        for table, part_BTd in zip(tables, torch.split(emb_BSd, counts, dim=1), strict=True):
            name = inputs.tables[table].name
            if name in lengths:
                places_T = torch.arange(part_BTd.shape[1], dtype=torch.int64, device="cpu")
                part_BTd[places_T < part_BTd.shape[1] - lengths[name].unsqueeze(1)] = 0
        embeddings.append(emb_BSd * scale)
    of_lists = [length_B.float().unsqueeze(1) for length_B in lengths.values()]
    return torch.cat([dense_BK * scale, *of_lists], dim=1), embeddings


def warn_of_probabilities(model: DenseModel) -> None:
    """Warn where all outputs of a user's module are from 0 to 1, however large its inputs are."""
    if not isinstance(model, UserModel):
        return
    found = []
    set_mode(model, is_training=False)
    with torch.random.fork_rng([]), torch.no_grad(), suppress(HotsetError):
        for scale in (1, _LARGE, -_LARGE):
            found.append(model.logits(*_made_up_batch(model, scale)))
    if len(found) == 3 and all(bool(((each >= 0) & (each <= 1)).all()) for each in found):
        _log.warning(
            "the model %s seems to return probabilities: all outputs of a trial are from 0 to 1; "
            "return logits, without a sigmoid at the end",
            model.name,
        )


def _try_smallest(
    model: UserModel, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor], num_samples: int
) -> None:
    """Run as few samples as the smallest batch has: one lacks variance."""
    if num_samples >= dense_BK.shape[0]:
        return
    try:
        model.logits(dense_BK[:num_samples], [emb_BFd[:num_samples] for emb_BFd in embeddings])
    except HotsetError as error:
        raise HotsetError(
            str(error),
            hint="the smallest training batch is so small: use --last-batch merge or drop, or pack with "
            "another --batch-size",
        ) from error


def _refuse_other_numbers(model: UserModel) -> None:
    for name, parameter in model.module.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"the parameter {name} of the model {model.name} is {parameter.dtype}, want torch.float32",
                hint="keep it in float32: --dense-dtype bf16 computes in bfloat16 with such parameters",
            )


def _refuse_dependent_samples(
    model: UserModel, logit_B: torch.Tensor, inputs: list[torch.Tensor], *, draws: bool, changed: list[str]
) -> None:
    """Raise ConfigError if samples of a module that claims so are not independent."""
    reason = None
    if draws:
        reason = "it draws random numbers, as dropout does"
    elif changed:
        reason = f"it changes its buffer {changed[0].removeprefix('module.')}, as batch normalization does"
    else:
        # The first logits have no gradient by the inputs of another sample.
        grads = torch.autograd.grad(logit_B[0].sum(), inputs, allow_unused=True)
        if any(grad is not None and bool(grad[1:].any()) for grad in grads):
            reason = "a logit depends on other samples of its batch"
    if reason:
        raise ConfigError(
            f"the model {model.name} has {PER_SAMPLE} = True, but {reason}", hint=f"remove {PER_SAMPLE}"
        )


def build_model(
    config: ModelConfig,
    inputs: ModelInputs,
    seed: int,
    model_source: ModelSource | None = None,
    least_samples: int | None = None,
) -> DenseModel:
    """Build a model with its initial values.

    Args:
        least_samples: samples of the smallest batch of the training to come, where there is one.

    Raises:
        ConfigError: there is no such class, or it is no model for these inputs.
        ShardError: nothing interacts, or there is no history for a model of histories.
    """
    if config.batch_norm and least_samples == 1:
        raise ConfigError(
            "--batch-norm needs batches of two samples at least, and one of these has a single one",
            hint="use --last-batch merge or drop, or pack with another --batch-size",
        )
    if config.kind == "dlrm":
        sizes = (inputs.num_dense, len(inputs.tables), inputs.embedding_dim, inputs.table_dims)
        shape = dlrm_shape((config.bottom_widths, config.top_widths), *sizes)
        shape = replace(shape, dropout=config.dropout, batch_norm=config.batch_norm)
        return Dlrm(replace(shape, num_logits=inputs.num_logits), seed)
    if config.kind == "dcnv2":
        from .model.dcn import Dcn

        return Dcn(DcnShape(inputs.num_dense, inputs.table_dims, config, inputs.num_logits), seed)
    if config.kind == "tbsm":
        from .model.tbsm import Tbsm, TbsmShape

        are_histories = tuple(table.is_multi_hot for table in inputs.tables)
        dims = (inputs.embedding_dim, inputs.table_dims)
        model = Tbsm(TbsmShape(inputs.num_dense, *dims, are_histories, config, inputs.num_logits), seed)
        lists = [table.name for table in inputs.tables if table.is_multi_hot]
        model.histories = dict.fromkeys(lists, model.shape.num_elements)
        return model
    chosen = model_source or import_class(config.name)
    module = build_module(chosen, config.name, seed, inputs, **parse_arguments(config.arguments))
    own = UserModel(module, config.name, inputs)
    try_model(own, seed, least_samples)
    return own


def pooled_step(
    step: DenseStep, model: DenseModel, pooling: Pooling, tables: Sequence[EmbeddingTable]
) -> DenseStep:
    """Return the step of a model on embeddings pooled as it and ``pooling`` say.

    Args:
        tables: with the histories of the model.

    Raises:
        ConfigError: there are lists, and none that is pooled.
    """
    lists = multi_hot(tables)
    if pooling == "mean" and lists:
        if all(feature.name in model.histories for feature in lists):
            raise ConfigError(
                "--pooling decides nothing: the model takes the elements of all lists one by one",
                hint="leave --pooling out",
            )
        step = MeanPooling(step, tables)
    return HistoryStep(step, tables, are_equal=model.has_equal_histories) if model.histories else step


Predicts = Literal["probability", "value"]


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A user's function, whose faults are reported as such."""

    name: str
    function: Any

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the losses of samples, (B,) or (B, L)."""
        with explained(f"the loss {self.name}"):
            losses = self.function(logits, labels, weights)
        if isinstance(losses, torch.Tensor) and losses.shape in (logits.shape, logits.shape[:1]):
            return losses
        found = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ConfigError(
            f"the loss {self.name} returned {found} for logits of shape {tuple(logits.shape)}, "
            f"want ({logits.shape[0]},)",
            hint="return the loss of each sample: no mean and no sum over the batch",
        )


LossSource = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A user's loss as a function. Where it may be None, the one that the config names is imported."""


def predicts(name: str | None, source: LossSource | None = None) -> Predicts:
    """Return what the logits of a run with this loss predict; None is the log loss.

    Raises:
        ConfigError: there is no such function, or its ``predicts`` is something else.
    """
    if name is None:
        return "probability"
    found = getattr(source or import_named(name, "loss", "function"), "predicts", "probability")
    if found not in ("probability", "value"):
        raise ConfigError(f"the loss {name} has predicts = {found!r}, want 'probability' or 'value'")
    return cast(Predicts, found)


def open_loss(name: str, num_logits: int, source: LossSource | None = None) -> OwnLoss:
    """Import a loss and try it on samples that are made up.

    Raises:
        HotsetError: it fails, or is no loss of single samples.
    """
    found = source or import_named(name, "loss", "function")
    if not callable(found):
        raise ConfigError(f"the loss {name} is no function, but {type(found).__name__}")
    loss = OwnLoss(name, found)
    shape = (_TRIED_SAMPLES, num_logits) if num_logits > 1 else (_TRIED_SAMPLES,)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").requires_grad_()
    labels = torch.randint(2, shape, generator=generator, dtype=torch.int64, device="cpu").float()
    losses = loss(logits, labels, torch.ones_like(labels))
    if not torch.isfinite(losses).all():
        raise ConfigError(
            f"the loss {name} returned {losses.detach().tolist()} for logits of about 1, want finite numbers",
            hint="look for a logarithm or a division by zero",
        )
    if not losses.requires_grad:
        raise ConfigError(f"the loss {name} does not depend on the logits", hint="it may detach them")
    (grad,) = torch.autograd.grad(losses[0].sum(), [logits])
    if bool(grad[1:].any()):
        raise ConfigError(
            f"the loss {name} of a sample depends on other samples of its batch",
            hint="a batch is cut for threads and ranks: return the loss of each sample by itself",
        )
    # A missing label has a weight of 0, and its loss would be that of a label of 0.
    if bool(loss(logits, labels, torch.zeros_like(labels)).any()):
        raise ConfigError(
            f"the loss {name} is not 0 where all weights are 0",
            hint="multiply by weights: a missing label has a weight of 0",
        )
    return loss
