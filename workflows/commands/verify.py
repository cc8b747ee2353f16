"""``hotset verify``: check a folder against its manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ...pipeline.errors import ByteSize, ConfigError
from ...pipeline.folders.disk import is_discarded
from ...pipeline.runtime.limits import TORCH_BYTES, refuse_few_addresses
from ...pipeline.runtime.tasks import Resources
from ...pipeline.verify import STAGE_FOLDERS, verify
from ..command_list import Command
from ..console import print_json, progress_bars, say
from ..options import Dir


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(Command):
    """Check every manifest, checksum and invariant."""

    dir: Dir
    """Folder that `preprocess --out` or `train --out` created."""

    inputs: tuple[Path, ...] = ()
    """Raw logs that DIR was written from, in order: these are hashed and parsed again, too."""

    rebuild: bool = field(
        default=True,
        metadata={"help": "Check files, sums and ranges only, without running the stages again."},
    )
    """Whether each stage is run again and compared."""

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

    def execute(self) -> int:
        """Run ``hotset verify``; return 1 where a fault was found."""
        # A run folder is recognized by its config, and has separate checks.
        if (self.dir / "config.json").exists():
            return _verify_run(self)
        if self.shards is not None:
            raise ConfigError(f"--shards are those of a training run, and {self.dir} is none")
        with progress_bars() as progress:
            faults = verify(
                self.dir,
                Resources(workers=self.workers, memory_bytes=self.memory, progress=progress),
                raw=self.inputs,
                rebuild=self.rebuild,
                other_vocabulary=self.other_vocabulary,
            )
        # A check that could not be made is reported, so that no fault found does not read as all is well.
        discarded = [name for name in STAGE_FOLDERS if is_discarded(self.dir / name)]
        for name in discarded:
            say(f"{self.dir / name} was discarded, so only its manifest was checked")
        if self.json:
            print_json({"dir": str(self.dir), "faults": faults, "discarded": discarded})
        else:
            print("\n".join(faults) if faults else f"{self.dir}: OK, all checks passed")
        return 1 if faults else 0


def _verify_run(options: VerifyCommand) -> int:
    """Check the folder of a training run."""
    # Imports torch, which checks of other folders do without.
    refuse_few_addresses("hotset verify", TORCH_BYTES)
    from ...train.verify_run import verify_run

    for name in ("inputs", "other_vocabulary"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} belongs to a folder of preprocess, and {options.dir} is a training run"
            )
    faults = verify_run(options.dir)
    # What the shards decide is compared where the files agree with each other.
    if options.shards is not None and not faults:
        from ...train.verify_run import faults_against_shards

        with progress_bars() as progress:
            evaluated = partial(progress, "evaluate")
            faults = list(faults_against_shards(options.dir, options.shards, progress=evaluated))
    if options.json:
        print_json({"run": str(options.dir), "faults": faults})
    else:
        print("\n".join(faults) if faults else f"{options.dir}: OK, all checks passed")
    return 1 if faults else 0


COMMANDS: dict[str, type[Command]] = {"verify": VerifyCommand}
