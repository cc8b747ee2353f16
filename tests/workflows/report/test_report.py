"""The report as a whole: the page in a real browser, the series as Parquet, and the parts of the page.

Tests `page`, too.
"""

from __future__ import annotations

import html
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from altair.utils.schemapi import debug_mode

from hotset.pipeline.errors import HotsetError, format_byte_size, install_hint, parse_byte_size
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.statistics.folder import provenance as find_provenance
from hotset.pipeline.statistics.frequencies import SERIES, frequency_statistics
from hotset.stats.step_times import Machine
from hotset.tests.support.browser import Seen, open_page
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_csv
from hotset.train.advice import AdviceConfig, advise
from hotset.workflows.cli import main
from hotset.workflows.commands import stats
from hotset.workflows.commands.stats import write_html, write_parquet
from hotset.workflows.report.charts import _powers, published_points
from hotset.workflows.report.page import Advice, Page, advise_reader, build_page, render
from hotset.workflows.report.sentences import (
    budget_sentences,
    chosen_budget,
    drift_sentences,
    order_of,
    preprocess_command,
    recommended_rows,
    size_option,
)
from hotset.workflows.report.tables import advice_rows, text_table

SECTIONS = (
    "default-runs",
    "hot-samples",
    "hot-tables",
    "coverage",
    "categories",
    "labels",
    "missing",
    "dense",
    "drift",
    "policies",
    "unique-rows",
    "placements",
    "provenance",
)
CHARTS = tuple(name for name in SECTIONS if name not in ("categories", "provenance"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    generate(GenerateConfig(samples=4000, seed=1, scale=300), folder / "log.tsv", workers=1)
    arguments = [
        "preprocess",
        str(folder / "log.tsv"),
        "--out",
        str(folder / "<data>"),
        "--hot-bytes",
        "64KiB",
    ]
    assert main([*arguments, "--batch-size", "128", "--workers", "1"]) == 0
    return folder


@pytest.fixture(scope="module")
def statistics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(frequency_statistics(folder / "<data>")))
    found["provenance"]["command"] = preprocess_command(found["provenance"], folder / "<data>")
    return found


@pytest.fixture(scope="module")
def page(folder: Path, statistics: Any) -> Path:
    """The report; tests below write some by the command, too."""
    write_html(folder / "<data>", statistics, folder / "report.html")
    return folder / "report.html"


def charts_in(seen: Seen) -> dict[str, str]:
    """Return the content of each chart's element after the scripts ran."""
    pieces = re.split(r'<div class="chart[^"]*" id="chart-', seen.dom)[1:]
    return {piece.split('"')[0]: piece.split("<details")[0] for piece in pieces}


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_chart_without_a_word_or_a_request(
    page: Path, tmp_path: Path, dark: bool
) -> None:
    seen = open_page(page, tmp_path, dark=dark)
    assert seen.console == []
    assert seen.requests == []
    charts = charts_in(seen)
    assert tuple(charts) == CHARTS
    for name, drawn in charts.items():
        assert "<svg" in drawn and drawn.count("<path") > 3, name
    assert f'data-drawn="{len(CHARTS)}"' in seen.dom
    for label in ("lookahead", "exact counts", "all tables together", "measured", "hot lookups"):
        assert any(label in drawn for drawn in charts.values()), label


@pytest.mark.slow
def test_charts_are_those_of_their_schema(folder: Path, statistics: Any) -> None:
    page = build_page(folder / "<data>", statistics, advise(folder / "<data>", AdviceConfig(), Machine()))
    charts = {name: chart for section in page.sections for name, chart in section.charts.items()}
    assert tuple(charts) == CHARTS
    for chart in charts.values():
        # Here Altair checks every part, which the report leaves out, and raises where one is wrong.
        checked = chart()
        with debug_mode(False):
            assert chart() == checked


@pytest.mark.slow
def test_a_point_tells_its_numbers(page: Path, tmp_path: Path) -> None:
    points_at = """
    setTimeout(() => {
      const points = document.querySelectorAll("#chart-hot-samples svg .mark-symbol path[aria-label]");
      const point = points[points.length - 1], box = point.getBoundingClientRect();
      const at = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
      for (const kind of ["pointerover", "pointermove"]) point.dispatchEvent(new PointerEvent(kind, at));
    }, 3000);
    """
    before, after = page.read_text().rsplit("</body>", 1)
    (tmp_path / "tip.html").write_text(f"{before}<script>{points_at}</script></body>{after}")
    tip = open_page(tmp_path / "tip.html", tmp_path).dom.split('id="vg-tooltip-element"')[1]
    tip = tip.split("</table>")[0]
    assert "fully hot samples" in tip and "iB" in tip and "%" in tip and "undefined" not in tip


def test_the_browser_test_would_see_a_request_and_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<img src='http://example.com/x.png'><script>console.error('boo')</script>"
    )
    seen = open_page(tmp_path / "bad.html", tmp_path)
    assert seen.requests == ["http://example.com/x.png"] and "boo" in seen.console[0]


