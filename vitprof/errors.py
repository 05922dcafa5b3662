"""The errors that vitprof raises on purpose, each with a line: what is wrong, where, what to do. Others
are defects.

A message may hold what a user typed, such as a URL with a password in it: secrets are masked here, where
all messages pass.
"""


def _masked(text: str) -> str:
    # takes 20 ms to import, which watched scripts would wait for
    from vitprof.masking import masked

    return masked(text)


class VitprofError(Exception):
    """Base of every error that a person can act on; `str(error)` is the line to show."""


class ConfigError(VitprofError):
    """A setting that cannot be used. Carries the field so that each front end can name it its own way."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        if isinstance(value, str):
            value = _masked(value)
        allowed = _masked(allowed)
        super().__init__(f"{field}: {value!r} is not possible; {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class DataError(VitprofError):
    """A data set that is missing, damaged, or cannot be made here."""


class SampleError(DataError):
    """A single sample that cannot be read. The run fails with it unless `skip_unreadable` is set."""


UNREADABLE_SAMPLE = "unreadable_sample"
"""Name of the fact of a run that a `SampleError` ended; true."""


class StoreError(VitprofError):
    """The run store cannot be opened, read or written, or holds no such run."""


class StoreAwayError(StoreError):
    """The run store cannot be used right now (locked, full, restarting); `why` says what is wrong in a few
    words.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class StoreGoneError(StoreAwayError):
    """The file of the run store was deleted or replaced while this program had it open: what is written
    there now is in no store, and only a program that opens it anew can use it.
    """


class StoreOverwrittenError(StoreGoneError):
    """The file of the run store has other content than its programs wrote: another one was copied over it,
    or it is damaged. What it has of a run may be another run's.
    """


class JobError(VitprofError):
    """A job that could not be started or ended in a way that its own exception does not explain."""


class JobStopped(VitprofError):
    """A request to stop, raised inside the job; what was measured until then is kept."""


class DeviceError(VitprofError):
    """A device that is not here, or not usable by this PyTorch."""


PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "lance": "pylance",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "streaming": "mosaicml-streaming",
    "yaml": "pyyaml",
}
"""Module -> the package on PyPI that has it, where their names differ. `lance` and `streaming` are there
as well, and are something else."""


def package_of(module: str) -> str:
    """Returns the package to install for a module."""
    name = module.partition(".")[0]
    return PACKAGES.get(name, name)


def missing_package(error: ImportError) -> str:
    """Returns which package is missing, and how to install it; of one that is there and does not fit,
    what is wrong."""
    if not (isinstance(error, ModuleNotFoundError) and error.name):
        return one_line(error)
    package = package_of(error.name)
    return f"the package {package} is missing: pip install {package}"


def one_line(error: BaseException) -> str:
    """Returns the line to show for `error`: a `VitprofError`'s message, otherwise the type and the
    message's first line.

    Of an exception from a DataLoader worker it is the last line: PyTorch puts the worker's traceback in
    front. Secrets in it are masked.
    """
    return _masked(_line_of(error))


def _line_of(error: BaseException) -> str:
    kind = type(error)
    is_own = isinstance(error, VitprofError)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_of_a_worker = len(lines) > 1 and lines[1].startswith("Original Traceback")
    if is_of_a_worker:
        last = lines[-1]
        if is_own:
            return last.removeprefix(f"{kind.__module__}.{kind.__qualname__}: ")
        return last if ": " in last else f"{kind.__name__}: {last}"
    if is_own:
        return " ".join(lines)
    return ": ".join([kind.__name__, *lines[:1]])
