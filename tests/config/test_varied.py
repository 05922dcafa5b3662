"""Settings to vary as they are typed: lists, ranges, switches; what is wrong is one clear line."""

import pytest

from vitprof.config import RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.varied import (
    MOST_IN_RANGE,
    OF_A_JOB,
    OF_A_SCRIPT,
    Value,
    check_values,
    read_numbers,
    read_varied,
    written,
)
from vitprof.errors import ConfigError

WORKERS = RUN_BOUNDS["workers"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", (4,)),
        ("0,2,4", (0, 2, 4)),
        (" 4 , 2, ", (4, 2)),
        ("0..3", (0, 1, 2, 3)),
        ("2..2", (2,)),
        ("0..16:4", (0, 4, 8, 12, 16)),
        ("0..17:4", (0, 4, 8, 12, 16)),
        ("1..64:x2", (1, 2, 4, 8, 16, 32, 64)),
        ("3..80:x3", (3, 9, 27)),
        ("0,1..8:x2,6", (0, 1, 2, 4, 8, 6)),
        ("0..99", tuple(range(MOST_IN_RANGE))),
    ],
)
def test_numbers_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert read_numbers(text, WORKERS) == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give numbers separated by commas, or a range: 0..8 (all of them), 0..16:4"),
        ("2,x", "x is no number: give a whole number from 0 to 512"),
        ("513", "513 is out of bounds: give a whole number from 0 to 512"),
        ("2,4,2", "2 is given twice"),
        ("0..4,4", "4 is given twice"),
        ("0..", "0.. is no range: give one such as 0..8"),
        ("0...8", "0...8 is no range"),
        ("0..8:", "0..8: is no range"),
        ("0..8:*2", "0..8:*2 is no range"),
        ("-1..8", "-1..8 is no range"),
        ("8..0", "8..0 ends before it begins: give the smaller number first"),
        ("0..8:0", "0..8:0 never ends: give a step of 1 or more"),
        ("1..8:x1", "1..8:x1 never ends: give a factor of 2 or more"),
        ("0..64:x2", "0..64:x2 stays at 0: begin with 1 or more, as 0,1..64:x2"),
        ("0..1000", "1000 is out of bounds: give a whole number from 0 to 512"),
        (
            "0..100",
            "0..100 makes 101 numbers, and 100 are allowed: give a larger step, as 0..100:2",
        ),
        (
            "0..512",
            "0..512 makes 513 numbers, and 100 are allowed: give a larger step, as 0..512:6",
        ),
    ],
)
def test_what_is_wrong_with_numbers_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_numbers(text, WORKERS)
    assert str(refused.value).startswith(said)


def test_the_step_that_is_advised_fits() -> None:
    assert len(read_numbers("0..512:6", WORKERS)) <= MOST_IN_RANGE < len(range(0, 513, 5))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("workers=0..4:2", "workers", (0, 2, 4)),
        ("prefetch_factor = 2,4", "prefetch_factor", (2, 4)),
        ("pin_memory=on,off", "pin_memory", (True, False)),
        ("start_method=fork,spawn", "start_method", ("fork", "spawn")),
        ("decode_cache=ram", "decode_cache", ("ram",)),
        ("in_order=on,off", "in_order", (True, False)),
    ],
)
def test_name_and_values(text: str, name: str, values: tuple[Value, ...]) -> None:
    assert read_varied(text, OF_A_SCRIPT) == (name, values)
    check_values(name, values)
    again = f"{name}={','.join(map(written, values))}"
    assert read_varied(again, OF_A_SCRIPT) == (name, values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed=1", "give NAME=VALUE,VALUE; names are workers"),
        ("workers", "give values, such as workers=0,2,4 or 0..8"),
        ("batch_size=,", "give values, such as batch_size=2,4,8 or 2..64:x2"),
        ("workers=2,x", "x is no number"),
        ("prefetch_factor=0..4", "0 is out of bounds"),
        ("pin_memory=yes", "yes is not possible; it is on or off"),
        ("start_method=thread", "it is one of fork, forkserver, spawn"),
        ("decode_cache=disk", "it is one of off, ram"),
        ("in_order=no", "no is not possible; it is on or off"),
        ("sharing_strategy=shm", "it is one of file_descriptor, file_system"),
        ("uint8=yes", "it is one of off, on"),
        ("worker_threads=0,1", "0 is out of bounds: give a whole number from 1 to 512"),
        ("decoder=pil", "it is one of as-is, simplejpeg, torchvision, opencv"),
        ("decoder=", "give values, such as decoder=as-is,simplejpeg,torchvision,opencv"),
        ("worker_threads=", "give values, such as worker_threads=2,4,8"),
        ("pin_memory=on,on", "on is given twice"),
    ],
)
def test_what_cannot_be_varied_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_varied(text, OF_A_SCRIPT)
    assert said in refused.value.allowed
    assert (refused.value.field, refused.value.value) == ("vary", text)


def test_jobs_of_vitprofs_own_take_what_is_a_field_of_their_config() -> None:
    assert set(OF_A_JOB) <= set(RunConfig().to_dict())
    with pytest.raises(ConfigError, match=r"names are workers, .*, batch_size$"):
        read_varied("decode_cache=ram", OF_A_JOB)


@pytest.mark.parametrize(
    ("name", "values"),
    [("workers", (True,)), ("workers", (-1,)), ("pin_memory", (1,)), ("start_method", ("thread",))],
)
def test_values_of_a_store_are_checked(name: str, values: tuple[Value, ...]) -> None:
    with pytest.raises(ConfigError):
        check_values(name, values)
    with pytest.raises(ConfigError, match="at least one value"):
        check_values(name, ())
