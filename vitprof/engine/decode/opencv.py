"""OpenCV, for those who need it: an installation without image files has none."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from vitprof.errors import DataError
from vitprof.program import install_command


@cache
def opencv() -> ModuleType:
    """Returns the module cv2, without threads of its own. Raises `DataError` where it is missing."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(f"OpenCV is needed here and cannot be loaded ({error}): {install_command('images')}") from error
    # Threads are the loader's business: OpenCV's own would multiply with it, and would not survive a fork.
    cv2.setNumThreads(0)
    return cv2
