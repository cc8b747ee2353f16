"""Runs the command line as ``python -m hotset``, as torchrun starts it."""

from .workflows.cli import leave, main

leave(main())
