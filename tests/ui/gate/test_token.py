"""The token: taken out of the environment, compared, remembered by a browser, and not to be guessed."""

from __future__ import annotations

import pytest

from vitprof.errors import VitprofError
from vitprof.ui.gate.token import FROM_ALL, FROM_ONE, KNOWN_FOR_S, WINDOW_S, Attempts, Token, take_token

TEXT = "correct horse battery"


def test_jobs_do_not_inherit_it() -> None:
    environ = {"VITPROF_TOKEN": f" {TEXT}\n", "PATH": "/bin"}
    assert (take_token(environ), environ) == (Token(TEXT, generated=False), {"PATH": "/bin"})
    assert take_token(environ) is None
    assert take_token({"VITPROF_TOKEN": " "}) is None


def test_one_that_is_made_differs_each_time() -> None:
    first, second = (take_token({"VITPROF_TOKEN": "auto"}) for _ in range(2))
    assert first is not None
    assert first.generated
    assert len(first.text) > 40
    assert first != second


def test_a_short_one_is_refused_without_saying_it() -> None:
    environ = {"VITPROF_TOKEN": "secret"}
    with pytest.raises(VitprofError, match=r"^VITPROF_TOKEN has 6 characters: give 16 or more, or auto ") as caught:
        take_token(environ)
    assert "secret" not in str(caught.value)
    assert not environ


def test_only_the_token_itself_is_right() -> None:
    token = Token(TEXT, generated=False)
    assert token.is_right(TEXT)
    for wrong in ("", TEXT[:-1], TEXT + " ", TEXT.upper(), "ü" * len(TEXT)):
        assert not token.is_right(wrong)
    assert TEXT not in repr(token)
    assert Token("\udcff" * 16, generated=False).is_right("\udcff" * 16), "bytes of the environment that are no text"


def test_a_pass_is_of_one_token_and_ends() -> None:
    token, now = Token(TEXT, generated=False), 1_000_000.0
    value = token.pass_for(now)
    assert TEXT not in value
    assert token.is_pass(value, now)
    assert token.is_pass(value, now + KNOWN_FOR_S)
    assert not token.is_pass(value, now + KNOWN_FOR_S + 1)
    assert not token.is_pass(value, now - 1), "issued in the future"
    assert not Token(TEXT + "!", generated=False).is_pass(value, now)
    issued, _, signature = value.partition(".")
    for forged in (
        "",
        ".",
        issued,
        f"{int(issued) + 1}.{signature}",
        f"{issued}.{signature[:-1]}",
        f"-1.{signature}",
        "²." + signature,
    ):
        assert not token.is_pass(forged, now)


def test_guessing_is_slowed_down_for_one_and_for_all() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    assert [attempts.wait_s("a") for _ in range(FROM_ONE)] == [0.0] * FROM_ONE
    now = 10.0
    assert attempts.wait_s("a") == WINDOW_S - 10
    assert attempts.wait_s("b") == 0.0, "another one is not kept out by it"
    now = WINDOW_S
    assert attempts.wait_s("a") == 0.0
    now = 1000.0
    waits = [attempts.wait_s(f"address {i}") for i in range(FROM_ALL + 1)]
    assert waits == [0.0] * FROM_ALL + [WINDOW_S]
    now += WINDOW_S
    assert attempts.wait_s("a") == 0.0
