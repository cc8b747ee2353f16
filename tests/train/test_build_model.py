"""Every model under every placement: the bits of all-fast, and runs that are evaluated again.

A user's module: how it is found, built and tried. Tests `build_model` and `shapes`, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import LinearNet
from hotset.train.build_model import (
    build_model,
    import_class,
    name_of,
    open_loss,
    predicts,
    warn_of_probabilities,
)
from hotset.train.config import TrainConfig
from hotset.train.config_parts import ModelConfig
from hotset.train.evaluate import evaluate
from hotset.train.model.shapes import ModelInputs, TableInput
from hotset.train.run import RunOptions, train
from hotset.train.verify_run import verify_run

SPEC = ShardSpec(
    num_rows=(5, 40, 300, 60),
    num_hot=(5, 10, 20, 9),
    batch_size=16,
    num_hot_only=40,
    num_mixed=90,
    num_evaluation=40,
    multi_hot=(1,),
    table_dims=(4, 4, 2, 4),
)
FIELDS: dict[str, Any] = {"epochs": 2, "embedding_optimizer": "adagrad", "staging_bytes": 3000}


class Net(nn.Module):
    """Batch normalization, dropout and a buffer of whole numbers: all that depends on more than a sample."""

    def __init__(self, inputs: ModelInputs, hidden: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs.num_dense + inputs.total_dim)
        self.hidden = nn.Linear(inputs.num_dense + inputs.total_dim, hidden)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(hidden, 1)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = torch.relu(self.hidden(self.norm(torch.cat([dense, *embeddings.values()], dim=1))))
        logits: torch.Tensor = self.last(self.drop(hidden))
        return logits.squeeze(1)


NAME = f"{__name__}:Net"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


def weights_of(data: Path, out: Path, **fields: Any) -> bytes:
    train(data, TrainConfig(**FIELDS | fields), out)
    return (out / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    "model",
    [
        {"model": NAME, "pooling": "mean"},
        {"model": "dcnv2", "cross_rank": 3},
        {"model": "dlrm", "bottom_mlp": (6, 5), "top_mlp": (), "pooling": "mean"},
    ],
    ids=["own", "dcnv2", "dlrm"],
)
def test_all_placements_give_the_same_bits(model: dict[str, Any], data: Path, tmp_path: Path) -> None:
    wanted = weights_of(data, tmp_path / "all-fast", placement="all-fast", threads=1, **model)
    for placement in ("lookahead", "hybrid-dedup"):
        assert weights_of(data, tmp_path / placement, placement=placement, threads=2, **model) == wanted
    train(data, TrainConfig(**FIELDS | model, placement="fae"), tmp_path / "fae")
    config = TrainConfig(**FIELDS | model, placement="all-fast")
    train(data, config, tmp_path / "replay", RunOptions(replay=tmp_path / "fae"))
    found = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("fae", "replay")]
    assert found[0] == found[1] != wanted


@pytest.mark.parametrize(
    "model", [{"model": NAME, "model_args": '{"hidden": 5}'}, {"model": "dcnv2"}, {"top_mlp": (7,)}]
)
def test_a_run_is_evaluated_as_at_its_end(model: dict[str, Any], data: Path, tmp_path: Path) -> None:
    summary = train(data, TrainConfig(**FIELDS | model), tmp_path / "run")
    found = evaluate(tmp_path / "run", data)
    assert (found.auc, found.log_loss) == (summary.auc, summary.log_loss)
    assert verify_run(tmp_path / "run") == []


def test_each_step_draws_numbers_of_its_own(data: Path, tmp_path: Path) -> None:
    seeds: list[int] = []

    class Spy(Net):
        def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
            if self.training:
                seeds.append(torch.initial_seed())
            return super().forward(dense, embeddings)

    summary = train(data, TrainConfig(**FIELDS, model=NAME), tmp_path / "run", RunOptions(model_source=Spy))
    assert len(set(seeds[1:])) == summary.num_steps  # the first was the trial


def test_buffers_are_among_the_weights(data: Path, tmp_path: Path) -> None:
    summary = train(data, TrainConfig(**FIELDS, model=NAME), tmp_path / "run")
    from safetensors.numpy import load_file

    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert weights["dense.module.norm.num_batches_tracked"] == np.int64(summary.num_steps)
    assert weights["dense.module.norm.running_mean"].any()


def test_a_model_from_python_is_recorded_by_its_name(data: Path, tmp_path: Path) -> None:
    class Local(Net):
        """A class that no other program can import."""

    source = Local
    name = f"{__name__}:{Local.__qualname__}"
    summary = train(
        data, TrainConfig(**FIELDS, model=name), tmp_path / "run", RunOptions(model_source=source)
    )
    assert json.loads((tmp_path / "run/config.json").read_text())["model"] == name
    with pytest.raises(HotsetError, match="was made inside a program"):
        evaluate(tmp_path / "run", data)
    assert evaluate(tmp_path / "run", data, model_source=source).auc == summary.auc


def test_another_class_than_the_runs_is_refused(data: Path, tmp_path: Path) -> None:
    train(data, TrainConfig(**FIELDS, model=NAME), tmp_path / "run")
    with pytest.raises(HotsetError, match=r"dense\.module\.hidden\.bias has the shape \(8,\), want \(9,\)"):
        evaluate(tmp_path / "run", data, model_source=lambda inputs: Net(inputs, 9))


def test_a_module_is_refused_before_rows_are_made(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="there is no module nowhere_at_all"):
        train(data, TrainConfig(**FIELDS, model="nowhere_at_all:Net"), tmp_path / "run")
    assert not any((tmp_path / "run").glob("*"))


INPUTS = ModelInputs(2, (TableInput("C1", 10, 4), TableInput("C2", 9, 3), TableInput("C3", 9, 4)), 4)
Rows = dict[str, torch.Tensor]
CONFIG = ModelConfig(kind="module", class_name="nets:Net")


def test_embeddings_come_by_table_in_order() -> None:
    seen: list[Rows] = []

    class Spy(LinearNet):
        def forward(self, dense: torch.Tensor, embeddings: Rows) -> torch.Tensor:
            seen.append(embeddings)
            return super().forward(dense, embeddings)

    model = build_model(CONFIG, INPUTS, 0, Spy)
    wide, narrow = torch.randn(5, 2, 4), torch.randn(5, 1, 3)
    assert model.logits(torch.rand(5, 2), [wide, narrow]).shape == (5,)
    assert list(seen[-1]) == ["C1", "C2", "C3"]
    assert all(
        torch.equal(found, wanted)
        for found, wanted in zip(seen[-1].values(), (wide[:, 0], narrow[:, 0], wide[:, 1]), strict=True)
    )


def test_initial_values_are_those_of_the_seed_and_nobody_elses_random_numbers_change() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    first, same, other = (build_model(CONFIG, INPUTS, seed, LinearNet).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), wanted)
    assert torch.equal(first["module.layer.weight"], same["module.layer.weight"])
    assert not torch.equal(first["module.layer.weight"], other["module.layer.weight"])


def test_arguments_reach_the_constructor() -> None:
    config = ModelConfig(kind="module", class_name="nets:Net", arguments='{"scale": 2.5}')
    module: Any = build_model(config, INPUTS, 0, LinearNet).module
    assert module.scale == 2.5


def test_a_module_is_copied() -> None:
    own = LinearNet(INPUTS)
    model = build_model(CONFIG, INPUTS, 0, own)
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert own.layer.weight.any()


def test_lazy_layers_get_their_sizes() -> None:
    class Lazy(LinearNet):
        def __init__(self, inputs: ModelInputs) -> None:
            super().__init__(inputs)
            self.layer = nn.LazyLinear(1)

    first, same = (build_model(CONFIG, INPUTS, 4, Lazy).state_dict() for _ in range(2))
    assert first["module.layer.weight"].shape == (1, 13)
    assert torch.equal(first["module.layer.weight"], same["module.layer.weight"])


class Normed(LinearNet):
    """Batch normalization before the layer."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(inputs.num_dense)

    def forward(self, dense: torch.Tensor, embeddings: Rows) -> torch.Tensor:
        return super().forward(self.norm(dense), embeddings)


