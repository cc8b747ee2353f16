"""Commands that propose, export, check and repeat; completion in real shells, where every offer parses."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.schema.schema_file import read_schema
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.workflows.cli import main
from hotset.workflows.command_list import COMMANDS
from hotset.workflows.commands.data import SHELLS, all_options

KINDS = {"clicked": "label", "age": "dense", "user id": "text", "n": "integer"}
SCHEMA = """
format = "csv"
label = "clicked"
dense = ["age"]
[sparse]
"user id" = "text"
n = "integer"
"""


@pytest.fixture
def raw(tmp_path: Path, rng: np.random.Generator) -> Path:
    return write_csv(tmp_path / "log.csv", draw_log(90, KINDS, rng))


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(SCHEMA)
    return path


def test_a_proposal_goes_to_stdout_as_toml_or_json(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", str(raw), "--samples", "50"]) == 0
    shown = capsys.readouterr().out
    assert "Guessed from 50 rows, " in shown and read_schema(shown).label == "clicked"
    assert main(["schema", str(raw), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 90 and found["schema"]["label"] == "clicked"
    assert [column["name"] for column in found["columns"]] == ["age", "user id", "n"]


def test_no_rows_to_look_at_are_refused(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", str(raw), "--samples", "0"]) == 1
    assert capsys.readouterr().err == "error: samples must be 1 or more, got 0\n"


def test_a_schema_file_goes_all_the_way(
    tmp_path: Path, raw: Path, schema: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(raw), f"--schema={schema}", "--out", str(tmp_path / "a")]
    assert main(["preprocess", *arguments, "--batch-size", "8", "--hot-bytes", "512"]) == 0
    assert main(["ingest", str(raw), "--schema", str(schema), "--out", str(tmp_path / "b")]) == 0
    stages = {"count": "", "rank": "", "encode": "", "split": "--hot-bytes=512", "pack": "--batch-size=8"}
    for stage, option in stages.items():
        assert main([stage, str(tmp_path / "b"), *option.split()]) == 0
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")
    assert str(tmp_path) not in (tmp_path / "a/columns/manifest.json").read_text()
    assert main(["verify", str(tmp_path / "a"), "--inputs", str(raw)]) == 0
    assert main(["stats", str(tmp_path / "a"), "--json"]) == 0
    assert [table["name"] for table in Manifest.read(tmp_path / "a/shards").totals["tables"]] == [
        "user id",
        "n",
    ]
    capsys.readouterr()
    schema.write_text(SCHEMA.replace('"text"', '"integer"'))
    assert main(["preprocess", *arguments]) == 1
    assert "was written with schema = toml:" in capsys.readouterr().err


def test_another_log_gets_the_ids_of_a_schema_file(tmp_path: Path, raw: Path, schema: Path) -> None:
    model, out = str(tmp_path / "model"), tmp_path / "out"
    sizes = ["--batch-size", "8", "--hot-bytes", "512"]
    assert main(["preprocess", str(raw), "--schema", str(schema), "--out", model, *sizes]) == 0
    schema.unlink()
    assert main(["preprocess", str(raw), "--like", model, "--out", str(out)]) == 0
    assert Manifest.read(out / "shards").totals["samples"]["evaluation"] == 90
    assert Manifest.read(out / "columns").config == Manifest.read(tmp_path / "model/columns").config


def test_mistakes_are_one_error_line_and_a_hint(
    tmp_path: Path, raw: Path, schema: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("preprocess", "ingest"):
        arguments = [command, str(raw), "--out", str(tmp_path / "out"), "--schema"]
        assert main([*arguments, "movielens"]) == 1
        shown = capsys.readouterr().err
        assert "error: no schema 'movielens'\nhint: use one of ali-ccp, avazu, avazu-x1," in shown
        schema.write_text(SCHEMA.replace("label =", "lable ="))
        assert main([*arguments, str(schema)]) == 1
        shown = capsys.readouterr().err
        assert shown == f"error: {schema}: unknown key 'lable'\nhint: did you mean 'label'?\n"
        schema.write_text(SCHEMA.replace("n =", "m ="))
        assert main([*arguments, str(schema)]) == 1
        assert f"error: {raw} has no column 'm'\nhint: " in capsys.readouterr().err


@pytest.mark.real_data
def test_days_of_the_real_terabyte_log_are_kept_for_evaluation(tmp_path: Path, real_data: Path) -> None:
    day = real_data / "criteo_1tb_day0_head_8k.tsv.gz"
    arguments = ["preprocess", str(day), str(day), "--schema", "criteo-1tb", "--eval-files", "1"]
    assert main([*arguments, "--out", str(tmp_path / "out"), "--batch-size", "256"]) == 0
    shards = Manifest.read(tmp_path / "out/shards")
    assert shards.totals["samples"]["evaluation"] == 8000 and shards.totals["embedding_dim"] == 64
    assert main(["verify", str(tmp_path / "out"), "--inputs", str(day), str(day)]) == 0


@pytest.mark.real_data
def test_the_real_avazu_log_becomes_shards(tmp_path: Path, real_data: Path) -> None:
    raw, out = str(real_data / "avazu_train_head_10k.csv.gz"), str(tmp_path / "out")
    assert main(["preprocess", raw, "--schema", "avazu", "--out", out, "--hot-bytes", "64KiB"]) == 0
    totals = Manifest.read(tmp_path / "out/shards").totals
    assert sum(totals["samples"].values()) == 9999 and totals["samples"]["evaluation"] == 999
    assert (len(totals["tables"]), totals["dense"]) == (22, [])
    assert main(["verify", out, "--inputs", raw]) == 0 and main(["stats", out]) == 0


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A preprocessed log of 300 samples, a fifth of them for evaluation."""
    monkeypatch.chdir(tmp_path)
    generate(GenerateConfig(samples=300, scale=1000), tmp_path / "log.tsv", workers=1)
    words = ["preprocess", "log.tsv", "--out", "data", "--eval-fraction", "0.2", "--workers", "1", "-q"]
    assert main(words) == 0
    return "data"


