"""Numbers as a person reads them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof import formats

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "shown", [formats.number, formats.percent, formats.seconds, formats.size, formats.energy]
)
@pytest.mark.parametrize("value", [None, NAN, INF, -INF])
def test_what_is_not_available_is_never_a_number(shown: object, value: float | None) -> None:
    assert callable(shown)
    assert shown(value) == formats.NOT_AVAILABLE


@pytest.mark.parametrize(
    ("words", "begun", "sentence"),
    [
        ("num_workers=2 in the DataLoader", "Num_workers=2 in the DataLoader", None),
        ("it is PyTorch's own.", "It is PyTorch's own.", "It is PyTorch's own."),
        ("H100", "H100", "H100."),
        ("", "", "."),
    ],
)
def test_a_sentence_begins_with_a_capital_and_ends_with_one_stop(
    words: str, begun: str, sentence: str | None
) -> None:
    assert formats.capitalised(words) == begun
    assert formats.sentence(words) == (sentence or f"{begun}.")


def test_steps_are_counted_by_what_they_are() -> None:
    assert formats.steps(1) == "1 steady step"
    assert formats.steps(52, 3) == "52 steady steps and 3 epoch starts"
    assert formats.steps(1_200, 1) == "1,200 steady steps and 1 epoch start"


def test_cores_are_said_with_those_of_the_machine_where_they_are_known() -> None:
    assert formats.cores(1.37, 2.0) == "1.4 of 2 cores"
    assert formats.cores(0.8) == "0.8 cores"
    assert formats.cores(-0.04, 64.0) == "0.0 of 64 cores", "two readings, a moment apart"
    assert formats.cores(NAN, 2.0) == formats.NOT_AVAILABLE


CASES: dict[Any, dict[float, str]] = {
    formats.number: {
        0: "0",
        1: "1.00",
        9.996: "10.0",
        99.94: "99.9",
        99.96: "100",
        999.9: "1,000",
        12_549: "12,500",
    }
    | {1_234_567: "1,230,000", 0.0012345: "0.00123", -3.14159: "-3.14"}
    | {1e-6: "0.000001", 4e-7: "0", -1e-13: "0"},
    formats.percent: {
        0: "0.0%",
        0.0012: "0.1%",
        0.0994: "9.9%",
        0.0999: "10%",
        0.1: "10%",
        0.456: "46%",
        1: "100%",
    }
    | {0.994: "99%", 0.996: "99.6%", 0.9996: "100%"},
    formats.seconds: {
        0: "0 µs",
        -1e-13: "0 µs",
        4e-10: "0 µs",
        6e-10: "0.000600 µs",
        8.5e-5: "85.0 µs",
        0.99996e-3: "1.00 ms",
        0.01234: "12.3 ms",
        0.99996: "1.00 s",
        4.56: "4.56 s",
    }
    | {99.96: "1 min 40 s", 200: "3 min 20 s", 3599.4: "59 min 59 s", 3599.6: "1 h 00 min"}
    | {3900: "1 h 05 min", 7199: "2 h 00 min", 100 * 3600: "100 h 00 min"},
    formats.energy: {
        0: "0 J",
        12.3: "12.3 J",
        999.6: "1.00 kJ",
        22_200: "22.2 kJ",
        3.4e6: "3.40 MJ",
    },
    formats.size: {
        0: "0 B",
        512: "512 B",
        1024: "1.00 KiB",
        1.5 * 2**20: "1.50 MiB",
        1.23 * 2**30: "1.23 GiB",
    }
    | {80 * 2**30: "80.0 GiB", 3 * 2**40: "3.00 TiB", 5000 * 2**40: "5,000 TiB"},
    formats.ordinal: {
        2: "2nd",
        3: "3rd",
        4: "4th",
        11: "11th",
        12: "12th",
        21: "21st",
        113: "113th",
    },
}


@pytest.mark.parametrize("shown", CASES)
def test_a_figure_has_the_digits_and_the_unit_that_suit_it(shown: Callable[[float], str]) -> None:
    assert {value: shown(value) for value in CASES[shown]} == CASES[shown]


def test_a_number_may_have_a_unit() -> None:
    assert formats.number(12_549, "samples/s") == "12,500 samples/s"


@given(st.floats(1e-3, 1e12))
def test_a_number_is_never_off_by_more_than_half_of_its_third_digit(value: float) -> None:
    assert float(formats.number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("value", "currency", "words"),
    [
        (0.0, "USD", "0 USD"),
        (0.00299, "USD", "0.00299 USD"),
        (0.0000012345, "", "0.00000123"),
        (0.5, "EUR", "0.500 EUR"),
        (0.996, "EUR", "1.00 EUR"),
        (2.5, "", "2.50"),
        (1234.5, "USD", "1,234.50 USD"),
        (NAN, "USD", formats.NOT_AVAILABLE),
        (None, "USD", formats.NOT_AVAILABLE),
    ],
)
def test_money_has_cents_and_below_one_three_digits(
    value: float | None, currency: str, words: str
) -> None:
    assert formats.money(value, currency) == words