def test_a_trial_leaves_the_statistics_as_they_are() -> None:
    state = build_model(CONFIG, INPUTS, 0, Normed).state_dict()
    assert int(state["module.norm.num_batches_tracked"]) == 0
    assert not state["module.norm.running_mean"].any()


def forwarding(function: Callable[[torch.Tensor], Any], **attributes: Any) -> type[nn.Module]:
    """A module whose forward() applies ``function`` to the logits of `LinearNet`."""

    class Changed(LinearNet):
        def forward(self, dense: torch.Tensor, embeddings: Rows) -> torch.Tensor:
            changed: torch.Tensor = function(super().forward(dense, embeddings))
            return changed

    for name, value in attributes.items():
        setattr(Changed, name, value)
    return Changed


def test_a_module_that_returns_probabilities_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    for function in (torch.sigmoid, lambda logit_B: torch.sigmoid(logit_B).clamp(0.01, 0.99)):
        caplog.clear()
        warn_of_probabilities(build_model(CONFIG, INPUTS, 0, forwarding(function), 7))
        (record,) = caplog.records
        assert record.getMessage().endswith("return logits, without a sigmoid at the end")


def test_a_run_says_that_its_module_returns_probabilities(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainConfig(**FIELDS, model="nets:Net")
    train(data, config, tmp_path / "run", RunOptions(model_source=forwarding(torch.sigmoid)))
    assert caplog.text.count("seems to return probabilities") == 1


def test_a_module_that_returns_logits_is_not_taken_for_another(caplog: pytest.LogCaptureFixture) -> None:
    def near_a_half(logit_B: torch.Tensor) -> torch.Tensor:
        return 0.5 + logit_B / 100

    def fragile(logit_B: torch.Tensor) -> torch.Tensor:
        if logit_B.abs().max() > 10:
            raise ValueError("such inputs are not expected")
        return torch.sigmoid(logit_B)

    for function in (near_a_half, torch.nn.functional.softplus, fragile):
        for seed in range(3):
            warn_of_probabilities(build_model(CONFIG, INPUTS, seed, forwarding(function), 7))
    for source in (LinearNet, Normed):
        warn_of_probabilities(build_model(CONFIG, INPUTS, 0, source, 7))
    assert not caplog.records


class NoLayers(nn.Module):
    """Keeps its layers where torch does not find them."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.layers = [nn.Linear(inputs.num_dense, 1)]

    def forward(self, dense: torch.Tensor, embeddings: Rows) -> torch.Tensor:
        logits: torch.Tensor = self.layers[0](dense)
        return logits.squeeze(1)


class Mixed(LinearNet):
    """Has a parameter of another type, which it does not use."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__(inputs)
        self.unused = nn.Parameter(torch.ones(1, dtype=torch.float64))


def fail(inputs: ModelInputs) -> nn.Module:
    raise KeyError("width")


FAULTS: dict[str, tuple[Any, str, str]] = {
    "a column": (
        forwarding(lambda logits: logits.unsqueeze(1)),
        r"returned shape \(7, 1\) for 7 samples, want \(7,\)",
        "return logits.squeeze(1)",
    ),
    "a mean": (forwarding(torch.mean), r"returned shape \(\) for 7 samples", "one logit of each sample"),
    "a tuple": (forwarding(lambda logits: (logits, 1)), "returned tuple", "one logit"),
    "NaN": (forwarding(lambda logits: logits * float("nan")), r"returned \[nan,", "division by zero"),
    "detached": (forwarding(torch.detach), "depend neither on its parameters nor", "no_grad"),
    "no parameters": (NoLayers, "has no parameters", "ModuleList"),
    "float64": (
        lambda inputs: LinearNet(inputs).double(),
        "failed in trained_models.py, line .*: RuntimeError",
        "",
    ),
    "unused float64": (Mixed, r"the parameter unused .* nets:Net is torch\.float64", ""),
    "a wrong width": (
        lambda inputs: LinearNet(ModelInputs(9, inputs.tables, 4)),
        r"nets:Net, on a batch of 7 samples, failed in trained_models.py, line \d+: RuntimeError: mat1",
        "--verbose",
    ),
    "constructor": (fail, r"constructor of nets:Net failed in test_build_model.py, line \d+: KeyError", ""),
    "no module": (lambda inputs: 3, "makes a int, want a torch.nn.Module", ""),
    "random tiles": (
        forwarding(nn.functional.dropout, per_sample=True),
        "has per_sample = True, but it draws random numbers",
        "remove per_sample",
    ),
    "mixed tiles": (
        forwarding(lambda logits: logits - logits.mean(), per_sample=True),
        "has per_sample = True, but a logit depends on other samples",
        "",
    ),
    "normalized tiles": (type("N", (Normed,), {"per_sample": True}), "but it changes its buffer norm.", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_module_that_cannot_be_trained_is_refused_in_one_line(name: str) -> None:
    source, message, hint = FAULTS[name]
    with pytest.raises(HotsetError, match=message) as refused:
        build_model(CONFIG, INPUTS, 0, source)
    assert "\n" not in str(refused.value) and hint in (refused.value.hint or "")


def test_batch_normalization_of_a_single_sample_is_refused_before_training() -> None:
    build_model(CONFIG, INPUTS, 0, Normed, least_samples=2)
    with pytest.raises(HotsetError, match=r"on a batch of 1 sample, failed .* more than 1 value") as refused:
        build_model(CONFIG, INPUTS, 0, Normed, least_samples=1)
    assert refused.value.hint is not None and "another --batch-size" in refused.value.hint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with modules of a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "user_nets.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    class Inner(torch.nn.Module): pass\nnot_a_class = 3\n"
    )
    (tmp_path / "user_broken.py").write_text("x = 1\nraise RuntimeError('no key\\nsecond line')\n")
    (tmp_path / "user_needy.py").write_text("import a_library_nobody_has\n")
    yield tmp_path
    for name in ("user_nets", "user_broken", "user_needy"):
        sys.modules.pop(name, None)


def test_a_class_of_the_current_folder_is_found(folder: Path) -> None:
    found = import_class("user_nets:Net")
    assert name_of(found) == "user_nets:Net"
    assert name_of(import_class("user_nets:Net.Inner")) == "user_nets:Net.Inner"
    assert name_of(found()) == "user_nets:Net"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("user_net:Net", "there is no module user_net, which", "the folder that holds user_net.py"),
        ("user_nets.inner:Net", "there is no module user_nets.inner", "holds user_nets/inner.py"),
        ("user_nets:Nett", r"user_nets\.py has no class Nett", "did you mean 'Net'?"),
        ("user_nets:not_a_class", r"is no torch\.nn\.Module", "derive"),
        ("user_broken:Net", r"user_broken failed in user_broken\.py, line 2: RuntimeError: no key\n", ""),
        ("user_needy:Net", r"user_needy\.py, line 1: ModuleNotFoundError: No module named 'a_lib", ""),
        ("os:system", r"os:system .* is no torch\.nn\.Module", ""),
        ("__main__:Net", "was made inside a program", "model="),
        ("nets:f.<locals>.Net", "was made inside a program", "model="),
    ],
)
def test_a_class_that_cannot_be_imported_is_explained(
    name: str, message: str, hint: str, folder: Path
) -> None:
    with pytest.raises(HotsetError, match=message) as refused:
        import_class(name)
    assert hint in (refused.value.hint or "")


