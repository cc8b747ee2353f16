"""Runs the command line as ``python -m hotset``, as torchrun starts it."""

import sys

from .workflows.cli import main

sys.exit(main())
