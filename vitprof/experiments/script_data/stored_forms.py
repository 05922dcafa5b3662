"""What storing the samples of a user's own Dataset in other forms takes, and what each form is
worth.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Interval
from vitprof.forms import FORMS
from vitprof.recording.recording import WatchedLoader

STUDENT = (math.inf, 12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5% quantile of Student's t distribution for n + 1 values, so of n degrees of freedom (0 to
9)."""
A_FILE_EACH = 0.5
"""With so many files for each sample that was stored, samples have files of their own."""


@dataclass(frozen=True)
class StoredForm:
    """Some samples, stored in a form."""

    why: str = ""
    """Why they are not; empty where they are."""
    cut: str = ""
    """At which point of the Dataset, in words: image files come before all of its transforms."""
    payload: str = ""
    """How images are stored: pixels (Cut), files as they are (FilesOf) or smaller JPEG files
    (Smaller)."""
    number: int | None = None
    """Which of the Dataset's attributes has its transforms; null where samples are stored whole."""
    same: int = 0
    """How many of the transforms were applied before."""
    seconds: tuple[float, ...] = ()
    """For a sample, to read and store it; one value for each part of them."""
    bytes: float = math.nan
    """Disk space of all that were stored."""
    earlier: int = 0
    """Samples that were in the folder before, of which a spread was compared with the Dataset's."""

    @property
    def sample_s(self) -> Interval:
        """Returns the seconds for a sample, with the 95% interval of Student's t over the parts."""
        n = len(self.seconds)
        if not n:
            return Interval(math.nan, math.nan, math.nan)
        mean = float(np.mean(self.seconds))
        if n == 1:
            return Interval(mean, math.nan, math.nan)
        spread = float(np.std(self.seconds, ddof=1))
        quantile = STUDENT[min(n, len(STUDENT)) - 1]
        half = quantile * spread / math.sqrt(n)
        return Interval(mean, max(0.0, mean - half), mean + half)


@dataclass(frozen=True)
class Conversion:
    """Samples of a Dataset in several forms."""

    cut: str
    """At which point of the Dataset values are stored, in words."""
    n: int
    """Samples that were stored."""
    samples: int
    """Samples of the Dataset."""
    files: dict[str, int]
    """The files that the stored samples were read from, and their bytes; empty where none was
    seen."""
    forms: dict[str, StoredForm]
    """By the name of the form."""
    start_s: float
    """Seconds until the script had made its first step, which a conversion waits for."""
    loader: WatchedLoader
    """Arguments of the train loader."""

    @property
    def file_bytes(self) -> float:
        """Returns the bytes of the files of all samples: scaled where each has one, else of those
        that were seen.
        """
        seen = float(sum(self.files.values()))
        each_has_one = len(self.files) >= self.n * A_FILE_EACH
        return self.scaled(seen) if each_has_one else seen

    @property
    def stored(self) -> dict[str, StoredForm]:
        return {name: form for name, form in self.forms.items() if not form.why}

    def scaled(self, of_stored: float) -> float:
        """Returns what is known of the stored samples for all of the Dataset's."""
        return of_stored * self.samples / self.n

    def convert_s(self, form: StoredForm) -> Interval:
        """Returns the seconds to convert all samples, with the script's start."""
        return Interval(*(self.start_s + each * self.samples for each in form.sample_s))

    def not_stored(self) -> list[str]:
        """Returns a line for each reason why a form has no samples."""
        names: dict[str, list[str]] = {}
        for name, form in self.forms.items():
            if form.why:
                names.setdefault(form.why, []).append(name)
        return [f"not tried: {', '.join(forms)}: {why}" for why, forms in names.items()]


LOSSES = {"same": "the same", "changes": "differ"}
"""Effect on the losses -> the word for it; any other is not known."""
PAYLOADS = {"FilesOf": "image files", "Smaller": "smaller JPEG files"}


def changed_words(form: StoredForm) -> str:
    """Returns whether the pixels that the script trains on are others than before."""
    return "changed" if form.payload == "Smaller" else "the same"


def what_words(name: str, form: StoredForm) -> str:
    """Returns what is in the form: "lmdb (image files)"."""
    return f"{name} ({PAYLOADS.get(form.payload, 'values')})"


def order_words(names: Mapping[str, Any]) -> str:
    """Returns what the libraries of some forms do to the order of samples; "" where none does
    anything.
    """
    other = [FORMS[name].order for name in names if FORMS[name].order]
    if not other:
        return ""
    its = "readers shuffle" if len(other) > 1 else "reader shuffles"
    return f"Here all forms are read by index, in the script's order; {' and '.join(other)}'s own {its} by shards."
