"""The ways to give a row a home rank, by the names that options take. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

HomesName = Literal["striped", "by-use", "moving"]
