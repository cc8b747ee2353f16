"""Hints of dense models: their options, and a user's own module in a file or from Python."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import hotset
from hotset.tests.support.hints import Shell, follows, hint_of

TRAIN = ("train", "data", "--threads", "1", "--out", "new")
PACKED = ("preprocess", "log.tsv", "--eval-fraction", "0", "--order", "original", "--out")
OWN = (*TRAIN, "--model", "nets:Net")
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, hidden=2):
        super().__init__()
        self.first = torch.nn.Linear(inputs.num_dense + inputs.total_dim, hidden)
        self.last = torch.nn.Linear(hidden, 1)

    def forward(self, dense, embeddings):
        hidden = self.first(torch.cat([dense, *embeddings.values()], dim=1))
        return self.last(hidden).squeeze(1)
"""
"""A module that can be trained; the cases put a fault into it and take it out again."""
Editor = Callable[[str, str], None]


@pytest.fixture
def edit(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Editor]:
    """Writes `NET` to nets.py with one part replaced by another; it is imported anew, as by a new command."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(old: str, new: str) -> None:
        assert old in NET
        Path("nets.py").write_text(NET.replace(old, new))
        sys.modules.pop("nets", None)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("nets", None)


def repaired(shell: Shell, edit: Editor, *options: str) -> None:
    """Train the module without a fault."""
    edit("", "")
    shell.works(*OWN, *options)


@follows("train/config.py::refuse_unknown_model", "train/advice.py::_shape_of")
def test_a_model_is_named(shell: Shell, edit: Editor) -> None:
    hint = shell.refused(*TRAIN, "--model", "kagle")
    assert hint == shell.refused("advise", "data", "--model", "kagle") == "did you mean 'kaggle'?"
    shell.works("advise", "data", "--model", "kaggle")
    hint = shell.refused(*TRAIN, "--model", "Net")
    assert hint.startswith("for a class Net in the file nets.py write")
    edit("", "")
    shell.works(*TRAIN, "--model", hint.split()[-1])


@follows("train/model/shapes.py::preset_widths")
def test_a_model_of_another_width(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "--model", "terabyte")
    assert hint == "use --model auto, or preprocess with --embedding-dim 64"
    shell.works(*TRAIN, *hint.removeprefix("use ").split(",")[0].split())
    shell.works("preprocess", "log.tsv", "--out", "wide", *hint.split()[-2:])
    shell.works("train", "wide", "--model", "terabyte", "--threads", "1", "--out", "other")


@follows("train/model/choose_model.py::_refuse_options")
def test_an_option_of_another_model(shell: Shell, edit: Editor) -> None:
    arguments = ("--model-args", '{"hidden": 3}')
    assert shell.refused(*TRAIN, *arguments).endswith("--model package.module:Class")
    assert shell.refused(*OWN, "--top-mlp", "3") == "give your class its widths in --model-args"
    assert shell.refused(*OWN, "--dropout", "0.2").startswith("give your class such layers: torch.nn.Dropout")
    repaired(shell, edit, *arguments)
    # An option of the cross network, in a run of its own.
    cross = (*TRAIN[:-1], "other", "--cross-layers", "1")
    hint = shell.refused(*cross)
    assert hint == "it belongs to --model dcnv2"
    shell.works(*cross, *hint.split()[-2:])


@follows("train/build_model.py::build_model")
def test_a_single_sample_is_no_batch_to_normalize(shell: Shell) -> None:
    # Of 600 samples, one is left over.
    shell.works(*PACKED, "one", "--batch-size", "599")
    hint = shell.refused("train", "one", "--threads", "1", "--out", "new", "--batch-norm")
    assert hint == "pack with another --batch-size"
    shell.works(*PACKED, "two", "--batch-size", "598")
    shell.works("train", "two", "--threads", "1", "--out", "new", "--batch-norm")


@follows("train/dense/graph_step.py::GraphStep.__init__")
def test_a_model_of_whole_batches_has_one_share(shell: Shell, edit: Editor) -> None:
    edit("", "")
    hint = shell.refused(*OWN, "--micro-batches", "2")
    shell.works(*OWN, *hint.removeprefix("use ").split(",")[0].split())
    edit("    def __init__", "    per_sample = True\n\n    def __init__")
    shell.works(*OWN[:-3], "other", *OWN[-2:], "--micro-batches", "2")


@follows("workflows/options.py::parse_widths")
def test_widths_are_written_with_commas(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "--top-mlp", "8 4")
    assert hint == "write them like 512,256, or none for an empty list"
    for number, widths in enumerate(("512,256", "none")):
        shell.works(*TRAIN[:-1], str(number), "--top-mlp", widths)


@follows("train/config.py::parse_arguments")
def test_arguments_are_json(shell: Shell, edit: Editor) -> None:
    hint = shell.refused(*OWN, "--model-args", "hidden=64")
    repaired(shell, edit, "--model-args", hint.split("'")[1])


@follows("train/build_model.py::explained")
def test_verbose_shows_where_the_code_of_a_user_fails(shell: Shell, edit: Editor) -> None:
    edit("super().__init__()", "raise KeyError(hidden)")
    hint = shell.refused(*OWN)
    assert hint == "--verbose shows where the error was raised"
    status, _, err = shell.run(*OWN, hint.split()[0])
    assert status == 1 and 'nets.py", line 6, in __init__' in err
    repaired(shell, edit)


@follows(
    "train/build_model.py::import_class#2",
    "train/build_model.py::import_class#3",
    "train/build_model.py::import_class#4",
)
def test_a_class_is_found_in_the_current_folder(
    shell: Shell, edit: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("torch.nn.Module", "object")
    Path("elsewhere").mkdir()
    with monkeypatch.context() as patched:
        patched.chdir("elsewhere")
        hint = shell.refused("train", "../data", "--model", "nets:Net", "--out", "new")
        assert hint == "run hotset in the folder that holds nets.py, or install it"
        patched.setattr(sys, "path", [path for path in sys.path if not path.endswith("elsewhere")])
    assert shell.refused(*TRAIN, "--model", "nets:Nett") == "did you mean 'Net'?"
    assert shell.refused(*OWN) == "derive the class from it"
    repaired(shell, edit)


@follows("train/build_model.py::import_class")
def test_a_class_made_inside_a_program_is_given_from_python(shell: Shell) -> None:
    class Inner(nn.Module):
        def __init__(self, inputs: hotset.ModelInputs) -> None:
            super().__init__()
            self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)

        def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
            logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
            return logits.squeeze(1)

    hotset.fit("data", "new", model=Inner, threads=1)
    hint = shell.refused("evaluate", "new", "data")
    assert hint.startswith("give it from Python as model=, or put the class in a file")
    hotset.evaluate("new", "data", model=Inner)


@follows("train/build_model.py::UserModel.logits")
def test_logits_have_one_dimension(shell: Shell, edit: Editor) -> None:
    edit(".squeeze(1)", "")
    assert shell.refused(*OWN) == "return logits.squeeze(1)"
    edit(".squeeze(1)", ".mean()")
    assert shell.refused(*OWN) == "return one logit of each sample"
    repaired(shell, edit)


@follows("train/build_model.py::try_model")
def test_layers_are_attributes_or_in_a_list_of_modules(shell: Shell, edit: Editor) -> None:
    changes = {
        "self.first = ": "self.layers = ",
        "self.first(": "self.layers[0](",
        "self.last(": "self.layers[1](",
    }
    listed = NET
    for old, new in changes.items():
        listed = listed.replace(old, new)
    listed = re.sub(r"self.layers = (.*)\n *self.last = (.*)", r"self.layers = [\1, \2]", listed)
    edit(NET, listed)
    hint = shell.refused(*OWN)
    assert hint == "layers must be attributes of the module, or be in a torch.nn.ModuleList"
    edit(NET, re.sub(r"= (\[.*\])", r"= torch.nn.ModuleList(\1)", listed))
    shell.works(*OWN)


@follows("train/build_model.py::try_model#2")
def test_logits_are_finite_before_any_training(shell: Shell, edit: Editor) -> None:
    edit("return self.last(hidden)", "return self.last(torch.log(-hidden**2))")
    assert "a division by zero or a logarithm" in shell.refused(*OWN)
    repaired(shell, edit)


@follows("train/build_model.py::try_model#3")
def test_logits_depend_on_parameters(shell: Shell, edit: Editor) -> None:
    for ending in (".detach()", ".data"):
        edit(".squeeze(1)", f".squeeze(1){ending}")
        assert shell.refused(*OWN) == "forward() may detach them, or run under torch.no_grad()"
    repaired(shell, edit)


@follows("train/build_model.py::_try_smallest")
def test_batch_normalization_needs_more_samples_than_one(shell: Shell, edit: Editor) -> None:
    edit("self.last(hidden)", "self.last(torch.nn.functional.batch_norm(hidden, None, None, training=True))")
    shell.works("pack", "data", "--redo", "--batch-size", "1")
    hint = shell.refused(*OWN)
    assert hint == "the smallest training batch is so small: pack with another --batch-size"
    shell.works("pack", "data", "--redo", "--batch-size", "100")
    shell.works(*OWN)


@follows("train/build_model.py::_refuse_other_numbers")
def test_parameters_are_float32(shell: Shell, edit: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    half = NET.replace("Linear(hidden, 1)", "Linear(hidden, 1).bfloat16()")
    edit(NET, half.replace("self.last(hidden)", "self.last(hidden.bfloat16())"))
    hint = shell.refused(*OWN)
    assert hint == "keep it in float32: --dense-dtype bf16 computes in bfloat16 with such parameters"
    monkeypatch.setattr("hotset.train.build_embeddings.cpu_features", lambda: frozenset({"amx_bf16"}))
    repaired(shell, edit, *hint.split()[4:6])


@follows("train/build_model.py::_refuse_dependent_samples")
def test_samples_that_depend_on_each_other(shell: Shell, edit: Editor) -> None:
    name = "class Net(torch.nn.Module):"
    mixing = NET.replace("self.last(hidden)", "self.last(hidden - hidden.mean(0))")
    edit(NET, mixing.replace(name, f"{name}\n    per_sample = True"))
    assert shell.refused(*OWN) == "remove per_sample"
    edit(NET, mixing)
    shell.works(*OWN)


@follows("train/fit.py::_with_settings", "train/fit.py::FittedRun.table")
def test_settings_and_tables_are_named_in_python(shell: Shell) -> None:
    hint = hint_of(lambda: hotset.fit("data", "new", threads=1, epoch=1))
    assert hint == "did you mean 'epochs'?"
    run = hotset.fit("data", "new", threads=1, epochs=1)
    hint = hint_of(partial(run.table, "C01"))
    run.table(hint.split("'")[1])