LOSSES = """
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

def squared(logits, labels, weights):
    return weights * (logits - labels) ** 2

squared.predicts = "value"

def of_samples(logits, labels, weights):
    losses = bce(logits, labels, weights, reduction="none")
    return losses.sum(1) if losses.ndim > 1 else losses

def mean(logits, labels, weights):
    return bce(logits, labels, weights)

def unweighted(logits, labels, weights):
    return bce(logits, labels, reduction="none")

def detached(logits, labels, weights):
    return weights * (logits.detach() - labels) ** 2

def centered(logits, labels, weights):
    return weights * (logits - logits.mean()) ** 2

def wild(logits, labels, weights):
    return weights * torch.log(logits - 100)

def broken(logits, labels, weights):
    return labels.no_such_thing

def odd(logits, labels, weights):
    return weights * logits

odd.predicts = "counts"
number = 3
"""


@pytest.fixture
def losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "drawn_losses.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("drawn_losses", None)


@pytest.mark.parametrize("num_logits", [1, 3])
@pytest.mark.parametrize("name", ["squared", "of_samples"])
@pytest.mark.usefixtures("losses")
def test_a_loss_of_samples_is_taken(name: str, num_logits: int) -> None:
    loss = open_loss(f"drawn_losses:{name}", num_logits)
    logits = torch.zeros((5, num_logits) if num_logits > 1 else 5)
    found = loss(logits, torch.ones_like(logits), torch.ones_like(logits))
    wanted = num_logits * (1.0 if name == "squared" else 0.6931472)
    assert found.view(5, -1).sum(1).tolist() == pytest.approx([wanted] * 5)


