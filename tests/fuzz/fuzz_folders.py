"""Crafted folders through everything that reads them: stages, trainer, `evaluate`, statistics, `verify`.

    python -m hotset.tests.fuzz.fuzz_folders --folders 10000

Each case edits a file of a preprocessed log, an id map, a run, a run that was interrupted, an unfinished
folder, a schema or a recipe: raw bytes, or values with every checksum computed anew, also those of the
folders made from it. Whatever reads the file must refuse it in one line that names it, or give what it gave
before. Only two kinds of other results are right: those of edits with new checksums that `verify` finds, and
scores by other weights of a run.

Workers are processes: one that ends by a signal or hangs is named with its case, and another one goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.disk import BEGUN, PARTIAL
from hotset.pipeline.folders.manifest import MANIFEST, checksum_of, hash_file
from hotset.pipeline.preprocess import INPUTS
from hotset.pipeline.verify import verify
from hotset.stats.step_times import Machine
from hotset.tests.fuzz import folder_readers as readers
from hotset.tests.fuzz.crafted_files import edit_bytes, edit_json, edit_values
from hotset.tests.fuzz.folder_readers import BEGUN_STAGES, make_folders, write_log
from hotset.tests.support.resealed import reseal_checkpoints, reseal_later_folders, write_manifest
from hotset.train.advice import AdviceConfig, advise
from hotset.train.evaluate import evaluate
from hotset.train.run_folder.files import CHECKPOINTS
from hotset.train.verify_run import verify_run

_HANG_SECONDS = 60
_MAKING_SECONDS = 600
_MOST_PRINTED = 6000
"""Characters of a worker's last words that the result keeps."""
_MEMORY_BYTES = 12 << 30
"""Address space of a worker: a number in a file that asks for more must be refused, not tried."""
_READERS_OF: dict[str, tuple[str, ...]] = {
    "columns": ("count", "encode", "pack", "adopt", "statistics", "tables", "advice"),
    "counts": ("rank", "statistics"),
    "vocabulary": ("encode", "split", "map-ids", "adopt", "statistics", "tables", "advice"),
    "samples": ("split", "pack", "statistics", "advice"),
    "plan": ("pack", "statistics", "tables", "advice"),
    "shards": ("train", "train-ranks", "rank-batches", "evaluate", "statistics", "advice"),
    "id_map": ("init-mapped",),
    "run": ("evaluate", "replay", "init-from", "predict"),
    "halted": ("resume-run",),
    "schema.toml": ("schema",),
    "recipe.toml": ("recipe",),
    **{name: (name,) for name in BEGUN_STAGES},
}
"""Readers of each folder, besides `verify`."""


_TEXTS = ("schema.toml", "recipe.toml")
"""Files that users write, which have no checksums."""
_IS_RIGHT = ("same", "refused", "other")


@dataclass(frozen=True, slots=True)
class Case:
    """One crafted folder."""

    path: Path
    """The edited file, relative to the folder of everything."""
    is_resealed: bool
    """Whether all checksums were computed anew."""
    outcomes: dict[str, str]
    """By reader: same, refused, other, or else what went wrong; empty where the edit changed nothing."""


