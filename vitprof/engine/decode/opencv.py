"""Imports OpenCV where it is needed: an installation without support for image files does not have it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from vitprof.errors import DataError
from vitprof.program import install_command


@cache
def opencv() -> ModuleType:
    """Returns the module cv2, with its own threads switched off. Raises `DataError` if it is missing."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(f"OpenCV is needed here and cannot be loaded ({error}): {install_command('images')}") from error
    # The loader decides on threads: OpenCV's own would multiply with them, and would not survive a fork.
    cv2.setNumThreads(0)
    return cv2
