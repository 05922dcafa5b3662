"""What tests of the command line share."""

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
"""Runs the command line with these arguments: (exit status, standard output, standard error)."""


def succeeds(call: Call, *args: str) -> str:
    """Returns the standard output of a command that ends well and says nothing else."""
    status, out, err = call(*args)
    assert (status, err) == (0, "")
    return out


def one_line(call: Call, *args: str, status: int = 2) -> str:
    """Returns the one line with which a command ends that prints nothing else."""
    ended, out, err = call(*args)
    assert (ended, out, err.count("\n")) == (status, "", 1)
    return err