LOSS_FAULTS = {
    "mean": r"^the loss drawn_losses:mean returned shape \(\) for logits of shape \(7,\), want \(7,\)\n",
    "unweighted": "^the loss drawn_losses:unweighted is not 0 where all weights are 0\n",
    "detached": "^the loss drawn_losses:detached does not depend on the logits\n",
    "centered": "^the loss drawn_losses:centered of a sample depends on other samples of its batch\n",
    "wild": r"^the loss drawn_losses:wild returned \[.*nan.*\] for logits of about 1, want finite numbers\n",
    "broken": "^the loss drawn_losses:broken failed in drawn_losses.py, line 30: AttributeError: ",
    "number": "^the loss drawn_losses:number is no function, but int$",
    "squard": "has no function squard\n",
}


@pytest.mark.parametrize("name", LOSS_FAULTS)
@pytest.mark.usefixtures("losses")
def test_what_is_no_loss_of_samples_is_refused(name: str) -> None:
    with pytest.raises(HotsetError, match=LOSS_FAULTS[name]):
        open_loss(f"drawn_losses:{name}", 1)


@pytest.mark.usefixtures("losses")
def test_a_function_says_what_it_predicts() -> None:
    names = (None, "drawn_losses:of_samples", "drawn_losses:squared")
    assert [predicts(name) for name in names] == ["probability", "probability", "value"]
    with pytest.raises(ConfigError, match="has predicts = 'counts', want 'probability' or 'value'"):
        predicts("drawn_losses:odd")


