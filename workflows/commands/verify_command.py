"""``hotset verify``: check a folder against its manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ...pipeline.errors import ConfigError
from ...pipeline.folders.discard import is_discarded
from ...pipeline.formats.md5_list import md5_faults
from ...pipeline.runtime.address_limit import TORCH_BYTES, refuse_few_addresses
from ...pipeline.runtime.resources import Resources
from ...pipeline.sizes import ByteSize
from ...pipeline.verify.verify import STAGE_FOLDERS, verify
from ..console import print_json, progress_bars, say
from ..options import Dir, parse_options


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """Options of ``hotset verify``."""

    dir: Dir
    """Folder that `preprocess --out` or `train --out` created."""

    inputs: tuple[Path, ...] = ()
    """Raw logs that DIR was written from, in order: these are hashed and parsed again, too."""

    md5sums: Path | None = None
    """List of the raw logs' checksums, as md5sum prints it: --inputs are compared with it."""

    rebuild: bool = field(
        default=True,
        metadata={"help": "Check files, sums and ranges only, without running the stages again."},
    )
    """Whether each stage is run again and compared."""

    scratch: Path | None = None
    """Folder with room for the largest stage, in which stages are run again. Default: the system's temporary
    folder."""

    other_vocabulary: Path | None = None
    """Folder that was given to --like, or whose ids id_map maps; needed to check such a vocabulary or map in
    full."""

    shards: Path | None = None
    """Shards that a training run DIR was trained on: the order of its batches and its scores are worked out
    again."""

    memory: ByteSize | None = None
    """Cap on the memory that running the stages again may take. Default: a quarter of the machine's."""

    workers: int = 0
    """Number of threads; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset verify`` and return exit status 1 where a fault was found."""
    options = parse_options(
        VerifyCommand, arguments, command=command, description="Check every manifest, checksum and invariant."
    )
    # A run folder is known by its config, and has checks of its own.
    if (options.dir / "config.json").exists():
        return _verify_run(options)
    if options.shards is not None:
        raise ConfigError(f"--shards are those of a training run, and {options.dir} is none")
    # Published logs are told apart from damaged ones before they are parsed.
    published: list[str] = []
    if options.md5sums is not None:
        if not options.inputs:
            raise ConfigError("md5sums are of raw logs: name them by --inputs")
        published = md5_faults(options.inputs, options.md5sums)
    with progress_bars() as progress:
        faults = published + verify(
            options.dir,
            Resources(workers=options.workers, memory_bytes=options.memory, progress=progress),
            raw=options.inputs,
            rebuild=options.rebuild,
            scratch=options.scratch,
            other_vocabulary=options.other_vocabulary,
        )
    # A check that could not be made is reported, so that no fault found does not read as all is well.
    discarded = [name for name in STAGE_FOLDERS if is_discarded(options.dir / name)]
    for name in discarded:
        say(f"{options.dir / name} was discarded, so only its manifest was checked")
    if options.json:
        print_json({"dir": str(options.dir), "faults": faults, "discarded": discarded})
    else:
        print("\n".join(faults) if faults else f"{options.dir}: OK, all checks passed")
    return 1 if faults else 0


def _verify_run(options: VerifyCommand) -> int:
    """Check the folder of a training run."""
    # Imports torch, which checks of other folders do without.
    refuse_few_addresses("hotset verify", TORCH_BYTES)
    from ...train.run_folder.verify_run import verify_run

    for name in ("inputs", "md5sums", "scratch", "other_vocabulary"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} belongs to a folder of preprocess, and {options.dir} is a training run"
            )
    faults = verify_run(options.dir)
    # What the shards decide is compared where the files agree with each other.
    if options.shards is not None and not faults:
        from ...train.check_against_shards import faults_against_shards

        with progress_bars() as progress:
            evaluated = partial(progress, "evaluate")
            faults = list(faults_against_shards(options.dir, options.shards, progress=evaluated))
    if options.json:
        print_json({"run": str(options.dir), "faults": faults})
    else:
        print("\n".join(faults) if faults else f"{options.dir}: OK, all checks passed")
    return 1 if faults else 0
