"""What a folder of stored samples says of them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

DESCRIPTION = "stored.json"
UNFINISHED = f"{DESCRIPTION}.part"
"""The description while it is written: on a full drive half of it would be left."""
LOCK = "stored.lock"
"""The file that a process which stores samples in a folder has locked."""


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

    def unlike(self, other: "Description") -> str:
        """Returns in what the samples of another description are not these, in words."""
        if self.n != other.n:
            return f"{self.n:,}, and the Dataset has {other.n:,} now"
        if (self.kinds, self.tree) != (other.kinds, other.tree):
            return "their values are of other types"
        return "they are stored in another form, size or order of transforms"

    def write(self, folder: Path) -> None:
        unfinished = folder / UNFINISHED
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.replace(folder / DESCRIPTION)


def description_of(folder: Path) -> Description | None:
    """Returns what a folder says of its samples; None where it holds none."""
    path = folder / DESCRIPTION
    if not path.exists():
        return None
    return Description(**json.loads(path.read_text(encoding="utf-8")))


def part_of(folder: Path, number: int) -> Path:
    """Returns the folder of a part."""
    return folder / f"part-{number:05d}"
