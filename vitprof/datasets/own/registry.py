"""The user's own data sets by name, in `datasets.json` of vitprof's home."""

import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from vitprof import formats
from vitprof.errors import ConfigError, VitprofError
from vitprof.masking import masked
from vitprof.names import in_one_line
from vitprof.program import program

FILE = "datasets.json"
ELSEWHERE = "elsewhere:"
"""How the spec of a data set of another machine begins: it is not read here."""


@dataclass(frozen=True)
class OwnSet:
    """A data set that was looked at and given a name."""

    name: str
    """Its name, for `--dataset`."""
    spec: str
    """As `specs.parse` reads it, with an absolute path. A URL may have a password in it: what is shown
    or leaves this machine is of `without_secrets`."""
    n_train: int
    """Samples for training."""
    n_test: int
    """Samples for testing."""
    classes: int
    """Labels."""
    image_size: int
    """Side in pixels of the square that loaders crop samples to."""
    n_bytes: int
    """Bytes of its image files, or of their encoded bytes."""
    stamp: str
    """Changes where its samples have: it is then brought into its place again."""
    below: str = ""
    """Folders, separated as in PATH, that links may lead to: those of a page that added it; "":
    anywhere."""
    unreadable: int = 0
    """Samples that could not be read when it was looked at."""
    opened: int = 0
    """Samples that were opened then; 0: not known."""
    made_bytes: int | None = None
    """Bytes of the images that are unpacked or converted first, about; the others are read where they
    are. None: not known."""
    removed: bool = False
    """Whether its name is free again; its runs still know it."""

    def without_secrets(self) -> "OwnSet":
        """Returns it with a mask for passwords and tokens in its URL."""
        return replace(self, spec=masked(self.spec))

    @property
    def unreadable_words(self) -> str:
        """Returns how many samples cannot be read, such as "1 of 600 images can't be read"; "" for
        none.
        """
        if not self.unreadable:
            return ""
        least = "" if self.opened >= self.n_train + self.n_test else "At least "
        images = formats.count(self.n_train + self.n_test, "image")
        return f"{least}{self.unreadable:,} of {images} can't be read"

    @property
    def to_add(self) -> str:
        """Returns the command that looks at it again."""
        spec = self.without_secrets().spec.removeprefix(ELSEWHERE)
        return f"{program()} datasets add {self.name} {shlex.quote(spec)}"


@dataclass(frozen=True)
class LookReport:
    """What was found, of the samples that were opened."""

    own: OwnSet
    """What is kept of it."""
    opened: int
    """Samples that were opened."""
    formats: dict[str, int]
    """Format of the file -> samples."""
    modes: dict[str, int]
    """Kind of pixels -> samples."""
    widths: tuple[int, int, int]
    """Least, median and most pixels of the shorter side."""
    rotated: int
    """Samples whose EXIF says that they are to be turned, which loaders do not do."""
    unreadable: tuple[str, ...]
    """A line for each of those that cannot be read."""
    notes: tuple[str, ...]
    """What was left out or is special, a line each."""
    read_ms: float
    """Median time to read a sample."""

    def lines(self) -> list[str]:
        """Returns what was found, a line each."""
        own = self.own
        least, median, most = self.widths
        n = own.n_train + own.n_test
        opened = "all were opened"
        if self.opened < n:
            opened = f"{self.opened:,} were opened"
        counts = [*self.formats.items(), *self.modes.items()]
        kinds = ", ".join(f"{samples:,} {name}" for name, samples in counts)
        training = formats.count(own.n_train, "sample")
        classes = "1 class" if own.classes == 1 else f"{own.classes:,} classes"
        crops = formats.size(COLOURS * own.image_size**2 * n)
        lines = [
            f"{own.name}: {training} for training, {own.n_test:,} for testing, {classes}",
            f"{formats.size(own.n_bytes)} of files; {opened}: {kinds}",
            f"shorter side {least:,} to {most:,} px, half of them at least {median:,};"
            f" crops of {own.image_size} px",
            f"pixels of all crops: {crops}, in RAM for memory, on the GPU for device",
            f"read in {formats.seconds(self.read_ms / 1e3)} each (median)",
        ]
        if self.rotated:
            has = "sample has" if self.rotated == 1 else "samples have"
            lines.append(
                f"{self.rotated:,} {has} an EXIF rotation, which loaders ignore, as torchvision's do"
            )
        if self.unreadable:
            bad = formats.count(len(self.unreadable), "sample")
            lines.append(f"{bad} cannot be read: {'; '.join(self.unreadable[:NAMED])}")
        # Names of files and labels are in them.
        return [in_one_line(line) for line in (*lines, *self.notes)]


COLOURS = 3
"""Bytes of a pixel: grey images become RGB, as a loader's model takes them."""
NAMED = 3
"""Unreadable samples that are named."""


def path() -> Path:
    return _home() / FILE


def _home() -> Path:
    # Imported here: a watched script's Python may lack what it imports.
    from vitprof import home

    return home.home()


