"""The price of an hour of a device: what is one, and the line for what is none."""

import pytest

from vitprof.config.device_rate import DEVICE_RATE, DeviceRate, device_rate, rate_if_valid
from vitprof.errors import VitprofError


@pytest.mark.parametrize(
    ("given", "per_hour", "currency"),
    [
        ("2.50", 2.5, ""),
        ("2.50 USD", 2.5, "USD"),
        (" 3EUR ", 3.0, "EUR"),
        (".5 €", 0.5, "€"),
        ("12 credits", 12.0, "credits"),
    ],
)
def test_a_number_and_perhaps_a_currency(
    monkeypatch: pytest.MonkeyPatch, given: str, per_hour: float, currency: str
) -> None:
    monkeypatch.setenv(DEVICE_RATE, given)
    assert device_rate() == rate_if_valid() == DeviceRate(per_hour, currency)


@pytest.mark.parametrize("given", [None, "", "  "])
def test_none_is_given(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv(DEVICE_RATE, raising=False)
    if given is not None:
        monkeypatch.setenv(DEVICE_RATE, given)
    assert device_rate() is None


@pytest.mark.parametrize(
    "given",
    [
        "abc",
        "-1",
        "0",
        "0.0 USD",
        "2,50",
        "$2",
        "1e3",
        "nan",
        "inf",
        "2.5 US D",
        "9" * 9,
        "2 USD/h",
    ],
)
def test_what_is_no_price_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(DEVICE_RATE, given)
    with pytest.raises(VitprofError) as error:
        device_rate()
    said = str(error.value)
    assert said.startswith(f"{DEVICE_RATE}: {given!r} is no price")
    assert "such as 2.50 or '2.50 USD'" in said
    assert "\n" not in said
    assert rate_if_valid() is None
