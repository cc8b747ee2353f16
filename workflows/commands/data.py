"""``hotset generate``, ``schema``, ``export-shards``, ``verify``, ``recipe`` and ``completion``.

Completion scripts hold all names, so that completing starts no Python. The one for bash serves zsh too,
through zsh's own ``bashcompinit``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from ...pipeline.errors import ByteSize, ConfigError, format_byte_size, require_at_least
from ...pipeline.export import ExportFormat, export_shards
from ...pipeline.folders.disk import is_discarded
from ...pipeline.folders.manifest import Manifest, shards_in
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.preprocess import FOLDERS, PreprocessConfig
from ...pipeline.runtime.limits import TORCH_BYTES, check_addresses
from ...pipeline.runtime.tasks import Resources
from ...pipeline.verify import STAGE_FOLDERS, verify
from ...stats.compile_notice import working_clock
from ...train.config import TrainConfig
from ..command_list import COMMANDS, Command, JsonCommand, command_class, config_of
from ..console import describe_rate, print_json, print_line, progress_bars, say, stdout_console
from ..option_texts import TABLES, arguments_of, read_recipe, write_recipe
from ..options import Arg, Dir, Option, options_of
from ..recipes import recipe_of


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(JsonCommand, GenerateConfig):
    """Write a log with the access frequencies of a real one."""

    json_object = "samples, bytes and seconds"

    out: Path
    """File to write. A file whose name ends in .gz is compressed."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    overwrite: bool = False
    """Replace an existing file."""

    def execute(self) -> int:
        """Run ``hotset generate``."""
        config = config_of(GenerateConfig, self)
        # The rate is that of the whole command, the writing of the file included.
        started = working_clock()
        with progress_bars() as progress:
            generate(
                config,
                self.out,
                workers=self.workers,
                progress=lambda done: progress("generate", done, config.samples),
                overwrite=self.overwrite,
            )
        seconds = working_clock() - started
        # After the file is closed: compressed bytes are known only then.
        num_bytes = self.out.stat().st_size
        if self.json:
            print_json(
                {"out": str(self.out), "samples": config.samples, "bytes": num_bytes, "seconds": seconds}
            )
        else:
            print(
                f"{self.out}: {config.samples:,} samples, {format_byte_size(num_bytes)} "
                f"in {seconds:.1f} s, {describe_rate(config.samples / seconds)}"
            )
        return 0


@dataclass(frozen=True, kw_only=True)
class SchemaCommand(JsonCommand):
    """Print a schema for a log as TOML, for you to edit."""

    json_object = "the schema and what it follows from"

    file: Annotated[Path, Arg("FILE", is_positional=True)]
    """A log: CSV or JSON Lines (plain, gzip, zstd, bz2, xz or lz4), Parquet, Arrow or ORC; or its folder."""

    samples: int = 10_000
    """Number of rows to look at, from the beginning, the middle and the end."""

    def execute(self) -> int:
        """Run ``hotset schema``."""
        # Here, because it imports pyarrow's Parquet reader.
        from ...pipeline.infer_schema import explain_built_in, propose_schema

        require_at_least("samples", self.samples, 1)
        # The text has comments for the user to edit by; the object has the evidence instead.
        proposal = propose_schema(self.file, num_rows=self.samples)
        if self.json:
            columns = []
            for column in proposal.columns:
                shown = asdict(column) | {"kind": column.kind, "is_list": column.lists is not None}
                columns.append(shown | {"is_transformed": "transform" not in shown.pop("features")[0]})
            print_json({"schema": asdict(proposal.schema), "rows": proposal.num_rows, "columns": columns})
        else:
            print(proposal.text, end="")
        # Last, and on stderr: the schema goes to a file, as a rule.
        built_in = explain_built_in(self.file)
        if built_in:
            say(built_in)
        return 0


