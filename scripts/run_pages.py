"""Run the code blocks of README and docs in order, as a user does, from a fresh wheel in a fresh environment.

    python scripts/run_pages.py                       # all pages
    python scripts/run_pages.py README.md             # what CI runs
    python scripts/run_pages.py --python VENV/bin/python docs/papers.md      # an environment that is there

Each page has its own folder with small generated logs, a preprocessed DIR and a trained RUN. There are fewer
samples and minutes than on the page, and a folder that a block writes is removed before. Blocks that no fresh
environment can run are skipped, with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
INDEX = "https://download.pytorch.org/whl/cpu"
EXTRAS = "train,report,onnx,ray,tensorboard"

FEWER = {
    "--samples 1000000": "--samples 60000",
    "--minutes 8": "--minutes 1",
    "hotset demo\n": "hotset demo --samples 20000\n",
}
"""What is shorter here than on the pages."""
SKIPPED = {
    r"workflows\.bench": "a benchmark of a checkout",
    r"^srun": "needs two machines",
    r"^md5sum|^hotset preprocess train\.csv valid\.csv": "needs the published files",
    r"day_0 … day_9": "an ellipsis stands for the other days",
    r"gpu|--device cuda": "needs a GPU",
    r"hotset\.torchrec|--engine torchrec": "needs TorchRec",
    r"FeatureMap|EmbeddingShardingPlanner|duckdb|taobao_train_t20": "needs another program or its files",
    r"^hotset train DIR --model (kaggle|mlperf)": "needs a log of that shape",
}
"""Reasons by a pattern that a line of a skipped block has."""
OTHERS = re.compile(r"^(make|git|pip|docker|python3 -m venv) .*\n(    .*\n)*", re.MULTILINE)
"""Lines of commands that need a checkout, a registry or Docker."""
BEFORE = {
    "new_id =": "cat > given.py <<END\n"
    "import numpy as np, pyarrow, pyarrow.ipc\n"
    "size = pyarrow.ipc.open_file('DIR/id_map/C1.arrow').get_batch(0).num_rows\n"
    "old_rows, new_rows = np.zeros((size, 4)), np.zeros((10 * size, 4))\nEND",
    "import gzip\n": "rm -rf data run exported; cp last.py given.py",
    "hotset preprocess day_0 day_1 day_2 --out DIR --extend\nhotset train": "rm -rf DIR RUN_1\n"
    "hotset preprocess -q day_0 day_1 --eval-files 1 --out DIR; hotset train -q DIR --out RUN_1",
    "hotset train DIR --init-table": "rm -rf DIR; hotset schema clicks.parquet > clicks.toml\n"
    "hotset preprocess -q clicks.parquet --schema clicks.toml --out DIR\n"
    "python -c 'import polars as pl; pl.DataFrame("
    '{"category": range(9), "vector": [[0.1] * 16] * 9}).write_parquet("items.parquet")\'',
    "hotset train DIR --model nets": "rm -rf DIR; hotset preprocess -q LOG --hot-bytes 256KiB --out DIR",
}
"""Commands before a block that begins so; ``given.py`` becomes the beginning of a program."""

PREPARE = """
hotset generate -q --samples 6000 --seed 1 --scale 300 --out log.tsv
gzip -k log.tsv; cp log.tsv.gz train.txt.gz; cp log.tsv train.txt; cp log.tsv LOG
head -2000 log.tsv > day_0; sed -n 2001,4000p log.tsv > day_1; tail -2000 log.tsv > day_2
hotset preprocess -q log.tsv --hot-bytes 256KiB --batch-size 512 --out DIR
hotset train -q DIR --max-steps 4 --out RUN0
hotset train -q DIR --out RUN
cp -r RUN RUN_1; mkdir FOLDER; cp -r RUN RUN0 FOLDER
"""
CLICKS = """
import gzip, numpy as np, polars as pl
rng = np.random.default_rng(0)
frame = pl.DataFrame({
    "clicked": rng.integers(0, 2, 6000),
    "ts": (np.arange(6000) + 1_700_000_000_000).astype("datetime64[ms]"),
    "price": rng.integers(0, 90, 6000),
    "user": rng.zipf(1.3, 6000) % 200,
    "item": rng.zipf(1.2, 6000) % 300,
    "site": rng.choice(["a", "b", "c"], 6000),
})
frame.write_parquet("clicks.parquet")
open("clicks.csv.gz", "wb").write(gzip.compress(frame.write_csv().encode()))
"""


class Block(NamedTuple):
    """Code of a page."""

    line: int
    kind: str
    """``sh``, or the language of a fence."""
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty for one that is."""
        for pattern, reason in SKIPPED.items():
            if re.search(pattern, self.text, re.MULTILINE):
                return reason
        return "" if OTHERS.sub("", self.text) else "needs a checkout, a registry or Docker"


