"""Settings that a tournament varies, as a person writes them: `NAME=VALUES`, such as `workers=0,2,4`.

Numbers may also be a range: `0..8` (all of them), `0..16:4` (every fourth), `1..64:x2` (doubled each
time). Ranges and numbers go together: `0,1..64:x2`.
"""

import math
import re
from collections.abc import Iterator, Sequence

from vitprof.config import CHOICES, bounds
from vitprof.config.script_decoders import AS_IS, LIBRARIES
from vitprof.errors import ConfigError
from vitprof.forms import FORMS

Value = int | bool | str
NUMBERS: dict[str, bounds.Bounds] = {
    "workers": bounds.RUN_BOUNDS["workers"],
    "prefetch_factor": bounds.RUN_BOUNDS["prefetch_factor"],
    "batch_size": bounds.RUN_BOUNDS["batch_size"],
    "worker_threads": bounds.WORKER_THREADS,
}
"""Settings whose values are numbers -> bounds."""
SWITCHES = ("pin_memory", "persistent_workers", "in_order")
STORAGE = "storage"
"""What a plan to convert the samples varies (`vitprof.forms`)."""
NAMED: dict[str, tuple[str, ...]] = {
    "start_method": CHOICES["start_method"],
    "decode_cache": ("off", "ram"),
    "pack": ("off", "on"),
    "uint8": ("off", "on"),
    "across_epochs": ("off", "on"),
    "sharing_strategy": ("file_descriptor", "file_system"),
    "decoder": (AS_IS, *LIBRARIES),
    STORAGE: tuple(FORMS),
}
"""Settings whose values have names -> these."""
OF_A_JOB = (
    "workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "start_method",
    "batch_size",
)
"""Settings that are varied for jobs of vitprof's own: fields of `RunConfig`."""
OTHERS_OF_A_JOB = tuple(name for name in OF_A_JOB if name not in ("workers", "batch_size"))
"""Those of them that every tournament leaves to the strategies unless they are named."""
OF_A_SCRIPT = (
    *OF_A_JOB,
    "decode_cache",
    "pack",
    "uint8",
    "in_order",
    "across_epochs",
    "sharing_strategy",
    "worker_threads",
    "decoder",
)
"""Settings that are varied for a user's own script."""
NEED_WORKERS = ("prefetch_factor", "persistent_workers", "start_method")
"""Settings that mean nothing without workers."""
OF_A_SCRIPT_NEED_WORKERS = (
    *NEED_WORKERS,
    "pack",
    "uint8",
    "in_order",
    "across_epochs",
    "sharing_strategy",
    "worker_threads",
)
"""The same of `OF_A_SCRIPT`."""
MOST_IN_RANGE = 100
"""Most numbers of a range. More are a slip of the pen, or need a step: nobody waits for so many runs."""
RANGE = re.compile(
    r"(?P<first>\d{1,20})\.\.(?P<last>\d{1,20})(?::(?P<times>x?)(?P<step>\d{1,20}))?", re.ASCII
)
"""A range, with its step or factor. Bounded: Python refuses to read thousands of digits."""
EXAMPLES = "0..8 (all of them), 0..16:4 (every fourth) or 1..64:x2 (doubled each time)"


def read_varied(text: str, names: Sequence[str]) -> tuple[str, tuple[Value, ...]]:
    """Returns name and values of a text such as "workers=0..8" or "pin_memory=on,off".

    `names`: the settings that can be varied. Raises `ConfigError`.
    """
    name, separator, values = text.partition("=")
    name = name.strip()
    if name not in names:
        raise ConfigError("vary", text, f"give NAME=VALUE,VALUE; names are {', '.join(names)}")
    if not separator or not values.strip(" ,"):
        raise ConfigError("vary", text, f"give values, such as {name}={_example(name)}")
    try:
        if name in NUMBERS:
            return name, read_numbers(values, NUMBERS[name])
        parts = _parts(values)
        _check_each_once(parts)
        return name, tuple(_read_name(name, value) for value in parts)
    except ValueError as error:
        raise ConfigError("vary", text, str(error)) from None


def read_numbers(text: str, allowed: bounds.Bounds) -> tuple[int, ...]:
    """Returns the whole numbers of a text, at least one: "0,2,4", "0..8", "0..16:4", "0,1..64:x2".

    Raises `ValueError` that says what is wrong and what is allowed.
    """
    numbers: list[int] = []
    for part in _parts(text):
        numbers += _numbers_of(part, allowed)
    if not numbers:
        raise ValueError(f"give numbers separated by commas, or a range: {EXAMPLES}")
    _check_each_once(numbers)
    return tuple(numbers)


