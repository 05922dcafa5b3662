"""Tests, in the folders of what they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