def test_files_and_samples_are_named(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-shards", data, "--out", "out", "--workers", "1", "-q"]) == 0
    *files, last = capsys.readouterr().out.splitlines()
    names = ["columns.json", "test.parquet", "train.parquet"]
    assert [line.split(":")[0] for line in files] == [f"out/{name}" for name in names]
    assert last == "samples: 240 in train, 60 in test"
    assert main(["export-shards", data, "--out", "out2", "--to", "csv", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == "out2" and found["num_samples"] == {"train": 240, "test": 60}
    sizes = {file["name"]: file["num_bytes"] for file in found["files"]}
    assert sizes == {path.name: path.stat().st_size for path in Path("out2").iterdir()}


def test_a_folder_that_exists_is_refused_in_a_line(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-shards", data, "--out", data, "-q"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "error: data exists"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["recipe", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_defaults_are_written_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys)
    found = tomllib.loads(text)
    assert found["train"]["placement"] == "lookahead" and found["preprocess"]["hot_bytes"] == "auto"
    assert "# embedding_lr is not set\n" in text
    (tmp_path / "recipe.toml").write_text(text)
    assert printed(capsys, tmp_path / "recipe.toml") == text
    (tmp_path / "part.toml").write_text("[train]\nepochs = 4\n")
    part = tomllib.loads(printed(capsys, tmp_path / "part.toml"))
    assert part.keys() == {"train"} and part["train"]["epochs"] == 4 and part["train"]["cache_batches"] == 1
    assert json.loads(printed(capsys, "--json", tmp_path / "part.toml"))["train"]["epochs"] == 4


def test_an_experiment_is_repeated_from_what_its_folders_say(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--hot-bytes", "40KiB", "--batch-size", "64", "--valid-fraction", "0.1", "--min-count", "2"]
    assert main(["preprocess", str(log), "--out", str(tmp_path / "first"), *options]) == 0
    options = ["--threads", "1", "--warmup-steps", "3", "--embedding-decay", "0.01", "--bottom-mlp", "8,4"]
    assert main(["train", str(tmp_path / "first"), "--out", str(tmp_path / "run"), *options]) == 0
    recipe = tmp_path / "experiment.toml"
    recipe.write_text(printed(capsys, tmp_path / "first", tmp_path / "run"))
    again = str(tmp_path / "again")
    assert main(["preprocess", str(log), "--out", again, "--recipe", str(recipe)]) == 0
    assert main(["train", again, "--out", str(tmp_path / "other"), "--recipe", str(recipe)]) == 0
    for name in ("first/shards/manifest.json", "run/weights.safetensors"):
        other = name.replace("first", "again").replace("run", "other")
        assert (tmp_path / name).read_bytes() == (tmp_path / other).read_bytes()


def test_a_schema_of_ones_own_is_not_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("click,age,site\n" + "1,3,a\n0,4,b\n" * 40)
    (tmp_path / "log.toml").write_text(
        'format = "csv"\nlabel = "click"\ndense = ["age"]\n[sparse]\nsite = "text"\n'
    )
    arguments = [str(tmp_path / "log.csv"), "--schema", str(tmp_path / "log.toml"), "--batch-size", "16"]
    assert main(["preprocess", *arguments, "--out", str(tmp_path / "dir")]) == 0
    assert "# schema is in a file of your own: name it\n" in printed(capsys, tmp_path / "dir")


def test_what_has_no_options_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["recipe", str(tmp_path / "empty")]) == 1
    assert "is neither a folder of preprocess nor a run of train" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    for text in ("{", "[]", '{"config": 3}', '{"config": {"epochs": "x"}}', '{"config": {"recipe": []}}'):
        (tmp_path / "run/config.json").write_text(text)
        assert main(["recipe", str(tmp_path / "run")]) == 1
        assert "error: " in capsys.readouterr().err


COMPLETE = """
source "$0"
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_hotset
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    commands = all_options()
    for shell, script in SHELLS.items():
        (folder / shell).write_text(script(commands))
    return {shell: folder / shell for shell in SHELLS}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["st"], {"stats"}),
        (["ev"], {"evaluate"}),
        (["train", "--embedding-o"], {"--embedding-optimizer"}),
        (["train", "DIR", "--embedding-optimizer", "a"], {"adagrad", "adam"}),
        (["preprocess", "--no-l"], {"--no-label"}),
        (["preprocess", "log.tsv", "--out", ""], {""}),  # bash itself offers files there
        (["preprocess", "lo"], {""}),
        (["completion", "--q"], {"--quiet"}),
    ],
)
def test_bash_offers_what_can_stand_there(
    typed: list[str], offered: set[str], scripts: dict[str, Path]
) -> None:
    command = ["bash", "--norc", "-c", COMPLETE, str(scripts["bash"]), "hotset", *typed]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (set(done.stdout.splitlines()), done.stderr) == (offered, "")


def test_bash_offers_every_command(scripts: dict[str, Path]) -> None:
    command = ["bash", "--norc", "-c", COMPLETE, str(scripts["bash"]), "hotset", ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == set(COMMANDS)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_every_offered_option_parses(
    command: str, scripts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An offer that takes no value is refused for what follows it, another for its missing value."""
    typed = ["bash", "--norc", "-c", COMPLETE, str(scripts["bash"]), "hotset", command, "--"]
    offers = set(subprocess.run(typed, capture_output=True, text=True, check=True).stdout.split())
    assert {"--help", "--quiet"} <= offers
    # All three scripts offer the same.
    lines = [line for line in scripts["fish"].read_text().splitlines() if f"from {command}'" in line]
    in_fish = {f"--{line.split(' -l ')[1].split()[0]}" for line in lines}
    assert in_fish == offers - {"--help", "--help-all"}
    assert scripts["bash"].read_text() in scripts["zsh"].read_text()
    for offer in offers - {"--help", "--help-all"}:
        with pytest.raises(SystemExit) as stopped:
            main([command, offer, "--no-such-option"])
        assert stopped.value.code == 2
        said = capsys.readouterr().err.splitlines()[0]
        takes_value = said == f"error: {offer} needs a value"
        assert takes_value or said == f"error: hotset {command} has no option --no-such-option"


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_what_can_stand_there(scripts: dict[str, Path]) -> None:
    for typed, offered in (("st", "stats"), ("train --embedding-o", "--embedding-optimizer")):
        program = f"source {scripts['fish']}; complete -C 'hotset {typed}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True
        )
        assert offered in done.stdout.split()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(scripts: dict[str, Path]) -> None:
    program = f"source {scripts['zsh']} && print $_comps[hotset]"
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert "_hotset" in done.stdout


def test_a_line_of_help_stands_beside_each_name_in_fish(scripts: dict[str, Path]) -> None:
    text = scripts["fish"].read_text()
    assert text.count(" -a train -d 'train a model on shards'") == 1
    assert " -l out -r -d 'New folder for the run: weights, summary, metrics'" in text
