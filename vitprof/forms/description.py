"""What a folder of stored samples says of them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

DESCRIPTION = "stored.json"


@dataclass(frozen=True)
class Description:
    """How samples are stored in a folder."""

    n: int
    """Samples."""
    part: int
    """Samples in a part: a folder of its own."""
    kinds: list[str]
    """What each value of a sample is, as `kind_of` names it."""
    names: list[str]
    """The name of each value."""
    at: int
    """The value that is yet to be transformed."""
    tree: str
    """The literal of the sample, with the number of a value in its place."""
    what: str
    """What was done to the samples before."""

    def write(self, folder: Path) -> None:
        (folder / DESCRIPTION).write_text(json.dumps(asdict(self)), encoding="utf-8")


def description_of(folder: Path) -> Description | None:
    """Returns what a folder says of its samples; None where it holds none."""
    path = folder / DESCRIPTION
    if not path.exists():
        return None
    return Description(**json.loads(path.read_text(encoding="utf-8")))


def part_of(folder: Path, number: int) -> Path:
    """Returns the folder of a part."""
    return folder / f"part-{number:05d}"
