"""Tests, in the folders of what they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""

EARLIER: set[int] = set()
"""The processes below this one that were there when its test began: they belong to a package or to a
session of tests, and no test finds them as its own."""
