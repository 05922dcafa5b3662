"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
"""Runs the command line with these arguments: (exit status, standard output, standard error)."""
