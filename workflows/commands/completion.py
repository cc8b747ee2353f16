"""``hotset completion``: a script that completes commands and options in a shell.

The scripts hold all names, so that completing starts no Python. The one for bash serves zsh too, through
zsh's own ``bashcompinit``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ..command_list import COMMANDS, Command, command_class
from ..options import Arg, Option, options_of

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