class Crafter:
    """All kinds of folders, one file of which is edited at a time.

    Args:
        root: an empty folder, or one that a Crafter of the same seed has filled.
        seed: of the log and of every edit.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self._seed = seed
        self._config = write_log(root, seed)
        if not (root / "run" / MANIFEST).exists():
            make_folders(root, self._config)
        self._scratch = root / "scratch"
        self._edited = Path()
        self.readers = self._all_readers()
        self._wanted = {name: self._read(name) for name in self.readers}
        paths = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
        self._whole = {path: (root / path).read_bytes() for path in paths if _folder_of(path) in _READERS_OF}

    @property
    def files(self) -> list[Path]:
        """The files that are edited, relative to ``root``."""
        return list(self._whole)

    def _all_readers(self) -> dict[str, readers.Reader]:
        config = self._config
        stages = {stage: partial(readers.run_again, stage, getattr(config, stage)) for stage in INPUTS}
        begun = {name: partial(readers.resume, config, name, "log.parquet") for name in BEGUN_STAGES}
        return {
            **stages,
            **begun,
            "map-ids": readers.map_ids_again,
            "adopt": readers.adopt_again,
            "train": readers.train_again,
            "train-ranks": readers.train_on_ranks_again,
            "rank-batches": readers.read_rank_batches,
            "replay": partial(readers.train_again, replay="run"),
            "init-from": partial(readers.train_again, init_from="run"),
            "init-mapped": partial(readers.train_again, init_from="old_run"),
            "resume-run": readers.resume_run,
            "evaluate": lambda root, out: evaluate(root / "run", root / "dir").to_dict(),
            "predict": readers.predict_again,
            "statistics": readers.statistics_of,
            "tables": readers.tables_of,
            "advice": lambda root, out: advise(root / "dir", AdviceConfig(), Machine(), readers.ONE),
            "schema": readers.schema_of_file,
            "recipe": readers.recipe_of_file,
            "verify": readers.faults_of_dir,
            "verify --inputs": partial(readers.faults_of_dir, rebuild=True),
            "verify RUN": lambda root, out: verify_run(root / "run"),
            "verify halted": lambda root, out: verify_run(root / "halted"),
        }

    def _read(self, name: str) -> Any:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        return self.readers[name](self.root, self._scratch)

    def run(self, number: int) -> Case:
        """Craft folder ``number``, and let at it whatever reads it; then put it back as it was."""
        luck = random.Random(f"{self._seed} {number}")
        folder = luck.choice(list(_READERS_OF))
        path = luck.choice([path for path in self._whole if _folder_of(path) == folder])
        is_resealed = luck.random() < 0.6 and folder not in _TEXTS
        self._edited = path
        try:
            self._edit(path, is_resealed, luck)
            is_changed = self._read_bytes(path) != self._whole[path]
            outcomes = self._judge_all(folder, is_resealed) if is_changed else {}
        finally:
            for name, whole in self._whole.items():
                if self._read_bytes(name) != whole:
                    (self.root / name).write_bytes(whole)
        return Case(path, is_resealed, outcomes)

    def _read_bytes(self, path: Path) -> bytes:
        return (self.root / path).read_bytes()

    def _edit(self, path: Path, is_resealed: bool, luck: random.Random) -> None:
        target = self.root / path
        whole = self._whole[path]
        edits_values = luck.random() < (0.7 if is_resealed else 0.3)
        if is_resealed and path.suffix == ".json" and path.parent.name == CHECKPOINTS:
            target.write_bytes(edit_json(whole, luck))
        elif is_resealed and path.name == MANIFEST:
            parts = json.loads(edit_json(whole, luck))
            if isinstance(parts, dict):
                write_manifest(target.parent, {"checksum": ""} | parts)
        elif is_resealed and path.parent.name == PARTIAL and path.suffix == ".json":
            parts = json.loads(edit_json(whole, luck))
            if not isinstance(parts, dict):
                return
            checksum = {"checksum": checksum_of({key: parts[key] for key in parts if key != "checksum"})}
            target.write_text(json.dumps(parts | checksum if path.name != BEGUN else parts))
        elif luck.random() < 0.05:
            # The bytes of another file, which fit their own name only.
            target.write_bytes(luck.choice([own for own in self._whole.values() if own != whole]))
        else:
            target.write_bytes(edit_values(path, whole, luck) if edits_values else edit_bytes(whole, luck))
        if is_resealed and path.parts[0] not in BEGUN_STAGES:
            self._reseal(path)

    def _reseal(self, path: Path) -> None:
        """Make the manifest, and those of the folders made from it, agree with the edited file."""
        folder = (self.root / path).parent
        if path.parts[0] == "halted":
            reseal_checkpoints(self.root / "halted")
            return
        parts = json.loads((folder / MANIFEST).read_bytes())
        if path.name != MANIFEST:
            for entry in parts["files"]:
                if entry["path"] == path.name:
                    entry["bytes"], entry["xxh3_128"] = hash_file(self.root / path)
            write_manifest(folder, parts)
        # A manifest that names no inputs any more stays as it is, and so do those of later folders.
        with contextlib.suppress(HotsetError, KeyError, TypeError, AttributeError):
            reseal_later_folders(self.root / "dir")

    def _judge_all(self, folder: str, is_resealed: bool) -> dict[str, str]:
        checks = {"run": "verify RUN", "halted": "verify halted"}
        names = [*_READERS_OF[folder], checks.get(folder, "verify")]
        if folder in (*_TEXTS, *BEGUN_STAGES):
            names = names[:1]
        outcomes = {name: self.judge(name) for name in names}
        others = [name for name, outcome in outcomes.items() if outcome == "other"]
        for name in others:
            outcomes[name] = self._judge_other(name, folder, is_resealed, outcomes)
        return outcomes

    def judge(self, name: str) -> str:
        """Let one reader read, and say what it made of it."""
        try:
            found = self._read(name)
        except HotsetError as error:
            return self._judge_message(str(error))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            return f"{type(error).__name__} in {where}: {str(error)[:200]}"
        if name.startswith("verify"):
            several = [self._judge_message(fault) for fault in found]
            return max(several, key=lambda outcome: outcome != "refused", default="same")
        return "same" if found == self._wanted[name] else "other"

    def _judge_message(self, message: str) -> str:
        if "\n" in message:
            return f"several lines: {message}"
        if "schema" in message or "is not a feature of this log" in message:
            return "refused"
        # Weights and states may be any numbers, and huge ones make none of a loss; no file is at fault.
        if "the training loss is" in message or "the weights have diverged" in message:
            return "refused"
        is_named = str(self.root) in message or self._edited.name.removesuffix(".json") in message
        return "refused" if is_named else f"no file is named: {message}"

    def _judge_other(self, name: str, folder: str, is_resealed: bool, outcomes: dict[str, str]) -> str:
        """Say whether another result is right: the file says something else, and `verify` sees it."""
        if name in ("schema", "recipe"):
            return "other"
        if name in BEGUN_STAGES:
            # What was left unfinished is checked as the sealed folder that it became.
            self._read(name)
            faults = verify(self._scratch / "dir", readers.ONE, raw=[self.root / "log.parquet"])
            return "other" if faults else "a resumed folder holds other data, and verify finds no fault"
        if not is_resealed:
            return "other results from a file whose checksum is not that of its manifest"
        if folder in ("run", "halted") or outcomes.get("verify") == "refused":
            return "other"
        found = outcomes.setdefault("verify --inputs", self.judge("verify --inputs"))
        return "other" if found == "refused" else f"other results, and verify finds nothing ({found})"


def _folder_of(path: Path) -> str:
    """The key of `_READERS_OF` that a file belongs to."""
    return path.parts[1] if path.parts[0] == "dir" else path.parts[0]


@cache
def crafter_of(root: Path, seed: int) -> Crafter:
    """Make the folders of a worker, whose last words go to a file next to them."""
    os.dup2(os.open(_errors_of(root), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    faulthandler.enable()
    # Making the folders compiles kernels where there is no cache of them.
    faulthandler.dump_traceback_later(_MAKING_SECONDS, exit=True)
    crafter = Crafter(root, seed)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + _MEMORY_BYTES,) * 2)
    return crafter


def run_case(root: Path, seed: int, number: int) -> Case:
    """Run one case in a worker; one that takes too long ends it."""
    crafter = crafter_of(root, seed)
    faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
    case = crafter.run(number)
    faulthandler.cancel_dump_traceback_later()
    return case


def _errors_of(root: Path) -> Path:
    return root.with_suffix(".stderr")


class _Tally:
    """Counts of all cases so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_cases = 0
        self.folders: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def add(self, number: int, case: Case) -> None:
        """Count what the readers of one case made of it."""
        with self._lock:
            self.num_cases += 1
            kind = "checksums anew" if case.is_resealed else "as damaged"
            self.folders[f"{_folder_of(case.path)}, {kind}"] += 1
            for reader, outcome in case.outcomes.items():
                is_right = outcome in _IS_RIGHT
                self.outcomes[f"{reader}: {outcome if is_right else 'wrong'}"] += 1
                if not is_right:
                    self.wrong.append(f"folder {number}, {case.path}, {reader}: {outcome}")

    def add_crash(self, number: int, errors: Path) -> None:
        """Count a case whose process ended; ``errors`` is what it printed, with the stacks of its threads."""
        with self._lock:
            self.num_cases += 1
            last_words = errors.read_text(errors="replace")[-_MOST_PRINTED:]
            self.wrong.append(f"folder {number}: the process ended: {last_words}")