def blocks_of(page: str) -> Iterator[Block]:
    """Yield commands, programs and files of settings of a page; text and formulas are left out."""
    lines = (ROOT / page).read_text().splitlines()
    number = 0
    while number < len(lines):
        first = number
        fence = re.match(r"```(\w*)$", lines[number])
        if fence:
            number = lines.index("```", number + 1)
            if fence[1] in ("python", "toml"):
                yield Block(first + 1, fence[1], "\n".join(lines[first + 1 : number]) + "\n")
        elif lines[number].startswith("    "):
            while number + 1 < len(lines) and lines[number + 1].startswith("    "):
                number += 1
            text = "\n".join(line[4:] for line in lines[first : number + 1])
            if re.match(r"[A-Z_]+=\S+ \w|(hotset|python3?|torchrun|pip|make|docker|srun|md5sum) ", text):
                yield Block(first + 1, "sh", text + "\n")
        number += 1


def run_block(block: Block, folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """Run a block in the folder of its page."""
    text = OTHERS.sub("", block.text)
    for whole, fewer in FEWER.items():
        text = text.replace(whole, fewer)
    # Another block of the page may have written the same folder; --extend goes on with it.
    for line in text.replace("\\\n", "").splitlines():
        for name in re.findall(r'(?:--out |fit\("DIR", ")(\w[\w.-]*)', line):
            if "--extend" not in line:
                shutil.rmtree(folder / name, ignore_errors=True)
                (folder / name).unlink(missing_ok=True)
    (folder / "given.py").unlink(missing_ok=True)
    for start, before in BEFORE.items():
        if text.startswith(start):
            check("preparation", run(["bash", "-euo", "pipefail", "-c", before], folder, python))
    if block.kind == "python":
        given = (folder / "given.py").read_text() if (folder / "given.py").exists() else ""
        (folder / "program.py").write_text(given + text)
        (folder / "last.py").write_text(text)
    if block.kind != "python":
        return run(["bash", "-euo", "pipefail", "-c", text], folder, python)
    # A program of ranks is started by their launcher.
    on_ranks = [str(python.parent / "torchrun"), "--nproc-per-node", "2"]
    launcher = on_ranks if "init_process_group" in text else [str(python)]
    return run([*launcher, "program.py"], folder, python)


def run(command: list[str], folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as in a shell whose environment is that of ``python``, without hotset's checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def check(what: str, done: subprocess.CompletedProcess[str]) -> None:
    """End with the output of a command that failed."""
    if done.returncode:
        sys.exit(f"{what} failed with status {done.returncode}:\n{done.stdout}")


def fresh_environment(folder: Path) -> Path:
    """Build a wheel and install it with the pinned versions; return the interpreter."""
    python = folder / "venv/bin/python"
    check("venv", run([sys.executable, "-m", "venv", str(folder / "venv")], folder, Path(sys.executable)))
    wheel = ["-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    check("pip wheel", run([str(python), *wheel], folder, python))
    (file,) = folder.glob("*.whl")
    install = ["-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{file}[{EXTRAS}]"]
    check("pip install", run([str(python), *install, "--extra-index-url", INDEX], folder, python))
    return python


def run_page(page: str, base: Path, folder: Path, python: Path) -> int:
    """Run the blocks of a page, print a line for each; return how many failed."""
    shutil.copytree(base, folder)
    failed = 0
    for block in blocks_of(page):
        title = f"{page}:{block.line}: {block.text.strip().splitlines()[0][:80]}"
        if block.kind == "toml":
            name = "experiment.toml" if "[train]" in block.text else "clicks.toml"
            (folder / name).write_text(block.text)
        elif block.reason:
            print(f"skipped     {title} ({block.reason})", flush=True)
        else:
            # A class that other blocks import.
            if block.kind == "python" and "class WideAndDeep" in block.text:
                (folder / "nets.py").write_text(block.text)
            started = time.monotonic()
            done = run_block(block, folder, python)
            state = "FAILED" if done.returncode else "ok"
            print(f"{state:<6} {time.monotonic() - started:3.0f} s {title}", flush=True)
            if done.returncode:
                failed += 1
                print(done.stdout, flush=True)
    return failed


def main() -> None:
    """Run the pages that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", default=PAGES, metavar="PAGE")
    parser.add_argument("--python", type=Path, help="interpreter of an environment with hotset")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = given.python.absolute() if given.python else fresh_environment(folder)
        base = folder / "base"
        base.mkdir()
        check("preparation", run(["bash", "-euo", "pipefail", "-c", PREPARE], base, python))
        check("preparation", run([str(python), "-c", CLICKS], base, python))
        for file in (ROOT / "docs/taobao.toml", *(ROOT / "docs/examples").glob("*.py")):
            shutil.copy(file, base)
        failed = sum(run_page(page, base, folder / page.replace("/", "-"), python) for page in given.pages)
    sys.exit(f"{failed} blocks failed" if failed else 0)


if __name__ == "__main__":
    main()