def _numbers_of(part: str, allowed: bounds.Bounds) -> Sequence[int]:
    """Returns the numbers of a range, or a single one. Raises `ValueError`."""
    if ".." in part:
        return _range_of(part, allowed)
    try:
        number = int(part)
    except ValueError:
        # the message of `int` speaks of bases and literals
        raise ValueError(f"{part} is no number: {allowed.allowed}") from None
    _check_within(number, allowed)
    return [number]


def _range_of(part: str, allowed: bounds.Bounds) -> Sequence[int]:
    """Returns the numbers of a range such as "0..16:4", both ends included. Raises `ValueError`."""
    match = RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"{part} is no range: give one such as {EXAMPLES}")
    first = int(match["first"])
    last = int(match["last"])
    step = int(match["step"] or 1)
    if last < first:
        raise ValueError(f"{part} ends before it begins: give the smaller number first, as 0..8")
    _check_within(first, allowed)
    _check_within(last, allowed)
    if match["times"]:
        return _multiplied(part, first, last, step)
    if step == 0:
        raise ValueError(f"{part} never ends: give a step of 1 or more, as 0..16:4")
    numbers = range(first, last + 1, step)
    if len(numbers) > MOST_IN_RANGE:
        fits = math.ceil((last - first) / (MOST_IN_RANGE - 1))
        raise ValueError(
            f"{part} makes {len(numbers):,} numbers, and {MOST_IN_RANGE} are allowed: "
            f"give a larger step, as {first}..{last}:{fits}"
        )
    return numbers


def _multiplied(part: str, first: int, last: int, factor: int) -> Sequence[int]:
    """Returns `first` and its multiples by powers of `factor`, up to `last`. Raises `ValueError`."""
    if factor < 2:
        raise ValueError(f"{part} never ends: give a factor of 2 or more, as 1..64:x2")
    if first == 0:
        raise ValueError(f"{part} stays at 0: begin with 1 or more, as 0,1..{last}:x{factor}")
    return list(_powers(first, last, factor))


def _check_within(number: int, allowed: bounds.Bounds) -> None:
    """Raises `ValueError` for a number that is not allowed."""
    if not allowed.least <= number <= allowed.most:
        raise ValueError(f"{number} is out of bounds: {allowed.allowed}")


def _powers(first: int, last: int, factor: int) -> Iterator[int]:
    number = first
    while number <= last:
        yield number
        number *= factor


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_each_once(values: Sequence[object]) -> None:
    """Raises `ValueError` that names the first value that is given twice."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{value} is given twice")
        seen.add(value)


def _read_name(name: str, value: str) -> Value:
    """Returns the value of a switch, or of a setting whose values have names. Raises `ValueError`."""
    if name in SWITCHES:
        if value not in ("on", "off"):
            raise ValueError(f"{value} is not possible; it is on or off")
        return value == "on"
    if value not in NAMED[name]:
        raise ValueError(f"{value} is not possible; it is one of {', '.join(NAMED[name])}")
    return value


def _example(name: str) -> str:
    if name in NUMBERS:
        return "0,2,4 or 0..8" if name == "workers" else "2,4,8 or 2..64:x2"
    return "on,off" if name in SWITCHES else ",".join(NAMED[name])


def written(value: object) -> str:
    """Returns a value as it is typed: switches as "on" and "off"."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def setting_words(name: str, value: object) -> str:
    """Returns a setting in words, as it is in a trial's key: "prefetch factor 4", "pin memory off"."""
    words = name.replace("_", " ")
    if value is True:
        return words
    return f"{words} {written(value)}"


def check_varied(vary: Sequence[tuple[str, Sequence[object]]], names: Sequence[str]) -> None:
    """Raises `ConfigError` where settings and their values, such as a store has them, are not each one of
    `names` once, with values that it can have.
    """
    varied_names = [name for name, _ in vary]
    for name, values in vary:
        if name not in names:
            raise ConfigError("vary", name, f"choose one of {', '.join(names)}")
        if varied_names.count(name) > 1:
            raise ConfigError("vary", name, "give each one once, with all its values")
        check_values(name, values)


def check_values(name: str, values: Sequence[object]) -> None:
    """Raises `ConfigError` where `values`, such as a store has them, are not all values of `name`, or none
    is given.
    """
    if not values:
        raise ConfigError("vary", name, "give at least one value")
    for value in values:
        if not _is_value(name, value):
            raise ConfigError(name, value, "it is not in the form that vitprof writes")


def _is_value(name: str, value: object) -> bool:
    if name in SWITCHES:
        return isinstance(value, bool)
    if name not in NUMBERS:
        return value in NAMED[name]
    allowed = NUMBERS[name]
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and allowed.least <= value <= allowed.most  # type: ignore[operator]
