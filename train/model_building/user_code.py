"""Runs code of the user: imports a class by its name, builds a module, and says in one line what fails.

An error of such code is the user's to mend, so it becomes a HotsetError that names the place in the user's
file; the original exception is its cause, which ``--verbose`` shows in full.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...pipeline.errors import ConfigError, HotsetError, first_line, system_fault
from ...pipeline.schema.schema import nearest

ModelSource = Callable[..., nn.Module] | nn.Module
"""The maker of a module: a class, a function, or a module as it is."""
_OURS = Path(__file__).resolve().parents[1]


def name_of(source: ModelSource) -> str:
    """Return ``package.module:Class`` of a model from Python, as runs record it."""
    named: Any = source if hasattr(source, "__qualname__") else type(source)
    return f"{named.__module__}:{named.__qualname__}"


def import_class(name: str) -> type[nn.Module]:
    """Import ``package.module:Class``; the current folder is searched, too.

    Raises:
        ConfigError: there is no such module, no such class in it, or it is no torch.nn.Module.
    """
    module_name, _, class_name = name.partition(":")
    if "<" in class_name or module_name == "__main__":
        raise ConfigError(
            f"the model {name} cannot be imported: it was made inside a program",
            hint="give it from Python as model=, or put the class in a file of its own",
        )
    # As `python -m` does, but last: a file here is not to stand for a module that others import.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        with explained(f"the module {module_name}"):
            found: Any = importlib.import_module(module_name)
    # A module that is missing inside of the user's module is a fault of that module, not of the name.
    except HotsetError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or not f"{module_name}.".startswith(f"{cause.name}."):
            raise
        raise ConfigError(
            f"there is no module {module_name}, which the model {name} names",
            hint=f"run hotset in the folder that holds {module_name.replace('.', '/')}.py, or install it",
        ) from cause
    # A class may be nested in others.
    where = getattr(found, "__file__", None) or module_name
    for part in class_name.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [other for other in vars(found) if not other.startswith("_")])
            raise ConfigError(f"{where} has no class {class_name}", hint=hint)
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{name} ({where}) is no torch.nn.Module", hint="derive the class from it")
    return found


def build_module(source: ModelSource, name: str, seed: int, *arguments: Any, **named: Any) -> nn.Module:
    """Build the module with initial values that the seed decides; one that is built already is copied.

    Raises:
        HotsetError: the constructor fails, or makes something else.
    """
    if isinstance(source, nn.Module):
        with explained(f"the model {name}, which is copied,"):
            return copy.deepcopy(source)
    with torch.random.fork_rng([]), explained(f"the constructor of {name}"):
        torch.manual_seed(seed)
        module = source(*arguments, **named)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name} makes a {type(module).__name__}, want a torch.nn.Module")
    return module


@contextmanager
def explained(what: str, hint: str | None = None) -> Iterator[None]:
    """Turn an exception of the user's code into a HotsetError that says ``what`` failed and in which line."""
    # Errors of hotset say what to do already; those of the disk or the memory are not the user's code.
    try:
        yield
    except HotsetError:
        raise
    except Exception as error:
        fault = system_fault(what, error)
        if fault is not None:
            raise fault from error
        place = _place_of(error)
        raise HotsetError(
            f"{what} failed{place}: {type(error).__name__}: {first_line(error)}",
            hint=hint or "--verbose shows where the error was raised",
        ) from error


def _place_of(error: Exception) -> str:
    """Return the last line of the user's own code that an exception passed, empty where there is none."""
    libraries = (_OURS, *(Path(each).parent for each in (torch.__file__, importlib.__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith("<")
        and not any(Path(frame.filename).is_relative_to(library) for library in libraries)
    ]
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