def test_the_page_holds_a_table_for_every_chart_and_names_nothing_outside(page: Path) -> None:
    text = page.read_text()
    own, *_ = text.split("<script>")
    assert re.findall(r'<section id="([a-z-]+)', own) == ["advice", *SECTIONS]
    assert re.findall(r'<a href="#([a-z-]+)', own) == [*SECTIONS]
    # All sections have numbers at a click but that of categories, whose table is shown.
    assert own.count("<summary>Details</summary>") == len(SECTIONS) - 1
    assert own.count("<summary>Details</summary><h3>") == 0 and own.count("<table") == len(SECTIONS) + 6
    assert "<h1>Embedding access report: log.tsv</h1>" in own
    assert "&lt;data&gt;" in own and "<data>" not in own
    assert "://" not in own and "url(" not in own
    assert len(text) < 2_000_000


def test_the_page_reports_what_the_series_hold(page: Path, statistics: Any) -> None:
    text = html.unescape(page.read_text())
    assert "64\N{NO-BREAK SPACE}KiB makes" in text, "a number and its unit stay on one line"
    text = re.sub("</?span>", "", text.replace("\N{NO-BREAK SPACE}", " "))
    for sentence in budget_sentences(statistics) + drift_sentences(statistics["drift"]):
        assert sentence in text
    chosen = next(budget for budget in statistics["budgets"] if budget["is_chosen"])
    assert f"The plan's 64 KiB makes {100 * chosen['hot_sample_share']:.1f}% of the samples" in text


def test_every_series_becomes_a_parquet_file(folder: Path, statistics: Any, tmp_path: Path) -> None:
    out = tmp_path / "a" / "series"
    assert main(["stats", str(folder / "<data>"), "--parquet", str(out)]) == 0
    found = {path.stem: pl.read_parquet(path) for path in out.iterdir()}
    nested = {
        "drift": ("parts", "pairs", "by_age"),
        "miss_ratios": ("curve",),
        "default_runs": ("placements",),
        "log": ("labels", "parts", "missing", "dense", "dense_bins"),
    }
    of_nested = {f"{name}_{key}" for name, keys in nested.items() for key in keys}
    assert set(found) == set(SERIES) - set(nested) | of_nested
    assert found["hot_samples"].rows(named=True) == statistics["hot_samples"]
    assert found["drift_pairs"].rows(named=True) == statistics["drift"]["pairs"]
    assert found["features"]["top_share_10"].to_list() == [
        feature["top_share"]["10"] for feature in statistics["features"]
    ]


@pytest.mark.slow
def test_names_that_are_not_utf_8_are_written(folder: Path, statistics: Any, tmp_path: Path) -> None:
    named = tmp_path / os.fsdecode(b"d\xff")
    named.symlink_to(folder / "<data>")
    write_html(named, statistics, tmp_path / os.fsdecode(b"p\xff.html"))
    assert "d?" in (tmp_path / os.fsdecode(b"p\xff.html")).read_text("utf-8")
    out = tmp_path / os.fsdecode(b"series\xff")
    written = write_parquet(statistics, out)
    # Polars reads from an open file where it takes no path.
    with open(out / "features.parquet", "rb") as file:
        assert pl.read_parquet(file).height == len(statistics["features"])
    assert len(written) == len(list(out.iterdir()))


def test_a_parquet_file_that_does_not_fit_on_the_disk_is_left_out(
    statistics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # imports would be cut short, too
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        with pytest.raises(HotsetError, match=r"features\.parquet cannot be written: File too large"):
            write_parquet(statistics, tmp_path / "series")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "series").iterdir()) == []


