"""What became of the JPEG files of a script that has another library decode them."""

from dataclasses import dataclass


@dataclass
class DecodedFiles:
    """Counts of a process of a trial, of a trial, or of several: each is at least so many."""

    decoded: int = 0
    """Files that the library decoded."""
    stayed: int = 0
    """Files that stayed with Pillow."""
    why: str = ""
    """Why the first of them did."""
    compared: int = 0
    """Files that were decoded both ways."""
    differ: int = 0
    """Files among them with other pixels."""
    largest: int = 0
    """The largest difference of a pixel, of 255."""
