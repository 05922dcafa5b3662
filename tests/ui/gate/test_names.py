"""Which names a server answers to, and which pages are its own."""

from __future__ import annotations

import pytest

from vitprof.ui.gate.middleware import is_named, is_own_page, is_this_machine

OWN = ("localhost", "127.0.0.1", "::1", "*.lab.example")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.:8501", "127.0.0.1", "[::1]:8501", "a.lab.example"]
)
def test_allowed_with_any_port(host: str) -> None:
    assert is_named(host, OWN)
    assert is_named(host, ("*",))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "lab.example",
        "evillab.example",
        "127.0.0.2",
        "::1",
        "[::2]",
        "[::1",
        "localhost:port",
        "localhost:99999",
        "me@localhost",
        "evil.example@localhost",
        "localhost/path",
        "localhost?",
        "localhost#",
        "local\thost",
        "2130706433",
    ],
)
def test_refused(host: str) -> None:
    assert not is_named(host, OWN)


def test_an_empty_list_allows_every_name_that_is_one() -> None:
    assert is_named("evil.example", ())
    assert not is_named("", ())


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8501", "localhost:8501", True),
        ("https://lab.example", "lab.example", True),  # a proxy ends TLS
        ("http://[::1]:8501", "[::1]:8501", True),
        ("http://LOCALHOST", "localhost", True),
        ("http://localhost:8502", "localhost:8501", False),
        ("http://127.0.0.1:8501", "localhost:8501", False),
        ("http://localhost", "localhost:8501", False),
        ("null", "localhost", False),
        ("null", "null", False),
        ("file://", "", False),
        ("chrome-extension://localhost", "localhost", False),
        ("localhost", "localhost", False),
        ("", "", False),
    ],
)
def test_a_page_of_its_own_has_its_name_and_port(origin: str, host: str, own: bool) -> None:
    assert is_own_page(origin, host) is own


def test_addresses_of_this_machine() -> None:
    narrow = ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "unix:/run/vitprof")
    assert all(map(is_this_machine, narrow))
    assert not any(map(is_this_machine, (None, "0.0.0.0", "::", "192.168.1.7", "my-host", "")))