def everything() -> dict[str, OwnSet]:
    """Returns all that were ever added, by name, and those that `introduce` made known for a while.

    Raises `VitprofError` for a file that is not as vitprof writes it.
    """
    introduced = _guests.get() or {}
    return introduced | _in_file()


def _in_file() -> dict[str, OwnSet]:
    try:
        changed = path().stat()
    except OSError:
        return {}
    return _read(path(), changed.st_mtime_ns, changed.st_size)


_guests: ContextVar[dict[str, OwnSet] | None] = ContextVar("data sets of files", default=None)
"""Data sets of runs in files that are read just now."""


@contextmanager
def guests() -> Iterator[None]:
    """Data sets that `introduce` makes known inside are forgotten at the end: nothing is written of
    them.

    Inside another such block they are known to its end.
    """
    if _guests.get() is not None:
        yield
        return
    token = _guests.set({})
    try:
        yield
    finally:
        _guests.reset(token)


@lru_cache(maxsize=4)
def _read(file: Path, changed_ns: int, n_bytes: int) -> dict[str, OwnSet]:
    """Reads the file again only when its time or size changed: every config asks for its data set."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {name: OwnSet(name=name, **facts) for name, facts in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise VitprofError(
            f"{file} is damaged ({error}); move it away, and add the data sets again"
        ) from error


def listed() -> dict[str, OwnSet]:
    """Returns those that can be chosen; none where the file cannot be read, or there is no home
    directory.
    """
    with suppress(VitprofError, RuntimeError):
        return {name: own for name, own in everything().items() if not own.removed}
    return {}


VITPROFS = ("digits", "mnist", "photos")
"""Names of the data sets that come with vitprof."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
"""What a name may be: it becomes a folder's name and a word on the command line."""


def ensure_name(name: str) -> None:
    """Raises `ConfigError` for a name that a data set of the user's cannot have."""
    if name in VITPROFS:
        raise ConfigError(
            "dataset", name, "vitprof has a data set of its own with this name; choose another one"
        )
    if not NAME.fullmatch(name):
        raise ConfigError("dataset", name, "a name has letters, digits, - and _, at most 60")


def add(own: OwnSet) -> None:
    """Adds a data set, or replaces the one with its name. Raises `ConfigError`, `VitprofError`."""
    ensure_name(own.name)
    _write(own)


def remove(name: str) -> None:
    """Removes a name, and what vitprof made of its data set.

    Raises `ConfigError` where it is not one.
    """
    every = everything()
    if name not in every or every[name].removed:
        raise ConfigError(
            "dataset", name, f"you have no such data set; you have {', '.join(listed()) or 'none'}"
        )
    _write(replace(every[name], removed=True))
    for folder in ("data", "prepared"):
        shutil.rmtree(_home() / folder / f"own-{name}", ignore_errors=True)


def introduce(own: OwnSet) -> None:
    """Makes known what a run in a file says of its data set, up to the end of `guests`.

    One's own with that name stays. Raises `ConfigError`.
    """
    ensure_name(own.name)
    has_samples = own.n_train > 0 and own.n_test >= 0 and own.classes > 0
    has_pixels = has_samples and own.image_size > 0 and own.n_bytes > 0
    if not has_pixels:
        raise ConfigError("dataset", own.name, "what the file says of it cannot be")
    introduced = _guests.get()
    if introduced is not None:
        known = own.without_secrets()
        spec = f"{ELSEWHERE}{known.spec.removeprefix(ELSEWHERE)}"
        introduced.setdefault(own.name, replace(known, spec=spec, removed=True))


def remember(name: str) -> None:
    """Keeps what `introduce` made known of the data set of a run that is imported, unless there is
    one with that name. Raises `VitprofError`.
    """
    own = (_guests.get() or {}).get(name)
    if own is not None and name not in _in_file():
        _write(own)


def name_of(spec: str) -> str:
    """Returns the name of the data set with this spec; a new one where there is none."""
    for own in listed().values():
        if own.spec == spec:
            return own.name
    last = masked(spec).partition("?")[0].rstrip("/").rpartition("/")[2]
    words = re.sub(r"[^A-Za-z0-9_]+", "-", last).strip("-_")[:50] or "my-data"
    taken = {*VITPROFS, *everything()}
    # my-data, my-data-2, my-data-3, ...
    names = itertools.chain([words], (f"{words}-{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in taken and NAME.fullmatch(name))


def _write(own: OwnSet) -> None:
    """Puts a data set in place of the one with its name, among what others write at the same time."""
    from filelock import FileLock

    from vitprof import home

    file = home.ensure_dir(_home()) / FILE
    try:
        with FileLock(f"{file}.lock"):
            every = _in_file() | {own.name: own}
            content = {
                name: {k: v for k, v in asdict(one).items() if k != "name"}
                for name, one in every.items()
            }
            # Written under another name first: a reader, or a full disk, never sees half a file.
            # Readable by its owner only: specs may have passwords.
            temporary = home.private_file(file.with_name(f".{FILE}.{os.getpid()}"))
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            os.replace(temporary, file)
    except OSError as error:
        raise VitprofError(f"cannot write {file}: {error.strerror or error}") from error
