"""The token of a dashboard: what a person types once, and what their browser shows from then on."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

from vitprof.errors import VitprofError

VARIABLE = "VITPROF_TOKEN"
MADE_AT_START = "auto"
"""The variable's value for a token that is made at the start and printed, as the container has it."""
SHORTEST = 16
"""Characters of a token; one that `secrets.token_urlsafe()` makes has 43."""
KNOWN_FOR_S = 7 * 24 * 3600
"""How long a browser that is not closed need not be told the token again."""
WINDOW_S = 60.0
FROM_ONE, FROM_ALL = 5, 60
"""Tokens that may be tried in `WINDOW_S`: from one address, and from all of them together."""


@dataclass(frozen=True)
class Token:
    """What whoever opens the dashboard has to know."""

    text: str
    """Its characters. Never shown, logged or put in a URL, but for one that was made at the start: printed once."""
    made: bool
    """Whether it was made at the start, so that somebody has to be told."""

    def __repr__(self) -> str:
        return f"Token(made={self.made})"

    def is_right(self, given: str) -> bool:
        """Returns whether `given` is the token; in the same time wherever they differ."""
        return hmac.compare_digest(_bytes(given), _bytes(self.text))

    def pass_for(self, now: float) -> str:
        """Returns what a browser that was told the token keeps; `now` in seconds since 1970."""
        issued = str(int(now))
        return f"{issued}.{self._signature(issued)}"

    def is_pass(self, value: str, now: float) -> bool:
        """Returns whether `value` came from `pass_for`, of this token, and is not too old."""
        issued, _, signature = value.partition(".")
        if not (issued.isdecimal() and issued.isascii() and len(issued) <= 12):
            return False
        right = hmac.compare_digest(_bytes(signature), _bytes(self._signature(issued)))
        return right and 0 <= now - int(issued) <= KNOWN_FOR_S

    def _signature(self, issued: str) -> str:
        return hmac.new(_bytes(self.text), f"vitprof pass {issued}".encode(), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # a variable may hold bytes that are no text


def take_token(environ: MutableMapping[str, str]) -> Token | None:
    """Takes the token out of the environment, where jobs would inherit it; None where there is none.

    Raises `VitprofError` where it is too short to keep anybody out.
    """
    text = environ.pop(VARIABLE, "").strip()
    if not text:
        return None
    if text == MADE_AT_START:
        return Token(secrets.token_urlsafe(), made=True)
    if len(text) < SHORTEST:
        raise VitprofError(
            f"{VARIABLE} has {len(text)} characters: give {SHORTEST} or more, or {MADE_AT_START} for one that is made "
            "at the start"
        )
    return Token(text, made=False)


class Attempts:
    """How often a token was tried lately. Right ones count too: nobody learns from a refusal what was right."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: deque[tuple[float, str]] = deque()

    def wait_s(self, address: str) -> float:
        """Counts one more from `address` and returns 0; or the seconds until one may be made there, and counts none."""
        now = self._clock()
        while self._tried and now - self._tried[0][0] >= WINDOW_S:
            self._tried.popleft()
        mine = [when for when, where in self._tried if where == address]
        for times, most in ((mine, FROM_ONE), ([when for when, _ in self._tried], FROM_ALL)):
            if len(times) >= most:
                return max(WINDOW_S - (now - times[-most]), 1.0)
        self._tried.append((now, address))
        return 0.0
