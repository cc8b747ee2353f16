"""Hints about what a stage cannot do with these settings, and about the machine it runs on."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import WorkerCrashedError

from hotset.pipeline.errors import install_hint, system_fault
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime import limits, ray_engine, tasks
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.fae import _appearances
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.pipeline.stages.pack import ShardBatches
from hotset.pipeline.stages.rank import RankConfig, rank
from hotset.tests.support.hints import Shell, follows, hint_of


def number_in(hint: str, option: str) -> str:
    """Return the value that a hint gives an option."""
    found = re.search(rf"{option} (\S+)", hint)
    assert found, hint
    return found[1]


@follows("pipeline/stages/fae.py::calibrate")
def test_fae_needs_ids_by_sampled_counts(shell: Shell) -> None:
    arguments = ["split", "data", "--mode", "fae-code", "--redo"]
    shell.obey(shell.refused(*arguments))
    shell.works(*arguments)
    shell.works("preprocess", "log.tsv", "--out", "other", "--mode", "fae-code")


@follows("pipeline/stages/fae.py::_by_threshold")
def test_small_tables_of_fae_get_their_bytes(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other", "--mode", "fae-paper", "--hot-bytes"]
    enough = number_in(shell.refused(*arguments, "1KiB"), "--hot-bytes")
    shell.works(*arguments, enough)


@follows("pipeline/stages/fae.py::_appearances")
def test_an_order_that_is_none_is_written_again(shell: Shell) -> None:
    vocabulary = Manifest.read(Path("data/vocabulary"))
    table = SimpleNamespace(name="C1")
    shell.obey(hint_of(lambda: _appearances(vocabulary, table, np.array([5, 5]))))  # type: ignore[arg-type]


@follows("pipeline/preprocess.py::resolved")
def test_fae_and_another_order(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other", "--mode", "fae-code", "--rank-by"]
    assert shell.refused(*arguments, "peel") == "use --rank-by sampled"
    shell.works(*arguments, "sampled")


@follows("pipeline/preprocess.py::remove_from")
def test_a_stage_to_redo_is_named(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "data", "--redo"]
    assert "ingest, count, rank" in shell.refused(*arguments, "ranks")
    shell.works(*arguments, "rank")


@follows("pipeline/dry_run.py::plan_run")
def test_a_dry_run_names_the_stages_too(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "data", "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert "ingest, count, rank" in shell.refused(*arguments, "--dry-run", "--redo", "ranks")
    shell.works(*arguments, "--dry-run", "--redo", "rank")


@follows("pipeline/stages/rank.py::_rank_table")
def test_too_many_rows_are_fewer_with_a_minimum(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.stages.rank._MAX_ROWS", 200)
    arguments = ["rank", "data", "--redo"]
    assert shell.refused(*arguments) == "raise --min-count"
    shell.works(*arguments, "--min-count", "4")


@follows("pipeline/stages/rank.py::_row_bytes")
def test_widths_of_rows_are_given_for_all_or_none(shell: Shell) -> None:
    def ranked(*features: str) -> None:
        settings = RankConfig(rank_by="peel", peel_row_bytes=FeatureSettings((name, 8) for name in features))
        rank(settings, counts, Path("ranks"), columns=Manifest.read(Path("data/columns")))

    counts = Manifest.read(Path("data/counts"))
    assert hint_of(lambda: ranked("C1")) == "name every feature, or none"
    ranked(*(f"C{number}" for number in range(1, 27)))


@follows("pipeline/stages/peel_order.py::refuse_peel_order")
def test_a_log_too_long_to_peel(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.stages.peel_order._MAX_SAMPLES", 10)
    assert shell.refused("rank", "data", "--rank-by", "peel", "--redo") == "use --rank-by frequency"
    shell.works("rank", "data", "--rank-by", "frequency", "--redo")


def test_peeling_in_little_memory(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.stages.row_order._SCRATCH_BYTES", 10 << 30)
    arguments = ["rank", "data", "--rank-by", "peel", "--redo", "--workers", "1", "--memory"]
    hint = shell.refused(*arguments, "300MiB")
    shell.works(*arguments, number_in(hint, "--memory"))


@follows("pipeline/stages/peel_order.py::_append_table")
def test_counts_that_are_not_of_these_columns(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["rank", "data", "--rank-by", "peel", "--redo"]
    with monkeypatch.context() as patched:
        patched.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", 0)
        patched.setattr("hotset.stats.ranking.peeling.append_samples", lambda *_: False)
        hint = shell.refused(*arguments)
    shell.obey(hint)


@follows("pipeline/stages/pack.py::ShardBatches._bags")
def test_a_batch_with_too_many_lookups(shell: Shell) -> None:
    batches: Any = SimpleNamespace(bag_starts=np.zeros((2, 1), np.int64))
    lengths = np.full((2, 1), 2**30, np.int32)
    assert hint_of(lambda: ShardBatches._bags(batches, np.arange(2), lengths)) == "lower --batch-size"
    shell.works("pack", "data", "--redo", "--batch-size", "64")


@follows(
    "pipeline/schema/schema.py::numbers_of",
    "pipeline/schema/schema.py::parse_feature_settings",
    "pipeline/errors.py::parse_byte_size",
)
def test_values_of_options_are_written_as_the_hint_has_them(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other"]
    hint = shell.refused(*arguments, "--feature-min-counts", "C33=2")
    right = hint.split("'")[1]
    assert "FEATURE=NUMBER" in shell.refused(*arguments, "--feature-min-counts", right)
    written = shell.refused(*arguments, "--hot-bytes", "1Mx").removeprefix("write bytes as ")
    for size in re.split(", | or ", written):
        shell.works(*arguments, "--feature-min-counts", f"{right}=2", "--hot-bytes", size, "--dry-run")


@follows("pipeline/stages/other_vocabulary.py::adopt", "pipeline/stages/other_vocabulary.py::adopt#2")
def test_a_model_of_another_schema(shell: Shell) -> None:
    Path("log.csv").write_text("click,C1\n" + "".join(f"{n % 2},c{n % 7}\n" for n in range(99)))
    schema = 'format = "csv"\nlabel = "click"\n[sparse]\nC1 = "text"\n'
    # Other features, then the same ones read in another way.
    Path("0.toml").write_text(schema)
    Path("2.toml").write_text(schema.replace('"text"', '{ kind = "text", list = true }'))
    shell.works("preprocess", "log.csv", "--schema", "0.toml", "--out", "model")
    arguments = ["preprocess", "log.csv", "--like"]
    assert "made with the same schema" in shell.refused(
        *arguments, "data", "--schema", "0.toml", "--out", "a"
    )
    assert "made with the same schema" in shell.refused(
        *arguments, "model", "--schema", "2.toml", "--out", "b"
    )
    shell.works(*arguments, "model", "--out", "c")


@follows("pipeline/stages/other_vocabulary.py::_pairs", "pipeline/stages/other_vocabulary.py::_pairs#2")
def test_maps_between_other_schemas(shell: Shell) -> None:
    Path("log.csv").write_text("click,C1\n" + "".join(f"{n % 2},c{n % 7}\n" for n in range(99)))
    Path("one.toml").write_text('format = "csv"\nlabel = "click"\n[sparse]\nC1 = "text"\n')
    shell.works("preprocess", "log.csv", "--schema", "one.toml", "--out", "model")
    data, model = (Manifest.read(Path(name, "vocabulary")) for name in ("data", "model"))
    assert "the same schema" in hint_of(lambda: map_ids(data, model, Path("map")))
    names = "".join(f'C{number} = "text"\n' for number in range(1, 27))
    header = ",".join(["click", *(f"C{number}" for number in range(1, 27))])
    Path("log.csv").write_text(
        header + "\n" + "".join(f"{n % 2}" + f",c{n % 7}" * 26 + "\n" for n in range(99))
    )
    Path("two.toml").write_text(f'format = "csv"\nlabel = "click"\n[sparse]\n{names}')
    shell.works("preprocess", "log.csv", "--schema", "two.toml", "--out", "wide")
    wide = Manifest.read(Path("wide", "vocabulary"))
    assert "the same schema" in hint_of(lambda: map_ids(data, wide, Path("map")))
    map_ids(data, data, Path("map"))


@follows("pipeline/preprocess.py::refuse_full_disk")
def test_a_disk_without_room(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("hotset.pipeline.preprocess.free_bytes", lambda _: 1000)
        hint = shell.refused("preprocess", "log.tsv", "--out", "other")
    assert hint.startswith("free ") and hint.endswith(" more there, or give another --out")
    shell.works("preprocess", "log.tsv", "--out", "another")


@follows("pipeline/runtime/memory.py::refuse_small_caps")
@pytest.mark.parametrize("workers", [["--workers", "1"], ["--workers", "3"]])
def test_too_little_memory(shell: Shell, workers: list[str]) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other", *workers, "--memory"]
    enough = number_in(shell.refused(*arguments, "1MiB"), "--memory")
    assert not Path("other").exists()
    # One hint does for every stage, and a mebibyte less for one of them at least does not.
    less = f"{int(enough.removesuffix('MiB')) - 1}MiB"
    assert number_in(shell.refused(*arguments, less), "--memory") == enough
    shell.works(*arguments, enough)


@follows("pipeline/runtime/tasks.py::use_engine")
def test_an_engine_is_named(shell: Shell) -> None:
    def use(name: Any) -> None:
        with tasks.use_engine(name):
            pass

    for name in hint_of(lambda: use("tread")).removeprefix("use one of ").split(", ")[:1]:
        use(name)


@follows("pipeline/runtime/tasks.py::_start_ray")
def test_the_extra_of_ray_is_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hotset.pipeline.runtime.ray_engine", None)
    hint = shell.refused("preprocess", "log.tsv", "--out", "other", "--engine", "ray")
    assert hint == install_hint("ray")
    monkeypatch.undo()
    installable(hint)


def installable(hint: str) -> None:
    """Check that a command of pip would install an extra that there is, without doing it."""
    command = hint.split(" install ")
    extra = re.search(r"\[(\w+)\]", command[1])
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    assert extra is not None and f"\n{extra[1]} = [" in project.read_text()
    subprocess.run(f"{command[0]} --version", shell=True, check=True, capture_output=True)


@follows(
    "pipeline/runtime/ray_engine.py::_refuse_unreachable",
    "pipeline/runtime/ray_engine.py::RayEngine._connect",
    "pipeline/runtime/ray_engine.py::RayEngine.refuse_too_many",
)
def test_a_cluster_that_does_not_answer(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    hint = shell.refused("preprocess", "log.tsv", "--out", "other", "--engine", "ray")
    assert "unset it to start one on this machine" in hint
    monkeypatch.delenv("RAY_ADDRESS")
    ray_engine._refuse_unreachable("")

    def fail(**_: object) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr("ray.init", fail)
    engine: Any = SimpleNamespace(_num_workers=2, _tasks={})
    assert "unset it" in hint_of(lambda: ray_engine.RayEngine._connect(engine))
    assert hint_of(lambda: ray_engine.RayEngine.refuse_too_many(engine, 3)) == "give fewer --workers"


@follows("pipeline/runtime/ray_engine.py::RayEngine.result")
def test_workers_that_are_killed_again_and_again(shell: Shell) -> None:
    killed: Future[None] = Future()
    killed.set_exception(WorkerCrashedError())
    engine: Any = SimpleNamespace(_tasks={killed: None})
    hint = hint_of(lambda: ray_engine.RayEngine.result(engine, killed))
    assert "fewer --workers need less; the same command resumes" in hint
    shell.works("preprocess", "log.tsv", "--out", "other", "--workers", "1")


@pytest.mark.parametrize(
    ("error", "commands"),
    [
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"), []),
        (OSError(errno.EMFILE, "Too many open files"), ["ulimit -n 4096"]),
        (RuntimeError("can't start new thread"), ["ulimit -u", "ulimit -v"]),
        (MemoryError(), ["ulimit -v"]),
    ],
)
@follows()
def test_limits_of_the_system_are_looked_at_as_printed(
    error: BaseException, commands: list[str], shell: Shell
) -> None:
    fault = system_fault("x", error)
    assert fault is not None and fault.hint is not None
    assert re.findall(r"`([^`]+)`", fault.hint) == commands
    for command in commands:
        subprocess.run(["bash", "-c", command], check=True, capture_output=True)


@follows(
    "pipeline/runtime/limits.py::refuse_few_addresses",
    "pipeline/runtime/limits.py::lost_library",
)
def test_a_limit_of_addresses_is_raised(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(limits, "addresses_left", lambda: 2**20)
        hints = [shell.refused("verify", "data", "--no-rebuild")]
        patched.setattr("hotset.pipeline.runtime.limits.refuse_few_addresses", lambda *arguments: None)
        patched.setattr("hotset.workflows.commands.verify.VerifyCommand.execute", unloaded)
        hints.append(shell.refused("verify", "data", "--no-rebuild"))
    commands = [re.findall(r"`([^`]+)`", hint) for hint in hints]
    assert len(commands[0]) == 1 and commands[1][1:] == ["ulimit -v unlimited"]
    # A process with as many addresses as the hint allows gets as far as its own errors.
    program = f"exec {sys.executable} -m hotset verify {shell.folder / 'missing'}"
    for command in (commands[0][0], commands[1][0]):
        ran = subprocess.run(
            ["bash", "-c", f"{command}; {program}"], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1 and "contains nothing that a stage wrote" in ran.stderr


def unloaded(*_: object) -> int:
    raise OSError("libx.so is lost")


@follows(
    "pipeline/errors.py::system_fault",
    "pipeline/errors.py::system_fault#2",
    "pipeline/errors.py::system_fault#3",
    "pipeline/errors.py::system_fault#4",
    "pipeline/errors.py::system_fault#5",
)
def test_what_the_system_refuses_is_renamed_or_raised(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_with(error: Exception) -> str:
        def fail(*_: object) -> Callable[[], None]:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("hotset.workflows.cli._run", fail)
            return shell.refused("stats", "data")

    assert fails_with(UnicodeEncodeError("utf-8", "\udcff", 0, 1, "x")) == "rename the file or its folder"
    hint = fails_with(UnicodeEncodeError("ascii", "é", 0, 1, "x"))
    assert _prints_columns_with({}) is False
    assert _prints_columns_with(dict(each.split("=") for each in re.findall(r"\w+=\S+", hint)))
    assert "fewer --workers" in fails_with(OSError(errno.EMFILE, "Too many open files"))
    assert "fewer --workers" in fails_with(RuntimeError("can't start new thread"))
    assert "fewer --workers" in fails_with(MemoryError())
    shell.works("preprocess", "log.tsv", "--out", "other", "--workers", "1")


def _prints_columns_with(variables: dict[str, str]) -> bool:
    """Whether a schema with a name outside ASCII is proposed to a caller that takes ASCII only."""
    Path("cities.csv").write_text("label,città\n1,x\n0,y\n", encoding="utf-8")
    command = [sys.executable, "-m", "hotset.workflows.cli", "schema", "cities.csv"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"} | variables
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0 or b"error: stdout: '\\xe0' cannot be written" in done.stderr
    return "città" in done.stdout.decode()