def fuzz_folders(
    num_folders: int, seed: int, workers: int = 1, scratch: Path | None = None
) -> dict[str, Any]:
    """Craft ``num_folders`` folders; ``wrong`` lists each that was neither refused nor harmless.

    Args:
        num_folders: number of cases.
        seed: of the log and the edits.
        workers: processes; a case does not depend on their number.
        scratch: folder for temporary files; None takes the system's.
    """
    started = time.perf_counter()
    tally = _Tally()
    with (
        tempfile.TemporaryDirectory(prefix="hotset-fuzz-", dir=scratch) as folder,
        ThreadPoolExecutor(workers) as threads,
    ):
        done = [
            threads.submit(
                _run_cases, Path(folder) / str(worker), range(worker, num_folders, workers), seed, tally
            )
            for worker in range(workers)
        ]
        for each in done:
            each.result()
    return {
        "inputs": tally.num_cases,
        "folders": dict(sorted(tally.folders.items())),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "wrong": tally.wrong,
        "seed": seed,
        "seconds": time.perf_counter() - started,
    }


def _run_cases(root: Path, numbers: range, seed: int, tally: _Tally) -> None:
    """Run cases in one process after the other: a new one takes over where one ended."""
    left = deque(numbers)
    while left:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                while left:
                    tally.add(left[0], pool.submit(run_case, root, seed, left[0]).result())
                    left.popleft()
            except BrokenProcessPool:
                if not (root / "run" / MANIFEST).exists():
                    raise
                tally.add_crash(left.popleft(), _errors_of(root))


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=fuzz_folders.__doc__)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(fuzz_folders(options.folders, options.seed, options.workers), indent=1))


if __name__ == "__main__":
    main()