@pytest.mark.slow
def test_a_log_that_no_model_fits_and_that_has_no_whole_batch(tmp_path: Path, rng: Any) -> None:
    log = draw_log(60, {"label": "label", "n": "integer"}, rng)
    path = write_csv(tmp_path / "log.csv", log)
    (tmp_path / "schema.toml").write_text(schema_text(log))
    arguments = [
        "preprocess",
        str(path),
        "--schema",
        str(tmp_path / "schema.toml"),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*arguments, "--eval-fraction", "0"]) == 0
    assert main(["stats", str(tmp_path / "o"), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert 'id="placements"' not in text and 'id="policies"' not in text and 'id="drift"' in text
    assert "Warning: counts, ids and the hot set saw all 60 samples" in text
    seen = open_page(tmp_path / "page.html", tmp_path)
    assert seen.console == [] and "data-drawn" in seen.dom


def test_the_commands_of_the_page_run_as_they_are_printed(
    folder: Path, statistics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "<data>", "a folder")
    (tmp_path / "log.tsv").hardlink_to(folder / "log.tsv")
    # The page of the folder under the name that it has here.
    here = Path("a folder")
    provenance = statistics["provenance"] | {"command": preprocess_command(statistics["provenance"], here)}
    page = build_page(here, statistics | {"provenance": provenance}, advise(here, AdviceConfig(), Machine()))
    blocks = [one.commands for one in page.advice] + [section.commands for section in page.sections]
    lines = [line for own in blocks for _, own_lines in own for line in own_lines]
    commands = [shlex.split(line) for line in lines]
    assert {"split", "pack", "train", "advise", "stats", "preprocess"} <= {command[1] for command in commands}
    # The last one writes the folder as it was, with its own settings; the others have changed it.
    assert commands[-1][1] == "preprocess"
    commands[-1] += ["--redo", "ingest"]
    for program, *arguments in commands:
        assert program == "hotset" and main(arguments) == 0, arguments
    assert find_provenance(here)["fingerprints"] == provenance["fingerprints"]


def test_alternatives_are_blocks_of_their_own() -> None:
    """A block that is pasted is one alternative, without its name: a comment is an error in some shells."""
    commands = [("One", ["hotset a <x>", "hotset b"]), ("Or two", ["hotset c --an-option y"])]
    advice = [Advice("Memory", ["Much."], commands), Advice("Age", ["Old."])]
    shown = render(Page("t", [], advice, [], [])).partition("<nav")[0]
    blocks = re.findall("<pre>(.*?)</pre>", shown, re.DOTALL)
    # No browser breaks a line within an option.
    assert blocks == ["hotset a &lt;x&gt;\nhotset b", "hotset c <span>--an-option</span> y"]
    assert re.findall('name">(.*?)</p>', shown) == ["One:", "Or two:"]


def test_advice_without_columns_names_no_command_that_needs_them(statistics: Any, folder: Path) -> None:
    without = statistics | {"log": {key: [] for key in statistics["log"]}}

    def commands(statistics: Any) -> set[str]:
        advice = advise_reader(folder, statistics, None)
        lines = [line for one in advice for _, lines in one.commands for line in lines]
        return {line.split()[1] for line in lines}

    assert {"split", "pack", "train"} <= commands(statistics)
    assert commands(without) == commands(statistics | {"mode": "fae-code"}) == {"train"}


def test_one_recommendation_is_shown_and_no_other_block_gives_another_budget(
    statistics: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = advise_reader(folder, statistics, None)
    ((_, lines),) = first.commands
    # 64 KiB serve less than 90% of the lookups: the recommended rows do, in the sentence and in the command.
    chosen = chosen_budget(statistics)
    hot = recommended_rows(statistics)
    assert chosen["hot_lookup_share"] < 0.9 <= hot["hot_lookup_share"]
    size = size_option(hot["bytes"])
    assert f"--hot-bytes {size} " in lines[0] and lines[-1].endswith("--placement lookahead --out RUN")
    assert f"{format_byte_size(parse_byte_size(size))} of hot rows" in first.sentences[0]
    # Peeling keeps the number of hot rows of the plan.
    for line in (line for one in others for _, lines in one.commands for line in lines):
        if "--hot-bytes" in line:
            given = parse_byte_size(line.split("--hot-bytes ")[1].split()[0])
            assert given // statistics["row_bytes"] == chosen["num_hot_rows"]
    # A plan that serves enough is left as it is, and one that holds every row needs no other placement.
    enough = statistics | {"budgets": [hot | {"is_chosen": True}]}
    (((_, lines),), *_) = (one.commands for one in advise_reader(folder, enough, None))
    assert len(lines) == 1 and "lookahead" in lines[0]
    # So is one of the most bytes that auto takes, in a log that needs more.
    monkeypatch.setattr("hotset.workflows.report.sentences.MOST_AUTO_BYTES", chosen["bytes"])
    assert recommended_rows(statistics) is chosen
    every = order_of(statistics)[-1] | {"is_chosen": True}
    (all_fast, *_) = advise_reader(folder, statistics | {"budgets": [every]}, None)
    assert "all-fast" in all_fast.sentences[0] and "--placement all-fast" in all_fast.commands[0][1][0]


def test_the_first_chart_shows_the_bytes_that_placements_move(statistics: Any, folder: Path) -> None:
    first = build_page(folder, statistics, None).sections[0]
    ((name, chart),) = first.charts.items()
    bars = chart()["data"]["values"]
    moved = {row["placement"]: row["both per sample"] for row in bars}
    assert name == "default-runs" and set(moved) >= {"hybrid", "lookahead", "fae", "all-fast"}
    assert bars[0]["placement"] == "hybrid" and moved["all-fast"] == "0 B"
    # Predictions of a GPU come after all that was counted, and say whose they are.
    page = build_page(folder, statistics, advise(folder / "<data>", AdviceConfig(), Machine()))
    names = [section.name for section in page.sections]
    assert names.index("placements") > names.index("unique-rows")
    assert "typical GPU" in page.sections[names.index("placements")].title


def test_published_points_stand_at_the_bytes_of_as_many_rows() -> None:
    assert published_points(None) == []
    assert published_points(64) == [(4e6, 0.51), (20e6, 0.65), (140e6, 0.76)]
    assert published_points(128) == [(8e6, 0.51), (40e6, 0.65), (280e6, 0.76)]


def test_a_log_like_criteos_shows_them_and_says_at_which_rows(
    statistics: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "FAE's figures" not in build_page(folder, statistics, None).sections[1].text
    large = statistics | {"num_train_samples": 2_000_000}
    text = build_page(folder, large, None).sections[1].text
    assert (
        "(4 MB, 20 MB, 140 MB at 64 bytes per row), drawn at the bytes of as many rows of 128 bytes" in text
    )
    provenance = statistics["provenance"]
    split = provenance["settings"]["split"] | {"feature_dims": [["C3", 8]]}
    settings = provenance["settings"] | {"split": split}
    several = large | {"provenance": provenance | {"settings": settings}}
    assert "left out: rows have several widths" in build_page(folder, several, None).sections[1].text


@pytest.mark.parametrize(
    ("low", "high", "most", "wanted"),
    [
        (0, 5000, 9, [0, 1, 10, 100, 1000]),
        (0, 5000, 3, [0, 1, 100]),
        (-20, 9, 9, [-10, -1, 0, 1]),
        (-2, 5000, 9, [-1, 0, 1, 10, 100, 1000]),  # no -0.1 where 0 stands
        (-0.5, 9, 9, [-0.1, 0, 0.1, 1]),
        (0, 0, 9, [0]),
    ],
)
def test_powers_of_ten_are_between_the_ends(low: float, high: float, most: int, wanted: list[float]) -> None:
    assert _powers(low, high, most) == pytest.approx(wanted)


def test_predictions_have_two_digits(folder: Path) -> None:
    advice = advise(folder / "<data>", AdviceConfig(), Machine())
    for row in text_table("placements", advice_rows(advice)).rows:
        speed, step, *moved = row[2:6]
        for text in (speed, step, *moved):
            digits = re.sub(r"[^0-9.]", "", text).replace(".", "").strip("0")
            assert len(digits) <= 2, text


@pytest.mark.slow
@pytest.mark.real_data
def test_the_report_of_a_real_log(real_data: Path, tmp_path: Path) -> None:
    log = real_data / "criteo_kaggle_head_contiguous_15k.tsv.gz"
    out = str(tmp_path / "data")
    assert main(["preprocess", str(log), "--out", out, "--hot-bytes", "1MiB"]) == 0
    assert main(["stats", out, "--html", str(tmp_path / "page.html")]) == 0
    seen = open_page(tmp_path / "page.html", tmp_path)
    assert seen.console == [] and seen.requests == []
    assert tuple(charts_in(seen)) == CHARTS and f'data-drawn="{len(CHARTS)}"' in seen.dom


def test_what_cannot_be_written_is_one_line_before_any_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "frequency_statistics", None)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    for name, fault in (("no/x.html", "not a directory"), (".", "not a regular file"), ("link", "a link")):
        assert main(["stats", str(folder / "<data>"), "--html", str(tmp_path / name)]) == 1
        error, hint = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ") and error.endswith(f" is {fault}") and hint.startswith("hint: ")
    assert main(["stats", str(folder / "<data>"), "--parquet", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_without_the_drawing_packages_the_extra_is_named(folder: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['altair'] = None; from hotset.workflows.cli import main"
    program += f"; sys.exit(main(['stats', {str(folder / '<data>')!r}, '--html', 'x.html']))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: --html needs altair", f"hint: {install_hint('report')}"]


def test_too_few_addresses_for_the_engine_that_draws_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60 << 30, 60 << 30))
    assert main(["stats", str(folder / "<data>"), "--html", str(tmp_path / "page.html")]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: --html needs 80 GiB of addresses to draw, `ulimit -v` allows 60 GiB"
    assert hint == "hint: `ulimit -v unlimited`, or --json, which draws nothing"
    assert list(tmp_path.iterdir()) == []
