"""What a person is shown when something goes wrong: always one line that says enough."""

import pytest

from vitprof.errors import ConfigError, StoreError, missing_package, one_line


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (StoreError("the store failed"), "the store failed"),
        (
            StoreError("first\n  second\n\n"),
            "first second",
        ),  # a database's message may have several lines
        (
            ConfigError("name", "a\nb", "give one line"),
            "name: 'a\\nb' is not possible; give one line",
        ),
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (ValueError("  \n "), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        # a worker's exception as PyTorch re-raises it: the worker's traceback in front of the cause
        (
            RuntimeError(
                "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                '  File "data.py", line 1, in __getitem__\n    raise RuntimeError("cannot read 7")\n'
                "RuntimeError: cannot read 7\n"
            ),
            "RuntimeError: cannot read 7",
        ),
        # CUDA's own errors say what happened first, and how to debug it after that
        (
            RuntimeError(
                "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.\n"
            ),
            "RuntimeError: CUDA error: out of memory",
        ),
    ],
)
def test_one_line_shows_our_message_whole_and_of_others_the_type_and_the_cause(
    error: Exception, shown: str
) -> None:
    assert one_line(error) == shown


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ModuleNotFoundError(name="timm"), "the package timm is missing: pip install timm"),
        (
            ModuleNotFoundError(name="lance.file"),
            "the package pylance is missing: pip install pylance",
        ),
        (
            ModuleNotFoundError(name="streaming"),
            "the package mosaicml-streaming is missing: pip install mosaicml-streaming",
        ),
        (ImportError("cannot import name 'x'", name="timm"), "ImportError: cannot import name 'x'"),
    ],
)
def test_what_is_missing_has_the_name_of_its_package(error: ImportError, shown: str) -> None:
    """PyPI has packages called lance and streaming, and they are something else."""
    assert missing_package(error) == shown
