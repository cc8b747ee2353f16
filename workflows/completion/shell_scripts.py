"""Completion scripts for bash, zsh and fish, written from the options of every command.

The scripts hold all names, so that completing starts no Python. The one for bash serves zsh too, through
zsh's own ``bashcompinit``.
"""

from __future__ import annotations

import shlex

from .kept_options import Commands

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
{nested}
    esac
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


def bash_script(commands: Commands) -> str:
    """Return the script for bash; a value that is a file is completed by bash itself."""
    # Commands with a second word complete it from a list of their own.
    groups = _groups(commands)
    tops = " ".join(dict.fromkeys(name.split()[0] for name in commands))
    nested = [
        f"        {group})\n"
        f'            if [ "$COMP_CWORD" -eq 2 ]; then\n'
        f'                COMPREPLY=($(compgen -W {shlex.quote(" ".join(members))} -- "$current"))\n'
        f"                return\n"
        f"            fi\n"
        f'            command="{group} ${{COMP_WORDS[2]}}" ;;'
        for group, members in groups.items()
    ]
    cases = []
    values = []
    # For each command the names of its options, and for each option the values that it takes.
    for command, (_, options) in commands.items():
        names = " ".join(["--help", *(option.name for option in options if not option.is_positional)])
        cases.append(f"        {shlex.quote(command)}) options={shlex.quote(names)} ;;")
        for option in options:
            if option.is_positional or not option.takes_value:
                continue
            found = shlex.quote(" ".join(option.choices))
            then = f"values={found}" if option.choices else "takes_file=1"
            values.append(f"        {shlex.quote(f'{command}:{option.name}')}) {then} ;;")
    return _BASH.format(
        commands=shlex.quote(tops), nested="\n".join(nested), cases="\n".join(cases), values="\n".join(values)
    )


def zsh_script(commands: Commands) -> str:
    """Return the script for zsh: the one for bash behind zsh's emulation of its completion."""
    return _ZSH + bash_script(commands)


def fish_script(commands: Commands) -> str:
    """Return the script for fish, which shows a line of help beside each name."""
    groups = _groups(commands)
    lines = [_FISH.rstrip()]
    seen: set[str] = set()
    for command, (description, options) in commands.items():
        top, _, name = command.partition(" ")
        if top not in seen:
            seen.add(top)
            # A command that has others inside is explained by its own name, not by the first of them.
            help_text = "benchmarks" if top in groups else description
            lines.append(_fish("__fish_use_subcommand", f"-a {top}", help_text))
        where = f"__fish_seen_subcommand_from {top}"
        if name:
            lines.append(
                _fish(f"{where}; and not __fish_seen_subcommand_from {name}", f"-a {name}", description)
            )
            where += f"; and __fish_seen_subcommand_from {name}"
        for option in options:
            if option.is_positional:
                continue
            how = f"-l {option.name.removeprefix('--')}"
            if option.choices:
                how += f" -x -a {shlex.quote(' '.join(option.choices))}"
            elif option.takes_value:
                how += " -r"
            lines.append(_fish(where, how, option.summary))
    return "\n".join(lines) + "\n"


def _fish(condition: str, how: str, description: str) -> str:
    text = description.replace("'", "")
    files = " -f" if how.startswith("-a") else ""
    return f"complete -c hotset{files} -n '{condition}' {how} -d '{text}'"


def _groups(commands: Commands) -> dict[str, list[str]]:
    """Return the commands that have others inside, with the names of those."""
    groups: dict[str, list[str]] = {}
    for command in commands:
        top, _, name = command.partition(" ")
        if name:
            groups.setdefault(top, []).append(name)
    return groups


SHELLS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
"""For each shell, the function that writes its script."""