@dataclass(frozen=True, kw_only=True)
class ExportShardsCommand(JsonCommand):
    """Write the samples of shards for other programs."""

    json_object = "files and numbers of samples"

    dir: Dir
    """Folder that `preprocess --out` created, or its `shards/`."""

    out: Path
    """New folder for the files."""

    to: ExportFormat = "parquet"
    """Format: `parquet` and `csv` have a column for each feature and a file for each split, `fuxictr` adds
    the feature map that FuxiCTR reads, `torchrec` adds what TorchRec's planner and FBGEMM's benchmarks ask
    about the tables."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    def execute(self) -> int:
        """Run ``hotset export-shards``."""
        shards = shards_in(self.dir)
        with progress_bars() as progress:
            exported = export_shards(
                shards, self.to, self.out, Resources(workers=self.workers, progress=progress)
            )
        if self.json:
            print_json({"out": str(self.out)} | asdict(exported))
            return 0
        for file in exported.files:
            print_line(stdout_console(), f"{self.out / file['name']}: {format_byte_size(file['num_bytes'])}")
        counted = ", ".join(f"{count:,} in {split}" for split, count in exported.num_samples.items())
        print_line(stdout_console(), f"samples: {counted}")
        return 0


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(JsonCommand):
    """Check every manifest, checksum and invariant."""

    json_object = "what was checked"

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
        return _show_faults(self, {"dir": str(self.dir), "faults": faults, "discarded": discarded})


def _show_faults(options: VerifyCommand, found: dict[str, Any]) -> int:
    """Print the faults of a folder; return 1 where it has some."""
    if options.json:
        print_json(found)
    else:
        print("\n".join(found["faults"]) or f"{options.dir}: OK, all checks passed")
    return 1 if found["faults"] else 0


def _verify_run(options: VerifyCommand) -> int:
    """Check the folder of a training run."""
    # Imports torch, which checks of other folders do without.
    check_addresses("hotset verify", TORCH_BYTES)
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
    return _show_faults(options, {"run": str(options.dir), "faults": faults})


_CONFIG = "config.json"
_STAND_IN = "x"
"""The value of arguments that are no part of a recipe, such as the folder."""


@dataclass(frozen=True, kw_only=True)
class RecipeCommand(JsonCommand):
    """Print all options in force as a recipe file."""

    json_object = "the options"

    sources: Annotated[tuple[Path, ...], Arg("SOURCE", is_positional=True)] = ()
    """Recipe files, folders of preprocess and runs of train, whose options are printed; an option that none
    of them sets has its default."""

    def execute(self) -> int:
        """Run ``hotset recipe``."""
        # Later sources win, as options that are typed later do.
        found: dict[str, Any] = {}
        for source in self.sources:
            found |= _configs_of(source)
        # An experiment is both tables; with sources, those that they have.
        wanted = [name for name in TABLES if name in found or not found]
        configs = {name: found.get(name) or _config_from(name, []) for name in wanted}
        if self.json:
            print_json({name: asdict(config) for name, config in configs.items()})
        else:
            print(write_recipe(configs), end="")
        return 0


def _configs_of(source: Path) -> dict[str, Any]:
    """Return the configs that a source has, by table."""
    # A run, a preprocessed folder or a file: each is known by what it must hold.
    if (source / _CONFIG).exists():
        from ...train.config import read_settings

        return {"train": read_settings(source / _CONFIG)}
    if (source / "columns").is_dir():
        return {"preprocess": _config_of_folder(source)}
    if source.is_dir():
        raise ConfigError(
            f"{source} is neither a folder of preprocess nor a run of train",
            hint="give a recipe file, the DIR of preprocess --out, or the RUN of train --out",
        )
    # A recipe's own text goes through the options of its command, so that it is checked as if typed.
    read = read_recipe(source)
    found = {}
    for name, table in read.items():
        found[name] = _config_from(name, arguments_of(source, name, table))
    return found


def _config_from(table: str, arguments: Sequence[str]) -> Any:
    """Return the config of a table of options as they are typed."""
    kinds = {"preprocess": PreprocessConfig, "train": TrainConfig}
    command = command_class(table)
    return config_of(kinds[table], command.parse(table, [*arguments, _STAND_IN, "--out", _STAND_IN]))


def _config_of_folder(folder: Path) -> PreprocessConfig:
    """Return the settings that a folder was preprocessed with; raises ManifestError where it is damaged."""
    shards_in(folder)  # an unfinished one does not have all settings
    if Manifest.read(folder / FOLDERS["rank"]).stage != "rank":
        raise ConfigError(
            f"{folder} took its ids from another folder (--like), so it has no settings for them",
            hint="give that folder",
        )
    return recipe_of(folder)


Commands = Mapping[str, tuple[str, Sequence[Option]]]
"""For each command a line of help and its options."""

_BASH = """\
# Completion of hotset for bash. To install it for all shells to come:
#     mkdir -p ~/.local/share/bash-completion/completions
#     hotset completion bash > ~/.local/share/bash-completion/completions/hotset
# For this shell alone: source <(hotset completion bash)
_hotset() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}}
    local options="" values="" takes_file=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {commands} -- "$current"))
        return
    fi
    case $command in
{cases}
    esac
    case $command:$previous in
{values}
    esac
    if [ -n "$values" ]; then
        COMPREPLY=($(compgen -W "$values" -- "$current"))
    elif [ -n "$takes_file" ] || [ "${{current#-}}" = "$current" ]; then
        COMPREPLY=()
    else
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    fi
}}
complete -o bashdefault -o default -F _hotset hotset
"""
_ZSH = """\
# Completion of hotset for zsh. To install it for all shells to come:
#     hotset completion zsh > ~/.hotset-completion
#     echo 'source ~/.hotset-completion' >> ~/.zshrc
autoload -U +X compinit && compinit -u
autoload -U +X bashcompinit && bashcompinit
"""
_FISH = """\
# Completion of hotset for fish. To install it for all shells to come:
#     hotset completion fish > ~/.config/fish/completions/hotset.fish
"""


@dataclass(frozen=True, kw_only=True)
class CompletionCommand(Command):
    """Print a completion script that says how to install it."""

    shell: Annotated[Literal["bash", "zsh", "fish"], Arg("SHELL", is_positional=True)]
    """Shell that the script is for: bash, zsh or fish."""

    def execute(self) -> int:
        """Run ``hotset completion``."""
        print(SHELLS[self.shell](all_options()), end="")
        return 0


def all_options() -> Commands:
    """Return a line of help and the options of every command, without positional arguments."""
    found = {}
    for name, (_, description) in COMMANDS.items():
        options = options_of(command_class(name))
        found[name] = (description, [option for option in options if not option.is_positional])
    return found


def bash_script(commands: Commands) -> str:
    """Return the script for bash; a value that is a file is completed by bash itself."""
    cases = []
    values = []
    # For each command the names of its options, and for each option the values that it takes.
    for command, (_, options) in commands.items():
        names = " ".join(["--help", "--help-all", *(option.name for option in options)])
        cases.append(f"        {command}) options={shlex.quote(names)} ;;")
        for option in options:
            if option.takes_value:
                found = shlex.quote(" ".join(option.choices))
                then = f"values={found}" if option.choices else "takes_file=1"
                values.append(f"        {command}:{option.name}) {then} ;;")
    return _BASH.format(
        commands=shlex.quote(" ".join(commands)), cases="\n".join(cases), values="\n".join(values)
    )


def zsh_script(commands: Commands) -> str:
    """Return the script for zsh: the one for bash after zsh's emulation of its completion."""
    return _ZSH + bash_script(commands)


def fish_script(commands: Commands) -> str:
    """Return the script for fish, which shows a line of help next to each name."""
    lines = [_FISH.rstrip()]
    for command, (description, options) in commands.items():
        lines.append(_fish("__fish_use_subcommand", f"-f -a {command}", description))
        for option in options:
            how = f"-l {option.name.removeprefix('--')}"
            if option.choices:
                how += f" -x -a {shlex.quote(' '.join(option.choices))}"
            elif option.takes_value:
                how += " -r"
            lines.append(_fish(f"__fish_seen_subcommand_from {command}", how, option.summary))
    return "\n".join(lines) + "\n"


def _fish(condition: str, how: str, description: str) -> str:
    text = description.replace("'", "")
    return f"complete -c hotset -n '{condition}' {how} -d '{text}'"


SHELLS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
"""For each shell, the function that writes its script."""