class TwoHeads(nn.Module):
    """A logit for each label, from one hidden layer."""

    def __init__(self, inputs: ModelInputs, num_more: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs.num_dense + inputs.total_dim, 8)
        self.heads = nn.Linear(8, len(inputs.labels) + num_more)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = torch.relu(self.hidden(torch.cat([dense, *embeddings.values()], dim=1)))
        logits: torch.Tensor = self.heads(hidden)
        return logits


class TwoHeadsBySample(TwoHeads):
    per_sample = True


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize(
    ("module", "loss"), [(TwoHeads, None), (TwoHeadsBySample, "drawn_losses:of_samples")]
)
def test_a_module_has_a_logit_of_each_label(
    module: type[nn.Module], loss: str | None, tmp_path: Path
) -> None:
    spec = replace(SPEC, labels=("click", "buy"), has_weight=True, multi_hot=())
    write_shards(tmp_path / "shards", spec)
    name = f"{__name__}:{module.__name__}"
    weights = [
        weights_of(tmp_path, tmp_path / placement, model=name, placement=placement, loss=loss)
        for placement in ("all-fast", "lookahead", "hybrid")
    ]
    assert weights[0] == weights[1] == weights[2]
    config = json.loads((tmp_path / "hybrid/config.json").read_text())
    assert config["labels"] == ["click", "buy"] and "predicts" not in config
    assert evaluate(tmp_path / "hybrid", tmp_path).num_samples > 20
    assert verify_run(tmp_path / "hybrid") == []
    with pytest.raises(
        ConfigError, match=r"returned shape \(7, 3\) for 7 samples, want \(7, 2\)\n"
    ) as caught:
        weights_of(tmp_path, tmp_path / "other", model=name, model_args='{"num_more": 1}')
    assert caught.value.hint == "return one logit of each sample and label, in this order: click, buy"


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize("model", ["small", "dcnv2"])
def test_values_are_learned_by_a_loss_of_the_user(model: str, tmp_path: Path) -> None:
    spec = replace(SPEC, labels=("seconds",), number_labels=("seconds",), num_mixed=300, multi_hot=())
    write_shards(tmp_path / "shards", spec)
    fields = {"model": model, "loss": "drawn_losses:squared", "epochs": 6, "log_every": 10}
    first = weights_of(tmp_path, tmp_path / "run", **fields)
    assert weights_of(tmp_path, tmp_path / "again", placement="hybrid", **fields) == first
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] / 2
    assert json.loads((tmp_path / "run/config.json").read_text())["predicts"] == "value"
